// Panels of weights times many tokens, both quantised.
//
// A workgroup has four panels, 64 rows, and TOKENS tokens. A lane owns the sums of four rows, one of each panel, and of
// every 16th token, and goes through the blocks of 32 elements in the order of the definition. Two blocks at a time are
// unpacked once to the workgroup's memory, from where a lane reads its rows' block once for all its tokens. Of 16
// consecutive lanes, rows are consecutive and the token is the same, so their loads do not collide.

const PANELS = 4u;
const TILE_ROWS = 64u; // PANELS * ROWS
const STEP = 2u;

// Codes of the rows.
var<workgroup> w_low: array<vec4<u32>, STEP * TILE_ROWS>; // [STEP, PANELS, ROWS]
var<workgroup> w_high: array<vec4<u32>, STEP * TILE_ROWS>;
// Scales of either half and the negative minimum.
var<workgroup> w_about: array<vec4<f32>, STEP * TILE_ROWS>;
// As in `tokens`.
var<workgroup> x_low: array<vec4<u32>, STEP * TOKENS>; // [STEP, TOKENS]
var<workgroup> x_high: array<vec4<u32>, STEP * TOKENS>;
var<workgroup> x_about: array<vec4<u32>, STEP * TOKENS>;

// What a lane brings to a step: the first STEP * TILE_ROWS lanes a block of a row each, the next ones of a token. It is
// read while the step before is computed.
struct Brought {
    low: vec4<u32>,
    high: vec4<u32>,
    about: vec4<u32>,
}

fn brings_row(lane: u32) -> bool {
    return lane < STEP * TILE_ROWS;
}

// The block `b` of the tile at word `tile`.
fn brought_row(lane: u32, tile: u32, b: u32) -> Brought {
    let w = unpacked(tile, lane % ROWS, b);
    return Brought(w.low, w.high, bitcast<vec4<u32>>(vec4(w.scales, w.minimum, 0.0)));
}

// The number of the token that a lane brings, if it brings one. Behind the last of `n` it is brought again: what becomes of
// it is not stored.
fn brought_number(lane: u32, first_token: u32, n: u32) -> u32 {
    return min(first_token + (lane - STEP * TILE_ROWS) % TOKENS, n - 1u);
}

// The step begins with block `first`, and `end` is behind the last one.
fn brought_token(lane: u32, first: u32, end: u32, origin: u32, stride: u32) -> Brought {
    let i = lane - STEP * TILE_ROWS;
    let block = first + i / TOKENS;
    if (i >= STEP * TOKENS || block >= end) {
        return Brought(vec4(0u), vec4(0u), vec4(0u));
    }
    let x = (origin + block * stride) * 3u;
    return Brought(tokens[x], tokens[x + 1u], tokens[x + 2u]);
}

fn place(lane: u32, brought: Brought) {
    let i = lane - STEP * TILE_ROWS;
    if (brings_row(lane)) {
        w_low[lane] = brought.low;
        w_high[lane] = brought.high;
        w_about[lane] = bitcast<vec4<f32>>(brought.about);
    } else if (i < STEP * TOKENS) {
        x_low[i] = brought.low;
        x_high[i] = brought.high;
        x_about[i] = brought.about;
    }
}

// A block of the four rows of a lane.
struct Rows {
    low: array<vec4<u32>, PANELS>,
    high: array<vec4<u32>, PANELS>,
    scales: vec4<f32>,
    scales_of_high: vec4<f32>,
    minima: vec4<f32>,
}

fn rows_of(step: u32, lane: u32) -> Rows {
    let a = step * TILE_ROWS + lane % ROWS;
    let b = a + ROWS;
    let c = b + ROWS;
    let d = c + ROWS;
    let about = array(w_about[a], w_about[b], w_about[c], w_about[d]);
    return Rows(
        array(w_low[a], w_low[b], w_low[c], w_low[d]),
        array(w_high[a], w_high[b], w_high[c], w_high[d]),
        vec4(about[0].x, about[1].x, about[2].x, about[3].x),
        vec4(about[0].y, about[1].y, about[2].y, about[3].y),
        vec4(about[0].z, about[1].z, about[2].z, about[3].z),
    );
}

fn dots(w: array<vec4<u32>, PANELS>, x: vec4<u32>, start: vec4<i32>) -> vec4<i32> {
    return vec4(
        integer_dot(w[0], x, start[0]),
        integer_dot(w[1], x, start[1]),
        integer_dot(w[2], x, start[2]),
        integer_dot(w[3], x, start[3]),
    );
}

// `sums` of the lane's rows and what a block adds to them, for the token with the number `t` of the workgroup.
fn added(sums: vec4<f32>, w: Rows, step: u32, t: u32) -> vec4<f32> {
    let x = step * TOKENS + t;
    let about = x_about[x];
    var scaled: vec4<f32>;
    if (HALVES) {
        let low = dots(w.low, x_low[x], vec4(bias(about[2])));
        let high = dots(w.high, x_high[x], vec4(bias(about[3])));
        scaled = fused_4(vec4<f32>(low), w.scales, product_4(vec4<f32>(high), w.scales_of_high));
    } else {
        let low = dots(w.low, x_low[x], vec4(bias(about[2] + about[3])));
        scaled = product_4(vec4<f32>(dots(w.high, x_high[x], low)), w.scales);
    }
    let next = fused_4(scaled, vec4(bitcast<f32>(about[0])), sums);
    if (MINIMA) {
        return fused_4(w.minima, vec4(bitcast<f32>(about[1])), next);
    }
    return next;
}
