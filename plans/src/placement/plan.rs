//! Chooses a share of every operator for the device.

use std::fmt;

use super::PARTS;
use super::choice::Choice;
use super::cost::{is_possible, memory, seconds};
use super::machine::PlacementMachine;
use super::operators::Operator;

/// With the device a batch must be this much faster, since no model is exact.
const GAIN: f64 = 1.02;
/// Steps in which the price of the device's memory is found.
const STEPS: usize = 60;

/// What is done with all operators, and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// For each operator.
    pub choices: Vec<Choice>,
    /// Seconds of a batch: the sum over the operators, of which each needs the one before it.
    pub seconds: f64,
    /// Bytes of the device's own memory.
    pub memory: f64,
}

impl Placement {
    /// The cost of `choices`, one for each operator.
    pub fn of(
        machine: &PlacementMachine,
        operators: &[Operator],
        batch: usize,
        choices: Vec<Choice>,
    ) -> Self {
        let pairs = || operators.iter().zip(&choices);
        let seconds = pairs().map(|(o, c)| seconds(machine, o, batch, *c)).sum();
        let memory = pairs().map(|(o, c)| memory(machine, o, *c)).sum();
        Self {
            choices,
            seconds,
            memory,
        }
    }

    /// Nothing on the device.
    pub(super) fn without_device(
        machine: &PlacementMachine,
        operators: &[Operator],
        batch: usize,
    ) -> Self {
        Self::of(
            machine,
            operators,
            batch,
            vec![Choice::default(); operators.len()],
        )
    }

    /// The plan for a batch: the fastest placement, or nothing on the device if that gains less than 2%.
    pub fn plan(machine: &PlacementMachine, operators: &[Operator], batch: usize) -> Self {
        let plan = Self::fastest(machine, operators, batch);
        let without = Self::without_device(machine, operators, batch);
        match plan.seconds * GAIN < without.seconds {
            true => plan,
            false => without,
        }
    }

    fn fastest(machine: &PlacementMachine, operators: &[Operator], batch: usize) -> Self {
        let room = machine.device.and_then(|d| d.memory).map(|m| m.gb * 1e9);
        let at_price = |price: f64| {
            let choices = operators.iter().map(|o| best(machine, o, batch, price));
            Self::of(machine, operators, batch, choices.collect())
        };
        let free = at_price(0.0);
        let Some(room) = room.filter(|room| free.memory > *room) else {
            return free;
        };
        // Seconds per byte: with the higher one everything fits.
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..STEPS {
            let price = 0.5 * (low + high);
            match at_price(price).memory > room {
                true => low = price,
                false => high = price,
            }
        }
        let (mut plan, cheaper) = (at_price(high), at_price(low).choices);
        // Where all layers are alike, one price makes all of them resident or none: some are then exchanged for what
        // the lower price chooses, which is as good per byte, and what is left of the room is used as it can be.
        let cheaper: Vec<Vec<Choice>> = cheaper.into_iter().map(|choice| vec![choice]).collect();
        plan.exchange(machine, operators, batch, room, &cheaper);
        let all = vec![Choice::all().collect(); operators.len()];
        plan.exchange(machine, operators, batch, room, &all);
        plan
    }

    /// Takes the fastest of the other choices for each operator, one operator after the other, as far as there is room.
    fn exchange(
        &mut self,
        machine: &PlacementMachine,
        operators: &[Operator],
        batch: usize,
        room: f64,
        others: &[Vec<Choice>],
    ) {
        for (i, (operator, others)) in operators.iter().zip(others).enumerate() {
            let cost = |c: Choice| seconds(machine, operator, batch, c);
            let needed = |c: Choice| memory(machine, operator, c);
            let old = self.choices[i];
            let left = room - (self.memory - needed(old));
            let faster = others
                .iter()
                .copied()
                .filter(|&c| needed(c) <= left && cost(c) < cost(old));
            if let Some(new) = faster.min_by(|a, b| cost(*a).total_cmp(&cost(*b))) {
                self.choices[i] = new;
                self.seconds += cost(new) - cost(old);
                self.memory += needed(new) - needed(old);
            }
        }
    }

    /// Why operator `i` is where it is: its cost beside that of the alternatives.
    pub fn explain(
        &self,
        machine: &PlacementMachine,
        operators: &[Operator],
        batch: usize,
        i: usize,
    ) -> Explanation {
        let (operator, choice) = (&operators[i], self.choices[i]);
        let cost = |share| {
            let resident = choice.resident;
            seconds(machine, operator, batch, Choice { share, resident })
        };
        Explanation {
            operator: operator.name.clone(),
            choice,
            streamed: operator.streaming.is_some(),
            seconds: cost(choice.share),
            cpu_alone: cost(0),
            device_alone: is_possible(machine, operator).then(|| cost(PARTS)),
        }
    }
}

/// The choice with the least cost if a byte of the device's memory costs `price` seconds.
fn best(machine: &PlacementMachine, operator: &Operator, batch: usize, price: f64) -> Choice {
    let cost =
        |c: &Choice| seconds(machine, operator, batch, *c) + price * memory(machine, operator, *c);
    let none = Choice::default();
    let best = Choice::all().min_by(|a, b| cost(a).total_cmp(&cost(b)));
    best.filter(|best| cost(best) * GAIN < cost(&none))
        .unwrap_or(none)
}

/// A choice with the alternatives that it beat.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// The operator.
    pub operator: String,
    /// The choice.
    pub choice: Choice,
    /// Whether the device's part is copied to it for every batch, as it is read.
    pub streamed: bool,
    /// Its cost, seconds.
    pub seconds: f64,
    /// With everything on the CPU.
    pub cpu_alone: f64,
    /// With everything on the device; `None` if it has no kernels for the formats.
    pub device_alone: Option<f64>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |seconds: f64| seconds * 1e3;
        write!(
            f,
            "{}: {}/{PARTS} {} the device, {:.2} ms; the CPU alone {:.2}",
            self.operator,
            self.choice.share,
            if self.streamed { "copied to" } else { "on" },
            ms(self.seconds),
            ms(self.cpu_alone)
        )?;
        match self.device_alone {
            Some(seconds) => write!(f, ", the device alone {:.2}", ms(seconds)),
            None => write!(f, ", the device has no kernels for it"),
        }
    }
}

/// The smallest batch for which the device gets a share of an operator, with its weights resident or copied each time;
/// `None` if there is none up to 4096.
pub fn break_even(
    machine: &PlacementMachine,
    operator: &Operator,
    resident: bool,
) -> Option<usize> {
    let gains = |batch: &usize| {
        let cost = |share| seconds(machine, operator, *batch, Choice { share, resident });
        (1..=PARTS).any(|share| cost(share) * GAIN < cost(0))
    };
    (1..=4096).find(gains)
}
