//! From which part of the tokens on a neuron is hot: the border that makes a token's FFNs fastest. Hot neurons are
//! computed for tokens that do not want them, too, but a device can have them (PowerInfer-2, sections 4.1 and 5).

use forebay_models::block::BlockType;
use forebay_models::sorted::hot_neurons;

use super::machine::PlacementMachine;
use super::operators::Operator;
use super::plan::Placement;

/// A border must make a token's FFNs this much faster.
const GAIN: f64 = 1.02;
/// Borders that are tried, in parts of this many.
const BORDERS: u32 = 20;

/// What tokens want of a model's neurons, and what they take.
#[derive(Clone, Debug)]
pub struct NeuronWants<'a> {
    /// How often each neuron was wanted, `[n_layers][d_ff]`.
    pub counts: &'a [Vec<u32>],
    /// By how many tokens.
    pub tokens: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Formats of a hot neuron's rows and column, one for each matrix.
    pub formats: Vec<BlockType>,
    /// Bytes of a hot neuron, and of one that is stored by itself.
    pub bytes: [f64; 2],
}

/// A border between hot and cold neurons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Border {
    /// Neurons are hot that at least this part of the tokens wants.
    pub part: f64,
    /// Seconds of a token's FFNs in the model.
    pub seconds: f64,
    /// The same if no neuron is hot.
    pub without: f64,
}

/// The best border on a machine; `None` if no neuron should be hot.
pub fn best_border(machine: &PlacementMachine, wants: &NeuronWants<'_>) -> Option<Border> {
    let seconds = |hot: &[usize]| {
        let layers = wants.counts.iter().zip(hot);
        let operators: Vec<Operator> = layers.map(|(c, &hot)| wants.operator(c, hot)).collect();
        Placement::plan(machine, &operators, 1).seconds
    };
    let without = seconds(&vec![0; wants.counts.len()]);
    let borders = (1..BORDERS).map(|i| {
        let part = f64::from(i) / f64::from(BORDERS);
        let hot = hot_neurons(wants.counts, wants.tokens, part);
        let seconds = seconds(&hot);
        Border {
            part,
            seconds,
            without,
        }
    });
    let best = borders.min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    (best.seconds * GAIN < without).then_some(best)
}

impl NeuronWants<'_> {
    /// A layer's FFN, of whose neurons the `hot` most wanted ones are hot.
    fn operator(&self, counts: &[u32], hot: usize) -> Operator {
        let mut sorted = counts.to_vec();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let cold: u64 = sorted[hot..].iter().map(|&count| u64::from(count)).sum();
        let cold = cold as f64 / self.tokens.max(1) as f64;
        let operations = 2.0 * (self.formats.len() * self.d_model) as f64;
        Operator {
            name: "ffn".to_owned(),
            formats: self.formats.clone(),
            bytes: hot as f64 * self.bytes[0],
            used: 1.0,
            operations: hot as f64 * operations,
            cold_bytes: cold * self.bytes[1],
            cold_operations: cold * operations,
            ..Operator::boards(self.d_model)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::{MachineKind, published};

    /// A 7B's layers, of whose neurons a twelfth is wanted by most tokens and the others by few.
    fn counts() -> Vec<Vec<u32>> {
        let wanted = |i: u32| match i % 12 {
            0 => 800 - i % 7 * 40,
            _ => 60,
        };
        vec![(0..14336).map(wanted).collect(); 4]
    }

    #[test]
    fn only_a_fast_device_is_worth_hot_neurons() {
        let counts = counts();
        let wants = NeuronWants {
            counts: &counts,
            tokens: 1000,
            d_model: 4096,
            formats: vec![BlockType::Q4_0, BlockType::Q4_0, BlockType::Q8_0],
            bytes: [2.0 * 2304.0 + 4352.0, 3.0 * 2304.0],
        };
        let machines = published().expect("sound data");
        for machine in &machines {
            let border = best_border(machine, &wants);
            eprintln!("{}: {border:?}", machine.name);
            match machine.kind {
                MachineKind::Cpu => assert_eq!(border, None),
                MachineKind::Unified => {}
                MachineKind::Discrete => {
                    let border = border.expect("a fast device");
                    assert!(border.seconds < 0.7 * border.without, "{border:?}");
                    // All that most tokens want, and none of the others.
                    assert!(border.part > 0.06 && border.part < 0.6, "{border:?}");
                }
            }
        }
        // Formats without kernels stay on the CPU.
        let unknown = NeuronWants {
            formats: vec![BlockType::F16; 3],
            ..wants
        };
        assert!(machines.iter().all(|m| best_border(m, &unknown).is_none()));
    }
}
