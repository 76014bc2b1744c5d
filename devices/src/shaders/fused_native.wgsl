// `a * b + c`, rounded once if the device does so.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    return fma(a, b, c);
}

fn fused_4(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return fma(a, b, c);
}
