// `a * b + c`, rounded once if the device does so.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    return fma(a, b, c);
}
