// A signed byte per 16 elements, and an f16 factor per tile.
fn scale_of_half(tile: u32, row: u32, half: u32) -> f32 {
    let code = bitcast<i32>(byte_of(tile + 8u, ROWS * half + row) << 24u) >> 24u;
    return product(f32(code), f16_of(tile, row));
}

fn scales(tile: u32, row: u32, b: u32) -> vec2<f32> {
    return vec2(scale_of_half(tile, row, 2u * b), scale_of_half(tile, row, 2u * b + 1u));
}
