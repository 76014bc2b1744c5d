//! Recurrent mixers: a core's heads or channels, and their states.
//!
//! A core keeps the states of its own part in all layers, in f32. Which state belongs to which sequence is decided in
//! [`crate::sequences`]. Tokens of a sequence are computed one after the other, so that a token's result does not
//! depend on how many tokens a step has.

mod convolution;
mod delta_net;
mod short_conv;

use std::ops::Range;

use forebay_models::network::{Mixer, Network};

use crate::attention::{KvRoom, Places, part_of};
use crate::kernels::KernelTable;
use crate::sequences::{StateCopy, TokenPlace};
use delta_net::DeltaNetPart;
use short_conv::ShortConvPart;

/// Vectors of a recurrent layer; those that it does not have are empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecurrentWeights<'a> {
    /// Weights of the convolution, `[kernel, channels]`, the current position's last.
    pub taps: &'a [f32],
    /// Added to a delta net's alpha, `[n_value_heads]`.
    pub decay_bias: &'a [f32],
    /// How fast its heads forget, `[n_value_heads]`.
    pub decay_rate: &'a [f32],
    /// Norm of its results, `[value_dim]`.
    pub head_norm: &'a [f32],
}

/// One core's part of the recurrent mixers.
#[derive(Debug)]
pub struct Recurrent {
    /// By layer of the network; `None` with attention.
    layers: Vec<Option<Layer>>,
    /// `[states, state_len]`, in each state layer after layer.
    states: Vec<f32>,
    state_len: usize,
    scratch: Vec<f32>,
}

#[derive(Debug)]
struct Layer {
    part: Part,
    /// Where in a state it is.
    place: Range<usize>,
}

/// A core's part of one layer.
#[derive(Debug)]
enum Part {
    ShortConv(ShortConvPart),
    DeltaNet(DeltaNetPart),
}

impl Part {
    /// The part of core `rank` of `threads`; `None` with attention.
    fn new(mixer: &Mixer, (rank, threads): (usize, usize)) -> Option<Self> {
        match mixer {
            Mixer::Attention(_) => None,
            Mixer::ShortConv(conv) => {
                let part = ShortConvPart::new(conv, part_of(conv.channels, rank, threads));
                Some(Self::ShortConv(part))
            }
            Mixer::DeltaNet(net) => {
                let part = DeltaNetPart::new(net, part_of(net.n_value_heads, rank, threads));
                Some(Self::DeltaNet(part))
            }
        }
    }

    /// Elements of its state.
    fn state_len(&self) -> usize {
        match self {
            Self::ShortConv(part) => part.state_len(),
            Self::DeltaNet(part) => part.state_len(),
        }
    }

    /// Bytes that it allocates itself.
    fn list_bytes(&self) -> usize {
        match self {
            Self::ShortConv(_) => 0,
            Self::DeltaNet(part) => part.list_bytes(),
        }
    }

    /// Elements of scratch memory.
    fn scratch_len(&self) -> usize {
        match self {
            Self::ShortConv(part) => part.scratch_len(),
            Self::DeltaNet(part) => part.scratch_len(),
        }
    }
}

impl Recurrent {
    /// The part of core `rank` of `threads`.
    pub fn new(network: &Network, (rank, threads): (usize, usize), room: &KvRoom) -> Self {
        let mut state_len = 0;
        let parts = parts(network, (rank, threads));
        let layers: Vec<Option<Layer>> = parts
            .map(|part| {
                let part = part?;
                let start = state_len;
                state_len += part.state_len();
                let place = start..state_len;
                Some(Layer { part, place })
            })
            .collect();
        let scratch = layers.iter().flatten().map(|l| l.part.scratch_len());
        Self {
            scratch: vec![0.0; scratch.max().unwrap_or(0)],
            states: vec![0.0; room.states * state_len],
            state_len,
            layers,
        }
    }

