// Products of bytes in registers: the bound of integer matrix products. Every product depends on one before it, eight
// chains side by side, so that none can be left out or moved out of the loop.

struct Params {
    rounds: u32,
    factor: u32,
}

@group(0) @binding(1) var<storage, read_write> results: array<u32>; // [lanes]
@group(0) @binding(2) var<uniform> params: Params;

// Four products, added to their chain's sum.
fn step(sum: u32) -> u32 {
    return sum + bitcast<u32>(dot4I8Packed(sum, params.factor));
}

fn steps(sums: vec4<u32>) -> vec4<u32> {
    return vec4(step(sums.x), step(sums.y), step(sums.z), step(sums.w));
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    var a = vec4(id.x) + vec4(1u, 2u, 3u, 4u);
    var b = vec4(id.x) + vec4(5u, 6u, 7u, 8u);
    for (var i = 0u; i < params.rounds; i++) {
        a = steps(steps(steps(steps(a))));
        b = steps(steps(steps(steps(b))));
    }
    results[id.x] = a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
}
