//! A model with its FFN's neurons in another order: hot ones first, so that clusters are hot or
//! cold as a whole (PowerInfer-2, section 4.1). The model is the same except for the order of sums.

use std::borrow::Cow;
use std::path::Path;

use crate::block::BlockType;
use crate::chat_templates::ChatTemplates;
use crate::error::{ModelError, Result};
use crate::network::HOT_GRANULE;
use crate::network::Network;
use crate::source::TensorSource;
use crate::tensor::{LayerTensor, Stored, TensorId, TensorMeta};
use crate::tokenizer::TokenizerSpec;

/// Neurons that move together: the maximum of a cluster.
const GROUP: usize = 256;

/// The order of each layer's neurons, hottest first, from how often each was wanted, `[n_layers][d_ff]`; the first
/// `hot` of each layer are computed for every token, `[n_layers]`.
///
/// Clusters are assigned to cores in turn, so groups of 256 of the others come in the order 0, 1, 3, 2, 4, 5, 7, 6, …:
/// with two cores, neither gets the hotter half of each pair every time.
pub fn hot_first(counts: &[Vec<u32>], hot: &[usize]) -> Vec<Vec<u32>> {
    let layer = |(counts, &hot): (&Vec<u32>, &usize)| {
        let mut sorted: Vec<u32> = (0..counts.len() as u32).collect();
        sorted.sort_by_key(|&i| std::cmp::Reverse(counts[i as usize]));
        let (hot, others) = sorted.split_at(hot.min(counts.len()));
        let mut groups: Vec<&[u32]> = others.chunks(GROUP).collect();
        // An incomplete group stays the last one.
        let whole = others.len() / GROUP;
        for four in groups[..whole].chunks_exact_mut(4) {
            four.swap(2, 3);
        }
        [hot, &groups.concat()].concat()
    };
    counts.iter().zip(hot).map(layer).collect()
}

/// How many neurons of each layer at least the part `wanted` of `tokens` tokens wanted, in whole granules, and at most
/// half of them; from how often each was wanted, `[n_layers][d_ff]`.
pub fn hot_neurons(counts: &[Vec<u32>], tokens: usize, wanted: f64) -> Vec<usize> {
    let layer = |counts: &Vec<u32>| {
        let is_hot = |count: &&u32| f64::from(**count) >= wanted * tokens as f64;
        let hot = counts.iter().filter(is_hot).count().min(counts.len() / 2);
        hot / HOT_GRANULE * HOT_GRANULE
    };
    counts.iter().map(layer).collect()
}

/// A source with its neurons in another order.
pub struct SortedNeurons {
    inner: Box<dyn TensorSource>,
    /// The model's, with its hot neurons.
    network: Network,
    /// Index in the source of each neuron, `[n_layers][d_ff]`.
    order: Vec<Vec<u32>>,
}

impl SortedNeurons {
    /// `inner` with the neurons of each layer in `order`, the first ones of which are `hot`, `[n_layers]`.
    ///
    /// # Errors
    /// The order is not one of this model's neurons, Down is quantised in blocks of neurons, which cannot be split, or
    /// there are hot neurons beside experts.
    pub fn new(inner: Box<dyn TensorSource>, order: Vec<Vec<u32>>, hot: &[usize]) -> Result<Self> {
        let mut network = inner.network().clone();
        let refuse = |field: String, problem: String, remedy: &str| ModelError::Parameter {
            field,
            problem,
            remedy: remedy.into(),
        };
        for layer in 0..network.n_layers() {
            let d_ff = network.ffn(layer).d_ff;
            let mut seen = vec![false; d_ff];
            let neurons = order.get(layer).map_or(&[][..], |o| o);
            for &i in neurons {
                if let Some(seen) = seen.get_mut(i as usize) {
                    *seen = true;
                }
            }
            if order.len() != network.n_layers() || neurons.len() != d_ff || seen.contains(&false) {
                let problem = format!("not an order of its {d_ff} neurons");
                let remedy = "take a profile of this very model";
                return Err(refuse(format!("layer {layer}"), problem, remedy));
            }
            let down = inner.meta(TensorId::Layer(layer, LayerTensor::Down));
            if let Some(down) = down.filter(|d| element_bytes(d.block).is_none()) {
                let problem = format!("its blocks of {} hold several neurons each", down.block);
                let remedy = "sort models whose Down is F32, F16, BF16 or transposed";
                return Err(refuse(down.name.clone(), problem, remedy));
            }
        }
        let all = network.layers.iter_mut().zip(hot);
        for (l, (layer, &hot)) in all.enumerate() {
            let ffn = &mut layer.ffn.body;
            if hot > 0 && ffn.experts.is_some() {
                let problem = "no neurons beside experts can be hot".to_owned();
                let remedy = "leave the hot neurons of models with experts where they are";
                return Err(refuse(format!("layer {l}"), problem, remedy));
            }
            ffn.hot = hot;
        }
        Ok(Self {
            inner,
            network,
            order,
        })
    }

