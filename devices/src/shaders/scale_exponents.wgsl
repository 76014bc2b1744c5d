// A power of two per tile: 2^(e - 128). The two least are subnormal.
fn scales(tile: u32, row: u32, b: u32) -> vec2<f32> {
    let e = byte_of(tile, row);
    return vec2(bitcast<f32>(select((e + 1u) << 21u, (e - 1u) << 23u, e >= 2u)));
}
