// Attention of query rows, tokens times the heads that share a key/value head, in the order of the definition
// (`stages/kernels/src/attention`): block of 64 positions after block, a score is one sum over the head's elements, a
// result one sum over the positions that its row sees.
//
// A workgroup has 32 rows. Keys and values are widened to its memory once for all of them. In products a lane has four
// rows, and of the 16 lanes with the same rows each has four positions of every block, or QUADS times four elements of the
// results, which stay in its registers. In between it has 16 scores of one row.
//
// Range. Queries, the factor and sinks are 0 or from 2^-60 to 2^40, keys and values are multiples of 2^-24 below 2^16: sums
// of their products are multiples of 2^-107 below 2^64. Scores below 2^-90 count as 0, which nobody sees: beside a maximum
// of at least 2^-30 they round away, and below it weights are 1. So differences of scores are 0 or at least 2^-113.
// Weights are 0 or multiples of 2^-83, so that weighted values are multiples of 2^-107 again. Results are checked wherever
// they get smaller: they are 0 or at least 2^-90. The sum of the weights is at least 1, since the largest is 1, or a sink
// is. So whatever is computed is 0 or normal.
//
// Positions that a row does not see have the weight 0. Those that no row of the workgroup sees may have any bits: they are
// read as 0. The others are finite, or the job is out of range. So a product with the weight 0 is 0, and adds nothing.

const ROWS = 32u;
const BLOCK = 64u;
// Vectors from a row's scores to the next one's: one more than they are, so that banks do not collide.
const LINE = 17u;
// Less than all maxima.
const NONE = -0x1p126f;

@group(0) @binding(1) var<storage, read> segment: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read_write> results: array<vec4<f32>>; // [n_tokens, heads, value_dim / 4]
// 1 if a number was outside the range in which this arithmetic is the CPU's.
@group(0) @binding(3) var<storage, read_write> out_of_range: atomic<u32>;
@group(0) @binding(4) var<storage, read> given: array<vec4<u32>>;

// Scores of a block, then their weights, [ROWS, BLOCK]; before them keys of 32 elements, [elements, BLOCK].
var<workgroup> scores: array<vec4<f32>, ROWS * LINE>;
// Sums of weights, [4, ROWS]; then values of a few positions, [positions, 16 * QUADS].
var<workgroup> values: array<vec4<f32>, 256>;
// Largest scores, [4, ROWS].
var<workgroup> maxima: array<f32, 4u * ROWS>;
// What the rows' results are multiplied by; at last the sums of their weights.
var<workgroup> factors: array<f32, ROWS>;

// Whether a negative result of the lane was multiplied by 0: on the CPU it is -0 until something is added.
var<private> forgot_negative: bool;

struct Job {
    heads: u32,
    group: u32,
    // Of the first head among those that share the first key/value head.
    first: u32,
    // Of the first token.
    position: u32,
    window: u32,
    head_dim: u32,
    value_dim: u32,
    // Blocks of the segment.
    blocks: u32,
    // Of the scores.
    factor: f32,
    // Where the names of the sequence's blocks begin, in numbers; queries, in vectors; and sinks, in numbers, or 0.
    blocks_at: u32,
    queries_at: u32,
    sinks_at: u32,
}

fn job_of(at: u32) -> Job {
    let a = given[at];
    let b = given[at + 1u];
    let c = given[at + 2u];
    return Job(a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, bitcast<f32>(c.x), c.y, c.z, c.w);
}

// Rows of a workgroup.
struct Tile {
    // The number of the first one among those of its key/value head.
    first: u32,
    n_rows: u32,
    // Query heads of the key/value head.
    first_head: u32,
    heads: u32,
    // Positions that a row sees: the first one and the one behind the last.
    seen: vec2<u32>,
}

// Query heads before those of a key/value head.
fn heads_before(job: Job, kv: u32) -> u32 {
    return min(max(kv * job.group, job.first) - job.first, job.heads);
}

// Positions that a token sees.
fn seen_by(job: Job, token: u32) -> vec2<u32> {
    let end = job.position + token + 1u;
    return vec2(max(end, job.window) - job.window, end);
}

