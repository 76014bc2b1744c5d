//! Attention of all cores together, with inputs that depend on the token only.

mod definition;
mod steps;

use forebay_models::kv_type::KvType;
use forebay_models::network::{
    self, Activation, Block, Ffn, Head, KvOrigin, Latent, Layer, Mixer, Network, Norm, NormKind,
    NormSpan, QkNorm, Rope, RopePairing, RopeScaling, Temperature,
};

use super::{Attention, KvRoom, Places, QkWeights};
use crate::kernels::KernelTable;
use crate::random::Random;
use crate::sequences::growth::grow;
use crate::sequences::{Copies, SequenceId, Sequences, Tables};

/// Which token it is decides its Q, K and V; this one's are NaN.
const POISON: u64 = u64::MAX;

/// Q, K and V of a token in a layer, with the bias of keys.
fn input(network: &Network, layer: usize, token: u64) -> Vec<f32> {
    let attention = network.attention(layer).expect("attention");
    let n = attention.in_dim();
    if token == POISON {
        return vec![f32::NAN; n];
    }
    let mut row = Random(token * 1000 + layer as u64).numbers(n);
    let keys = &mut row[attention.k_column()..];
    for (key, bias) in keys.iter_mut().zip(bias(network, layer)) {
        *key += bias;
    }
    row
}

/// Bias of a layer's keys, a few times larger than they are.
fn bias(network: &Network, layer: usize) -> Vec<f32> {
    let attention = network.attention(layer).expect("attention");
    let n = if attention.qkv_bias {
        attention.kv_dim()
    } else {
        0
    };
    let bias = Random(3 + layer as u64).numbers(n);
    bias.into_iter().map(|b| 4.0 * b).collect()
}

/// Scores without a value of a layer's heads, some above and some below the others.
fn sinks(network: &Network, layer: usize) -> Vec<f32> {
    let attention = network.attention(layer).expect("attention");
    let n = if attention.sinks {
        attention.n_heads
    } else {
        0
    };
    let sinks = Random(7 + layer as u64).numbers(n);
    sinks.into_iter().map(|s| 4.0 * s).collect()
}

/// Weights of the norms of a layer.
fn weights(network: &Network, layer: usize) -> (Vec<f32>, Vec<f32>) {
    let a = network.attention(layer).expect("attention");
    let (q, k) = match a.qk_norm.map(|norm| norm.span) {
        Some(NormSpan::Head) => (a.head_dim, a.head_dim),
        Some(NormSpan::OwnHead | NormSpan::Row) => (a.q_dim(), a.k_rows()),
        None => (0, a.latent.map_or(0, |latent| latent.rank)),
    };
    let mut random = Random(7 + layer as u64);
    (random.numbers(q), random.numbers(k))
}

fn attention(
    (n_heads, n_kv_heads, head_dim): (usize, usize, usize),
    window: Option<usize>,
) -> network::Attention {
    network::Attention {
        n_heads,
        n_kv_heads,
        head_dim,
        kv: KvOrigin::Own,
        latent: None,
        qkv_bias: false,
        out_bias: false,
        output_gate: false,
        qk_norm: None,
        v_norm: None,
        rope: Some(0),
        window,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: None,
        temperature: None,
        sinks: false,
    }
}

fn norm(span: NormSpan, after_rope: bool) -> Option<QkNorm> {
    Some(QkNorm {
        kind: NormKind::Rms,
        span,
        eps: 1e-5,
        after_rope,
    })
}

fn latent_attention() -> network::Attention {
    network::Attention {
        kv: KvOrigin::KeysAlone,
        latent: Some(Latent {
            rank: 24,
            plain_dim: 10,
            value_dim: 12,
            query_rank: Some(5),
            eps: 1e-3,
        }),
        rope: Some(1),
        ..attention((6, 1, 32), None)
    }
}

/// Attention that differs in everything that it knows.
fn bodies() -> [network::Attention; 12] {
    [
        network::Attention {
            qkv_bias: true,
            ..attention((6, 2, 16), None)
        },
        network::Attention {
            qk_norm: norm(NormSpan::Row, false),
            rope: Some(1),
            ..attention((4, 4, 20), Some(70))
        },
        network::Attention {
            rope: None,
            temperature: Some(Temperature {
                beta: 0.3,
                original_context: 50,
            }),
            ..attention((6, 1, 32), None)
        },
        network::Attention {
            qk_norm: norm(NormSpan::Head, false),
            sinks: true,
            ..attention((8, 2, 16), Some(130))
        },
        network::Attention {
            qk_norm: norm(NormSpan::Head, true),
            softcap: Some(3.0),
            ..attention((4, 2, 24), None)
        },
        network::Attention {
            kv: KvOrigin::KeysAlone,
            qk_norm: norm(NormSpan::Head, false),
            v_norm: Some(1e-5),
            ..attention((6, 3, 24), None)
        },
        network::Attention {
            v_norm: Some(1e-3),
            ..attention((4, 2, 16), Some(70))
        },
        network::Attention {
            kv: KvOrigin::Layer(5),
            qk_norm: norm(NormSpan::Head, false),
            ..attention((6, 3, 24), None)
        },
        network::Attention {
            kv: KvOrigin::Layer(6),
            qk_norm: norm(NormSpan::Row, false),
            ..attention((4, 2, 16), Some(70))
        },
        network::Attention {
            qk_norm: Some(QkNorm {
                kind: NormKind::Layer,
                span: NormSpan::OwnHead,
                eps: 1e-3,
                after_rope: false,
            }),
            ..attention((6, 3, 16), None)
        },
        network::Attention {
            output_gate: true,
            qk_norm: norm(NormSpan::Head, false),
            ..attention((6, 2, 16), None)
        },
        latent_attention(),
    ]
}

