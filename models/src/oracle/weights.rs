//! The oracle's weights: every tensor of a model as f32, under the names of the papers.

use std::collections::BTreeMap;

use crate::block::dequantize;
use crate::error::{ModelError, Result};
use crate::source::{TensorSource, read_vector};
use crate::tensor::{LayerTensor, TensorId};

/// A row-major matrix.
pub(super) struct Matrix {
    pub(super) id: TensorId,
    data: Vec<f32>, // [rows, cols]
    cols: usize,
    /// Whether its rows are stored in quantised blocks.
    pub(super) in_blocks: bool,
}

impl Matrix {
    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.cols..][..self.cols]
    }

    /// The matrix times the column vector `x`, `[cols]`: `[rows]`.
    pub(super) fn times(&self, x: &[f32]) -> Vec<f32> {
        let rows = self.data.chunks_exact(self.cols);
        rows.map(|row| dot(row, x) as f32).collect()
    }

    fn transposed(&self) -> Self {
        let rows = self.data.len() / self.cols;
        let columns = (0..self.cols).flat_map(|c| (0..rows).map(move |r| r * self.cols + c));
        let id = match self.id {
            TensorId::Layer(l, LayerTensor::DownT) => TensorId::Layer(l, LayerTensor::Down),
            id => id,
        };
        Self {
            id,
            data: columns.map(|i| self.data[i]).collect(),
            cols: rows,
            // Stored by column, so columns are scaled and added: no product of blocks is computed.
            in_blocks: false,
        }
    }
}

/// Inner product in f64; eight partial sums, so that large models are not unbearably slow.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(
        a.len(),
        b.len(),
        "a source validates its shapes when opened"
    );
    let mut sums = [0.0f64; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for (sum, (&x, &y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += f64::from(x) * f64::from(y);
        }
    }
    sums.iter().sum()
}

/// A two-layer activation predictor.
pub(super) struct Predictor {
    pub(super) fc1: Matrix, // [rank, d_model]
    pub(super) fc2: Matrix, // [d_ff, rank]
}

/// One layer's matrices; norms and biases are in [`Weights::vectors`].
pub(super) struct Layer {
    /// Those of the mixer's input, in the order of [`Mixer::inputs`](crate::network::Mixer::inputs): Q, K and V of
    /// attention, as far as it has them, `[rows, d_model]` each.
    pub(super) inputs: Vec<Matrix>,
    pub(super) o: Matrix, // [d_model, all heads or channels]
    pub(super) latent: Option<Latent>,
    /// Neurons that every token uses.
    pub(super) neurons: Option<Neurons>,
    pub(super) experts: Option<Experts>,
    pub(super) predictor: Option<Predictor>,
    pub(super) input: Option<InputMixer>,
}

/// What latent attention has besides the matrices of its input.
pub(super) struct Latent {
    /// `[n_heads * query_dim, query_rank]`; `None` if it is one of the input's.
    pub(super) q: Option<Matrix>,
    pub(super) k_up: Matrix, // [n_heads * rank, plain_dim]
    pub(super) v_up: Matrix, // [n_heads * value_dim, rank]
}

/// The matrices of an FFN, or of all experts.
pub(super) struct Neurons {
    pub(super) gate: Matrix, // [d_ff, d_model]
    /// `[d_ff, d_model]`; `None` if the FFN is not gated.
    pub(super) up: Option<Matrix>,
    pub(super) down: Matrix, // [d_model, d_ff]
}

/// Experts, one after the other: rows of Gate and Up are neurons of all, rows of Down results of all.
pub(super) struct Experts {
    pub(super) router: Matrix,              // [n_experts, d_model]
    pub(super) shared_gate: Option<Matrix>, // [1, d_model]
    pub(super) neurons: Neurons,
}

/// What mixes a token's input into the residual stream.
pub(super) struct InputMixer {
    pub(super) gate: Matrix,       // [width, d_model]
    pub(super) projection: Matrix, // [d_model, width]
}

/// What makes the inputs of tokens.
pub(super) struct Inputs {
    pub(super) table: Matrix,      // [vocab_size, n_layers * width]
    pub(super) projection: Matrix, // [n_layers * width, d_model]
}

/// The whole model.
pub(super) struct Weights {
    pub(super) embedding: Matrix,  // [vocab_size, d_model]
    pub(super) layers: Vec<Layer>, // [n_layers]
    vectors: BTreeMap<TensorId, Vec<f32>>,
    /// `[vocab_size, d_model]`; `None` if the embedding is the head.
    pub(super) head: Option<Matrix>,
    pub(super) inputs: Option<Inputs>,
}

