// `x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))` of the gate, which is GELU by the hyperbolic tangent.
fn activated(gate: f32, up: f32) -> vec2<f32> {
    let cubic = product(product(gate, gate), product(gate, 0.044715));
    let power = exponential(product(bitcast<f32>(FACTORu), fused(gate, 1.0, cubic)));
    return vec2(quotient(gate, fused(1.0, 1.0, power)), up);
}
