// Six bits of scale and of minimum per block, in 12 bytes per row, and an f16 factor of each per tile.
fn six_bits(tile: u32, row: u32, b: u32) -> vec2<u32> {
    let bytes = tile + 16u;
    if (b < 4u) {
        return vec2(byte_of(bytes, ROWS * b + row) & 63u, byte_of(bytes, ROWS * (b + 4u) + row) & 63u);
    }
    let low = byte_of(bytes, ROWS * (b + 4u) + row);
    let scale_high = (byte_of(bytes, ROWS * (b - 4u) + row) >> 2u) & 0x30u;
    let minimum_high = (byte_of(bytes, ROWS * b + row) >> 2u) & 0x30u;
    return vec2((low & 0x0fu) | scale_high, (low >> 4u) | minimum_high);
}

fn scales(tile: u32, row: u32, b: u32) -> vec2<f32> {
    return vec2(product(f32(six_bits(tile, row, b).x), f16_of(tile, row)));
}

fn minimum(tile: u32, row: u32, b: u32) -> f32 {
    return product(f32(six_bits(tile, row, b).y), f16_of(tile, ROWS + row));
}
