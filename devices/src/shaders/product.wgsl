// What all kernels of a job have.

struct Params {
    n_tokens: u32,
    // Blocks of a row, if all rows have as many.
    n_blocks: u32,
    // Results of a token.
    width: u32,
    // Entries of the table, if a workgroup goes through all of them.
    n_entries: u32,
    // Always 0, which no compiler knows.
    zero: u32,
    // What else an FFN has.
    extras: u32,
    // Parameters of the activation.
    alpha: f32,
    limit: f32,
}

@group(0) @binding(3) var<uniform> params: Params;

// `a * b`, rounded. The exclusive or hides from compilers that it is a product, so they cannot fuse it with what uses
// it, nor change the order of products: WGSL allows both.
fn product(a: f32, b: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(a * b) ^ params.zero);
}