fn tile_of(job: Job, kv: u32, number: u32) -> Tile {
    let first_head = heads_before(job, kv);
    let heads = heads_before(job, kv + 1u) - first_head;
    let all = params.n_tokens * heads;
    let first = number * ROWS;
    if (first >= all) {
        return Tile(0u, 0u, 0u, 1u, vec2(0u));
    }
    let end = min(first + ROWS, all);
    let seen = vec2(seen_by(job, first / heads).x, seen_by(job, (end - 1u) / heads).y);
    return Tile(first, end - first, first_head, heads, seen);
}

// The token and the head of a row; behind the last one, those of the last one.
fn row_of(tile: Tile, row: u32) -> vec2<u32> {
    let i = tile.first + min(row, tile.n_rows - 1u);
    return vec2(i / tile.heads, tile.first_head + i % tile.heads);
}

// The part of a range that is in the block from position `start` on.
fn within(range: vec2<u32>, start: u32) -> vec2<u32> {
    return min(max(range, vec2(start)) - vec2(start), vec2(BLOCK));
}

// Which of four positions are in a range.
fn are_in(range: vec2<u32>, first: u32) -> vec4<bool> {
    let positions = vec4(first) + vec4(0u, 1u, 2u, 3u);
    return (positions >= vec4(range.x)) & (positions < vec4(range.y));
}

// Which numbers are below 2^-90, 0 among them.
fn are_tiny(numbers: vec4<f32>) -> vec4<bool> {
    return (bitcast<vec4<u32>>(numbers) & vec4(0x7fffffffu)) < vec4(0x12800000u);
}

fn mark_if(wrong: bool) {
    if (wrong) {
        atomicStore(&out_of_range, 1u);
    }
}

// Four f16 numbers, widened by integers; those that are not seen are 0. A subnormal one is what a normal one with its
// fraction has more than 2^-14: that difference is exact.
fn widened(words: vec2<u32>, seen: vec4<bool>) -> vec4<f32> {
    let all = vec4(words.x & 0xffffu, words.x >> 16u, words.y & 0xffffu, words.y >> 16u);
    let halves = select(vec4(0u), all, seen);
    let magnitudes = halves & vec4(0x7fffu);
    mark_if(any(magnitudes >= vec4(0x7c00u)));
    let are_small = magnitudes < vec4(0x400u);
    let exponents = select(vec4(0x38000000u), vec4(0x38800000u), are_small);
    let normal = bitcast<vec4<f32>>((magnitudes << vec4(13u)) + exponents);
    let numbers = select(normal, normal - vec4(0x1p-14f), are_small);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(numbers) | ((halves & vec4(0x8000u)) << vec4(16u)));
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let job = job_of(params.batches_at);
    let tile = tile_of(job, group.y, group.x);
    if (tile.n_rows == 0u) {
        return;
    }
    // In vectors, as all places.
    let key_size = BLOCK / 8u * job.head_dim;
    let value_size = BLOCK * line_of(job.value_dim);
    let keys_at = group.y * job.blocks * (key_size + value_size);
    let values_at = keys_at + job.blocks * key_size;
    // Of the four rows.
    let own = lane / 16u * 4u;
    let queries = array(
        query_of(job, tile, own),
        query_of(job, tile, own + 1u),
        query_of(job, tile, own + 2u),
        query_of(job, tile, own + 3u),
    );
    let has_rows = own < tile.n_rows;
    // Of the one row.
    let one = row_of(tile, lane % ROWS);
    let range = select(vec2(0u), seen_by(job, one.x), lane % ROWS < tile.n_rows);
    var state = State(NONE, 0.0);
    if (job.sinks_at != 0u) {
        state = State(bitcast<f32>(number(job.sinks_at + one.y)), 1.0);
    }
    var sums: Sums;
    for (var start = tile.seen.x / BLOCK * BLOCK; start < tile.seen.y; start += BLOCK) {
        let block = number(job.blocks_at + start / BLOCK);
        let seen = within(tile.seen, start);
        score(job, keys_at + block * key_size, seen, queries, has_rows, lane);
        soften(&state, within(range, start), lane);
        if (has_rows) {
            correct(&sums, own);
        }
        gather(&sums, job.value_dim, values_at + block * value_size, seen, has_rows, lane);
    }
    workgroupBarrier();
    if (lane < ROWS) {
        factors[lane] = state.sum;
    }
    workgroupBarrier();
    if (has_rows) {
        store(job, tile, sums, own, lane % 16u);
    }
}
