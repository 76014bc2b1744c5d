fn minimum(tile: u32, row: u32, b: u32) -> f32 {
    return 0.0;
}
