//! `forebay inspect`

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use forebay_models::bundle::Bundle;
use forebay_models::error::Shown;
use forebay_models::network::{Activation, Content, Experts, Network, Rope};
use forebay_models::source;
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor as T, TensorId};
use forebay_plans::size::format_size;
use serde::Serialize;

use super::output::{print_json, print_text};

#[derive(Debug, Args)]
pub struct Inspect {
    /// A .gguf or .fbay file, or a safetensors folder.
    model: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// A matrix or group of clusters.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    format: String,
    rows: usize,
    cols: usize,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Description {
    config: Summary,
    /// Everything that the forward pass needs to know.
    network: Network,
    activation_is_sparse: bool,
    has_predictors: bool,
    bytes: u64,
    tensors: Vec<Entry>,
}

/// Sizes of the first layer, and of the first with attention, which in most models are those of all.
#[derive(Debug, Serialize)]
struct Summary {
    name: String,
    n_layers: usize,
    /// Layers without attention.
    recurrent_layers: usize,
    d_model: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    d_ff: usize,
    /// Of the first layer that has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    experts: Option<Experts>,
    vocab_size: usize,
    context_length: usize,
    sliding_window: Option<usize>,
    rope: Option<Rope>,
    activation: Activation,
    tied_head: bool,
    qkv_bias: bool,
}

impl Summary {
    fn of(network: &Network) -> Self {
        let (a, ffn) = (network.attentions().next(), network.ffn(0));
        Self {
            name: network.name.clone(),
            n_layers: network.n_layers(),
            recurrent_layers: network.n_layers() - network.attentions().count(),
            d_model: network.d_model,
            n_heads: a.map_or(0, |a| a.n_heads),
            n_kv_heads: a.map_or(0, |a| a.n_kv_heads),
            head_dim: a.map_or(0, |a| a.head_dim),
            d_ff: ffn.d_ff,
            experts: (0..network.n_layers()).find_map(|l| network.experts(l).cloned()),
            vocab_size: network.vocab_size,
            context_length: network.context_length,
            sliding_window: a.and_then(|a| a.window),
            rope: a
                .and_then(|a| a.rope)
                .map(|rope| network.ropes[rope].clone()),
            activation: ffn.activation,
            tied_head: network.head.tied,
            qkv_bias: a.is_some_and(|a| a.qkv_bias),
        }
    }
}

impl Inspect {
    pub fn execute(self) -> anyhow::Result<()> {
        let description = if forebay::packed::is_bundle(&self.model) {
            of_bundle(&Bundle::open(&self.model)?)
        } else {
            of_source(source::open(&self.model)?.as_ref())
        };
        if self.json {
            return print_json(&description);
        }
        print_text(&description.to_string())
    }
}

fn of_source(source: &dyn TensorSource) -> Description {
    let network = source.network();
    let layers = (0..network.n_layers()).flat_map(|l| T::ALL.map(|t| TensorId::Layer(l, t)));
    let first = [
        TensorId::TokenEmbedding,
        TensorId::TokenInputs,
        TensorId::InputsProjection,
        TensorId::InputsNorm,
    ];
    let ids = first.into_iter().chain(layers);
    let last = [
        TensorId::OutputNorm,
        TensorId::OutputNormBias,
        TensorId::OutputHead,
        TensorId::OutputHeadBias,
        TensorId::PositionEmbedding,
    ];
    let ids = ids.chain(last);
    let tensors: Vec<Entry> = ids
        .filter_map(|id| source.meta(id))
        .map(|m| Entry {
            name: m.name.clone(),
            format: m.block.to_string(),
            rows: m.rows,
            cols: m.cols,
            bytes: m.bytes() as u64,
        })
        .collect();
    let fc1 = TensorId::Layer(0, T::PredictorFc1);
    Description {
        config: Summary::of(network),
        activation_is_sparse: network.is_sparse(),
        has_predictors: source.meta(fc1).is_some(),
        bytes: tensors.iter().map(|t| t.bytes).sum(),
        network: network.clone(),
        tensors,
    }
}

fn of_bundle(bundle: &Bundle) -> Description {
    let (meta, network) = (&bundle.meta, &bundle.meta.network);
    let mut tensors: Vec<Entry> = Vec::new();
    for e in &bundle.clusters {
        let (name, format, cols) = match e.content {
            content @ (Content::HotNeurons(layer)
            | Content::Neurons(layer)
            | Content::Experts(layer)) => {
                let format = meta.geometry(content).map_or(String::new(), |g| {
                    let up = g.up.map_or(String::new(), |up| format!("{up}/"));
                    format!("{}/{up}{} {:?}", g.gate, g.down, g.layout)
                });
                let name = match content {
                    Content::Experts(_) => format!("layer {layer} Experts"),
                    Content::HotNeurons(_) => format!("layer {layer} Hot"),
                    _ => format!("layer {layer} Ffn"),
                };
                (name, format, network.d_model)
            }
            content => {
                let matrix = content.matrix().and_then(|tensor| meta.matrix(tensor));
                let format = matrix.map_or(String::new(), |m| m.block.to_string());
                let cols = matrix.map_or(0, |m| m.cols);
                (name_of(content), format, cols)
            }
        };
        let (rows, bytes) = (e.count as usize, u64::from(e.len));
        match tensors.last_mut() {
            Some(last) if last.name == name => {
                last.rows += rows;
                last.bytes += bytes;
            }
            _ => tensors.push(Entry {
                name,
                format,
                rows,
                cols,
                bytes,
            }),
        }
    }
    Description {
        config: Summary::of(network),
        activation_is_sparse: network.is_sparse(),
        has_predictors: meta.predictors.is_some(),
        bytes: bundle.weight_bytes(),
        network: network.clone(),
        tensors,
    }
}

fn name_of(content: Content) -> String {
    match content {
        Content::Rows(TensorId::Layer(layer, t)) => format!("layer {layer} {t:?}"),
        Content::Rows(TensorId::InputsProjection) => "InputsProjection".into(),
        Content::Rows(_) => "Head".into(),
        Content::Table(TensorId::TokenInputs) => "TokenInputs".into(),
        _ => "Embedding".into(),
    }
}

/// As papers write it.
fn name_of_activation(activation: Activation) -> String {
    match activation {
        Activation::Silu => "SiLU".into(),
        Activation::GeluTanh => "GELU (tanh)".into(),
        Activation::GeluErf => "GELU (erf)".into(),
        Activation::Relu => "ReLU".into(),
        Activation::ReluSquared => "ReLU²".into(),
        Activation::FatRelu { threshold } => format!("FATReLU above {threshold}"),
        Activation::DoubleRelu => "dReLU".into(),
        Activation::ClampedSwiglu { alpha, limit } => {
            format!("SwiGLU of at most {limit}, alpha {alpha}")
        }
    }
}

/// The description as readable text.
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.config;
        writeln!(f, "{}", Shown::name(&c.name))?;
        let neurons = match c.d_ff {
            0 => String::new(),
            n => format!("{n} FFN neurons, "),
        };
        writeln!(
            f,
            "{} layers, d_model {}, {}/{} heads x {}, {neurons}vocabulary {}, context {}",
            c.n_layers,
            c.d_model,
            c.n_heads,
            c.n_kv_heads,
            c.head_dim,
            c.vocab_size,
            c.context_length
        )?;
        if let Some(experts) = &c.experts {
            let (used, count, each) = (experts.used, experts.count, experts.d_ff);
            writeln!(
                f,
                "{used} of {count} experts per token, {each} neurons each"
            )?;
        }
        let sparse = if self.activation_is_sparse {
            "sparse: exact mode applies"
        } else {
            "dense"
        };
        let predictors = if self.has_predictors {
            ", with predictors"
        } else {
            ""
        };
        if c.recurrent_layers > 0 {
            writeln!(f, "{} layers are recurrent", c.recurrent_layers)?;
        }
        let theta = c.rope.as_ref().map_or(0.0, |rope| rope.theta);
        writeln!(
            f,
            "FFN {} ({sparse}{predictors}), RoPE theta {theta}",
            name_of_activation(c.activation)
        )?;
        writeln!(
            f,
            "{} of weights in {} tensors",
            format_size(self.bytes),
            self.tensors.len()
        )?;
        let shown = |t: &Entry| Shown::name(&t.name).to_string();
        let names: Vec<String> = self.tensors.iter().map(shown).collect();
        let width = names.iter().map(String::len).max().unwrap_or(0);
        for (t, name) in self.tensors.iter().zip(names) {
            let (shape, size) = (format!("{} x {}", t.rows, t.cols), format_size(t.bytes));
            writeln!(f, "  {name:width$}  {shape:>16}  {size:>10}  {}", t.format)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn activations_and_widths_are_shown_as_far_as_there_are_any() {
        let shown = |model: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(model);
            of_source(source::open(&path).expect("a model").as_ref()).to_string()
        };
        let dense = shown("models/demo/hf");
        assert!(dense.contains(" 768 FFN neurons, "), "{dense}");
        assert!(dense.contains("FFN ReLU (sparse: "), "{dense}");
        let experts = shown("tests/golden/tiny/mixtral_f16");
        assert!(experts.contains("experts per token"), "{experts}");
        assert!(!experts.contains("FFN neurons"), "{experts}");
        assert!(experts.contains("FFN SiLU (dense)"), "{experts}");
    }
}
