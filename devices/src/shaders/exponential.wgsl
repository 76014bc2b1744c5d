// `e^x`, as in `stages/kernels/src/exp.rs`.
fn exponential(x: f32) -> f32 {
    let clamped = min(88.0, max(-87.0, x));
    let whole = round(product(clamped, 1.442695));
    var r = fused(-whole, 0.6933594, clamped);
    r = fused(-whole, -2.1219444e-4, r);
    var y = fused(1.9875691e-4, r, 1.3981999e-3);
    y = fused(y, r, 8.333452e-3);
    y = fused(y, r, 4.1665796e-2);
    y = fused(y, r, 0.16666665);
    y = fused(y, r, 0.5);
    y = fused(fused(y, product(r, r), r), 1.0, 1.0);
    let power = bitcast<f32>(u32(i32(whole) + 127) << 23u);
    return select(product(y, power), 0.0, x < -87.0);
}