/// A layer for each of them.
fn network() -> Network {
    let rope = |theta, rotary_dim, pairing, magnitude| Rope {
        theta,
        rotary_dim,
        pairing,
        scaling: RopeScaling::None,
        magnitude,
    };
    let pre_norm = Some(Norm::rms(1e-5));
    let layer = |attention| Layer {
        mixer: Block {
            pre_norm,
            body: Mixer::Attention(attention),
            post_norm: None,
            residual_scale: 1.0,
        },
        ffn: Block {
            pre_norm,
            body: Ffn {
                d_ff: 8,
                hot: 0,
                activation: Activation::Silu,
                gated: true,
                bias: false,
                experts: None,
                predictor_before_layer: false,
            },
            post_norm: None,
            residual_scale: 1.0,
        },
        parallel: false,
        input: None,
        scaled: false,
    };
    Network {
        name: "attention".into(),
        d_model: 8,
        vocab_size: 8,
        context_length: 1000,
        embedding_scale: 1.0,
        position_offset: None,
        token_inputs: None,
        ropes: vec![
            rope(1e4, 16, RopePairing::HalfSplit, 1.0),
            rope(5e2, 8, RopePairing::Interleaved, 1.25),
        ],
        layers: bodies().map(layer).into(),
        output_norm: Norm::rms(1e-5),
        head: Head {
            tied: true,
            bias: false,
            scale: 1.0,
            softcap: None,
        },
        predictor_threshold: 0.0,
    }
}

/// Most tokens of a step.
const MAX_TOKENS: usize = 96;
/// Most positions of a sequence.
const CONTEXT: usize = 640;

/// All cores, and the thread that plans their steps.
struct Machine {
    network: Network,
    kernels: KernelTable,
    cores: Vec<Attention>,
    sequences: Sequences,
    tables: Tables,
    copies: Copies,
}

impl Machine {
    fn new(network: &Network, kind: KvType, n_sequences: usize, threads: usize) -> Self {
        let room = KvRoom::new(network, kind, CONTEXT, MAX_TOKENS, n_sequences);
        let core = |rank| Attention::new(network, (rank, threads), &room, MAX_TOKENS);
        Self {
            network: network.clone(),
            kernels: KernelTable::best(),
            cores: (0..threads).map(core).collect(),
            sequences: Sequences::new(&room.pools, 0),
            tables: Tables::default(),
            copies: Copies::default(),
        }
    }

    /// Adds tokens to sequences; every token's results, layer after layer.
    fn step(&mut self, growth: &[(SequenceId, &[u64])]) -> Vec<Vec<f32>> {
        let (places, tokens) = grow(&mut self.sequences, growth, &mut self.copies);
        self.tables.fill(&self.sequences, &places);
        let n_columns = |layer: &Layer| layer.mixer.body.mixed_dim();
        let all_columns = self.network.layers.iter().map(n_columns).sum();
        let mut results = vec![vec![f32::NAN; all_columns]; tokens.len()];
        for core in &mut self.cores {
            core.begin(&places, &self.copies.blocks);
            let mut first_column = 0;
            for (l, layer) in self.network.layers.iter().enumerate() {
                let (q, k) = weights(&self.network, l);
                let rows = tokens.iter().map(|&t| input(&self.network, l, t));
                let mut qkv = rows.collect::<Vec<_>>().concat();
                let (start, width) = core.columns(l);
                let mut out = vec![f32::NAN; tokens.len() * width];
                let step = Places {
                    tokens: &places,
                    tables: &self.tables,
                    snapshots: &[],
                };
                let k_bias = bias(&self.network, l);
                let sinks = sinks(&self.network, l);
                let norms = QkWeights {
                    q: &q,
                    k: &k,
                    k_bias: &k_bias,
                    sinks: &sinks,
                };
                core.store(&self.kernels, l, step, norms, &mut qkv);
                // A device may do the last ones.
                let half = tokens.len() / 2;
                for range in [half..tokens.len(), 0..half] {
                    let which = (range, norms);
                    core.attend(&self.kernels, l, step, which, (&qkv, &mut out));
                }
                for (result, out) in results.iter_mut().zip(out.chunks(width)) {
                    result[first_column + start..][..width].copy_from_slice(out);
                }
                first_column += n_columns(layer);
            }
        }
        results
    }
}
