// Weighted values: a lane has four rows and, of every 64 elements, four.

// Positions whose values are widened at once.
const POSITIONS = 16u / QUADS;
// Vectors of four elements that a position takes then.
const WIDTH = 16u * QUADS;

// Of four rows each: elements of the first 64, of the second and so on, QUADS of them.
struct Sums {
    a: array<vec4<f32>, 4>,
    b: array<vec4<f32>, 4>,
    c: array<vec4<f32>, 4>,
    d: array<vec4<f32>, 4>,
}

// Vectors of a padded row of values.
fn line_of(value_dim: u32) -> u32 {
    return (value_dim + 15u) / 16u * 2u;
}

fn corrected_row(sums: vec4<f32>, factor: f32) -> vec4<f32> {
    let all = product_4(sums, vec4(factor));
    if (factor == 0.0) {
        forgot_negative = forgot_negative || any(sums < vec4(0.0));
        return vec4(0.0);
    }
    mark_if(any(are_tiny(all) & (sums != vec4(0.0))));
    return all;
}

fn corrected(sums: array<vec4<f32>, 4>, by: vec4<f32>) -> array<vec4<f32>, 4> {
    return array(
        corrected_row(sums[0], by[0]),
        corrected_row(sums[1], by[1]),
        corrected_row(sums[2], by[2]),
        corrected_row(sums[3], by[3]),
    );
}

fn factors_from(row: u32) -> vec4<f32> {
    return vec4(factors[row], factors[row + 1u], factors[row + 2u], factors[row + 3u]);
}

// What the rows from `own` on have so far.
fn correct(sums: ptr<function, Sums>, own: u32) {
    let by = factors_from(own);
    if (all(by == vec4(1.0))) {
        return;
    }
    (*sums).a = corrected((*sums).a, by);
    if (QUADS > 1u) {
        (*sums).b = corrected((*sums).b, by);
    }
    if (QUADS > 2u) {
        (*sums).c = corrected((*sums).c, by);
        (*sums).d = corrected((*sums).d, by);
    }
}

// What a lane brings: of a position from `first` on, of which the ones below `end` are seen, eight elements. In the segment
// a position has `line` vectors of so many.
fn brought_values(at: u32, line: u32, first: u32, end: u32, lane: u32) -> vec4<u32> {
    let position = first + 2u * lane / WIDTH;
    let column = 2u * lane % WIDTH / 2u;
    if (position >= end || column >= line) {
        return vec4(0u);
    }
    return segment[at + position * line + column];
}

// What pads a row of values may have any bits, too.
fn place_values(brought: vec4<u32>, is_seen: bool, value_dim: u32, lane: u32) {
    let element = 2u * lane % WIDTH * 4u;
    values[2u * lane] = widened(brought.xy, vec4(is_seen && element < value_dim));
    values[2u * lane + 1u] = widened(brought.zw, vec4(is_seen && element + 4u < value_dim));
}

// Four elements of four positions.
fn values_from(place: u32) -> array<vec4<f32>, 4> {
    return array(values[place], values[place + WIDTH], values[place + 2u * WIDTH], values[place + 3u * WIDTH]);
}

// Adds the values of four positions, which are placed from `place` on, with the rows' weights `x`.
fn add_values(sums: ptr<function, Sums>, x: mat4x4<f32>, place: u32) {
    (*sums).a = fused_tile(x, values_from(place), (*sums).a);
    if (QUADS > 1u) {
        (*sums).b = fused_tile(x, values_from(place + 16u), (*sums).b);
    }
    if (QUADS > 2u) {
        (*sums).c = fused_tile(x, values_from(place + 32u), (*sums).c);
        (*sums).d = fused_tile(x, values_from(place + 48u), (*sums).d);
    }
}

// Adds the weighted values of the positions `seen` of the block, which begins at `at`.
fn gather(sums: ptr<function, Sums>, value_dim: u32, at: u32, seen: vec2<u32>, has_rows: bool, lane: u32) {
    let line = line_of(value_dim);
    let place = lane / 16u * 4u * LINE;
    let column = lane % 16u;
    let begin = seen.x / POSITIONS * POSITIONS;
    let n = select(0u, POSITIONS, has_rows);
    var next = brought_values(at, line, begin, seen.y, lane);
    for (var first = begin; first < seen.y; first += POSITIONS) {
        workgroupBarrier();
        place_values(next, first + 2u * lane / WIDTH >= seen.x, value_dim, lane);
        workgroupBarrier();
        next = brought_values(at, line, first + POSITIONS, seen.y, lane);
        for (var i = 0u; i < n; i += 4u) {
            let weights = place + (first + i) / 4u;
            let x = transpose(mat4x4(
                scores[weights],
                scores[weights + LINE],
                scores[weights + 2u * LINE],
                scores[weights + 3u * LINE],
            ));
            add_values(sums, x, i * WIDTH + column);
        }
    }
}

// Stores four elements of a row, if it has them.
fn store_quad(job: Job, tile: Tile, row: u32, quad: u32, sums: vec4<f32>) {
    if (row >= tile.n_rows || 4u * quad >= job.value_dim) {
        return;
    }
    let are_zero = sums == vec4(0.0);
    mark_if(any(are_tiny(sums) & !are_zero) || (forgot_negative && any(are_zero)));
    var out: vec4<f32>;
    for (var i = params.zero; i < 4u; i++) {
        out[i] = quotient(sums[i], factors[row]);
    }
    let place = row_of(tile, row);
    results[(place.x * job.heads + place.y) * (job.value_dim / 4u) + quad] = out;
}

fn store_quads(job: Job, tile: Tile, sums: array<vec4<f32>, 4>, own: u32, quad: u32) {
    store_quad(job, tile, own, quad, sums[0]);
    store_quad(job, tile, own + 1u, quad, sums[1]);
    store_quad(job, tile, own + 2u, quad, sums[2]);
    store_quad(job, tile, own + 3u, quad, sums[3]);
}

// Stores the results of the rows from `own` on, divided by the sums of their weights.
fn store(job: Job, tile: Tile, sums: Sums, own: u32, column: u32) {
    store_quads(job, tile, sums.a, own, column);
    if (QUADS > 1u) {
        store_quads(job, tile, sums.b, own, column + 16u);
    }
    if (QUADS > 2u) {
        store_quads(job, tile, sums.c, own, column + 32u);
        store_quads(job, tile, sums.d, own, column + 48u);
    }
}
