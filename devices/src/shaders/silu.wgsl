// `x * sigmoid(x)` of the gate.
fn activated(gate: f32, up: f32) -> vec2<f32> {
    return vec2(quotient(gate, fused(1.0, 1.0, exponential(-gate))), up);
}
