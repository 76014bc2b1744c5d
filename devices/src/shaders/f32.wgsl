// Fused sums of 32-bit numbers in registers: the bound of attention. Every sum depends on one before it, eight chains side
// by side, as those of bytes.

struct Params {
    rounds: u32,
    // Bits of a number.
    factor: u32,
}

@group(0) @binding(1) var<storage, read_write> results: array<f32>; // [lanes]
@group(0) @binding(2) var<uniform> params: Params;

fn steps(sums: vec4<f32>, factor: vec4<f32>) -> vec4<f32> {
    return fma(sums, factor, factor);
}

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let factor = vec4(bitcast<f32>(params.factor));
    var a = vec4<f32>(vec4(id.x) + vec4(1u, 2u, 3u, 4u));
    var b = vec4<f32>(vec4(id.x) + vec4(5u, 6u, 7u, 8u));
    for (var i = 0u; i < params.rounds; i++) {
        a = steps(steps(steps(steps(a, factor), factor), factor), factor);
        b = steps(steps(steps(steps(b, factor), factor), factor), factor);
    }
    let sums = a + b;
    results[id.x] = sums.x + sums.y + sums.z + sums.w;
}
