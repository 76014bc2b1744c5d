//! The minimum cost of a pass through a model: bytes of weights and multiply-adds.

use forebay_models::block::BlockType;
use forebay_models::bundle::{Bundle, DirectoryEntry, FfnGeometry, FfnLayout};
use forebay_models::network::Content;
use forebay_models::tensor::{LayerTensor, TensorId};
use forebay_stages::computed::Computed;

use super::report::Bound;

/// Bytes read once per step, and multiply-adds done for each of its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Bytes of weights.
    pub bytes: f64,
    /// Multiply-adds in 8-bit integers.
    pub int8: f64,
    /// Multiply-adds in f32.
    pub f32: f64,
}

impl Cost {
    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.int8 += other.int8;
        self.f32 += other.f32;
    }

    /// The cost of `passes` over the weights with `tokens` tokens in all.
    fn times(self, passes: f64, tokens: f64) -> Self {
        Self {
            bytes: self.bytes * passes,
            int8: self.int8 * tokens,
            f32: self.f32 * tokens,
        }
    }

    /// `rows * cols` weights; they are multiplied by quantised activations unless the format is plain numbers.
    fn matrix(block: BlockType, rows: usize, cols: usize) -> Self {
        let products = (rows * cols) as f64;
        match block {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => Self {
                f32: products,
                ..Self::default()
            },
            _ => Self {
                int8: products,
                ..Self::default()
            },
        }
    }
}

/// A model's weights by when they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ModelWork {
    /// Norms, attention's matrices, hot neurons and predictors that are used: in every step.
    always: Cost,
    /// Gate of all other neurons.
    gate: Cost,
    /// Up and Down of all neurons.
    up_down: Cost,
    /// The head and its norm: for tokens that need logits.
    head: Cost,
    /// Neurons of all layers that are not hot.
    neurons: f64,
}

/// The work done in some steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Steps {
    passes: f64,
    tokens: f64,
    logits: f64,
    gated: f64,
    gated_by_tokens: f64,
    live: f64,
    live_by_tokens: f64,
}

impl Steps {
    /// Counts a step of `tokens` tokens that computed the Gates `gated` and the Ups and Downs `live`, with logits for
    /// the last token or for none.
    pub fn count(&mut self, tokens: usize, (gated, live): (Computed, Computed), logits: bool) {
        self.passes += 1.0;
        self.tokens += tokens as f64;
        self.logits += f64::from(u8::from(logits));
        self.gated += gated.neurons as f64;
        self.gated_by_tokens += gated.products as f64;
        self.live += live.neurons as f64;
        self.live_by_tokens += live.products as f64;
    }

    /// Tokens of all steps.
    pub fn tokens(&self) -> f64 {
        self.tokens
    }
}

impl ModelWork {
    /// From a packed file's directory. Tables take no part in products: one row of each is used per token.
    /// Predictors count if they are used (`predicted`).
    pub fn of(bundle: &Bundle, predicted: bool) -> Self {
        let (meta, network) = (&bundle.meta, &bundle.meta.network);
        let mut work = Self {
            neurons: (bundle.clusters.iter())
                .filter(|e| e.content.is_ffn() && !matches!(e.content, Content::HotNeurons(_)))
                .map(|e| f64::from(e.count))
                .sum(),
            ..Self::default()
        };
        for (vector, len) in network.vectors() {
            let (to, len) = match vector {
                // Only those of the experts that a token uses.
                TensorId::Layer(
                    layer,
                    LayerTensor::ExpertGateBias
                    | LayerTensor::ExpertUpBias
                    | LayerTensor::ExpertDownBias,
                ) => {
                    let experts = network.experts(layer).map(|e| (e.used, e.count));
                    let (used, count) = experts.unwrap_or((1, 1));
                    (&mut work.always, len * used / count.max(1))
                }
                TensorId::Layer(..) | TensorId::InputsNorm => (&mut work.always, len),
                // One row of it is used per token.
                TensorId::PositionEmbedding => (&mut work.always, network.d_model),
                _ => (&mut work.head, len),
            };
            to.bytes += (len * size_of::<f32>()) as f64;
        }
        for e in &bundle.clusters {
            let tensor = match e.content {
                Content::Table(_) => continue,
                Content::HotNeurons(_) | Content::Neurons(_) | Content::Experts(_) => {
                    if let Some(g) = meta.geometry(e.content) {
                        work.add_ffn(g, e);
                    }
                    continue;
                }
                content if content.is_predictor() && !predicted => continue,
                Content::Rows(tensor) => tensor,
            };
            let Some(matrix) = meta.matrix(tensor) else {
                continue;
            };
            let to = match tensor == network.head_tensor() {
                true => &mut work.head,
                false => &mut work.always,
            };
            to.add(Cost::matrix(matrix.block, e.count as usize, matrix.cols));
            to.bytes += f64::from(e.len);
        }
        work
    }

