//! The models that are simulated: tiny, but one of each kind of file, with the logits that are right.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_actors::io::random::SplitMix;
use forebay_models::block::{BlockType, dequantize, quantize};
use forebay_models::bundle::{Bundle, PackOptions, pack};
use forebay_models::error::Result;
use forebay_models::kv_type::KvType;
use forebay_models::network::{Content, Network, Rope, RopePairing, RopeScaling, Uniform};
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor as T, TensorId, TensorMeta};
use forebay_models::tokenizer::{TokenizerModel, TokenizerSpec};
use forebay_plans::residency::Sparsity;

use crate::recipes::{RECIPES, RECURRENT, Recipe};
use crate::world::World;

/// Positions of the KV cache, and tokens of a model's text.
pub const CONTEXT: usize = 40;
/// Heads, and so the most cores.
pub const HEADS: usize = 4;
/// There if a model has predictors.
const FC1: TensorId = TensorId::Layer(0, T::PredictorFc1);

/// A model whose tensors are random numbers in memory.
pub struct RandomSource {
    network: Network,
    tokenizer: TokenizerSpec,
    tensors: BTreeMap<TensorId, (TensorMeta, Vec<u8>)>,
    path: PathBuf,
}

impl RandomSource {
    fn new(recipe: &Recipe, seed: u64, path: &Path) -> Self {
        let network = network(recipe);
        let mut random = SplitMix(seed);
        let mut tensors = BTreeMap::new();
        for (id, rows, cols) in shapes(&network, recipe) {
            let block = if id.is_vector() {
                BlockType::F32
            } else {
                recipe.block
            };
            let meta = TensorMeta {
                name: format!("{id:?}"),
                block,
                rows,
                cols,
            };
            let scale = if id.is_vector() {
                1.0
            } else {
                (cols as f32).sqrt().recip()
            };
            let mut values = vec![0.0f32; rows * cols];
            for value in &mut values {
                // Two dice: small values are more frequent, as in real weights.
                let sum = random.below(1 << 16) + random.below(1 << 16);
                *value = (sum as f32 / 65536.0 - 1.0) * 2.0 * scale;
            }
            if is_norm(id) {
                values.iter_mut().for_each(|v| *v = 1.0 + 0.1 * *v);
            }
            if matches!(id, TensorId::Layer(_, T::DecayRate)) {
                values.iter_mut().for_each(|v| *v = -v.abs());
            }
            let mut bytes = vec![0; meta.bytes()];
            for (row, out) in values
                .chunks_exact(cols)
                .zip(bytes.chunks_exact_mut(meta.row_bytes()))
            {
                quantize(block, row, out);
            }
            tensors.insert(id, (meta, bytes));
        }
        let tokenizer = TokenizerSpec {
            model: TokenizerModel::HfJson("{}".into()),
            bos: None,
            eog: Vec::new(),
            add_bos: false,
        };
        Self {
            network,
            tokenizer,
            tensors,
            path: path.into(),
        }
    }
}

/// Rows of a table, `[tokens, cols]`; empty if there is no such table.
fn rows_of(source: &dyn TensorSource, table: TensorId, tokens: &[u32]) -> Vec<f32> {
    let Some(meta) = source.meta(table) else {
        return Vec::new();
    };
    let (mut row, mut rows) = (
        vec![0; meta.row_bytes()],
        vec![0.0; tokens.len() * meta.cols],
    );
    for (&token, out) in tokens.iter().zip(rows.chunks_exact_mut(meta.cols)) {
        let read = source.read(table, token as usize * row.len(), &mut row);
        read.expect("a row of the table");
        dequantize(meta.block, &row, out);
    }
    rows
}

fn is_norm(id: TensorId) -> bool {
    use T::{AttnNorm, FfnNorm, FfnPostNorm, HeadNorm, InputPostNorm, KNorm, LayerScale, QNorm};
    let of_layer = |t| {
        matches!(t, AttnNorm | FfnNorm | FfnPostNorm | HeadNorm)
            || matches!(t, InputPostNorm | KNorm | LayerScale | QNorm)
    };
    match id {
        TensorId::Layer(_, t) => of_layer(t),
        id => matches!(id, TensorId::OutputNorm | TensorId::InputsNorm),
    }
}

impl TensorSource for RandomSource {
    fn path(&self) -> &Path {
        &self.path
    }

    fn network(&self) -> &Network {
        &self.network
    }

