//! Models of real shapes for measuring speed. Their output is meaningless, but their active neurons are decided as in a
//! real sparse model: by the sign of a gate's product with the residual stream, at run time. How many are active, how
//! unequal they are, how much consecutive tokens have in common and how much of it a predictor of low rank sees, is
//! planted in the weights ([`Planting`]).
//!
//! **The residual stream.** Its columns are divided into `rank / 2` groups, and inside a group column `j` has a fixed
//! sign. A token is a coefficient per group (times the signs), and noise. A quarter of the groups is the same in all
//! tokens; three eighths are the token's own (the embedding); three eighths are the context. Attention writes the
//! context: queries and keys are constant, so that scores depend on distance alone and cover about ten positions; V
//! reads the token's groups, O maps them at random to the context's. The FFN's output is small, so the structure is
//! there in every layer.
//!
//! **Neurons.** A gate row has a random coefficient per varying group, noise, and a coefficient of the
//! constant groups that is its threshold. Thresholds are normally distributed, which makes hot and cold
//! neurons, in random order. Positive factors such as RMSNorm's change no sign.
//!
//! **Predictors**, in PowerInfer's form `fc2 · relu(fc1 · x)`: fc1 reads the groups' coefficients, with both signs, and
//! fc2 has the gate's, rounded, with a lower threshold. What they cannot see is the noise in gate rows and in the
//! stream, and what attention adds to the context, if they see the stream before it.
//!
//! **Experts.** A router's row has a coefficient per varying group, as a gate row has, and a popularity in the constant
//! ones. In these models attention covers about two positions, the first three layers write the context, and every
//! later one changes it. So tokens use experts about as unequally as in published traces, and as many of them again in
//! the next token and in later ones; the first layers and the last do so less; and a layer's router names most of its
//! experts a layer ahead, but not all.
//!
//! **Values** are small integers times a scale per 32 elements, so that a seed gives the same model in Q4_0, Q8_0 and
//! F16. Every row is computed from random numbers by position (no state), so any range of bytes can be read at any
//! time.

mod block;
mod experts;
mod planting;
mod random;
mod rows;
mod shape;
mod vocabulary;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::block::BlockType;
use crate::error::{ModelError, Result};
use crate::network::{self, Content, Network};
use crate::source::TensorSource;
use crate::tensor::{LayerTensor, TensorId, TensorMeta};
use crate::tokenizer::TokenizerSpec;

pub use planting::{Planting, Routing};
pub use shape::Shape;

use block::LEN;
use planting::Plan;
use random::Stream;
use rows::Rows;
use vocabulary::vocabulary;

/// Maximum number of layers that can be made; the packed format has room for more.
const MOST_LAYERS: usize = 1024;

/// Formats that matrices can have.
pub const FORMATS: [BlockType; 3] = [BlockType::Q4_0, BlockType::Q8_0, BlockType::F16];

/// Which model of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// With the shape's ReLU, transposed Down, and predictors, like PowerInfer's files.
    Sparse,
    /// With SiLU, ordinary Down, and no predictors, for timing other engines on the same shape. Its Down differs from
    /// the sparse form's.
    Plain,
}

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct SynthOptions {
    /// Sizes.
    pub shape: Shape,
    /// Sparse, or plain for other engines.
    pub form: Form,
    /// Format of all matrices, one of [`FORMATS`].
    pub format: BlockType,
    /// Another seed gives another model.
    pub seed: u64,
    /// Number of layers instead of the shape's.
    pub layers: Option<usize>,
    /// Rank of the predictors instead of the shape's. It is twice the dimension of the planted structure, so another
    /// rank gives another model.
    pub rank: Option<usize>,
    /// What is planted.
    pub planting: Planting,
    /// Whether the predictors see the residual stream before their layer. The first layer's do not: there is no context
    /// before its attention.
    pub before_attention: bool,
}

impl SynthOptions {
    /// The sparse form of `shape` in Q4_0.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            form: Form::Sparse,
            format: BlockType::Q4_0,
            seed: 1,
            layers: None,
            rank: None,
            planting: shape.planting(),
            before_attention: false,
        }
    }
}

/// A model that is computed as it is read.
pub struct SynthSource {
    program: PathBuf,
    network: Network,
    tokenizer: TokenizerSpec,
    rows: Rows,
    tensors: BTreeMap<TensorId, TensorMeta>,
}

impl SynthSource {
    /// Prepares the model; nothing is computed yet.
    ///
    /// # Errors
    /// A format, rank, density or number of layers that cannot be made.
    pub fn new(options: &SynthOptions) -> Result<Self> {
        let shape = &options.shape;
        let n_layers = options.layers.unwrap_or(shape.n_layers);
        if n_layers == 0 || n_layers > MOST_LAYERS {
            let problem = format!("{n_layers} cannot be made");
            return Err(refused(
                "layers",
                problem,
                format!("give 1 to {MOST_LAYERS}"),
            ));
        }
        if !FORMATS.contains(&options.format) {
            let problem = format!("{} is not made", options.format);
            let remedy = "choose one of: ".to_owned() + &FORMATS.map(BlockType::name).join(", ");
            return Err(refused("quant", problem, remedy));
        }
        let rank = options.rank.unwrap_or(shape.rank);
        let name = format!(
            "{} synth seed={} rank={rank} density={}",
            shape.name, options.seed, options.planting.density
        );
        let form = match shape.has_experts() {
            // Without predictors, and Down as other engines have it.
            true => Form::Plain,
            false => options.form,
        };
        if options.before_attention && form == Form::Plain {
            let problem = "this model has no predictors".into();
            let remedy = "make a sparse one without experts".into();
            return Err(refused("before-attention", problem, remedy));
        }
        let mut network = shape.network(form == Form::Sparse, n_layers, name);
        if options.before_attention {
            let later = network.layers.iter_mut().skip(1);
            later.for_each(|layer| layer.ffn.body.predictor_before_layer = true);
        }
        let stream = Stream::of_seed(options.seed);
        let plan = Plan::new(options.planting, &network, rank, stream)?;
        Ok(Self {
            program: std::env::current_exe()
                .map_err(|e| ModelError::io("forebay", "find the program itself", e))?,
            tokenizer: vocabulary(network.vocab_size),
            tensors: tensors(&network, form, (options.format, shape.expert_format), rank),
            rows: Rows::new(plan, stream),
            network,
        })
    }

