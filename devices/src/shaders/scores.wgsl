// Scores: queries times keys.

// Of which keys are widened at once.
const ELEMENTS = 32u;

// Where the query of a row begins.
fn query_of(job: Job, tile: Tile, row: u32) -> u32 {
    let place = row_of(tile, row);
    return job.queries_at + (place.x * job.heads + place.y) * (job.head_dim / 4u);
}

// What a lane brings of a block's keys from element `first` on: of one element eight positions, and the eight that are 32
// further. In the segment they are [4, head_dim, 16].
fn brought_keys(job: Job, at: u32, first: u32, lane: u32) -> array<vec4<u32>, 2> {
    let element = first + lane % 64u / 2u;
    if (element >= job.head_dim) {
        return array(vec4(0u), vec4(0u));
    }
    let place = at + (lane / 64u * job.head_dim + element) * 2u + lane % 2u;
    return array(segment[place], segment[place + 4u * job.head_dim]);
}

fn place_keys(keys: vec4<u32>, half: u32, seen: vec2<u32>, lane: u32) {
    let position = 32u * half + lane / 64u * 16u + lane % 2u * 8u;
    let place = lane % 64u / 2u * LINE + position / 4u;
    scores[place] = widened(keys.xy, are_in(seen, position));
    scores[place + 1u] = widened(keys.zw, are_in(seen, position + 4u));
}

// Four elements of four queries: a vector has one of all four.
fn elements(queries: array<u32, 4>, i: u32) -> mat4x4<f32> {
    return transpose(mat4x4(
        bitcast<vec4<f32>>(given[queries[0] + i]),
        bitcast<vec4<f32>>(given[queries[1] + i]),
        bitcast<vec4<f32>>(given[queries[2] + i]),
        bitcast<vec4<f32>>(given[queries[3] + i]),
    ));
}

fn scaled(sums: vec4<f32>, factor: f32) -> vec4<f32> {
    let all = product_4(sums, vec4(factor));
    return select(all, vec4(0.0), are_tiny(all));
}

// Of the block whose keys are at `at`.
fn score(job: Job, at: u32, seen: vec2<u32>, queries: array<u32, 4>, has_rows: bool, lane: u32) {
    let column = lane % 16u;
    var sums = array(vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
    var next = brought_keys(job, at, 0u, lane);
    for (var first = 0u; first < job.head_dim; first += ELEMENTS) {
        workgroupBarrier();
        place_keys(next[0], 0u, seen, lane);
        place_keys(next[1], 1u, seen, lane);
        workgroupBarrier();
        next = brought_keys(job, at, first + ELEMENTS, lane);
        let n = select(0u, min(ELEMENTS, job.head_dim - first), has_rows);
        for (var i = 0u; i < n; i += 4u) {
            let x = elements(queries, (first + i) / 4u);
            let key = i * LINE + column;
            let keys = array(scores[key], scores[key + LINE], scores[key + 2u * LINE], scores[key + 3u * LINE]);
            sums = fused_tile(x, keys, sums);
        }
    }
    workgroupBarrier();
    if (has_rows) {
        let place = lane / 16u * 4u * LINE + column;
        scores[place] = scaled(sums[0], job.factor);
        scores[place + LINE] = scaled(sums[1], job.factor);
        scores[place + 2u * LINE] = scaled(sums[2], job.factor);
        scores[place + 3u * LINE] = scaled(sums[3], job.factor);
    }
    workgroupBarrier();
}
