// The sum of Down's parts, as integers of 64 bits, which is exact in any order. A lane has one result.

// The low words first.
@group(0) @binding(1) var<storage, read> parts: array<vec2<u32>>; // [n_parts, n_tokens, width]
@group(0) @binding(2) var<storage, read_write> results: array<vec2<u32>>; // [n_tokens, width]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = params.n_tokens * params.width;
    if (id.x >= n) {
        return;
    }
    var total = vec2(0u);
    for (var i = 0u; i < params.n_parts; i++) {
        total = plus(total, parts[i * n + id.x]);
    }
    results[id.x] = total;
}
