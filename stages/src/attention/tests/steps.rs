//! A token's results have the same bits whatever else is in a step, and wherever its sequence's blocks are.

use super::*;

/// Bits of every token's results, in a sequence that is alone in the machine.
fn alone(network: &Network, kind: KvType, tokens: &[u64]) -> Vec<Vec<u32>> {
    let mut machine = Machine::new(network, kind, 1, 1);
    let id = machine.sequences.open();
    let steps = tokens.chunks(MAX_TOKENS);
    steps
        .flat_map(|part| bits(machine.step(&[(id, part)])))
        .collect()
}

fn bits(results: Vec<Vec<f32>>) -> Vec<Vec<u32>> {
    let bits = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
    results.into_iter().map(bits).collect()
}

/// A sequence as the test knows it.
struct Known {
    id: SequenceId,
    tokens: Vec<u64>,
}

/// Leaves NaNs in all blocks, and free blocks in no order.
fn poison(machine: &mut Machine, random: &mut Random, n: usize) {
    let ids: Vec<SequenceId> = (0..n).map(|_| machine.sequences.open()).collect();
    for _ in 0..CONTEXT / 64 {
        for &id in &ids {
            machine.step(&[(id, &[POISON; 64])]);
        }
    }
    let mut order = ids;
    while !order.is_empty() {
        machine
            .sequences
            .free(order.swap_remove(random.below(order.len())));
    }
}

#[test]
fn sequences_in_one_step_do_not_touch_each_other() {
    let network = network();
    for (kind, threads) in [(KvType::F16, 1), (KvType::F16, 3), (KvType::Q8, 2)] {
        let mut random = Random(threads as u64);
        let mut machine = Machine::new(&network, kind, 8, threads);
        poison(&mut machine, &mut random, 8);
        let streams: Vec<Vec<u64>> = (0..8)
            .map(|i| (0..40 + 45 * i).map(|p| i * 1000 + p).collect())
            .collect();
        let ids: Vec<SequenceId> = streams.iter().map(|_| machine.sequences.open()).collect();
        let mut results = vec![Vec::new(); 8];
        while results.iter().zip(&streams).any(|(r, s)| r.len() < s.len()) {
            // Everyone grows by another few tokens, in another order.
            let turn = random.below(8);
            let growth: Vec<usize> = (0..8).map(|_| random.below(MAX_TOKENS / 8 + 1)).collect();
            let parts = (0..8).map(|i| (i + turn) % 8).map(|i| {
                let (done, all) = (results[i].len(), streams[i].len());
                (i, done..all.min(done + growth[i]))
            });
            let parts: Vec<_> = parts.collect();
            let step = parts
                .iter()
                .map(|(i, range)| (ids[*i], &streams[*i][range.clone()]));
            let mut out = machine.step(&step.collect::<Vec<_>>()).into_iter();
            for (i, range) in parts {
                results[i].extend(bits(out.by_ref().take(range.len()).collect()));
            }
        }
        for (got, tokens) in results.into_iter().zip(&streams) {
            let want = alone(&network, kind, tokens);
            assert_eq!(got.len(), want.len());
            for (p, (got, want)) in got.into_iter().zip(want).enumerate() {
                assert_eq!(got, want, "{kind} {threads} position {p}");
            }
        }
    }
}

#[test]
fn forks_and_cuts_keep_every_bit() {
    let network = network();
    for kind in KvType::ALL {
        let mut random = Random(5);
        let mut machine = Machine::new(&network, kind, 5, 2);
        poison(&mut machine, &mut random, 5);
        let mut known = Vec::new();
        let mut token = 0;
        for _ in 0..60 {
            match random.below(6) {
                _ if known.is_empty() => known.push(Known {
                    id: machine.sequences.open(),
                    tokens: Vec::new(),
                }),
                0 if known.len() < 5 => {
                    let from: &Known = &known[random.below(known.len())];
                    let (id, tokens) = (machine.sequences.fork(from.id), from.tokens.clone());
                    known.push(Known { id, tokens });
                }
                1 if known.len() == 5 => {
                    let freed = known.swap_remove(random.below(5));
                    machine.sequences.free(freed.id);
                }
                2 => {
                    let cut = random.below(known.len());
                    let at = known[cut].tokens.len().saturating_sub(random.below(90));
                    let left = machine.sequences.cut(known[cut].id, at);
                    known[cut].tokens.truncate(left);
                }
                _ => grow(
                    &network,
                    kind,
                    (&mut machine, &mut known),
                    &mut token,
                    &mut random,
                ),
            }
        }
    }
}

/// A step in which every sequence gets some tokens.
fn grow(
    network: &Network,
    kind: KvType,
    (machine, known): (&mut Machine, &mut [Known]),
    token: &mut u64,
    random: &mut Random,
) {
    let mut new = Vec::new();
    for sequence in &mut *known {
        let n = random
            .below(MAX_TOKENS / 5)
            .min(CONTEXT - sequence.tokens.len());
        let tokens: Vec<u64> = (*token..*token + n as u64).collect();
        *token += n as u64;
        sequence.tokens.extend_from_slice(&tokens);
        new.push((sequence.id, tokens));
    }
    let step: Vec<_> = new.iter().map(|(id, tokens)| (*id, &tokens[..])).collect();
    let mut results = bits(machine.step(&step)).into_iter();
    for (sequence, (_, tokens)) in known.iter().zip(&new) {
        let want = alone(network, kind, &sequence.tokens);
        for want in want.into_iter().skip(sequence.tokens.len() - tokens.len()) {
            let got = results.next().expect("a result for every token");
            assert_eq!(got, want);
        }
    }
}
