// Down for a few tokens. A workgroup has a panel and a part of the clusters; stretches go on from a cluster to the next.

// Whether a block of the stretch is the last one of its cluster.
var<workgroup> ends: array<u32, SLOTS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let part = table[group.z];
    let first_token = group.y * TOKENS;
    let row = lane % ROWS;
    let slot = lane / ROWS;
    let token = first_token + slot;
    let adds = slot < TOKENS && token < params.n_tokens;
    var sum = 0.0;
    var total = vec2(0u);
    for (var first = part[0]; first < part[1]; first += SLOTS) {
        let n = min(SLOTS, part[1] - first);
        if (slot < n) {
            let place = table[params.n_parts + first + slot];
            if (row == 0u) {
                ends[slot] = place[3];
            }
            multiply(place[0] + group.x * place[1], place[2], first + slot, first_token, lane);
        }
        workgroupBarrier();
        if (adds) {
            for (var s = 0u; s < n; s++) {
                sum = added(sum, s, slot, row);
                if (ends[s] == 1u) {
                    total = plus(total, settled(sum));
                    sum = 0.0;
                }
            }
        }
        workgroupBarrier();
    }
    let column = group.x * ROWS + row;
    if (adds && column < params.width) {
        results[(group.z * params.n_tokens + token) * params.width + column] = total;
    }
}
