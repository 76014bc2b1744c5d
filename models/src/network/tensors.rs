//! The parts of a network: every tensor with its shape, and the content of a packed file in order.

use std::ops::Range;

use super::{Attention, Experts, KvOrigin, Layer, Mixer, Network, NormSpan};
use crate::tensor::{LayerTensor as T, TensorId};

/// Rows and columns that follow from the description; `None` if the file decides (a predictor's rank).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of rows; 1 for a vector.
    pub rows: Option<usize>,
    /// Elements of a row.
    pub cols: Option<usize>,
}

/// What a stored cluster is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Content {
    /// Rows of a matrix in panels ([`crate::panel`]): attention's, predictors', those of token inputs, the head (the
    /// embedding matrix if it is tied).
    Rows(TensorId),
    /// Hot neurons of a layer's FFN: Gate, Up (if there is one) and Down together. Down's rows are in the order in
    /// which the columns of the layer's other neurons are added ([`crate::lanes`]).
    HotNeurons(usize),
    /// The other neurons of a layer's FFN that every token uses.
    Neurons(usize),
    /// The same of a layer's experts, one after the other.
    Experts(usize),
    /// Rows of a table, one after the other, of which each token has one: the embedding if it is not the head, and
    /// token inputs.
    Table(TensorId),
}

impl Content {
    /// The layer it belongs to.
    #[inline]
    pub fn layer(self) -> Option<usize> {
        match self {
            Self::Rows(TensorId::Layer(layer, _))
            | Self::HotNeurons(layer)
            | Self::Neurons(layer)
            | Self::Experts(layer) => Some(layer),
            Self::Rows(_) | Self::Table(_) => None,
        }
    }

    /// The matrix whose rows it holds; `None` for neurons.
    pub fn matrix(self) -> Option<TensorId> {
        match self {
            Self::Rows(tensor) | Self::Table(tensor) => Some(tensor),
            Self::HotNeurons(_) | Self::Neurons(_) | Self::Experts(_) => None,
        }
    }

    /// Whether it has neurons of an FFN.
    pub fn is_ffn(self) -> bool {
        matches!(
            self,
            Self::HotNeurons(_) | Self::Neurons(_) | Self::Experts(_)
        )
    }

    /// Whether it belongs to an activation predictor.
    #[inline]
    pub fn is_predictor(self) -> bool {
        matches!(self, Self::Rows(tensor) if tensor.is_predictor())
    }
}

impl Network {
    /// The matrix with which logits are computed.
    pub fn head_tensor(&self) -> TensorId {
        match self.head.tied {
            true => TensorId::TokenEmbedding,
            false => TensorId::OutputHead,
        }
    }