    /// Bytes of the states of all cores, for memory budgets.
    pub fn bytes(network: &Network, threads: usize, room: &KvRoom) -> usize {
        let of_core = |rank| {
            let parts = parts(network, (rank, threads)).flatten();
            parts.map(|part| part.state_len()).sum::<usize>()
        };
        let elements: usize = (0..threads).map(of_core).sum();
        elements
            .saturating_mul(room.states)
            .saturating_mul(size_of::<f32>())
    }

    /// Bytes that [`Self::new`] allocates besides the states, for memory budgets.
    pub fn scratch_bytes(network: &Network) -> usize {
        let (mut scratch, mut lists) = (0, 0);
        for part in parts(network, (0, 1)).flatten() {
            scratch = scratch.max(part.scratch_len());
            lists += part.list_bytes();
        }
        scratch * size_of::<f32>() + lists + network.n_layers() * size_of::<Option<Layer>>()
    }

    /// First column of this core's part of a layer's output, and its width.
    pub fn columns(&self, layer: usize) -> (usize, usize) {
        let columns = match &self.layers[layer] {
            Some(layer) => match &layer.part {
                Part::ShortConv(part) => part.columns(),
                Part::DeltaNet(part) => part.columns(),
            },
            None => 0..0,
        };
        (columns.start, columns.len())
    }

    /// Makes the states with which the sequences of a step begin, once for all layers.
    pub fn begin(&mut self, copies: &[StateCopy]) {
        let len = self.state_len;
        let at = |state: u32| state as usize * len;
        for copy in copies {
            let to = at(copy.to);
            match copy.from {
                Some(from) => self.states.copy_within(at(from)..at(from) + len, to),
                None => self.states[to..to + len].fill(0.0),
            }
        }
    }

    /// Mixes the tokens of a step. `input` is `[n_tokens, in_dim]`, `out` is `[n_tokens, own columns]`. The result of a
    /// token does not depend on the other tokens of the step, except those before it in its sequence.
    pub fn run(
        &mut self,
        kernels: &KernelTable,
        layer: usize,
        places: Places<'_>,
        weights: RecurrentWeights<'_>,
        input: &[f32],
        out: &mut [f32],
    ) {
        let own = self.columns(layer).1;
        let Some(Layer { part, place }) = &self.layers[layer] else {
            return;
        };
        let (n_tokens, len) = (places.tokens.len().max(1), self.state_len);
        let width = input.len() / n_tokens;
        let (mut input, mut out) = (input, out);
        let is_kept = |token: &TokenPlace| places.snapshots.iter().any(|s| s.before == *token);
        let follows = |a: &TokenPlace, b: &TokenPlace| a.sequence == b.sequence && !is_kept(b);
        for tokens in places.tokens.chunk_by(follows) {
            let (rows, later) = input.split_at(tokens.len() * width);
            let (results, rest) = out.split_at_mut(tokens.len() * own);
            (input, out) = (later, rest);
            let first = tokens[0];
            let Some(state) = places.tables.state(first.sequence) else {
                continue;
            };
            let at = |state: u32| {
                let start = state as usize * len;
                start + place.start..start + place.end
            };
            for kept in places.snapshots.iter().filter(|s| s.before == first) {
                self.states.copy_within(at(state), at(kept.state).start);
            }
            let state = &mut self.states[at(state)];
            match part {
                Part::ShortConv(part) => {
                    part.run(weights, (rows, width), state, &mut self.scratch, results);
                }
                Part::DeltaNet(part) => {
                    let scratch = &mut self.scratch;
                    part.run(kernels, weights, (rows, width), state, scratch, results);
                }
            }
        }
    }
}

/// The part of core `rank` of `threads` of each layer; `None` with attention.
fn parts(network: &Network, core: (usize, usize)) -> impl Iterator<Item = Option<Part>> + use<'_> {
    let mixers = (0..network.n_layers()).map(|l| network.mixer(l));
    mixers.map(move |mixer| Part::new(mixer, core))
}

#[cfg(test)]
mod tests;
