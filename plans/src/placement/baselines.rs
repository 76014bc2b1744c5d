//! What the plan is compared with.

use super::PARTS;
use super::choice::Choice;
use super::cost::{is_possible, memory};
use super::machine::PlacementMachine;
use super::operators::Operator;
use super::plan::Placement;

/// Part of the device's memory that OATO fills.
const FILLED: f64 = 0.9;
/// Rounds after which OATO's order is taken to be stable.
const ROUNDS: usize = 16;

/// Every operator that the device can compute, resident as long as there is room, then copied each time.
pub(super) fn everything_on_the_device(
    machine: &PlacementMachine,
    operators: &[Operator],
    batch: usize,
) -> Placement {
    let mut room = room(machine);
    let choices = operators.iter().map(|operator| {
        if !is_possible(machine, operator) {
            return Choice::default();
        }
        let needed = memory(machine, operator, ON_DEVICE);
        let resident = needed <= room;
        if resident {
            room -= needed;
        }
        Choice {
            share: PARTS,
            resident,
        }
    });
    let choices = choices.collect();
    Placement::of(machine, operators, batch, choices)
}

const ON_DEVICE: Choice = Choice {
    share: PARTS,
    resident: true,
};

/// Bytes of the device's own memory; without limit if it has none.
fn room(machine: &PlacementMachine) -> f64 {
    let memory = machine.device.and_then(|device| device.memory);
    memory.map_or(f64::INFINITY, |memory| memory.gb * 1e9)
}

/// OATO's rule: whole operators, in the order of what they gain per byte, `(T_cpu - T_device - T') / bytes`, until the
/// device's memory is nine tenths full. `T'` are the transfers that the placement causes: none between two operators
/// that are both on the device. The order is found anew with the new transfers until nothing changes. What it costs is
/// then the same model's as for all others.
pub(super) fn oato(machine: &PlacementMachine, operators: &[Operator], batch: usize) -> Placement {
    let mut placed = vec![false; operators.len()];
    for _ in 0..ROUNDS {
        let next = greedy(machine, operators, batch, &placed);
        if next == placed {
            break;
        }
        placed = next;
    }
    let choice = |on: &bool| if *on { ON_DEVICE } else { Choice::default() };
    Placement::of(
        machine,
        operators,
        batch,
        placed.iter().map(choice).collect(),
    )
}

fn greedy(
    machine: &PlacementMachine,
    operators: &[Operator],
    batch: usize,
    placed: &[bool],
) -> Vec<bool> {
    let alone = |operator: &Operator, choice| {
        let one = std::slice::from_ref(operator);
        Placement::of(machine, one, batch, vec![choice]).seconds
    };
    let beside = |i: usize| {
        let before = i.checked_sub(1).is_some_and(|j| placed[j]);
        before || placed.get(i + 1).copied().unwrap_or(false)
    };
    let mut order: Vec<(usize, f64)> = (0..operators.len())
        .filter(|&i| is_possible(machine, &operators[i]))
        .map(|i| {
            let operator = &operators[i];
            let mut gain = alone(operator, Choice::default()) - alone(operator, ON_DEVICE);
            if beside(i) {
                // Results that the next operator takes from where they are.
                gain += transfer(machine, operator, batch);
            }
            (i, gain / operator.bytes)
        })
        .filter(|(_, affinity)| *affinity > 0.0)
        .collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (mut left, mut chosen) = (FILLED * room(machine), vec![false; operators.len()]);
    for (i, _) in order {
        let needed = memory(machine, &operators[i], ON_DEVICE);
        if needed <= left {
            left -= needed;
            chosen[i] = true;
        }
    }
    chosen
}

/// Seconds of bringing an operator's input there.
fn transfer(machine: &PlacementMachine, operator: &Operator, batch: usize) -> f64 {
    batch as f64 * operator.input_bytes / machine.link()
}
