//! Recurrent mixers of all cores together, with inputs that depend on the token only.

use forebay_models::kv_type::KvType;
use forebay_models::network::{
    Activation, DeltaNet, KeySharing, Mixer, Network, Rope, RopePairing, ShortConv, Uniform,
};

use super::{Recurrent, RecurrentWeights};
use crate::attention::{KvRoom, Places};
use crate::kernels::KernelTable;
use crate::random::Random;
use crate::sequences::growth::grow;
use crate::sequences::{Copies, SequenceId, Sequences, Tables};

/// Mixers that differ in everything that they know.
fn mixers() -> Vec<Mixer> {
    let conv = |channels, kernel| Mixer::ShortConv(ShortConv { channels, kernel });
    let net = |heads: [usize; 2], dims: [usize; 2], kernel, sharing| {
        Mixer::DeltaNet(DeltaNet {
            n_key_heads: heads[0],
            n_value_heads: heads[1],
            key_dim: dims[0],
            value_dim: dims[1],
            kernel,
            sharing,
            eps: 1e-5,
        })
    };
    vec![
        conv(24, 3),
        net([2, 6], [8, 12], 4, KeySharing::Grouped),
        conv(17, 2),
        net([3, 6], [20, 80], 2, KeySharing::Tiled),
        net([4, 4], [16, 16], 3, KeySharing::Tiled),
    ]
}

/// A layer for each of them, between layers with attention.
fn network() -> Network {
    let mixers = mixers();
    let mut network = Uniform {
        name: "recurrent".into(),
        n_layers: 2 * mixers.len() + 1,
        d_model: 8,
        n_heads: 8,
        n_kv_heads: 2,
        head_dim: 4,
        d_ff: 8,
        vocab_size: 8,
        context_length: 1000,
        rms_eps: 1e-5,
        rope: Rope::plain(1e4, 4, RopePairing::HalfSplit),
        window: None,
        activation: Activation::Silu,
        qkv_bias: false,
        tied_head: true,
        predictor_threshold: 0.0,
    }
    .network();
    for (i, mixer) in mixers.into_iter().enumerate() {
        network.layers[2 * i + 1].mixer.body = mixer;
    }
    network
}

/// Results of a token's input matrices in a layer.
fn input(network: &Network, layer: usize, token: u64) -> Vec<f32> {
    Random(token * 1000 + layer as u64).numbers(network.mixer(layer).in_dim())
}

/// A layer's vectors.
struct Vectors {
    taps: Vec<f32>,
    bias: Vec<f32>,
    rate: Vec<f32>,
    norm: Vec<f32>,
}

impl Vectors {
    fn of(network: &Network, layer: usize) -> Self {
        let mut random = Random(7 + layer as u64);
        let (taps, heads, norm) = match network.mixer(layer) {
            Mixer::Attention(_) => (0, 0, 0),
            Mixer::ShortConv(conv) => (conv.channels * conv.kernel, 0, 0),
            Mixer::DeltaNet(net) => (
                net.channels() * net.kernel,
                net.n_value_heads,
                net.value_dim,
            ),
        };
        Self {
            taps: random.numbers(taps),
            bias: random.numbers(heads),
            rate: random.numbers(heads).iter().map(|v| -v.abs()).collect(),
            norm: random.numbers(norm),
        }
    }

    fn weights(&self) -> RecurrentWeights<'_> {
        RecurrentWeights {
            taps: &self.taps,
            decay_bias: &self.bias,
            decay_rate: &self.rate,
            head_norm: &self.norm,
        }
    }
}

const CONTEXT: usize = 640;
const MAX_TOKENS: usize = 96;

/// All cores, and the thread that plans their steps.
struct Machine {
    network: Network,
    kernels: KernelTable,
    cores: Vec<Recurrent>,
    sequences: Sequences,
    tables: Tables,
    copies: Copies,
}

impl Machine {
    fn new(network: &Network, n_sequences: usize, threads: usize) -> Self {
        let room = KvRoom::new(network, KvType::F16, CONTEXT, MAX_TOKENS, n_sequences);
        let core = |rank| Recurrent::new(network, (rank, threads), &room);
        Self {
            network: network.clone(),
            kernels: KernelTable::best(),
            cores: (0..threads).map(core).collect(),
            sequences: Sequences::new(&room.pools, room.states),
            tables: Tables::default(),
            copies: Copies::default(),
        }
    }

