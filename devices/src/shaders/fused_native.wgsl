// `a * b + c`, rounded once if the device does so.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    return fma(a, b, c);
}

fn fused_4(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>) -> vec4<f32> {
    return fma(a, b, c);
}

fn fused_rows(x: vec4<f32>, y: vec4<f32>, sums: array<vec4<f32>, 4>) -> array<vec4<f32>, 4> {
    return array(
        fma(vec4(x[0]), y, sums[0]),
        fma(vec4(x[1]), y, sums[1]),
        fma(vec4(x[2]), y, sums[2]),
        fma(vec4(x[3]), y, sums[3]),
    );
}

// `sums` of four rows, to which four products are added one after the other: the rows' own factors, and one for all.
fn fused_tile(x: mat4x4<f32>, y: array<vec4<f32>, 4>, sums: array<vec4<f32>, 4>) -> array<vec4<f32>, 4> {
    return fused_rows(x[3], y[3], fused_rows(x[2], y[2], fused_rows(x[1], y[1], fused_rows(x[0], y[0], sums))));
}