    /// Reads rows that are elsewhere in the source.
    fn read_rows(&self, id: TensorId, layer: usize, offset: usize, out: &mut [u8]) -> Result<()> {
        let row_bytes = self.inner.meta(id).map_or(1, TensorMeta::row_bytes);
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let (row, from) = (at / row_bytes, at % row_bytes);
            let n = (row_bytes - from).min(rest.len());
            let (part, tail) = rest.split_at_mut(n);
            let source = self.order[layer].get(row).map_or(row, |&i| i as usize);
            self.inner.read(id, source * row_bytes + from, part)?;
            (at, rest) = (at + n, tail);
        }
        Ok(())
    }

    /// Reads rows, or a vector, whose elements are in another order, whole rows of the source at a time.
    fn read_columns(
        &self,
        id: TensorId,
        layer: usize,
        (offset, element): (usize, usize),
        out: &mut [u8],
    ) -> Result<()> {
        let row_bytes = self.inner.meta(id).map_or(1, TensorMeta::row_bytes);
        let mut whole = vec![0; row_bytes];
        let mut read = None;
        for (at, byte) in (offset..).zip(out) {
            let row = at / row_bytes;
            if read != Some(row) {
                self.inner.read(id, row * row_bytes, &mut whole)?;
                read = Some(row);
            }
            let (column, from) = (at % row_bytes / element, at % element);
            *byte = whole[self.order[layer][column] as usize * element + from];
        }
        Ok(())
    }
}

/// Bytes of an element of a format without blocks.
fn element_bytes(block: BlockType) -> Option<usize> {
    match block {
        BlockType::F32 => Some(4),
        BlockType::F16 | BlockType::BF16 => Some(2),
        _ => None,
    }
}

impl TensorSource for SortedNeurons {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn network(&self) -> &Network {
        &self.network
    }

    fn is_sorted(&self) -> bool {
        true
    }

