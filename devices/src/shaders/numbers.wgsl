// Scales as panels store them. Everything is read as words: `at` is a word of the segment.

// Byte `i` of the words from `at` on.
fn byte_of(at: u32, i: u32) -> u32 {
    return (weights[at + i / 4u] >> (8u * (i % 4u))) & 0xffu;
}

// The f16 with number `i`, widened by integers: conversions of the device may take subnormals for zero.
fn f16_of(at: u32, i: u32) -> f32 {
    let h = (weights[at + i / 2u] >> (16u * (i % 2u))) & 0xffffu;
    let sign = (h & 0x8000u) << 16u;
    let exponent = (h >> 10u) & 31u;
    let fraction = h & 0x3ffu;
    if (exponent == 31u) {
        return bitcast<f32>(sign | 0x7f800000u | (fraction << 13u));
    }
    if (exponent != 0u) {
        return bitcast<f32>(sign | ((exponent + 112u) << 23u) | (fraction << 13u));
    }
    if (fraction == 0u) {
        return bitcast<f32>(sign);
    }
    let top = firstLeadingBit(fraction);
    return bitcast<f32>(sign | ((top + 103u) << 23u) | ((fraction << (23u - top)) & 0x7fffffu));
}
