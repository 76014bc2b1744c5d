// The values of four codes.
fn looked_up(codes: u32) -> u32 {
    let table = vec4<u32>(VALUES);
    var out = 0u;
    for (var i = 0u; i < 32u; i += 8u) {
        let code = (codes >> i) & 0x0fu;
        out |= ((table[code / 4u] >> (8u * (code % 4u))) & 0xffu) << i;
    }
    return out;
}
