// `a * b + c`, rounded once, in integers. Exact (ties to even) if a, b and c are normal or zero and so is the result;
// a subnormal input counts as zero. A sum of zero is +0.

struct Wide {
    hi: u32,
    lo: u32,
}

// Shifted right by `n`; if a bit that is lost was set, the last one is.
fn shift_right(v: Wide, n: u32) -> Wide {
    if (n == 0u) {
        return v;
    }
    if (n >= 63u) {
        return Wide(0u, select(0u, 1u, (v.hi | v.lo) != 0u));
    }
    if (n >= 32u) {
        let m = n - 32u;
        let lost = v.lo | (v.hi & ((1u << m) - 1u));
        return Wide(0u, (v.hi >> m) | select(0u, 1u, lost != 0u));
    }
    let lost = v.lo & ((1u << n) - 1u);
    return Wide(v.hi >> n, (v.lo >> n) | (v.hi << (32u - n)) | select(0u, 1u, lost != 0u));
}

// Shifted left until the highest bit is set, and by how much; `v` is not zero.
fn normalised(v: Wide, by: ptr<function, u32>) -> Wide {
    if (v.hi == 0u) {
        let n = countLeadingZeros(v.lo);
        *by = 32u + n;
        return Wide(v.lo << n, 0u);
    }
    let n = countLeadingZeros(v.hi);
    *by = n;
    if (n == 0u) {
        return v;
    }
    return Wide((v.hi << n) | (v.lo >> (32u - n)), v.lo << n);
}

fn mantissa(bits: u32) -> u32 {
    return (bits & 0x7fffffu) | 0x800000u;
}

// The product of two mantissas, with its highest bit in bit 62, and its biased exponent.
fn wide_product(a: u32, b: u32, exponent: ptr<function, i32>) -> Wide {
    let ma = mantissa(a);
    let mb = mantissa(b);
    let middle = (ma >> 12u) * (mb & 0xfffu) + (ma & 0xfffu) * (mb >> 12u);
    var low = (ma & 0xfffu) * (mb & 0xfffu) + ((middle & 0xfffu) << 12u);
    // 48 bits, in two times 24.
    var high = (ma >> 12u) * (mb >> 12u) + (middle >> 12u) + (low >> 24u);
    low = low & 0xffffffu;
    *exponent = i32((a >> 23u) & 0xffu) + i32((b >> 23u) & 0xffu) - 126;
    if ((high & 0x800000u) == 0u) {
        high = (high << 1u) | (low >> 23u);
        low = (low << 1u) & 0xffffffu;
        *exponent -= 1;
    }
    return Wide((high << 7u) | (low >> 17u), low << 15u);
}

fn fused_bits(a: u32, b: u32, c: u32) -> u32 {
    if ((a & 0x7f800000u) == 0u || (b & 0x7f800000u) == 0u) {
        return c;
    }
    var exponent: i32;
    var x = wide_product(a, b, &exponent);
    var x_sign = (a ^ b) & 0x80000000u;
    var y = Wide(0u, 0u);
    let y_exponent = i32((c >> 23u) & 0xffu);
    if (y_exponent != 0) {
        y = Wide(mantissa(c) << 7u, 0u);
        let distance = exponent - y_exponent;
        if (distance >= 0) {
            y = shift_right(y, u32(distance));
        } else {
            x = shift_right(x, u32(-distance));
            exponent = y_exponent;
        }
    }
    var sum: Wide;
    if (x_sign == (c & 0x80000000u)) {
        let lo = x.lo + y.lo;
        sum = Wide(x.hi + y.hi + select(0u, 1u, lo < x.lo), lo);
    } else {
        if (x.hi < y.hi || (x.hi == y.hi && x.lo < y.lo)) {
            let larger = y;
            y = x;
            x = larger;
            x_sign = x_sign ^ 0x80000000u;
        }
        sum = Wide(x.hi - y.hi - select(0u, 1u, x.lo < y.lo), x.lo - y.lo);
    }
    if ((sum.hi | sum.lo) == 0u) {
        return 0u;
    }
    var by: u32;
    let top = normalised(sum, &by);
    exponent += 1 - i32(by);
    let rest = top.hi & 0xffu;
    let m = top.hi >> 8u;
    let up = rest > 0x80u || (rest == 0x80u && (top.lo != 0u || (m & 1u) == 1u));
    // The highest bit of the mantissa adds 1 to the exponent, and so does a carry out of it.
    return x_sign | ((u32(exponent - 1) << 23u) + m + select(0u, 1u, up));
}

fn fused(a: f32, b: f32, c: f32) -> f32 {
    return bitcast<f32>(fused_bits(bitcast<u32>(a), bitcast<u32>(b), bitcast<u32>(c)));
}

// In a loop that no compiler unrolls, since it does not know where it begins: the text is long.
fn fused_4(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    var sums = vec4(0.0);
    for (var i = params.zero; i < 4u; i++) {
        sums[i] = fused(a[i], b[i], c[i]);
    }
    return sums;
}

// `sums` of four rows, to which four products are added one after the other: the rows' own factors, and one for all.
fn fused_tile(x: mat4x4<f32>, y: array<vec4<f32>, 4>, sums: array<vec4<f32>, 4>) -> array<vec4<f32>, 4> {
    var own_factors = x;
    var shared_factors = y;
    var rows = sums;
    for (var step = params.zero; step < 4u; step++) {
        for (var i = params.zero; i < 4u; i++) {
            rows[i] = fused_4(vec4(own_factors[step][i]), shared_factors[step], rows[i]);
        }
    }
    return rows;
}
