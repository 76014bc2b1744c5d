// What fused() and a product round to, for comparison with the CPU.

struct Params {
    n: u32,
    // Always 0, which no compiler knows.
    zero: u32,
}

@group(0) @binding(0) var<storage, read> triples: array<vec4<u32>>; // [n], the fourth is unused
@group(0) @binding(1) var<storage, read_write> results: array<vec2<u32>>; // [n], fused and product
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= params.n) {
        return;
    }
    let a = bitcast<f32>(triples[id.x].x);
    let b = bitcast<f32>(triples[id.x].y);
    let c = bitcast<f32>(triples[id.x].z);
    results[id.x] = vec2(bitcast<u32>(fused(a, b, c)), bitcast<u32>(a * b) ^ params.zero);
}