    /// Adds tokens to sequences; bits of every token's results, layer after layer.
    fn step(&mut self, growth: &[(SequenceId, &[u64])]) -> Vec<Vec<u32>> {
        let (places, tokens) = grow(&mut self.sequences, growth, &mut self.copies);
        self.tables.fill(&self.sequences, &places);
        let mut results = vec![Vec::new(); tokens.len()];
        for core in &mut self.cores {
            core.begin(&self.copies.states);
        }
        for (l, layer) in self.network.layers.iter().enumerate() {
            if !layer.mixer.body.is_recurrent() {
                assert!(self.cores.iter().all(|core| core.columns(l).1 == 0));
                continue;
            }
            let vectors = Vectors::of(&self.network, l);
            let rows = tokens.iter().map(|&t| input(&self.network, l, t));
            let rows = rows.collect::<Vec<_>>().concat();
            let n = layer.mixer.body.out_dim();
            let mut all = vec![vec![f32::NAN; n]; tokens.len()];
            for core in &mut self.cores {
                let (start, width) = core.columns(l);
                if width == 0 {
                    continue;
                }
                let mut out = vec![f32::NAN; tokens.len() * width];
                let places = Places {
                    tokens: &places,
                    tables: &self.tables,
                    snapshots: &self.copies.snapshots,
                };
                let weights = vectors.weights();
                core.run(&self.kernels, l, places, weights, &rows, &mut out);
                for (all, out) in all.iter_mut().zip(out.chunks(width)) {
                    all[start..start + width].copy_from_slice(out);
                }
            }
            for (result, all) in results.iter_mut().zip(all) {
                result.extend(all.into_iter().map(f32::to_bits));
            }
        }
        results
    }
}

/// Bits of every token's results, token by token on one core.
fn alone(network: &Network, tokens: &[u64]) -> Vec<Vec<u32>> {
    let mut machine = Machine::new(network, 1, 1);
    let id = machine.sequences.open();
    let tokens = tokens.chunks(1);
    tokens.flat_map(|t| machine.step(&[(id, t)])).collect()
}

/// `c * conv(b * x)` of the last token in f64.
fn short_conv(conv: &ShortConv, taps: &[f32], rows: &[Vec<f32>]) -> Vec<f64> {
    let n = conv.channels;
    let channel = |c: usize| {
        let seen = rows.iter().rev().zip((0..conv.kernel).rev());
        let products = seen.map(|(row, tap)| {
            f64::from(row[c]) * f64::from(row[2 * n + c]) * f64::from(taps[tap * n + c])
        });
        products.sum::<f64>() * f64::from(rows[rows.len() - 1][n + c])
    };
    (0..n).map(channel).collect()
}

/// `x * sigmoid(x)`
fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The value heads' results of the last token in f64.
fn delta_net(net: &DeltaNet, vectors: &Vectors, rows: &[Vec<f32>]) -> Vec<f64> {
    let (n, channels) = (net.key_dim, net.channels());
    // What the convolution makes of a channel of row `t`.
    let mixed = |t: usize, c: usize| {
        let seen = rows[..=t].iter().rev().zip((0..net.kernel).rev());
        let products =
            seen.map(|(row, tap)| f64::from(row[c]) * f64::from(vectors.taps[tap * channels + c]));
        silu(products.sum())
    };
    let unit = |t: usize, first: usize| {
        let x: Vec<f64> = (first..first + n).map(|c| mixed(t, c)).collect();
        let length = (x.iter().map(|v| v * v).sum::<f64>() + 1e-6).sqrt();
        x.into_iter().map(|v| v / length).collect::<Vec<f64>>()
    };
    let mut out = Vec::new();
    for head in 0..net.n_value_heads {
        let key = net.key_head(head) * n;
        let mut state = vec![vec![0.0f64; net.value_dim]; n];
        let mut result = vec![0.0; net.value_dim];
        for (t, row) in rows.iter().enumerate() {
            let (q, k) = (unit(t, key), unit(t, net.keys_dim() + key));
            let at = |i: usize| f64::from(row[channels + net.values_dim() + i]);
            let step = (at(head) + f64::from(vectors.bias[head])).exp().ln_1p();
            let decay = (f64::from(vectors.rate[head]) * step).exp();
            let beta = 1.0 / (1.0 + (-at(net.n_value_heads + head)).exp());
            for (c, result) in result.iter_mut().enumerate() {
                let v = mixed(t, 2 * net.keys_dim() + head * net.value_dim + c);
                let known: f64 = (0..n).map(|r| k[r] * decay * state[r][c]).sum();
                for r in 0..n {
                    state[r][c] = decay * state[r][c] + k[r] * beta * (v - known);
                }
                *result = (0..n).map(|r| q[r] * state[r][c]).sum::<f64>() / (n as f64).sqrt();
            }
        }
        let mean = result.iter().map(|v| v * v).sum::<f64>() / net.value_dim as f64;
        let last = &rows[rows.len() - 1];
        out.extend(result.iter().enumerate().map(|(c, v)| {
            let gate = f64::from(last[channels + head * net.value_dim + c]);
            v / (mean + f64::from(net.eps)).sqrt() * f64::from(vectors.norm[c]) * silu(gate)
        }));
    }
    out
}

