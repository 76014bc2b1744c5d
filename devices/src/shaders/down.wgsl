// Down for a few tokens. A workgroup has a panel and a part of the clusters; stretches go on from a cluster to the next.

// Whether a block of the stretch is the last one of its cluster.
var<workgroup> ends: array<u32, SLOTS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let part = given[params.batches_at + 2u * group.z];
    let origin = given[params.batches_at + 2u * group.z + 1u][0];
    let first_token = group.y * TOKENS;
    if (first_token >= part[2]) {
        return;
    }
    let n_tokens = min(TOKENS, part[2] - first_token);
    if (lane < TOKENS) {
        origins[lane] = origin + first_token + min(lane, n_tokens - 1u);
    }
    workgroupBarrier();
    let row = lane % ROWS;
    let slot = lane / ROWS;
    let adds = slot < n_tokens;
    var sum = 0.0;
    var total = vec2(0u);
    for (var first = part[0]; first < part[1]; first += SLOTS) {
        let n = min(SLOTS, part[1] - first);
        if (slot < n) {
            let place = table[first + slot];
            if (row == 0u) {
                ends[slot] = place[3];
            }
            multiply(place[0] + group.x * place[1], place[2], first + slot, part[2], n_tokens, lane);
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
        results[(part[3] + first_token + slot) * params.width + column] = total;
    }
}