    fn tokenizer(&self) -> Cow<'_, TokenizerSpec> {
        self.inner.tokenizer()
    }

    fn chat_templates(&self) -> &ChatTemplates {
        self.inner.chat_templates()
    }

    fn meta(&self, id: TensorId) -> Option<&TensorMeta> {
        self.inner.meta(id)
    }

    fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        use LayerTensor::{Down, DownT, Gate, GateBias, PredictorFc2, Up};
        match id {
            TensorId::Layer(layer, Gate | Up | DownT | PredictorFc2) => {
                self.read_rows(id, layer, offset, out)
            }
            // The bias of Down belongs to its outputs.
            TensorId::Layer(layer, Down | GateBias) => {
                let block = self.inner.meta(id).map(|m| m.block);
                match block.and_then(element_bytes) {
                    Some(element) => self.read_columns(id, layer, (offset, element), out),
                    None => self.inner.read(id, offset, out),
                }
            }
            _ => self.inner.read(id, offset, out),
        }
    }

    fn gguf_names(&self, id: TensorId) -> Vec<String> {
        match id {
            // Its columns are in another order than in files of the model.
            TensorId::Layer(_, LayerTensor::Down) => Vec::new(),
            _ => self.inner.gguf_names(id),
        }
    }

    fn stored(&self, id: TensorId) -> Stored {
        self.inner.stored(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Oracle;
    use crate::synth::{Form, Shape, SynthOptions, SynthSource};

    fn source() -> Box<dyn TensorSource> {
        let options = SynthOptions {
            form: Form::Sparse,
            layers: Some(1),
            ..SynthOptions::new(Shape::named("tiny-sparse").expect("a shape"))
        };
        Box::new(SynthSource::new(&options).expect("a model"))
    }

    #[test]
    fn hot_groups_are_shared_among_pairs() {
        let counts: Vec<u32> = (0..1100).collect();
        let order = &hot_first(std::slice::from_ref(&counts), &[0])[0];
        let firsts: Vec<u32> = order.chunks(GROUP).map(|g| g[0]).collect();
        // The hottest is the last neuron; groups 2 and 3 have been swapped.
        assert_eq!(firsts, [1099, 843, 331, 587, 75]);
        let mut all = order.clone();
        all.sort_unstable();
        assert_eq!(all, (0..1100).collect::<Vec<_>>());
        // Wanted by at least half of 2,080 tokens: 60 neurons, which are not whole granules.
        assert_eq!(hot_neurons(std::slice::from_ref(&counts), 2080, 0.5), [32]);
        assert_eq!(hot_neurons(std::slice::from_ref(&counts), 2080, 0.0), [544]);
        let order = &hot_first(&[counts], &[32])[0];
        assert!(order[..32].iter().copied().eq((1068..1100).rev()));
        assert_eq!([order[32], order[32 + 512]], [1067, 1067 - 768]);
    }

    #[test]
    fn rows_are_those_of_their_neurons_from_any_byte_on() {
        let plain = source();
        let d_ff = plain.network().ffn(0).d_ff;
        let order: Vec<u32> = (0..d_ff as u32).rev().collect();
        let sorted = SortedNeurons::new(source(), vec![order], &[0]).expect("an order");
        for tensor in [
            LayerTensor::Gate,
            LayerTensor::Up,
            LayerTensor::DownT,
            LayerTensor::PredictorFc2,
        ] {
            let id = TensorId::Layer(0, tensor);
            let row = plain.meta(id).expect("it has one").row_bytes();
            let mut expected = Vec::new();
            for i in (d_ff - 5..d_ff - 2).rev() {
                let mut bytes = vec![0; row];
                plain.read(id, i * row, &mut bytes).expect("readable");
                expected.extend(bytes);
            }
            let mut found = vec![0; 3 * row - 7];
            sorted.read(id, 2 * row + 3, &mut found).expect("readable");
            assert_eq!(found, expected[3..3 * row - 4], "{tensor:?}");
        }
    }

    #[test]
    fn neurons_keep_their_biases() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = root.join("../tests/golden/tiny/opt_bf16");
        let open = || crate::source::open(&folder).expect("a tiny model");
        let widths = open().network().layers.clone();
        let reversed = |d_ff: usize| (0..d_ff as u32).rev().collect();
        let order: Vec<Vec<u32>> = widths.iter().map(|l| reversed(l.ffn.body.d_ff)).collect();
        let hot = vec![0; order.len()];
        let sorted = SortedNeurons::new(open(), order, &hot).expect("an order");
        let logits = |source: &dyn TensorSource| {
            let mut oracle = Oracle::new(source).expect("a model");
            let logits: Vec<Vec<f32>> = (5..15).map(|token| oracle.forward(token)).collect();
            logits.concat()
        };
        let (ours, theirs) = (logits(&sorted), logits(open().as_ref()));
        let apart = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs());
        let most = apart.fold(0.0, f32::max);
        assert!(most < 1e-4, "{most}");
    }

    #[test]
    fn another_models_order_is_refused() {
        let d_ff = source().network().ffn(0).d_ff;
        for order in [
            vec![],
            vec![vec![0; d_ff]],
            vec![(0..d_ff as u32 - 1).collect()],
        ] {
            let refusal = SortedNeurons::new(source(), order, &[0])
                .err()
                .map(|e| e.to_string());
            assert!(refusal.is_some_and(|r| r.contains("profile of this very model")));
        }
    }
}
