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

fn store(part: u32, token: u32, first_panel: u32, row: u32, total: Totals) {
    if (token < params.n_tokens) {
        for (var i = 0u; i < PANELS; i++) {
            let column = (first_panel + i) * ROWS + row;
            if (column < params.width) {
                results[(part * params.n_tokens + token) * params.width + column] = vec2(total.low[i], total.high[i]);
            }
        }
    }
}

fn brought(lane: u32, panel: u32, first: u32, end: u32, first_token: u32) -> Brought {
    if (!brings_row(lane)) {
        return brought_token(lane, first, end, first_token);
    }
    let block = first + lane / TILE_ROWS;
    if (block >= end) {
        return Brought(vec4(0u), vec4(0u), vec4(0u));
    }
    let at = table[params.n_parts + block];
    return brought_row(lane, at[0] + panel * at[1], at[2]);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let part = table[group.z];
    let first_panel = group.x * PANELS;
    let first_token = group.y * TOKENS;
    let is_half = params.n_tokens - first_token <= 16u;
    // Behind the last panel it is read again: what becomes of it is not stored.
    let panel = min(first_panel + lane % TILE_ROWS / ROWS, (params.width - 1u) / ROWS);
    let t = lane / ROWS;
    // Of the tokens t and t + 16.
    var a = vec4(0.0);
    var b = vec4(0.0);
    var total_of_a = Totals(vec4(0u), vec4(0u));
    var total_of_b = Totals(vec4(0u), vec4(0u));
    for (var first = part[0]; first < part[1] + STEP; first += STEP) {
        let next = brought(lane, panel, first, part[1], first_token);
        // Of the step that was placed before, if there was one.
        let n = select(min(STEP, part[1] + STEP - first), 0u, first == part[0]);
        for (var step = 0u; step < n; step++) {
            let is_last = table[params.n_parts + first - STEP + step][3] == 1u;
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
    store(group.z, first_token + t, first_panel, lane % ROWS, total_of_a);
    store(group.z, first_token + t + 16u, first_panel, lane % ROWS, total_of_b);
}
