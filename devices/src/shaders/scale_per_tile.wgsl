// One f16 scale per tile.
fn scales(tile: u32, row: u32, b: u32) -> vec2<f32> {
    return vec2(f16_of(tile, row));
}
