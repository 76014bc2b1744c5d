// Scores become weights. Four lanes have a row: of 16 consecutive positions each has four.

struct State {
    // The largest score.
    most: f32,
    // The sum of all weights, in the first of the row's lanes.
    sum: f32,
}

fn largest(numbers: vec4<f32>) -> f32 {
    return max(max(numbers.x, numbers.y), max(numbers.z, numbers.w));
}

fn plus_4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return fused_4(a, vec4(1.0), b);
}

// The row sees the positions `seen` of the block.
fn soften(state: ptr<function, State>, seen: vec2<u32>, lane: u32) {
    let row = lane % ROWS;
    let part = lane / ROWS;
    let place = row * LINE + part;
    var most = NONE;
    for (var i = 0u; i < 4u; i++) {
        let are_seen = are_in(seen, 16u * i + 4u * part);
        most = max(most, largest(select(vec4(NONE), scores[place + 4u * i], are_seen)));
    }
    maxima[lane] = most;
    workgroupBarrier();
    let old = (*state).most;
    let all = vec4(maxima[row], maxima[ROWS + row], maxima[2u * ROWS + row], maxima[3u * ROWS + row]);
    most = max(old, largest(all));
    // The sums of the CPU's lanes, which are every 16th position.
    var added = vec4(0.0);
    var factor = 0.0;
    for (var i = 0u; i < 5u; i++) {
        let is_factor = i == 4u;
        let at = place + 4u * min(i, 3u);
        let power = power_4(plus_4(select(scores[at], vec4(old), is_factor), vec4(-most)));
        if (is_factor) {
            // 0 if this is the first block that the row sees.
            factor = power.x;
        } else {
            let weights = select(vec4(0.0), power, are_in(seen, 16u * i + 4u * part));
            scores[at] = weights;
            added = plus_4(added, weights);
        }
    }
    values[lane] = added;
    workgroupBarrier();
    if (part == 0u) {
        // As `reduce_add`: the upper half is added to the lower one until one is left.
        for (var half = 2u; half > 0u; half /= 2u) {
            for (var i = 0u; i < half; i++) {
                let low = i * ROWS + row;
                values[low] = plus_4(values[low], values[low + half * ROWS]);
            }
        }
        let two = plus_4(values[row], values[row].zwxy);
        (*state).sum = fused((*state).sum, factor, fused(two.x, 1.0, two.y));
        factors[row] = factor;
    }
    (*state).most = most;
    workgroupBarrier();
}
