// Down of an FFN: clusters' results are added as integers of 64 bits in units of 2^-32, in any order. The table has the
// word of a cluster's first panel, the first of its blocks and their number.

@group(0) @binding(2) var<storage, read_write> results: array<vec2<u32>>; // [n_tokens, width], the low words first

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

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first_token = group.y * TOKENS;
    var total = vec2(0u);
    for (var i = 0u; i < params.n_entries; i++) {
        let cluster = table[i];
        let panel = cluster[0] + group.x * (cluster[2] / BLOCKS) * TILE_WORDS;
        let sum = chain(panel, cluster[1], cluster[2], first_token, lane);
        if ((bitcast<u32>(sum) & 0x7fffffffu) > 0x4e800000u) {
            atomicStore(&out_of_range, 1u);
        }
        let units = fixed(sum);
        let low = total.x + units.x;
        total = vec2(low, total.y + units.y + select(0u, 1u, low < units.x));
    }
    let row = group.x * ROWS + lane % ROWS;
    let token = first_token + lane / ROWS;
    if (lane / ROWS < TOKENS && token < params.n_tokens && row < params.width) {
        results[token * params.width + row] = total;
    }
}
