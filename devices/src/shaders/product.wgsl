// What all kernels of a job have.

struct Params {
    n_tokens: u32,
    // Blocks of a row, if all rows have as many.
    n_blocks: u32,
    // Results of a token.
    width: u32,
    // Into which Down's clusters are divided, if all have the same tokens.
    n_parts: u32,
    // Always 0, which no compiler knows.
    zero: u32,
    // What else an FFN has.
    extras: u32,
    // Parameters of the activation.
    alpha: f32,
    limit: f32,
    // Where the extras begin, in numbers.
    extras_at: u32,
    // Where the batches begin, in vectors: two for each.
    batches_at: u32,
    // Where each token's results of parts are named, in numbers; 0 if they are those of all parts.
    slots_at: u32,
}

@group(0) @binding(0) var<uniform> params: Params;

// `a * b`, rounded. The exclusive or hides from compilers that it is a product, so they cannot fuse it with what uses
// it, nor change the order of products: WGSL allows both.
fn product(a: f32, b: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(a * b) ^ params.zero);
}

fn product_4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(a * b) ^ vec4(params.zero));
}

// The sum of two integers of 64 bits, the low words first.
fn plus(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < b.x));
}
