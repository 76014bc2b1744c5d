// Reads all words once: the bound of kernels that use each weight once.

struct Params {
    // Elements of four words.
    n: u32,
    lanes: u32,
}

@group(0) @binding(0) var<storage, read> words: array<vec4<u32>>; // [n]
@group(0) @binding(1) var<storage, read_write> results: array<u32>; // [lanes]
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var seen = vec4(0u);
    for (var i = id.x; i < params.n; i += params.lanes) {
        seen = seen ^ words[i];
    }
    results[id.x] = seen.x ^ seen.y ^ seen.z ^ seen.w;
}