    /// Without the gaps between rows, which no kernel reads.
    fn add_ffn(&mut self, g: &FfnGeometry, e: &DirectoryEntry) {
        let (n, d) = (e.count as usize, g.d_model);
        if let Content::HotNeurons(_) = e.content {
            let matrices = [Some(g.gate), g.up, Some(g.down)].into_iter().flatten();
            matrices.for_each(|block| self.always.add(Cost::matrix(block, n, d)));
            self.always.bytes += f64::from(e.len);
            return;
        }
        self.gate.add(Cost::matrix(g.gate, n, d));
        if let Some(up) = g.up {
            self.up_down.add(Cost::matrix(up, n, d));
        }
        let (gate, up_down) = match g.layout {
            FfnLayout::Cluster => (g.gate_bytes(n), g.up_bytes(n) + g.down_bytes(n)),
            _ => (n * g.gate_row(), n * (g.up_row() + g.down_column())),
        };
        self.gate.bytes += gate as f64;
        self.up_down.bytes += up_down as f64;
        // A neuron's Down column is added to the result in f32.
        let down = match g.layout {
            FfnLayout::Cluster => g.down,
            _ => BlockType::F32,
        };
        self.up_down.add(Cost::matrix(down, d, n));
    }

    /// The average cost of a token in `steps`.
    pub fn per_token(&self, steps: &Steps) -> Cost {
        let neurons = self.neurons.max(1.0);
        let mut sum = self.always.times(steps.passes, steps.tokens);
        sum.add(
            self.gate
                .times(steps.gated / neurons, steps.gated_by_tokens / neurons),
        );
        sum.add(
            self.up_down
                .times(steps.live / neurons, steps.live_by_tokens / neurons),
        );
        sum.add(self.head.times(steps.logits, steps.logits));
        let tokens = steps.tokens.max(1.0);
        sum.times(1.0 / tokens, 1.0 / tokens)
    }
}

/// A machine's speeds, in bytes and operations per second; 0 for what is not known or not used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub memory: f64,
    pub int8: f64,
    pub f32: f64,
    pub disk: f64,
}

