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
    for (var first = part[0]; first < part[1]; first += STEP) {
        let n = min(STEP, part[1] - first);
        if (has_row(lane)) {
            if (lane / TILE_ROWS < n) {
                let place = table[params.n_parts + first + lane / TILE_ROWS];
                place_row(lane, place[0] + panel * place[1], place[2]);
            }
        } else {
            place_token(lane, first, n, first_token);
        }
        workgroupBarrier();
        for (var step = 0u; step < n; step++) {
            let w = rows_of(step, lane);
            a = added(a, w, step, t);
            if (!is_half) {
                b = added(b, w, step, t + 16u);
            }
            if (table[params.n_parts + first + step][3] == 1u) {
                total_of_a = with_cluster(total_of_a, a);
                total_of_b = with_cluster(total_of_b, b);
                a = vec4(0.0);
                b = vec4(0.0);
            }
        }
        workgroupBarrier();
    }
    store(group.z, first_token + t, first_panel, lane % ROWS, total_of_a);
    store(group.z, first_token + t + 16u, first_panel, lane % ROWS, total_of_b);
}
