// The gate if it is above `alpha`, and up if it is above `limit`, else that.
fn activated(gate: f32, up: f32) -> vec2<f32> {
    return vec2(select(0.0, gate, gate > params.alpha), select(params.limit, up, up > params.limit));
}