    fn tokenizer(&self) -> Cow<'_, TokenizerSpec> {
        Cow::Borrowed(&self.tokenizer)
    }

    fn meta(&self, id: TensorId) -> Option<&TensorMeta> {
        self.tensors.get(&id).map(|(meta, _)| meta)
    }

    fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        let (_, bytes) = &self.tensors[&id];
        out.copy_from_slice(&bytes[offset..offset + out.len()]);
        Ok(())
    }
}

fn network(recipe: &Recipe) -> Network {
    let uniform = Uniform {
        name: recipe.name.into(),
        n_layers: recipe.layers,
        d_model: recipe.d_model,
        n_heads: HEADS,
        n_kv_heads: 2,
        head_dim: 16,
        d_ff: recipe.d_ff,
        vocab_size: recipe.vocab,
        context_length: CONTEXT,
        window: None,
        rms_eps: 1e-5,
        rope: Rope {
            theta: 10_000.0,
            rotary_dim: 16,
            pairing: RopePairing::Interleaved,
            scaling: RopeScaling::None,
            magnitude: 1.0,
        },
        activation: recipe.activation,
        tied_head: recipe.tied,
        qkv_bias: recipe.bias,
        predictor_threshold: 0.1,
    };
    let mut network = uniform.network();
    let all = recipe.bias && !recipe.gated;
    network.head.bias = all;
    for attention in network.attentions_mut() {
        attention.out_bias = all;
    }
    for layer in &mut network.layers {
        layer.ffn.body.gated = recipe.gated;
        layer.ffn.body.bias = all;
    }
    (recipe.change)(&mut network);
    network
}

fn shapes(c: &Network, recipe: &Recipe) -> Vec<(TensorId, usize, usize)> {
    let d = c.d_model;
    let mut shapes = vec![
        (TensorId::TokenEmbedding, c.vocab_size, d),
        (TensorId::OutputNorm, 1, d),
    ];
    if !recipe.tied {
        shapes.push((TensorId::OutputHead, c.vocab_size, d));
    }
    if c.head.bias {
        shapes.push((TensorId::OutputHeadBias, 1, c.vocab_size));
    }
    for l in 0..c.n_layers() {
        let mixer = c.mixer(l);
        let mut layer = vec![(T::AttnNorm, 1, d)];
        layer.extend(mixer.inputs().into_iter().map(|(t, rows)| (t, rows, d)));
        layer.extend([(T::O, d, mixer.out_dim()), (T::FfnNorm, 1, d)]);
        let ff = c.ffn(l).d_ff;
        let of_ffn = c.ffn(l).row_matrices().iter();
        layer.extend(of_ffn.map(|&t| (t, ff, d)));
        layer.extend((ff > 0).then_some(match recipe.transposed {
            true => (T::DownT, ff, d),
            false => (T::Down, d, ff),
        }));
        if recipe.rank > 0 {
            layer.push((T::PredictorFc1, recipe.rank, d));
            layer.push((T::PredictorFc2, ff, recipe.rank));
        }
        if let (true, Some(a)) = (recipe.bias, c.attention(l)) {
            let (q, kv) = (a.q_dim(), a.kv_dim());
            layer.extend([(T::QBias, 1, q), (T::KBias, 1, kv), (T::VBias, 1, kv)]);
        }
        if c.ffn(l).bias {
            layer.extend([(T::OBias, 1, d), (T::GateBias, 1, ff), (T::DownBias, 1, d)]);
        }
        shapes.extend(
            layer
                .into_iter()
                .map(|(t, rows, cols)| (TensorId::Layer(l, t), rows, cols)),
        );
    }
    // What only some networks have.
    let of_experts = (0..c.n_layers()).flat_map(|l| {
        let (rows, down) = c.neuron_matrices(Content::Experts(l));
        let all = rows.iter().chain([&down]).copied();
        all.map(move |t| TensorId::Layer(l, t)).collect::<Vec<_>>()
    });
    let matrices = c.contents(false).into_iter().filter_map(Content::matrix);
    let matrices = matrices.chain(of_experts);
    let vectors = c.vectors().into_iter().map(|(id, _)| id);
    for id in matrices.chain(vectors).collect::<Vec<_>>() {
        let shape = c.shape(id).and_then(|s| Some((id, s.rows?, s.cols?)));
        let known = shapes.iter().any(|&(there, ..)| there == id);
        shapes.extend(shape.filter(|_| !known));
    }
    shapes
}

