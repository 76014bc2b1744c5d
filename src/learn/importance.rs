//! Measuring how large the inputs of a model's matrices are, by column, over a text: what quantising should spare.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use forebay_models::error::ModelError;
use forebay_models::importance::{Importance, InputSquares};
use forebay_models::network::{Content, Network};
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};
use forebay_plans::residency::Sparsity;
use forebay_stages::frame::Observer;
use parking_lot::Mutex;

use super::texts::{Make, whole_texts};
use crate::error::Error;

/// Sums of the squares of a matrix's inputs. They are added token by token in one order, so that they are the same for
/// every number of threads and every batch.
#[derive(Debug)]
struct Sums {
    columns: usize,
    /// `[n_experts, columns]`
    sums: Vec<f64>,
    /// `[n_experts]`; of Down, they are Gate's.
    tokens: Vec<u64>,
}

/// Adds up the squares of all inputs.
#[derive(Debug)]
struct Squares {
    matrices: BTreeMap<TensorId, Mutex<Sums>>,
}

impl Squares {
    fn new(network: &Network) -> Arc<Self> {
        let mut matrices = BTreeMap::new();
        for content in network.contents(false) {
            for id in matrices_of(network, content) {
                let experts = experts_of(network, id);
                let columns = network.shape(id).and_then(|shape| shape.cols).unwrap_or(0);
                let sums = Sums {
                    columns,
                    sums: vec![0.0; experts * columns],
                    tokens: vec![0; experts],
                };
                matrices.insert(id, Mutex::new(sums));
            }
        }
        Arc::new(Self { matrices })
    }
}

/// The matrices of a content that are multiplied by something.
fn matrices_of(network: &Network, content: Content) -> Vec<TensorId> {
    match content {
        Content::Rows(id) => vec![id],
        // Hot neurons are in the matrices of the layer's others.
        Content::Table(_) | Content::HotNeurons(_) => Vec::new(),
        Content::Neurons(l) | Content::Experts(l) => {
            let (rows, down) = network.neuron_matrices(content);
            let all = rows.iter().copied().chain([down]);
            all.map(|t| TensorId::Layer(l, t)).collect()
        }
    }
}

/// Experts that have a matrix of their own in this role, 1 if it is one for all.
fn experts_of(network: &Network, id: TensorId) -> usize {
    match id {
        TensorId::Layer(l, _) if id.is_of_experts() => network.experts(l).map_or(1, |e| e.count),
        _ => 1,
    }
}

impl Observer for Squares {
    fn bytes(&self) -> u64 {
        let matrices = self.matrices.values().map(|sums| {
            let sums = sums.lock();
            size_of_val(&*sums.sums) + size_of_val(&*sums.tokens)
        });
        matrices.sum::<usize>() as u64
    }

    fn input(&self, tensor: TensorId, expert: Option<u16>, rows: &[f32]) {
        let Some(sums) = self.matrices.get(&tensor) else {
            return;
        };
        let mut sums = sums.lock();
        let (expert, columns) = (usize::from(expert.unwrap_or(0)), sums.columns);
        sums.tokens[expert] += (rows.len() / columns) as u64;
        let own = &mut sums.sums[expert * columns..][..columns];
        add_squares(own, rows);
    }

    fn hidden(&self, content: Content, (first, n): (usize, usize), hidden: &[f32]) {
        let down = match content {
            Content::HotNeurons(l) | Content::Neurons(l) => TensorId::Layer(l, LayerTensor::Down),
            Content::Experts(l) => TensorId::Layer(l, LayerTensor::ExpertDown),
            Content::Rows(_) | Content::Table(_) => return,
        };
        // Neurons are numbered expert after expert, as the columns are here.
        let mut sums = self.matrices[&down].lock();
        add_squares(&mut sums.sums[first..first + n], hidden);
    }
}

/// Adds the squares of `rows`, `[n_tokens, sums.len()]`.
fn add_squares(sums: &mut [f64], rows: &[f32]) {
    for row in rows.chunks_exact(sums.len()) {
        for (sum, &v) in sums.iter_mut().zip(row) {
            *sum += f64::from(v) * f64::from(v);
        }
    }
}

/// Runs `tokens` in texts of `ctx` tokens, each from an empty context, and measures the inputs of all matrices, which
/// get the names that `source` has for them. All neurons are computed. `progress` receives the share done.
///
/// # Errors
/// Too little text, an error in running the model, or inputs that are not finite.
pub fn measure_importance(
    make: Make<'_>,
    source: &dyn TensorSource,
    (tokens, ctx): (&[u32], usize),
    dataset: &Path,
    progress: &mut dyn FnMut(f64),
) -> Result<Importance, Error> {
    let n = whole_texts(tokens.len(), ctx)?;
    let network = source.network();
    let squares = Squares::new(network);
    let engine = make()?
        .sparsity(Sparsity::Dense)
        .observer(squares.clone())
        .build()?;
    for (i, text) in tokens.chunks_exact(ctx).enumerate() {
        progress((i * ctx) as f64 / n as f64);
        // The head has inputs where logits are wanted.
        engine.logits(&engine.tokenizer().piece(text), 0, |_, _| {})?;
    }
    drop(engine);
    let mut importance = Importance {
        datasets: vec![dataset.to_string_lossy().into_owned()],
        chunks: (n / ctx) as u32,
        chunk_tokens: ctx as u32,
        ..Importance::default()
    };
    for (&id, sums) in &squares.matrices {
        let sums = sums.lock();
        let Some(name) = source.gguf_names(id).into_iter().next() else {
            continue;
        };
        if let Some(sum) = sums.sums.iter().find(|sum| !(**sum as f32).is_finite()) {
            let problem = format!("its inputs have squares that add up to {sum}");
            return Err(ModelError::damaged(source.path(), name, problem).into());
        }
        let counts = match id {
            TensorId::Layer(l, LayerTensor::Down) => Some(TensorId::Layer(l, LayerTensor::Gate)),
            TensorId::Layer(l, LayerTensor::ExpertDown) => {
                Some(TensorId::Layer(l, LayerTensor::ExpertGate))
            }
            _ => None,
        };
        let counted = counts.map(|id| squares.matrices[&id].lock().tokens.clone());
        let tokens = counted.as_ref().unwrap_or(&sums.tokens);
        let inputs = InputSquares {
            sums: sums.sums.iter().map(|&sum| sum as f32).collect(),
            tokens: tokens.iter().map(|&n| n as f32).collect(),
        };
        importance.inputs.insert(name, inputs);
    }
    Ok(importance)
}