    /// Bytes `offset..` of a matrix.
    fn read_matrix(&self, id: TensorId, meta: &TensorMeta, mut offset: usize, out: &mut [u8]) {
        let (row_bytes, block_bytes) = (meta.row_bytes(), meta.row_bytes() / (meta.cols / LEN));
        let mut whole = [0; 4 * LEN];
        let whole = &mut whole[..block_bytes];
        let mut rest = out;
        while !rest.is_empty() {
            let row = self.rows.row(id, offset / row_bytes);
            let in_row = offset % row_bytes;
            let (part, later) = rest.split_at_mut((row_bytes - in_row).min(rest.len()));
            let (mut block, mut skip) = (in_row / block_bytes, in_row % block_bytes);
            let mut left = &mut *part;
            while !left.is_empty() {
                let (bytes, others) = left.split_at_mut((block_bytes - skip).min(left.len()));
                let values = self.rows.block(&row, block);
                if bytes.len() == block_bytes {
                    values.encode(meta.block, bytes);
                } else {
                    values.encode(meta.block, whole);
                    bytes.copy_from_slice(&whole[skip..skip + bytes.len()]);
                }
                (block, skip, left) = (block + 1, 0, others);
            }
            offset += part.len();
            rest = later;
        }
    }
}

impl TensorSource for SynthSource {
    /// The program: with the options, it is the model's source.
    fn path(&self) -> &Path {
        &self.program
    }

    fn network(&self) -> &Network {
        &self.network
    }

    fn tokenizer(&self) -> Cow<'_, TokenizerSpec> {
        Cow::Borrowed(&self.tokenizer)
    }

    fn meta(&self, id: TensorId) -> Option<&TensorMeta> {
        self.tensors.get(&id)
    }

    fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        let Some(meta) = self.meta(id) else {
            let problem = format!("{} has no such tensor", self.network.name);
            return Err(refused(
                &format!("{id:?}"),
                problem,
                "ask for its metadata first".into(),
            ));
        };
        if offset
            .checked_add(out.len())
            .is_none_or(|end| end > meta.bytes())
        {
            let problem = format!("bytes {offset} and {} more", out.len());
            let remedy = format!("it has {} bytes", meta.bytes());
            return Err(refused(&meta.name, problem, remedy));
        }
        if id.is_vector() {
            // Norms have 1 throughout, biases and sinks 0.
            let is_zero =
                matches!(id, TensorId::Layer(_, t) if t.is_bias() || t == LayerTensor::Sinks);
            let value: f32 = if is_zero { 0.0 } else { 1.0 };
            let bytes = value.to_le_bytes();
            for (at, byte) in (offset..).zip(out) {
                *byte = bytes[at % bytes.len()];
            }
        } else {
            self.read_matrix(id, meta, offset, out);
        }
        Ok(())
    }
}

fn refused(field: &str, problem: String, remedy: String) -> ModelError {
    ModelError::Parameter {
        field: field.into(),
        problem,
        remedy,
    }
}

/// Every tensor of the model.
fn tensors(
    network: &Network,
    form: Form,
    (format, of_experts): (BlockType, Option<BlockType>),
    rank: usize,
) -> BTreeMap<TensorId, TensorMeta> {
    use LayerTensor as T;
    let sparse = form == Form::Sparse;
    let down = match sparse {
        true => T::DownT,
        false => T::Down,
    };
    let of = |content: Content| match content {
        Content::Rows(id) | Content::Table(id) => vec![id],
        Content::HotNeurons(_) => Vec::new(),
        Content::Neurons(l) | Content::Experts(l) => {
            let (rows, columns) = network.neuron_matrices(content);
            let columns = if columns == T::Down { down } else { columns };
            let of_ffn = rows.iter().copied().chain([columns]);
            of_ffn.map(|t| TensorId::Layer(l, t)).collect()
        }
    };
    let matrices = network.contents(sparse).into_iter().flat_map(of);
    let vectors = network.vectors().into_iter().map(|(id, _)| id);
    let meta = |id| {
        let shape = network.shape(id);
        let shape = shape.unwrap_or(network::Shape {
            rows: None,
            cols: None,
        });
        let meta = TensorMeta {
            name: format!("{id:?}"),
            block: match id {
                // Routers are small, and converters leave them as they are.
                TensorId::Layer(_, T::Router | T::SharedGate) => BlockType::F32,
                id if id.is_vector() => BlockType::F32,
                id if id.is_of_experts() => of_experts.unwrap_or(format),
                _ => format,
            },
            rows: shape.rows.unwrap_or(rank),
            cols: shape.cols.unwrap_or(rank),
        };
        (id, meta)
    };
    matrices.chain(vectors).map(meta).collect()
}
