// `a / b`, rounded, in integers, which is exact everywhere. Both are normal and so is the result, or `a` is 0.
fn quotient(a: f32, b: f32) -> f32 {
    let x = bitcast<u32>(a);
    let y = bitcast<u32>(b);
    if ((x & 0x7f800000u) == 0u) {
        return 0.0;
    }
    let divisor = (y & 0x7fffffu) | 0x800000u;
    var rest = (x & 0x7fffffu) | 0x800000u;
    var exponent = i32((x >> 23u) & 0xffu) - i32((y >> 23u) & 0xffu) + 127;
    if (rest < divisor) {
        rest = rest << 1u;
        exponent -= 1;
    }
    // 24 bits and two more, the first of which is set.
    var q = 0u;
    for (var i = 0u; i < 26u; i++) {
        q = q << 1u;
        if (rest >= divisor) {
            rest -= divisor;
            q |= 1u;
        }
        rest = rest << 1u;
    }
    let m = q >> 2u;
    let last = q & 3u;
    let up = last == 3u || (last == 2u && (rest != 0u || (m & 1u) == 1u));
    return bitcast<f32>(((x ^ y) & 0x80000000u) | ((u32(exponent - 1) << 23u) + m + select(0u, 1u, up)));
}
