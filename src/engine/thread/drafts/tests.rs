//! Drafts of texts that are known in advance, on machines whose times are made up.

use super::*;

/// A machine's time of a step in which this many tokens are run ahead.
type Time = fn(usize) -> u64;

/// Reading weights takes most of a step.
const MEMORY: Time = |drafted| 1000 + 100 * drafted as u64;
/// Each token needs weights of its own.
const EXPERTS: Time = |drafted| 1000 + 900 * drafted as u64;

/// Time and steps to write `text` from position `from` on.
fn write(drafter: &mut Drafter, text: &[u32], from: usize, time: Time) -> (u64, usize) {
    let (mut at, mut ns, mut steps) = (from, 0, 0);
    while at < text.len() {
        let most = drafter.most.min(text.len() - at - 1);
        let (draft, _) = drafter.of_text(&text[..at], most);
        assert_eq!(draft.step()[0], text[at - 1]);
        let took = time(draft.run_ahead);
        drafter.took(&draft, took);
        let mut right = 0;
        while drafter.came(&draft, right, text[at + right]) && right < draft.run_ahead {
            right += 1;
        }
        (at, ns, steps) = (at + right + 1, ns + took, steps + 1);
    }
    assert_eq!(at, text.len(), "no draft goes beyond the room");
    (ns, steps)
}

/// Tokens without any order, of so few kinds that most pairs were there before.
fn prose(tokens: usize) -> Vec<u32> {
    let mut state = 7u64;
    let random = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u32 % 20
    };
    (0..tokens).map(random).collect()
}

/// A text, and the same again with a change in every 40 tokens.
fn copied(tokens: usize) -> Vec<u32> {
    let text = (0..tokens as u32).map(|i| i * 7 % 1009);
    let changed = (0..tokens as u32).map(|i| if i % 40 == 9 { 5000 } else { i * 7 % 1009 });
    text.chain(changed).collect()
}

/// Times as they would be without drafts.
fn without(tokens: usize, time: Time) -> f64 {
    (tokens as u64 * time(0)) as f64
}

#[test]
fn a_copy_needs_few_steps() {
    let text = copied(1000);
    let (ns, steps) = write(
        &mut Drafter::new(MOST_DRAFTED, Author::Nobody),
        &text,
        1000,
        MEMORY,
    );
    assert!(steps < 250, "{steps} steps for 1000 tokens");
    let gain = without(1000, MEMORY) / ns as f64;
    assert!(gain > 2.5, "{gain}");
    let (_, all) = write(&mut Drafter::new(0, Author::Nobody), &text, 1000, MEMORY);
    assert_eq!(all, 1000);
}

#[test]
fn free_text_costs_little() {
    let text = prose(3000);
    for time in [MEMORY, EXPERTS] {
        let (ns, _) = write(
            &mut Drafter::new(MOST_DRAFTED, Author::Nobody),
            &text,
            1,
            time,
        );
        let cost = ns as f64 / without(2999, time);
        assert!(cost < 1.02, "{cost}");
    }
}

#[test]
fn drafts_that_do_not_pay_are_not_made() {
    let text = copied(1000);
    let (ns, _) = write(
        &mut Drafter::new(MOST_DRAFTED, Author::Nobody),
        &text,
        1000,
        |drafted| 1000 + 1100 * drafted as u64,
    );
    let cost = ns as f64 / 1e6;
    assert!(cost < 1.02, "{cost}");
}

#[test]
fn drafts_are_made_again_when_they_pay() {
    let text = copied(2000);
    let mut drafter = Drafter::new(MOST_DRAFTED, Author::Nobody);
    write(&mut drafter, &text[..3000], 2000, |drafted| {
        1000 + 1500 * drafted as u64
    });
    let (_, steps) = write(&mut drafter, &text, 3000, MEMORY);
    assert!(steps < 500, "{steps} steps for 1000 tokens");
    // And the other way round: steps without drafts have become fast.
    let mut drafter = Drafter::new(MOST_DRAFTED, Author::Nobody);
    write(&mut drafter, &text[..3000], 2000, |drafted| {
        20_000 + 100 * drafted as u64
    });
    let slow = |drafted| match drafted {
        0 => 1000,
        n => 20_000 + 100 * n as u64,
    };
    let (ns, _) = write(&mut drafter, &text, 3000, slow);
    let best = without(1000, slow);
    assert!((ns as f64) < 3.0 * best, "{ns}");
}