#[test]
fn every_layer_computes_what_its_description_says() {
    let network = network();
    let tokens: Vec<u64> = (100..120).collect();
    let results = alone(&network, &tokens);
    for last in 0..tokens.len() {
        let mut want = Vec::new();
        for l in 0..network.n_layers() {
            let rows = tokens[..=last].iter().map(|&t| input(&network, l, t));
            let rows: Vec<Vec<f32>> = rows.collect();
            let vectors = Vectors::of(&network, l);
            match network.mixer(l) {
                Mixer::Attention(_) => {}
                Mixer::ShortConv(conv) => want.extend(short_conv(conv, &vectors.taps, &rows)),
                Mixer::DeltaNet(net) => want.extend(delta_net(net, &vectors, &rows)),
            }
        }
        assert_eq!(results[last].len(), want.len());
        for (i, (&got, want)) in results[last].iter().zip(want).enumerate() {
            let got = f64::from(f32::from_bits(got));
            assert!((got - want).abs() < 1e-3, "{last} {i}: {got} for {want}");
        }
    }
}

#[test]
fn batches_and_cores_change_no_bit() {
    let network = network();
    let tokens: Vec<u64> = (500..560).collect();
    let want = alone(&network, &tokens);
    for threads in [1, 2, 3, 7, 12] {
        for batch in [1, 7, 60] {
            let mut machine = Machine::new(&network, 1, threads);
            let id = machine.sequences.open();
            let steps = tokens.chunks(batch);
            let got: Vec<_> = steps.flat_map(|t| machine.step(&[(id, t)])).collect();
            assert_eq!(got, want, "{threads} cores, {batch} tokens at once");
        }
    }
}

#[test]
fn sequences_forks_and_cuts_keep_every_bit() {
    let network = network();
    let mut random = Random(3);
    let mut machine = Machine::new(&network, 4, 2);
    let mut known: Vec<(SequenceId, Vec<u64>)> = Vec::new();
    let mut token = 0;
    for _ in 0..120 {
        match random.below(8) {
            _ if known.is_empty() => known.push((machine.sequences.open(), Vec::new())),
            0 if known.len() < 4 => {
                let (from, tokens) = known[random.below(known.len())].clone();
                known.push((machine.sequences.fork(from), tokens));
            }
            1 if known.len() < 4 => known.push((machine.sequences.open(), Vec::new())),
            2 if known.len() == 4 => {
                let (id, _) = known.swap_remove(random.below(4));
                machine.sequences.free(id);
            }
            3 => {
                let at = random.below(known.len());
                let (id, tokens) = &mut known[at];
                let at = tokens.len().saturating_sub(random.below(30));
                tokens.truncate(machine.sequences.cut(*id, at));
            }
            _ => {
                let mut new = Vec::new();
                for (id, tokens) in &mut known {
                    let n = random.below(12);
                    let from = tokens.len();
                    tokens.extend(token..token + n as u64);
                    token += n as u64;
                    machine
                        .sequences
                        .want_snapshot(*id, from + random.below(12));
                    new.push((*id, tokens[from..].to_vec(), tokens.clone()));
                }
                let step: Vec<_> = new.iter().map(|(id, t, _)| (*id, &t[..])).collect();
                let mut results = machine.step(&step).into_iter();
                for (_, new, all) in &new {
                    let want = alone(&network, all).split_off(all.len() - new.len());
                    let got: Vec<_> = results.by_ref().take(new.len()).collect();
                    assert_eq!(got, want);
                }
            }
        }
    }
}
