// Down for many tokens. A workgroup has four panels, 32 tokens and a part of the clusters. A lane has half as many tokens
// as in `tiled_rows.wgsl`, since every sum has a total in fixed point beside it.

// Of the lane's four rows.
struct Totals {
    low: vec4<u32>,
    high: vec4<u32>,
}

fn with_cluster(total: Totals, sums: vec4<f32>) -> Totals {
    let units = array(settled(sums[0]), settled(sums[1]), settled(sums[2]), settled(sums[3]));
    let more = vec4(units[0].x, units[1].x, units[2].x, units[3].x);
    let low = total.low + more;
    let carry = select(vec4(0u), vec4(1u), low < more);
    return Totals(low, total.high + vec4(units[0].y, units[1].y, units[2].y, units[3].y) + carry);
}

fn store(result: u32, first_panel: u32, row: u32, total: Totals) {
    for (var i = 0u; i < PANELS; i++) {
        let column = (first_panel + i) * ROWS + row;
        if (column < params.width) {
            results[result * params.width + column] = vec2(total.low[i], total.high[i]);
        }
    }
}

fn brought(lane: u32, panel: u32, first: u32, part: vec4<u32>, origin: u32) -> Brought {
    let end = part[1];
    if (!brings_row(lane)) {
        return brought_token(lane, first, end, origin, part[2]);
    }
    let block = first + lane / TILE_ROWS;
    if (block >= end) {
        return Brought(vec4(0u), vec4(0u), vec4(0u));
    }
    let at = table[block];
    return brought_row(lane, at[0] + panel * at[1], at[2]);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let part = given[params.batches_at + 2u * group.z];
    let first_panel = group.x * PANELS;
    let first_token = group.y * TOKENS;
    if (first_token >= part[2]) {
        return;
    }
    let n_tokens = min(TOKENS, part[2] - first_token);
    let is_half = n_tokens <= 16u;
    let origin = given[params.batches_at + 2u * group.z + 1u][0] + brought_number(lane, first_token, part[2]);
    // Behind the last panel it is read again: what becomes of it is not stored.
    let panel = min(first_panel + lane % TILE_ROWS / ROWS, (params.width - 1u) / ROWS);
    let t = lane / ROWS;
    // Of the tokens t and t + 16.
    var a = vec4(0.0);
    var b = vec4(0.0);
    var total_of_a = Totals(vec4(0u), vec4(0u));
    var total_of_b = Totals(vec4(0u), vec4(0u));
    for (var first = part[0]; first < part[1] + STEP; first += STEP) {
        let next = brought(lane, panel, first, part, origin);
        // Of the step that was placed before, if there was one.
        let n = select(min(STEP, part[1] + STEP - first), 0u, first == part[0]);
        for (var step = 0u; step < n; step++) {
            let is_last = table[first - STEP + step][3] == 1u;
            let w = rows_of(step, lane);
            a = added(a, w, step, t);
            if (!is_half) {
                b = added(b, w, step, t + 16u);
            }
            if (is_last) {
                total_of_a = with_cluster(total_of_a, a);
                total_of_b = with_cluster(total_of_b, b);
                a = vec4(0.0);
                b = vec4(0.0);
            }
        }
        workgroupBarrier();
        place(lane, next);
        workgroupBarrier();
    }
    if (t < n_tokens) {
        store(part[3] + first_token + t, first_panel, lane % ROWS, total_of_a);
    }
    if (t + 16u < n_tokens) {
        store(part[3] + first_token + t + 16u, first_panel, lane % ROWS, total_of_b);
    }
}
