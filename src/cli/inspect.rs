//! `forebay inspect`

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use forebay::models::bundle::{Bundle, ClusterKind};
use forebay::models::config::ModelConfig;
use forebay::models::source;
use forebay::models::tensor::{LayerTensor, TensorId, TensorSource};
use forebay::plans::size::format_size;
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
    config: ModelConfig,
    activation_is_sparse: bool,
    has_predictors: bool,
    bytes: u64,
    tensors: Vec<Entry>,
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
    use LayerTensor as T;
    let config = source.config().clone();
    let per_layer = [
        T::AttnNorm,
        T::Q,
        T::K,
        T::V,
        T::O,
        T::QBias,
        T::KBias,
        T::VBias,
        T::FfnNorm,
        T::Gate,
        T::Up,
        T::Down,
        T::DownT,
        T::PredictorFc1,
        T::PredictorFc2,
    ];
    let layers = (0..config.n_layers).flat_map(|l| per_layer.map(|t| TensorId::Layer(l, t)));
    let ids = [TensorId::TokenEmbedding].into_iter().chain(layers);
    let ids = ids.chain([TensorId::OutputNorm, TensorId::OutputHead]);
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
    Description {
        activation_is_sparse: config.activation.is_sparse(),
        has_predictors: source.meta(TensorId::Layer(0, T::PredictorFc1)).is_some(),
        bytes: tensors.iter().map(|t| t.bytes).sum(),
        config,
        tensors,
    }
}

fn of_bundle(bundle: &Bundle) -> Description {
    let (meta, c) = (&bundle.meta, &bundle.meta.config);
    let mut tensors: Vec<Entry> = Vec::new();
    for e in &bundle.clusters {
        let layer = e.layer.map(usize::from);
        let formats = layer.map(|l| &meta.layers[l]);
        let format = match (e.kind, formats) {
            (ClusterKind::Q, Some(f)) => f.q.to_string(),
            (ClusterKind::K, Some(f)) => f.k.to_string(),
            (ClusterKind::V, Some(f)) => f.v.to_string(),
            (ClusterKind::O, Some(f)) => f.o.to_string(),
            (ClusterKind::Ffn, Some(f)) => {
                format!(
                    "{}/{}/{} {:?}",
                    f.ffn.gate, f.ffn.up, f.ffn.down, f.ffn.layout
                )
            }
            (ClusterKind::Embedding, _) => meta.embedding.to_string(),
            _ => meta.head.to_string(),
        };
        let cols = if e.kind == ClusterKind::O {
            c.q_dim()
        } else {
            c.d_model
        };
        let name = match layer {
            Some(l) => format!("layer {l} {:?}", e.kind),
            None => format!("{:?}", e.kind),
        };
        match tensors.last_mut() {
            Some(last) if last.name == name => {
                last.rows += e.count as usize;
                last.bytes += u64::from(e.len);
            }
            _ => {
                let (rows, bytes) = (e.count as usize, u64::from(e.len));
                tensors.push(Entry {
                    name,
                    format,
                    rows,
                    cols,
                    bytes,
                });
            }
        }
    }
    Description {
        config: c.clone(),
        activation_is_sparse: c.activation.is_sparse(),
        has_predictors: false,
        bytes: bundle.weight_bytes(),
        tensors,
    }
}

/// The description as people read it.
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.config;
        writeln!(f, "{} ({:?})", c.name, c.arch)?;
        writeln!(
            f,
            "{} layers, d_model {}, {}/{} heads x {}, {} FFN neurons, vocabulary {}, context {}",
            c.n_layers,
            c.d_model,
            c.n_heads,
            c.n_kv_heads,
            c.head_dim,
            c.d_ff,
            c.vocab_size,
            c.context_length
        )?;
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
        writeln!(
            f,
            "FFN {:?} ({sparse}{predictors}), RoPE theta {}",
            c.activation, c.rope.theta
        )?;
        writeln!(
            f,
            "{} of weights in {} tensors",
            format_size(self.bytes),
            self.tensors.len()
        )?;
        let width = self.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
        for t in &self.tensors {
            let (shape, size) = (format!("{} x {}", t.rows, t.cols), format_size(t.bytes));
            writeln!(
                f,
                "  {:width$}  {shape:>16}  {size:>10}  {}",
                t.name, t.format
            )?;
        }
        Ok(())
    }
}
