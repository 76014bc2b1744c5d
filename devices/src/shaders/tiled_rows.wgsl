// Rows of matrices for many tokens; results and table as in `rows.wgsl`. The table's last panels are repeated, with no
// rows that count, until there are whole workgroups.

@group(0) @binding(3) var<storage, read_write> results: array<f32>; // [n_tokens, width]

fn store(token: u32, first_panel: u32, row: u32, sums: vec4<f32>) {
    if (token < params.n_tokens) {
        for (var i = 0u; i < PANELS; i++) {
            let panel = table[first_panel + i];
            if (row < panel[2]) {
                results[token * params.width + panel[1] + row] = sums[i];
            }
        }
    }
}

fn brought(lane: u32, panel: u32, first: u32, first_token: u32) -> Brought {
    if (!brings_row(lane)) {
        return brought_token(lane, first, params.n_blocks, first_token);
    }
    let block = first + lane / TILE_ROWS;
    if (block >= params.n_blocks) {
        return Brought(vec4(0u), vec4(0u), vec4(0u));
    }
    return brought_row(lane, panel + block / BLOCKS * TILE_WORDS, block % BLOCKS);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_panel = group.x * PANELS;
    let first_token = group.y * TOKENS;
    let n_tokens = min(TOKENS, params.n_tokens - first_token);
    let panel = table[first_panel + lane % TILE_ROWS / ROWS][0];
    let t = lane / ROWS;
    // Of the tokens t, t + 16, t + 32 and t + 48.
    var a = vec4(0.0);
    var b = vec4(0.0);
    var c = vec4(0.0);
    var d = vec4(0.0);
    for (var first = 0u; first < params.n_blocks + STEP; first += STEP) {
        let next = brought(lane, panel, first, first_token);
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
    store(first_token + t, first_panel, lane % ROWS, a);
    store(first_token + t + 16u, first_panel, lane % ROWS, b);
    store(first_token + t + 32u, first_panel, lane % ROWS, c);
    store(first_token + t + 48u, first_panel, lane % ROWS, d);
}