    /// The content of a packed file, in its order, which is that of use: layer by layer, then the tables, then
    /// predictors.
    pub fn contents(&self, predictors: bool) -> Vec<Content> {
        let rows = |l, t| Content::Rows(TensorId::Layer(l, t));
        let there = |content: &Content| content.matrix().and_then(|t| self.shape(t)).is_some();
        let mut contents = Vec::new();
        contents.extend(
            [Content::Rows(TensorId::InputsProjection)]
                .iter()
                .filter(|c| there(c)),
        );
        for (l, layer) in self.layers.iter().enumerate() {
            let of_router = [T::Router, T::SharedGate].map(|t| rows(l, t));
            let of_router = of_router.into_iter().filter(|c| there(c));
            let experts = layer.ffn.body.experts.as_ref();
            let (early, late): (Vec<_>, Vec<_>) =
                of_router.partition(|_| experts.is_some_and(|e| e.router.before_layer));
            contents.extend(early);
            let mixer = &layer.mixer.body;
            let inputs = mixer.inputs().into_iter().map(|(t, _)| t);
            let latent = mixer.attention().and_then(|a| a.latent);
            let compressed = latent.and_then(|latent| latent.query_rank);
            let rest = [compressed.map(|_| T::Q), latent.map(|_| T::KUp)];
            let after = [latent.map(|_| T::VUp), Some(T::O)];
            let rest = rest.into_iter().chain(after).flatten();
            contents.extend(inputs.chain(rest).map(|t| rows(l, t)));
            contents.extend(late);
            let ffn = &layer.ffn.body;
            contents.extend((ffn.hot > 0).then_some(Content::HotNeurons(l)));
            contents.extend((ffn.d_ff > ffn.hot).then_some(Content::Neurons(l)));
            contents.extend(ffn.experts.as_ref().map(|_| Content::Experts(l)));
            let of_input = [T::InputGate, T::InputProjection].map(|t| rows(l, t));
            contents.extend(of_input.iter().filter(|c| there(c)));
        }
        contents.push(Content::Rows(self.head_tensor()));
        if !self.head.tied {
            contents.push(Content::Table(TensorId::TokenEmbedding));
        }
        contents.extend(
            [Content::Table(TensorId::TokenInputs)]
                .iter()
                .filter(|c| there(c)),
        );
        for l in (0..self.n_layers()).filter(|_| predictors) {
            contents.extend([T::PredictorFc1, T::PredictorFc2].map(|t| rows(l, t)));
        }
        contents
    }

    /// Neurons of a content among the layer's, or the layer's experts', and how many each of its experts has: these and
    /// no others are in one cluster. None and 1 for a content without neurons.
    pub fn neurons(&self, content: Content) -> (Range<usize>, usize) {
        let together = |neurons: Range<usize>| (neurons.clone(), neurons.len().max(1));
        match content {
            Content::HotNeurons(layer) => together(0..self.ffn(layer).hot),
            Content::Neurons(layer) => together(self.ffn(layer).hot..self.ffn(layer).d_ff),
            Content::Experts(layer) => {
                let experts = self.experts(layer);
                experts.map_or((0..0, 1), |e| (0..e.n_neurons(), e.d_ff))
            }
            Content::Rows(_) | Content::Table(_) => (0..0, 1),
        }
    }

    /// Which part of a content's clusters a token uses: that of the experts that are chosen for it.
    pub fn used_share(&self, content: Content) -> f64 {
        match content {
            Content::Experts(layer) => {
                let experts = self.experts(layer);
                experts.map_or(0.0, |e| e.used as f64 / e.count as f64)
            }
            _ => 1.0,
        }
    }

    /// The expert to which a neuron of a content belongs, if it is one's.
    pub fn expert_of(&self, content: Content, neuron: usize) -> Option<u16> {
        match content {
            // There are at most 2^16 of them.
            Content::Experts(_) => Some((neuron / self.neurons(content).1) as u16),
            _ => None,
        }
    }

    /// Matrices with a row for each neuron of a content, and the one with columns.
    pub fn neuron_matrices(&self, content: Content) -> (&'static [T], T) {
        match content {
            Content::Experts(layer) => (self.ffn(layer).expert_row_matrices(), T::ExpertDown),
            Content::HotNeurons(layer) | Content::Neurons(layer) => {
                (self.ffn(layer).row_matrices(), T::Down)
            }
            Content::Rows(_) | Content::Table(_) => (&[], T::Down),
        }
    }

    /// Norms, biases and learned positions, which are always in memory, with their lengths, in the order of a packed
    /// file.
    pub fn vectors(&self) -> Vec<(TensorId, usize)> {
        let mut vectors = Vec::new();
        for (l, layer) in self.layers.iter().enumerate() {
            for t in T::VECTORS {
                let shape = self.vector_shape(layer, t);
                vectors.extend(shape.map(|(rows, cols)| (TensorId::Layer(l, t), rows * cols)));
            }
        }
        vectors.extend(self.token_inputs.map(|i| (TensorId::InputsNorm, i.width)));
        for id in [
            TensorId::OutputNorm,
            TensorId::OutputNormBias,
            TensorId::OutputHeadBias,
            TensorId::PositionEmbedding,
        ] {
            let shape = self.shape(id).and_then(|s| Some((s.rows?, s.cols?)));
            vectors.extend(shape.map(|(rows, cols)| (id, rows.saturating_mul(cols))));
        }
        vectors
    }

