// Down of an FFN: clusters' results are rounded to units of 2^-32 and added as integers of 64 bits, in any order.
//
// Every block of Down has an entry in the table: the word of its tile in the first panel, the words from a panel to the
// next, its place in the tile, and 1 if it is the last one of its cluster.
//
// A part of the clusters: the entry of its first block, the one behind its last, its tokens, and the number of its first
// results; then the origin of its first token.

// Of each part; the low words first.
@group(0) @binding(3) var<storage, read_write> results: array<vec2<u32>>; // of a part: [n_tokens, width]

// `round(p * 2^32)`, ties to even, for magnitudes up to 2^30.
fn fixed(p: f32) -> vec2<u32> {
    let bits = bitcast<u32>(p);
    let exponent = (bits >> 23u) & 0xffu;
    if (exponent == 0u) {
        return vec2(0u);
    }
    let m = (bits & 0x7fffffu) | 0x800000u;
    var units = vec2(0u);
    if (exponent >= 118u) {
        let by = exponent - 118u;
        if (by >= 32u) {
            units = vec2(0u, m << (by - 32u));
        } else {
            units = vec2(m << by, select(m >> (32u - by), 0u, by == 0u));
        }
    } else if (exponent >= 93u) {
        let by = 118u - exponent;
        let whole = m >> by;
        let rest = m & ((1u << by) - 1u);
        let half = 1u << (by - 1u);
        let up = rest > half || (rest == half && (whole & 1u) == 1u);
        units = vec2(whole + select(0u, 1u, up), 0u);
    }
    if ((bits >> 31u) == 1u) {
        return vec2(~units.x + 1u, ~units.y + select(0u, 1u, units.x == 0u));
    }
    return units;
}

// A cluster's result in such units.
fn settled(sum: f32) -> vec2<u32> {
    if ((bitcast<u32>(sum) & 0x7fffffffu) > 0x4e800000u) {
        atomicStore(&out_of_range, 1u);
    }
    return fixed(sum);
}
