fn activated(x: f32) -> f32 {
    return select(0.0, x, x > 0.0);
}
