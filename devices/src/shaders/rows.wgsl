// Rows of matrices: `results[t, column] = w[row] . x[t]`. The table has a panel's word, the column of its first row and
// how many of its rows count.

@group(0) @binding(3) var<storage, read_write> results: array<f32>; // [n_tokens, width]

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let panel = table[group.x];
    let first_token = group.y * TOKENS;
    let row = lane % ROWS;
    let slot = lane / ROWS;
    let token = first_token + slot;
    let adds = slot < TOKENS && token < params.n_tokens;
    var sum = 0.0;
    for (var first = 0u; first < params.n_blocks; first += SLOTS) {
        let n = min(SLOTS, params.n_blocks - first);
        if (slot < n) {
            let block = first + slot;
            multiply(panel[0] + block / BLOCKS * TILE_WORDS, block % BLOCKS, block, first_token, lane);
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
        results[token * params.width + panel[1] + row] = sum;
    }
}
