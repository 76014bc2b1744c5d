// `g * sigmoid(alpha * g)` of the gate, at most `limit`, and up plus 1, at most `limit` in size.
fn activated(gate: f32, up: f32) -> vec2<f32> {
    let g = min(gate, params.limit);
    let power = exponential(product(-params.alpha, g));
    let u = min(max(up, -params.limit), params.limit);
    return vec2(quotient(g, fused(1.0, 1.0, power)), fused(u, 1.0, 1.0));
}
