// The sum of Down's parts, as integers of 64 bits, which is exact in any order. A lane has one result: a
// column of the workgroup's token.
//
// Where tokens have different parts, there are the places of each token's first name and of the one behind its last, and
// behind these all names, which are numbers of results.

// The low words first.
@group(0) @binding(1) var<storage, read> parts: array<vec2<u32>>; // [results, width]
@group(0) @binding(2) var<storage, read_write> results: array<vec2<u32>>; // [n_tokens, width]
@group(0) @binding(3) var<storage, read> given: array<vec4<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let token = id.y;
    let column = id.x;
    if (column >= params.width) {
        return;
    }
    let at = token * params.width + column;
    var total = vec2(0u);
    if (params.slots_at == 0u) {
        let n = params.n_tokens * params.width;
        for (var i = 0u; i < params.n_parts; i++) {
            total = plus(total, parts[i * n + at]);
        }
    } else {
        let end = number(params.slots_at + token + 1u);
        for (var i = number(params.slots_at + token); i < end; i++) {
            total = plus(total, parts[number(i) * params.width + column]);
        }
    }
    results[at] = total;
}