    /// Rows and columns of a layer's norm, bias or other vector, if it has one.
    fn vector_shape(&self, layer: &Layer, t: T) -> Option<(usize, usize)> {
        let (mixer, ffn, d) = (&layer.mixer, &layer.ffn.body, self.d_model);
        if let Some(experts) = &ffn.experts
            && let Some(shape) = expert_vector(experts, d, t)
        {
            return Some(shape);
        }
        let len = match t {
            T::AttnNorm => mixer.pre_norm.map(|_| d),
            T::AttnNormBias => mixer.pre_norm.filter(|n| n.bias).map(|_| d),
            T::AttnPostNorm => mixer.post_norm.map(|_| d),
            T::FfnNorm => layer.ffn.pre_norm.map(|_| d),
            T::FfnNormBias => layer.ffn.pre_norm.filter(|n| n.bias).map(|_| d),
            T::GateBias => ffn.bias.then_some(ffn.d_ff),
            T::DownBias => ffn.bias.then_some(d),
            T::FfnPostNorm => layer.ffn.post_norm.map(|_| d),
            T::InputPostNorm => layer.input.as_ref()?.post_norm.map(|_| d),
            T::LayerScale => layer.scaled.then_some(1),
            _ => {
                return match &mixer.body {
                    Mixer::Attention(a) => attention_vector(a, d, t),
                    Mixer::ShortConv(conv) => {
                        (t == T::ConvTaps).then_some((conv.channels, conv.kernel))
                    }
                    Mixer::DeltaNet(net) => match t {
                        T::ConvTaps => Some((net.channels(), net.kernel)),
                        T::DecayBias | T::DecayRate => Some((1, net.n_value_heads)),
                        T::HeadNorm => Some((1, net.value_dim)),
                        _ => None,
                    },
                };
            }
        };
        len.map(|len| (1, len))
    }

    /// Whether files may have this tensor although the network has none in its role: of keys and values in a layer that
    /// attends over another's.
    pub fn is_superfluous(&self, id: TensorId) -> bool {
        let TensorId::Layer(layer, T::K | T::V | T::KBias | T::VBias | T::KNorm) = id else {
            return false;
        };
        let layer = self.layers.get(layer);
        let origin = layer.and_then(|l| Some(l.mixer.body.attention()?.kv));
        matches!(origin, Some(KvOrigin::Layer(_)))
    }