impl Weights {
    pub(super) fn load(source: &dyn TensorSource) -> Result<Self> {
        let network = source.network();
        let head = match network.head.tied {
            true => None,
            false => Some(matrix(source, TensorId::OutputHead)?),
        };
        let inputs = match network.token_inputs {
            None => None,
            Some(_) => Some(Inputs {
                table: matrix(source, TensorId::TokenInputs)?,
                projection: matrix(source, TensorId::InputsProjection)?,
            }),
        };
        let vector = |(id, _)| Ok((id, read_vector(source, id)?));
        Ok(Self {
            embedding: matrix(source, TensorId::TokenEmbedding)?,
            layers: (0..network.n_layers())
                .map(|l| Layer::load(source, l))
                .collect::<Result<_>>()?,
            vectors: network
                .vectors()
                .into_iter()
                .map(vector)
                .collect::<Result<_>>()?,
            head,
            inputs,
        })
    }

    /// The weights of a norm of the network.
    pub(super) fn gain(&self, id: TensorId) -> &[f32] {
        self.vector(id)
            .expect("a norm of the network was read with it")
    }

    /// A norm, bias or factor of the network.
    pub(super) fn vector(&self, id: TensorId) -> Option<&[f32]> {
        self.vectors.get(&id).map(Vec::as_slice)
    }
}

impl Layer {
    fn load(source: &dyn TensorSource, layer: usize) -> Result<Self> {
        let get = |t| matrix(source, TensorId::Layer(layer, t));
        let has = |t| source.meta(TensorId::Layer(layer, t)).is_some();
        let of_network = |t| match source.network().shape(TensorId::Layer(layer, t)) {
            Some(_) => get(t).map(Some),
            None => Ok(None),
        };
        let ffn = source.network().ffn(layer);
        let neurons = match (ffn.d_ff, has(LayerTensor::DownT)) {
            (0, _) => None,
            (_, transposed) => Some(Neurons {
                gate: get(LayerTensor::Gate)?,
                up: of_network(LayerTensor::Up)?,
                down: match transposed {
                    true => get(LayerTensor::DownT)?.transposed(),
                    false => get(LayerTensor::Down)?,
                },
            }),
        };
        let experts = match ffn.experts {
            None => None,
            Some(_) => Some(Experts {
                router: get(LayerTensor::Router)?,
                shared_gate: of_network(LayerTensor::SharedGate)?,
                neurons: Neurons {
                    gate: get(LayerTensor::ExpertGate)?,
                    up: of_network(LayerTensor::ExpertUp)?,
                    down: get(LayerTensor::ExpertDown)?,
                },
            }),
        };
        let predictor = match has(LayerTensor::PredictorFc1) {
            true => Some(Predictor {
                fc1: get(LayerTensor::PredictorFc1)?,
                fc2: get(LayerTensor::PredictorFc2)?,
            }),
            false => None,
        };
        let mixer = source.network().mixer(layer);
        let latent = match mixer.attention().and_then(|a| a.latent) {
            None => None,
            Some(latent) => Some(Latent {
                q: match latent.query_rank {
                    Some(_) => Some(get(LayerTensor::Q)?),
                    None => None,
                },
                k_up: get(LayerTensor::KUp)?,
                v_up: get(LayerTensor::VUp)?,
            }),
        };
        let inputs = mixer.inputs().into_iter();
        Ok(Self {
            inputs: inputs.map(|(t, _)| get(t)).collect::<Result<_>>()?,
            o: get(LayerTensor::O)?,
            latent,
            neurons,
            experts,
            predictor,
            input: match source.network().layers[layer].input {
                None => None,
                Some(_) => Some(InputMixer {
                    gate: get(LayerTensor::InputGate)?,
                    projection: get(LayerTensor::InputProjection)?,
                }),
            },
        })
    }
}

/// Reads and dequantises one tensor.
fn matrix(source: &dyn TensorSource, id: TensorId) -> Result<Matrix> {
    let meta = source
        .meta(id)
        .ok_or_else(|| ModelError::damaged(source.path(), format!("{id:?}"), "tensor missing"))?;
    let mut bytes = vec![0; meta.bytes()];
    source.read(id, 0, &mut bytes)?;
    let mut data = vec![0.0; meta.rows * meta.cols];
    dequantize(meta.block, &bytes, &mut data);
    Ok(Matrix {
        id,
        data,
        cols: meta.cols,
        in_blocks: meta.block.block_len() > 1,
    })
}
