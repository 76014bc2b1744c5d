//! What an importance matrix says about the matrices that a conversion quantises.

use super::{PackOptions, keeps_clusters};
use crate::error::{ModelError, Result};
use crate::importance::{Importance, InputSquares};
use crate::network::Content;
use crate::source::TensorSource;
use crate::tensor::{LayerTensor, TensorId, TensorMeta};

/// For how many of the matrices that are quantised an importance matrix has something to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weighing {
    /// Matrices whose errors can be weighed by column.
    pub matrices: usize,
    /// Names of those about which it says nothing: they are quantised without.
    pub missing: Vec<String>,
    /// Experts' matrices among them.
    pub experts: usize,
    /// How many of those no token has used: they are quantised without.
    pub unseen: usize,
    /// Inputs that it has of matrices which the model does not have.
    pub foreign: usize,
}

impl Weighing {
    /// Compares `importance` with the matrices of `source` that a conversion with `options` quantises. The rows of Down
    /// that are written by neuron are not among them: all numbers of such a row are multiplied by the same one.
    ///
    /// # Errors
    /// A matrix of another shape than in `source`; an importance matrix of another model.
    pub fn of(
        source: &dyn TensorSource,
        options: &PackOptions,
        importance: &Importance,
    ) -> Result<Self> {
        let mut weighing = Self::default();
        let mut known = 0;
        for id in matrices(source) {
            let inputs = inputs_of(source, importance, id)?;
            known += usize::from(inputs.is_some());
            let meta = source.meta(id).filter(|meta| is_weighed(options, id, meta));
            let Some(meta) = meta else {
                continue;
            };
            weighing.matrices += 1;
            match inputs {
                None => weighing.missing.push(meta.name.clone()),
                Some(inputs) if id.is_of_experts() => {
                    weighing.experts += inputs.tokens.len();
                    weighing.unseen += inputs.unseen();
                }
                Some(_) => {}
            }
        }
        if known == 0 {
            return Err(ModelError::Format {
                path: importance.path.clone(),
                field: "tensor names".into(),
                problem: format!("none is of a matrix of {}", source.path().display()),
                remedy: "make an importance matrix of this model".into(),
            });
        }
        let names = |id| source.gguf_names(id);
        let own: Vec<String> = all_matrices(source).into_iter().flat_map(names).collect();
        let foreign = importance.inputs.keys().filter(|name| !own.contains(name));
        weighing.foreign = foreign.count();
        Ok(weighing)
    }
}

/// Whether errors in a matrix are weighed.
pub(super) fn is_weighed(options: &PackOptions, id: TensorId, meta: &TensorMeta) -> bool {
    let target = options.target(id, meta.block, meta.cols);
    target != meta.block && target.is_weighable()
}

/// The inputs of a matrix, if they are known.
///
/// # Errors
/// Another number of columns or experts than the matrix has.
pub(super) fn inputs_of<'a>(
    source: &dyn TensorSource,
    importance: &'a Importance,
    id: TensorId,
) -> Result<Option<&'a InputSquares>> {
    let (Some(meta), Some(inputs)) = (source.meta(id), importance.of(&source.gguf_names(id)))
    else {
        return Ok(None);
    };
    let experts = match id {
        TensorId::Layer(layer, _) if id.is_of_experts() => {
            source.network().experts(layer).map_or(1, |e| e.count)
        }
        _ => 1,
    };
    if inputs.sums.len() == experts * meta.cols && inputs.tokens.len() == experts {
        return Ok(Some(inputs));
    }
    let found = inputs.tokens.len();
    Err(ModelError::Format {
        path: importance.path.clone(),
        field: meta.name.clone(),
        problem: format!(
            "inputs of {} columns for each of {found} matrices, but {} has {experts} of {}",
            inputs.sums.len() / found.max(1),
            source.path().display(),
            meta.cols
        ),
        remedy: "make an importance matrix of this very model".into(),
    })
}

/// The matrices whose rows are written as they are multiplied: the inputs of their columns differ.
fn matrices(source: &dyn TensorSource) -> Vec<TensorId> {
    let network = source.network();
    let of = |content: Content| match content {
        Content::Rows(id) => vec![id],
        // Their rows are in the matrices of the layer's other neurons.
        Content::Table(_) | Content::HotNeurons(_) => Vec::new(),
        Content::Neurons(l) | Content::Experts(l) => {
            let (rows, down) = network.neuron_matrices(content);
            let down = Some(down).filter(|_| keeps_clusters(network, l));
            let all = rows.iter().copied().chain(down);
            all.map(|t| TensorId::Layer(l, t)).collect()
        }
    };
    network.contents(false).into_iter().flat_map(of).collect()
}

/// The same with Down where it is written by neuron, and with the embedding.
fn all_matrices(source: &dyn TensorSource) -> Vec<TensorId> {
    let layers = 0..source.network().n_layers();
    let downs = layers.map(|l| TensorId::Layer(l, LayerTensor::Down));
    let mut all = matrices(source);
    all.extend(downs.chain([TensorId::TokenEmbedding]));
    all
}
