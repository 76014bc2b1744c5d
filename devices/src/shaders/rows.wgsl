// Rows of matrices: `results[t, column] = w[row] . x[t]`. The table has a panel's word, the column of its first row and
// how many of its rows count.
//
// A batch: the entry of its first panel, its panels, its tokens, and where these are named; then where its results begin,
// and their width.

@group(0) @binding(3) var<storage, read_write> results: array<f32>; // of a batch: [n_tokens, width]

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let batch = given[params.batches_at + 2u * group.z];
    let out = given[params.batches_at + 2u * group.z + 1u];
    let first_token = group.y * TOKENS;
    if (group.x >= batch[1] || first_token >= batch[2]) {
        return;
    }
    let n_tokens = min(TOKENS, batch[2] - first_token);
    if (lane < TOKENS) {
        origins[lane] = named(batch[3], first_token + min(lane, n_tokens - 1u));
    }
    workgroupBarrier();
    let panel = table[batch[0] + group.x];
    let row = lane % ROWS;
    let slot = lane / ROWS;
    let adds = slot < n_tokens;
    var sum = 0.0;
    for (var first = 0u; first < params.n_blocks; first += SLOTS) {
        let n = min(SLOTS, params.n_blocks - first);
        if (slot < n) {
            let block = first + slot;
            let tile = panel[0] + block / BLOCKS * TILE_WORDS;
            multiply(tile, block % BLOCKS, block, params.n_tokens, n_tokens, lane);
        }
        workgroupBarrier();
        if (adds) {
            for (var s = 0u; s < n; s++) {
                sum = added(sum, s, slot, row);
            }
        }
        workgroupBarrier();
    }
    if (adds && row < panel[2]) {
        results[out[0] + (first_token + slot) * out[1] + panel[1] + row] = sum;
    }
}
