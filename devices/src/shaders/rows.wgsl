// Rows of matrices: `results[t, column] = w[row] . x[t]`. The table has a panel's word, the column of its first row and
// how many of its rows count.

@group(0) @binding(2) var<storage, read_write> results: array<f32>; // [n_tokens, width]

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let panel = table[group.x];
    let first_token = group.y * TOKENS;
    let sum = chain(panel[0], 0u, params.n_blocks, first_token, lane);
    let row = lane % ROWS;
    let token = first_token + lane / ROWS;
    if (lane / ROWS < TOKENS && token < params.n_tokens && row < panel[2]) {
        results[token * params.width + panel[1] + row] = sum;
    }
}
