// Panels of weights times a few tokens, both quantised.
//
// A workgroup has one panel, 16 rows, and TOKENS tokens. It goes through the blocks of 32 elements in stretches of 16.
// First every lane computes the integer products of one row, one block of the stretch and all tokens, which are exact
// in any order, and scales them. Then one lane per row and token adds the stretch to its sum, block by block: that is
// the order of the definition (`stages/kernels/src/panels.rs`).

const SLOTS = 16u;

var<workgroup> scaled: array<f32, SLOTS * TOKENS * ROWS>; // [SLOTS, TOKENS, ROWS]
var<workgroup> minima: array<f32, SLOTS * ROWS>; // [SLOTS, ROWS]
// Where the tokens' records are; behind the last token it is repeated.
var<workgroup> origins: array<u32, TOKENS>;
// Scales of the tokens' blocks, and scale * sum(codes).
var<workgroup> factors: array<vec2<f32>, SLOTS * TOKENS>; // [SLOTS, TOKENS]

// The scaled products of the lane's row in the block `b` of the tile at word `tile`, which is block `block` of `n` tokens.
fn multiply(tile: u32, b: u32, block: u32, stride: u32, n: u32, lane: u32) {
    let row = lane % ROWS;
    let slot = lane / ROWS;
    let w = unpacked(tile, row, b);
    if (MINIMA) {
        minima[slot * ROWS + row] = w.minimum;
    }
    for (var t = 0u; t < TOKENS; t++) {
        if (t < n) {
            let x = (origins[t] + block * stride) * 3u;
            let about = tokens[x + 2u];
            if (row == t) {
                factors[slot * TOKENS + t] = bitcast<vec2<f32>>(about.xy);
            }
            var product_of_block: f32;
            if (HALVES) {
                let low = integer_dot(w.low, tokens[x], bias(about[2]));
                let high = integer_dot(w.high, tokens[x + 1u], bias(about[3]));
                product_of_block = fused(f32(low), w.scales[0], product(f32(high), w.scales[1]));
            } else {
                let low = integer_dot(w.low, tokens[x], bias(about[2] + about[3]));
                product_of_block = product(f32(integer_dot(w.high, tokens[x + 1u], low)), w.scales[0]);
            }
            scaled[(slot * TOKENS + t) * ROWS + row] = product_of_block;
        }
    }
}

// `sum` and what the stretch's block in slot `s` adds to it, for one row and the token `t` of the workgroup.
fn added(sum: f32, s: u32, t: u32, row: u32) -> f32 {
    let x = factors[s * TOKENS + t];
    let next = fused(scaled[(s * TOKENS + t) * ROWS + row], x[0], sum);
    if (MINIMA) {
        return fused(minima[s * ROWS + row], x[1], next);
    }
    return next;
}