    /// The shape of a tensor; `None` if the network has none in this role.
    pub fn shape(&self, id: TensorId) -> Option<Shape> {
        let shape = |rows: usize, cols: usize| Shape {
            rows: Some(rows),
            cols: Some(cols),
        };
        let d = self.d_model;
        let (layer, t) = match id {
            TensorId::TokenEmbedding => return Some(shape(self.vocab_size, d)),
            TensorId::OutputHead => return (!self.head.tied).then(|| shape(self.vocab_size, d)),
            TensorId::OutputNorm => return Some(shape(1, d)),
            TensorId::OutputNormBias => return self.output_norm.bias.then(|| shape(1, d)),
            TensorId::OutputHeadBias => return self.head.bias.then(|| shape(1, self.vocab_size)),
            TensorId::PositionEmbedding => {
                let offset = self.position_offset?;
                return Some(shape(self.context_length + offset, d));
            }
            TensorId::TokenInputs | TensorId::InputsProjection | TensorId::InputsNorm => {
                let width = self.token_inputs?.width;
                return Some(match id {
                    TensorId::TokenInputs => shape(self.vocab_size, self.inputs_width()),
                    TensorId::InputsProjection => shape(self.inputs_width(), d),
                    _ => shape(1, width),
                });
            }
            TensorId::Layer(layer, t) => (self.layers.get(layer)?, t),
        };
        let (mixer, ffn) = (&layer.mixer.body, &layer.ffn.body);
        let ff = ffn.d_ff;
        if let Some(&(_, rows)) = mixer.inputs().iter().find(|(input, _)| *input == t) {
            return Some(shape(rows, d));
        }
        let latent = mixer.attention().and_then(|a| a.latent_shape(t));
        if let Some((rows, cols)) = latent {
            return Some(shape(rows, cols));
        }
        let experts = ffn.experts.as_ref();
        let of_experts = |rows: fn(&Experts) -> usize, cols: usize| {
            experts.map(|experts| shape(rows(experts), cols))
        };
        match t {
            T::O => Some(shape(d, mixer.out_dim())),
            T::Gate | T::Up | T::Down | T::DownT if ff == 0 => None,
            T::Up | T::ExpertUp if !ffn.gated => None,
            T::Gate | T::Up | T::DownT => Some(shape(ff, d)),
            T::Down => Some(shape(d, ff)),
            T::Router => of_experts(|e| e.count, d),
            T::ExpertGate | T::ExpertUp => of_experts(Experts::n_neurons, d),
            T::ExpertDown => experts.map(|e| shape(e.count * d, e.d_ff)),
            T::SharedGate => experts.filter(|e| e.shared_gate).map(|_| shape(1, d)),
            T::InputGate => layer.input.as_ref().map(|_| shape(self.input_width(), d)),
            T::InputProjection => layer.input.as_ref().map(|_| shape(d, self.input_width())),
            T::PredictorFc1 => Some(Shape {
                rows: None,
                cols: Some(d),
            }),
            T::PredictorFc2 => Some(Shape {
                rows: Some(ff),
                cols: None,
            }),
            _ => {
                let (rows, cols) = self.vector_shape(layer, t)?;
                Some(shape(rows, cols))
            }
        }
    }
}

/// Rows and columns of a bias of experts or their router, if they have it.
fn expert_vector(experts: &Experts, d_model: usize, t: T) -> Option<(usize, usize)> {
    let (n, router) = (experts.count, &experts.router);
    match t {
        T::RouterBias => router.bias.then_some((1, n)),
        T::SelectionBias => router.selection_bias.then_some((1, n)),
        T::ExpertGateBias | T::ExpertUpBias => experts.bias.then_some((n, experts.d_ff)),
        T::ExpertDownBias => experts.bias.then_some((n, d_model)),
        _ => None,
    }
}

/// Rows and columns of a bias or norm of attention, if it has one.
fn attention_vector(a: &Attention, d_model: usize, t: T) -> Option<(usize, usize)> {
    let spans = |heads: usize| {
        a.qk_norm.map(|n| match n.span {
            NormSpan::Head => (1, a.head_dim),
            NormSpan::OwnHead => (heads, a.head_dim),
            NormSpan::Row => (1, heads * a.head_dim),
        })
    };
    let len = match t {
        T::QNorm if a.latent.is_some() => Some(a.query_rank()).filter(|&rank| rank > 0),
        T::KNorm if a.latent.is_some() => a.latent.map(|latent| latent.rank),
        T::QNorm => return spans(a.n_heads),
        T::KNorm if a.k_rows() == 0 => return None,
        T::KNorm => return spans(a.n_kv_heads),
        T::QBias => a.qkv_bias.then(|| a.q_rows()),
        T::KBias => Some(a.k_rows()).filter(|&rows| a.qkv_bias && rows > 0),
        T::VBias => Some(a.v_rows()).filter(|&rows| a.qkv_bias && rows > 0),
        T::OBias => a.out_bias.then_some(d_model),
        T::Sinks => a.sinks.then_some(a.n_heads),
        _ => None,
    };
    len.map(|len| (1, len))
}
