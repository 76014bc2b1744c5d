// What all products of panels read, and a row's block of 32 elements of it.
//
// Constants and functions of the format come before this text: BLOCKS, TILE_WORDS, PLANES_AT, PLANE_WORDS, BIAS_BITS,
// MINIMA, HALVES, ZEROS_ARE_ZERO, TOKENS; codes(), scales(), minimum(); fused() and fused_4() of the arithmetic.

const ROWS = 16u;

@group(0) @binding(1) var<storage, read> weights: array<u32>;
// Per block and token: 32 codes, then scale, scale * sum(codes), and -sum(codes) of either half. That of a batch's block
// and token is record `origin of the token + block * stride`.
@group(0) @binding(2) var<storage, read> tokens: array<vec4<u32>>; // [n_blocks, n_tokens, 3]
// Where panels are.
@group(0) @binding(4) var<storage, read> table: array<vec4<u32>>;
// 1 if a number was outside the range in which this arithmetic is the CPU's.
@group(0) @binding(5) var<storage, read_write> out_of_range: atomic<u32>;
@group(0) @binding(6) var<storage, read> given: array<vec4<u32>>;

// `start` and the products of 16 signed codes.
fn integer_dot(w: vec4<u32>, x: vec4<u32>, start: i32) -> i32 {
    return start + dot4I8Packed(w.x, x.x) + dot4I8Packed(w.y, x.y) + dot4I8Packed(w.z, x.z) + dot4I8Packed(w.w, x.w);
}

// Where integer products of unsigned codes start: `count` is -sum(codes of the token), so their bias costs one shift.
fn bias(count: u32) -> i32 {
    return select(0, bitcast<i32>(count << BIAS_BITS), BIAS_BITS > 0u);
}

// Whether products with this scale or minimum are neither subnormal nor infinite: zero, or 2^-24 to 2^40.
fn in_range(number: f32) -> bool {
    let magnitude = bitcast<u32>(number) & 0x7fffffffu;
    return magnitude == 0u || (magnitude >= 0x33800000u && magnitude <= 0x53800000u);
}

// A row's block.
struct Unpacked {
    // Four codes per word.
    low: vec4<u32>,
    high: vec4<u32>,
    // Of either half.
    scales: vec2<f32>,
    // It is subtracted, so this is its negative.
    minimum: f32,
}

// The block `b` of the tile at word `tile`.
fn unpacked(tile: u32, row: u32, b: u32) -> Unpacked {
    let w = codes(tile + PLANES_AT + b * PLANE_WORDS, row);
    let scale = scales(tile, row, b);
    var usable = in_range(scale[0]) && in_range(scale[1]);
    var least = 0.0;
    if (MINIMA) {
        least = minimum(tile, row, b);
        usable = usable && in_range(least);
    }
    if (!usable && !(ZEROS_ARE_ZERO && all((w[0] | w[1]) == vec4(0u)))) {
        atomicStore(&out_of_range, 1u);
    }
    return Unpacked(w[0], w[1], scale, bitcast<f32>(bitcast<u32>(least) ^ 0x80000000u));
}
