// What a job brings besides its numbers: tokens, extras, batches, which tokens a batch has.

fn number(i: u32) -> u32 {
    return given[i / 4u][i % 4u];
}

// Of a batch whose tokens are named from `first` on, the one with the number `i`. Where none are named, it has all.
fn named(first: u32, i: u32) -> u32 {
    if (first == 0xffffffffu) {
        return i;
    }
    return number(first + i);
}