/// Logits of every position of the model's text, `[CONTEXT][vocab]`.
pub type Logits = Vec<Vec<f32>>;

/// A packed model, its text, and the right logits.
pub struct Model {
    pub path: PathBuf,
    /// The packed file.
    pub file: Arc<[u8]>,
    pub network: Network,
    pub kv: KvType,
    pub tokens: Vec<u32>,
    /// Embeddings of the tokens, `[CONTEXT, d_model]`.
    pub input: Vec<f32>,
    /// Their scaled rows of the table of token inputs, `[CONTEXT, n_layers * width]`; empty if there is none.
    pub input_rows: Vec<f32>,
    /// By sparsity that means something for the model; computed in memory, on one core, token by token.
    pub right: Vec<(Sparsity, Logits)>,
    /// What it was made from, unless that was a file.
    pub source: Option<RandomSource>,
    has_predictors: bool,
}

impl Model {
    /// All models, packed into `folder`; their right logits are still to be computed.
    pub fn all(folder: &Path) -> Vec<Self> {
        let recipes = RECIPES.iter().zip(1..);
        recipes
            .map(|(recipe, n)| Self::new(recipe, n, folder))
            .collect()
    }

    /// A model most of whose layers are recurrent, packed into `folder`.
    pub fn recurrent(folder: &Path) -> Self {
        Self::new(&RECURRENT, 100, folder)
    }

    fn new(recipe: &Recipe, number: u64, folder: &Path) -> Self {
        let source = RandomSource::new(recipe, number, folder);
        let model = Self::packed(&source, recipe.kv, number, folder);
        Self {
            source: Some(source),
            ..model
        }
    }

    /// A model packed into `folder`, with a text of random tokens.
    pub fn packed(source: &dyn TensorSource, kv: KvType, number: u64, folder: &Path) -> Self {
        let path = folder.join(format!("model-{number}.fbay"));
        let options = PackOptions::default();
        pack(source, &path, &options, &mut |_| {}).expect("a model to pack");
        let file = std::fs::read(&path).expect("the packed file").into();
        let network = source.network().clone();
        let mut random = SplitMix(1000 + number);
        let tokens: Vec<u32> = (0..CONTEXT)
            .map(|_| random.below(network.vocab_size as u64) as u32)
            .collect();
        let rows_of = |table| rows_of(source, table, &tokens);
        let input = rows_of(TensorId::TokenEmbedding);
        let mut input_rows = rows_of(TensorId::TokenInputs);
        let scale = network.token_inputs.map_or(1.0, |i| i.table_scale);
        input_rows.iter_mut().for_each(|v| *v *= scale);
        Self {
            path,
            file,
            network,
            kv,
            tokens,
            input,
            input_rows,
            right: Vec::new(),
            source: None,
            has_predictors: source.meta(FC1).is_some(),
        }
    }

    /// Shows the cores these tokens of the text as the step's tokens from `first` on.
    pub fn show(&self, world: &World, first: usize, tokens: Range<usize>) {
        let boards = &world.steps.shared().boards;
        let tables = [
            (&boards.input, &self.input, self.network.d_model),
            (
                &boards.input_rows,
                &self.input_rows,
                self.network.inputs_width(),
            ),
        ];
        for (board, rows, width) in tables {
            board.write(
                first * width,
                &rows[tokens.start * width..tokens.end * width],
            );
        }
    }

    /// The packed file, opened.
    pub fn bundle(&self) -> Bundle {
        Bundle::open(&self.path).expect("a sound file")
    }

    /// Modes that mean something for the model.
    pub fn sparsities(&self) -> Vec<Sparsity> {
        let mut modes = vec![Sparsity::Dense, Sparsity::Exact, Sparsity::Threshold];
        if self.has_predictors {
            modes.push(Sparsity::Predicted);
        }
        modes
    }

    /// The right logits in a mode.
    pub fn right(&self, sparsity: Sparsity) -> &Logits {
        let of = |s: Sparsity| self.right.iter().find(|(r, _)| *r == s);
        &of(sparsity).expect("computed at the start").1
    }
}

/// Whether a cluster's weights are read while tokens are generated, unless they are kept.
pub fn is_weight(content: Content) -> bool {
    !matches!(content, Content::Table(_)) && !content.is_predictor()
}
