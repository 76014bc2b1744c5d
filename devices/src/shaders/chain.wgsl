// A panel of weights times some tokens, both quantised.
//
// A workgroup has one panel, 16 rows, and TOKENS tokens. It goes through the blocks of 32 elements in stretches of 16.
// First every lane computes the integer products of one row, one block of the stretch and all tokens, which are exact
// in any order, and scales them. Then one lane per row and token adds the stretch to its sum, block by block: that is
// the order of the definition (`stages/kernels/src/panels.rs`).
//
// Constants and functions of the format come before this text: BLOCKS, TILE_WORDS, PLANES_AT, PLANE_WORDS, BIAS_BITS,
// MINIMA, HALVES, TOKENS; codes(), scales(), minimum(); fused() of the arithmetic.

const ROWS = 16u;
const SLOTS = 16u;

@group(0) @binding(0) var<storage, read> weights: array<u32>;
// Per block and token: 32 codes, then scale, scale * sum(codes), and -sum(codes) of either half.
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>; // [n_blocks, n_tokens, 3]
// Where panels are.
@group(0) @binding(4) var<storage, read> table: array<vec4<u32>>;
// 1 if a number was outside the range in which this arithmetic is the CPU's.
@group(0) @binding(5) var<storage, read_write> out_of_range: atomic<u32>;

var<workgroup> scaled: array<f32, SLOTS * TOKENS * ROWS>; // [SLOTS, TOKENS, ROWS]
var<workgroup> minima: array<f32, SLOTS * ROWS>; // [SLOTS, ROWS]

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

// The product of the panel at word `panel`, whose rows have `n_blocks` blocks, and the tokens' blocks from
// `first_block` on: for the lane's row and, as far as there are so many, the token with the number of its slot. All
// lanes of a workgroup call it together.
fn chain(panel: u32, first_block: u32, n_blocks: u32, first_token: u32, lane: u32) -> f32 {
    let row = lane % ROWS;
    let slot = lane / ROWS;
    let adds = slot < TOKENS && first_token + slot < params.n_tokens;
    var sum = 0.0;
    for (var first = 0u; first < n_blocks; first += SLOTS) {
        let block = first + slot;
        if (block < n_blocks) {
            let tile = panel + block / BLOCKS * TILE_WORDS;
            let b = block % BLOCKS;
            let w = codes(tile + PLANES_AT + b * PLANE_WORDS, row);
            let scale = scales(tile, row, b);
            var usable = in_range(scale[0]) && in_range(scale[1]);
            if (MINIMA) {
                let least = minimum(tile, row, b);
                usable = usable && in_range(least);
                // The minimum is subtracted.
                minima[slot * ROWS + row] = bitcast<f32>(bitcast<u32>(least) ^ 0x80000000u);
            }
            if (!usable && !(ZEROS_ARE_ZERO && all((w[0] | w[1]) == vec4(0u)))) {
                atomicStore(&out_of_range, 1u);
            }
            for (var t = 0u; t < TOKENS; t++) {
                if (first_token + t < params.n_tokens) {
                    let x = ((first_block + block) * params.n_tokens + first_token + t) * 3u;
                    let about = tokens[x + 2u];
                    var product_of_block: f32;
                    if (HALVES) {
                        let low = integer_dot(w[0], tokens[x], bias(about[2]));
                        let high = integer_dot(w[1], tokens[x + 1u], bias(about[3]));
                        product_of_block = fused(f32(low), scale[0], product(f32(high), scale[1]));
                    } else {
                        let low = integer_dot(w[0], tokens[x], bias(about[2] + about[3]));
                        product_of_block = product(f32(integer_dot(w[1], tokens[x + 1u], low)), scale[0]);
                    }
                    scaled[(slot * TOKENS + t) * ROWS + row] = product_of_block;
                }
            }
        }
        workgroupBarrier();
        if (adds) {
            let n = min(SLOTS, n_blocks - first);
            for (var s = 0u; s < n; s++) {
                let x = (first_block + first + s) * params.n_tokens + first_token + slot;
                let about = tokens[x * 3u + 2u];
                sum = fused(scaled[(s * TOKENS + slot) * ROWS + row], bitcast<f32>(about[0]), sum);
                if (MINIMA) {
                    sum = fused(minima[s * ROWS + row], bitcast<f32>(about[1]), sum);
                }
            }
        }
        workgroupBarrier();
    }
    return sum;
}
