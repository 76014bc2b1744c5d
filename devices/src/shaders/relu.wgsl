// `max(x, 0)` of the gate.
fn activated(gate: f32, up: f32) -> vec2<f32> {
    return vec2(select(0.0, gate, gate > 0.0), up);
}
