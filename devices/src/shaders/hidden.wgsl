// The input of Down: the activated gates times the ups, quantised as the CPU does it. A workgroup has 32 neurons of one
// token, which are a block.
//
// A batch: where its gates and ups begin, its neurons, its tokens, and the number of its first record of the results; then
// the number of its first neuron in the job, and of its first token among those of all batches.

@group(0) @binding(1) var<storage, read> gate_ups: array<f32>; // of a batch: [n_tokens, 2, width]
// As the tokens of the first product.
@group(0) @binding(2) var<storage, read_write> hidden: array<vec4<u32>>; // of a batch: [width / 32, n_tokens, 3]
@group(0) @binding(3) var<storage, read_write> out_of_range: atomic<u32>;
// From `extras_at` on: biases of Gate and of Up, each `[params.width]`, if there are any; then weights of the batches'
// tokens, if there are any.
@group(0) @binding(4) var<storage, read> given: array<vec4<u32>>;

fn extra(i: u32) -> f32 {
    return bitcast<f32>(number(params.extras_at + i));
}

// A gate or an up, with its bias: `which` is 0 or 1.
fn biased(value: f32, which: u32, neuron: u32) -> f32 {
    if ((params.extras & BIASES) == 0u) {
        return value;
    }
    return fused(value, 1.0, extra(which * params.width + neuron));
}

// With which the cluster counts for the token of all batches' with the number `pair`.
fn weighted(value: f32, pair: u32) -> f32 {
    if ((params.extras & WEIGHTS) == 0u) {
        return value;
    }
    let first = select(0u, 2u * params.width, (params.extras & BIASES) != 0u);
    return product(value, extra(first + pair));
}

// Whether no activation of it is infinite.
fn is_moderate(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7fffffffu) <= 0x53800000u;
}

var<workgroup> values: array<f32, 32>;
var<workgroup> codes: array<i32, 32>;

// Four codes.
fn word(first: u32) -> u32 {
    return (u32(codes[first]) & 0xffu)
        | (u32(codes[first + 1u]) & 0xffu) << 8u
        | (u32(codes[first + 2u]) & 0xffu) << 16u
        | (u32(codes[first + 3u]) & 0xffu) << 24u;
}

fn sum_of_half(first: u32) -> i32 {
    var sum = 0;
    for (var i = 0u; i < 16u; i++) {
        sum += codes[first + i];
    }
    return sum;
}

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let batch = given[params.batches_at + 2u * group.z];
    let more = given[params.batches_at + 2u * group.z + 1u];
    let block = group.x;
    let token = group.y;
    let width = batch[1];
    if (32u * block >= width || token >= batch[2]) {
        return;
    }
    let neuron = 32u * block + lane;
    let first = batch[0] + 2u * token * width + neuron;
    let gate = biased(gate_ups[first], 0u, more[0] + neuron);
    let up = biased(gate_ups[first + width], 1u, more[0] + neuron);
    if (!is_moderate(gate) || !is_moderate(up)) {
        atomicStore(&out_of_range, 1u);
    }
    let factors = activated(gate, up);
    let value = weighted(product(factors[0], factors[1]), more[1] + token);
    values[lane] = value;
    workgroupBarrier();
    var largest = 0u;
    for (var i = 0u; i < 32u; i++) {
        largest = max(largest, bitcast<u32>(values[i]) & 0x7fffffffu);
    }
    // From 2^-53 to 2^46 the scale is in the range of tokens' scales; what underflows to zero is zero on the CPU, too.
    let usable = largest >= 0x25000000u && largest <= 0x56800000u;
    if (!usable && largest >= 0x00800000u) {
        atomicStore(&out_of_range, 1u);
    }
    var scale = 0.0;
    var code = 0;
    if (usable) {
        scale = quotient(bitcast<f32>(largest), 127.0);
        code = i32(round(product(value, quotient(127.0, bitcast<f32>(largest)))));
    }
    codes[lane] = code;
    workgroupBarrier();
    let record = (batch[3] + block * batch[2] + token) * 3u;
    if (lane < 2u) {
        let first = 16u * lane;
        hidden[record + lane] = vec4(word(first), word(first + 4u), word(first + 8u), word(first + 12u));
    } else if (lane == 2u) {
        let low = sum_of_half(0u);
        let high = sum_of_half(16u);
        let sum = product(scale, f32(low + high));
        hidden[record + 2u] = vec4(bitcast<u32>(scale), bitcast<u32>(sum), u32(-low), u32(-high));
    }
}
