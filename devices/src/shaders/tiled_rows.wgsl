// Rows of matrices for many tokens; results, table and batches as in `rows.wgsl`. The last panels of a batch are repeated,
// with no rows that count, until there are whole workgroups.

@group(0) @binding(3) var<storage, read_write> results: array<f32>; // of a batch: [n_tokens, width]

// `first` is that of the token's results.
fn store(first: u32, first_panel: u32, row: u32, sums: vec4<f32>) {
    for (var i = 0u; i < PANELS; i++) {
        let panel = table[first_panel + i];
        if (row < panel[2]) {
            results[first + panel[1] + row] = sums[i];
        }
    }
}

fn brought(lane: u32, panel: u32, first: u32, origin: u32) -> Brought {
    if (!brings_row(lane)) {
        return brought_token(lane, first, params.n_blocks, origin, params.n_tokens);
    }
    let block = first + lane / TILE_ROWS;
    if (block >= params.n_blocks) {
        return Brought(vec4(0u), vec4(0u), vec4(0u));
    }
    return brought_row(lane, panel + block / BLOCKS * TILE_WORDS, block % BLOCKS);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let batch = given[params.batches_at + 2u * group.z];
    let out = given[params.batches_at + 2u * group.z + 1u];
    let first_token = group.y * TOKENS;
    if (group.x * PANELS >= batch[1] || first_token >= batch[2]) {
        return;
    }
    let first_panel = batch[0] + group.x * PANELS;
    let n_tokens = min(TOKENS, batch[2] - first_token);
    let origin = named(batch[3], brought_number(lane, first_token, batch[2]));
    let panel = table[first_panel + lane % TILE_ROWS / ROWS][0];
    let t = lane / ROWS;
    // Of the tokens t, t + 16, t + 32 and t + 48.
    var a = vec4(0.0);
    var b = vec4(0.0);
    var c = vec4(0.0);
    var d = vec4(0.0);
    for (var first = 0u; first < params.n_blocks + STEP; first += STEP) {
        let next = brought(lane, panel, first, origin);
        // Of the step that was placed before, if there was one.
        let n = select(min(STEP, params.n_blocks + STEP - first), 0u, first == 0u);
        for (var step = 0u; step < n; step++) {
            let w = rows_of(step, lane);
            a = added(a, w, step, t);
            if (n_tokens > 16u) {
                b = added(b, w, step, t + 16u);
            }
            if (n_tokens > 32u) {
                c = added(c, w, step, t + 32u);
            }
            if (n_tokens > 48u) {
                d = added(d, w, step, t + 48u);
            }
        }
        workgroupBarrier();
        place(lane, next);
        workgroupBarrier();
    }
    let result = out[0] + (first_token + t) * out[1];
    if (t < n_tokens) {
        store(result, first_panel, lane % ROWS, a);
    }
    if (t + 16u < n_tokens) {
        store(result + 16u * out[1], first_panel, lane % ROWS, b);
    }
    if (t + 32u < n_tokens) {
        store(result + 32u * out[1], first_panel, lane % ROWS, c);
    }
    if (t + 48u < n_tokens) {
        store(result + 48u * out[1], first_panel, lane % ROWS, d);
    }
}