/// The bottleneck of a machine for tokens of this cost that read `disk_bytes` from disk: even if all else takes no
/// time, they cannot be faster.
pub(crate) fn bound(cost: &Cost, disk_bytes: f64, rates: &Rates) -> Bound {
    let seconds = |amount: f64, rate: f64| if rate > 0.0 { amount / rate } else { 0.0 };
    let int8 = seconds(2.0 * cost.int8, rates.int8);
    let f32 = seconds(2.0 * cost.f32, rates.f32);
    let arithmetic = if int8 >= f32 { "int8 peak" } else { "f32 peak" };
    // Both kinds of arithmetic share the same cores, so their times add up.
    let parts = [
        ("memory read", seconds(cost.bytes, rates.memory)),
        (arithmetic, int8 + f32),
        ("disk read", seconds(disk_bytes, rates.disk)),
    ];
    let narrowest = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let (what, seconds) = narrowest.unwrap_or_default();
    Bound {
        what,
        tokens_per_second: if seconds > 0.0 { 1.0 / seconds } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: ModelWork = ModelWork {
        always: Cost {
            bytes: 60.0,
            int8: 120.0,
            f32: 0.0,
        },
        gate: Cost {
            bytes: 40.0,
            int8: 80.0,
            f32: 0.0,
        },
        up_down: Cost {
            bytes: 80.0,
            int8: 160.0,
            f32: 40.0,
        },
        head: Cost {
            bytes: 20.0,
            int8: 40.0,
            f32: 0.0,
        },
        neurons: 10.0,
    };

    /// Neurons that all tokens of a step computed.
    fn shared(neurons: u64, tokens: u64) -> Computed {
        Computed {
            neurons,
            products: neurons * tokens,
        }
    }

    #[test]
    fn a_token_uses_the_biases_of_its_experts_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let tiny = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/golden/tiny/gpt_oss_bf16_gguf/model.gguf"
        );
        let options = forebay_models::bundle::PackOptions::default();
        let packed = crate::packed::open(tiny.as_ref(), Some(folder.path()), &options, &mut |_| {});
        let mut bundle = packed.expect("a model");
        let some = ModelWork::of(&bundle, false).always.bytes;
        let network = &mut bundle.meta.network;
        let mut others = 0;
        for layer in &mut network.layers {
            let experts = layer
                .ffn
                .body
                .experts
                .as_mut()
                .expect("experts with biases");
            let unused = experts.count - std::mem::replace(&mut experts.used, experts.count);
            others += unused * (2 * experts.d_ff + network.d_model);
        }
        assert!(others > 0);
        let all = ModelWork::of(&bundle, false).always.bytes;
        assert_eq!(all - some, 4.0 * others as f64);
    }

    #[test]
    fn a_generated_token_goes_through_all_weights_but_dead_neurons() {
        let mut steps = Steps::default();
        steps.count(1, (shared(10, 1), shared(10, 1)), true);
        let all = WORK.per_token(&steps);
        assert_eq!((all.bytes, all.int8, all.f32), (200.0, 400.0, 40.0));
        // One of two tokens has a fifth of its neurons alive.
        steps.count(1, (shared(10, 1), shared(2, 1)), true);
        let cost = WORK.per_token(&steps);
        assert!((cost.bytes - (120.0 + 80.0 * 0.6)).abs() < 1e-9);
        assert!((cost.int8 - (240.0 + 160.0 * 0.6)).abs() < 1e-9);
    }

    #[test]
    fn gates_that_nobody_predicts_cost_nothing() {
        let mut steps = Steps::default();
        steps.count(1, (shared(5, 1), shared(1, 1)), false);
        let cost = WORK.per_token(&steps);
        assert!((cost.bytes - (60.0 + 20.0 + 8.0)).abs() < 1e-9);
    }

    #[test]
    fn the_tokens_of_a_prompt_share_the_weights_of_a_batch() {
        let mut steps = Steps::default();
        steps.count(8, (shared(10, 8), shared(10, 8)), false);
        steps.count(2, (shared(10, 2), shared(10, 2)), true);
        let cost = WORK.per_token(&steps);
        assert!((cost.bytes - (2.0 * 180.0 + 20.0) / 10.0).abs() < 1e-9);
        // The head is for one of ten tokens.
        assert!((cost.int8 - (10.0 * 360.0 + 40.0) / 10.0).abs() < 1e-9);
        assert!((cost.f32 - 40.0).abs() < 1e-9);
    }

    #[test]
    fn tokens_that_compute_their_own_neurons_cost_their_own_products() {
        let mut steps = Steps::default();
        let own = Computed {
            neurons: 10,
            products: 4,
        };
        steps.count(2, (own, own), false);
        let cost = WORK.per_token(&steps);
        assert!((cost.bytes - 180.0 / 2.0).abs() < 1e-9);
        assert!((cost.int8 - (120.0 + 240.0 * 0.4 / 2.0)).abs() < 1e-9);
    }

    #[test]
    fn the_bound_is_the_narrowest_part() {
        let cost = Cost {
            bytes: 100.0,
            int8: 500.0,
            f32: 50.0,
        };
        let mut rates = Rates {
            memory: 1000.0,
            int8: 20_000.0,
            f32: 10_000.0,
            disk: 0.0,
        };
        let of = |disk_bytes, rates: &Rates| {
            let bound = bound(&cost, disk_bytes, rates);
            (bound.what, bound.tokens_per_second.round())
        };
        assert_eq!(of(50.0, &rates), ("memory read", 10.0));
        rates.disk = 250.0;
        assert_eq!(of(50.0, &rates), ("disk read", 5.0));
        // 1000 operations in integers and 100 in f32, one after the other.
        rates.int8 = 1250.0;
        rates.f32 = 500.0;
        assert_eq!(of(50.0, &rates), ("int8 peak", 1.0));
        rates.f32 = 62.5;
        assert_eq!(of(50.0, &rates).0, "f32 peak");
        assert_eq!(of(50.0, &Rates::default()).1, 0.0);
    }
}
