// `2^x` for `x <= 0`, 0 below -60, as `exp2_below` in `stages/kernels/src/exp.rs`. What is left of `x`
// without a whole number is 0 or at least 2^-113, and the product of the polynomial and 2^n is a sum of exponents.
fn power_4(x: vec4<f32>) -> vec4<f32> {
    let clamped = max(x, vec4(-60.0));
    let whole = round(clamped);
    let r = fused_4(whole, vec4(-1.0), clamped);
    var y = fused_4(vec4(1.5353362e-4), r, vec4(1.3398874e-3));
    y = fused_4(y, r, vec4(9.618437e-3));
    y = fused_4(y, r, vec4(5.5503325e-2));
    y = fused_4(y, r, vec4(0.24022648));
    y = fused_4(y, r, vec4(0.6931472));
    y = fused_4(y, r, vec4(1.0));
    let exponents = bitcast<vec4<u32>>(vec4<i32>(whole)) << vec4(23u);
    return select(bitcast<vec4<f32>>(bitcast<vec4<u32>>(y) + exponents), vec4(0.0), x < vec4(-60.0));
}
