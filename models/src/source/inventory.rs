//! The tensors of a source by role: where each one is, and whether its shape is what the
//! configuration says.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::block::BlockType;
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::tensor::{LayerTensor, TensorId, TensorMeta};

/// Tensors every layer has, whatever the model.
const ALWAYS: [LayerTensor; 8] = [
    LayerTensor::AttnNorm,
    LayerTensor::Q,
    LayerTensor::K,
    LayerTensor::V,
    LayerTensor::O,
    LayerTensor::FfnNorm,
    LayerTensor::Gate,
    LayerTensor::Up,
];

const BIASES: [LayerTensor; 3] = [LayerTensor::QBias, LayerTensor::KBias, LayerTensor::VBias];

struct Placed {
    meta: TensorMeta,
    file: usize,
    start: u64,
}

/// The tensors of an open model.
pub(crate) struct Inventory {
    files: Vec<(PathBuf, File)>,
    placed: BTreeMap<TensorId, Placed>,
    name_of: fn(TensorId) -> String,
}

impl Inventory {
    /// An empty inventory; `name_of` is the format's name of a role, for messages.
    pub(crate) fn new(name_of: fn(TensorId) -> String) -> Self {
        Self {
            files: Vec::new(),
            placed: BTreeMap::new(),
            name_of,
        }
    }

    /// Adds a file; the number is for [`Inventory::place`].
    pub(crate) fn add_file(&mut self, path: PathBuf, file: File) -> usize {
        self.files.push((path, file));
        self.files.len() - 1
    }

    /// Records that `id` starts at byte `start` of `file`. The range must lie inside the file.
    ///
    /// # Errors
    /// A second tensor in the same role.
    pub(crate) fn place(
        &mut self,
        id: TensorId,
        meta: TensorMeta,
        file: usize,
        start: u64,
    ) -> Result<()> {
        let name = meta.name.clone();
        match self.placed.insert(id, Placed { meta, file, start }) {
            None => Ok(()),
            Some(first) => Err(self.wrong(
                &name,
                format!("it has the role of {} again", first.meta.name),
            )),
        }
    }

    pub(crate) fn meta(&self, id: TensorId) -> Option<&TensorMeta> {
        self.placed.get(&id).map(|p| &p.meta)
    }

    /// [`crate::tensor::TensorSource::read`].
    pub(crate) fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        let Some(p) = self.placed.get(&id) else {
            return Err(ModelError::Parameter {
                field: (self.name_of)(id),
                problem: "the model has no such tensor".into(),
                remedy: "ask meta() first".into(),
            });
        };
        if offset
            .checked_add(out.len())
            .is_none_or(|end| end > p.meta.bytes())
        {
            return Err(ModelError::Parameter {
                field: p.meta.name.clone(),
                problem: format!("{} bytes from {offset} are outside the tensor", out.len()),
                remedy: format!("stay within its {} bytes", p.meta.bytes()),
            });
        }
        let (path, file) = &self.files[p.file];
        file.read_exact_at(out, p.start + offset as u64)
            .map_err(|e| ModelError::io(path, format!("read tensor {}", p.meta.name), e))
    }

    /// Checks that every needed tensor is there and that every shape follows from `config`.
    ///
    /// # Errors
    /// The first missing or misshapen tensor, by name.
    pub(crate) fn check(&self, config: &ModelConfig) -> Result<()> {
        for (&id, p) in &self.placed {
            self.check_shape(config, id, &p.meta)?;
        }
        self.require(TensorId::TokenEmbedding)?;
        self.require(TensorId::OutputNorm)?;
        if !config.tied_head {
            self.require(TensorId::OutputHead)?;
        }
        let predictors = self.placed.keys().any(|&id| is_predictor(id));
        for layer in 0..config.n_layers {
            self.check_layer(config, layer, predictors)?;
        }
        Ok(())
    }

    fn check_layer(&self, config: &ModelConfig, layer: usize, predictors: bool) -> Result<()> {
        for t in ALWAYS {
            self.require(TensorId::Layer(layer, t))?;
        }
        if config.qkv_bias {
            for t in BIASES {
                self.require(TensorId::Layer(layer, t))?;
            }
        }
        let (down, down_t) = (
            TensorId::Layer(layer, LayerTensor::Down),
            TensorId::Layer(layer, LayerTensor::DownT),
        );
        match (self.meta(down), self.meta(down_t)) {
            (Some(_), Some(t)) => {
                return Err(self.wrong(&t.name, "the down projection is there twice".into()));
            }
            (None, None) => self.require(down)?,
            _ => {}
        }
        if predictors {
            let fc1 = self.require_meta(TensorId::Layer(layer, LayerTensor::PredictorFc1))?;
            let fc2 = self.require_meta(TensorId::Layer(layer, LayerTensor::PredictorFc2))?;
            if fc1.rows != fc2.cols {
                let problem = format!(
                    "the predictor's rank is {} here and {} in {}",
                    fc2.cols, fc1.rows, fc1.name
                );
                return Err(self.wrong(&fc2.name, problem));
            }
        }
        Ok(())
    }

    fn check_shape(&self, config: &ModelConfig, id: TensorId, meta: &TensorMeta) -> Result<()> {
        let (rows, cols) = expected_shape(config, id);
        if rows.is_some_and(|r| r != meta.rows) || cols.is_some_and(|c| c != meta.cols) {
            let show = |n: Option<usize>| n.map_or("any".into(), |n| n.to_string());
            return Err(self.wrong(
                &meta.name,
                format!(
                    "{} rows of {} elements where the configuration asks for {} rows of {}",
                    meta.rows,
                    meta.cols,
                    show(rows),
                    show(cols)
                ),
            ));
        }
        if is_bias(id) && !config.qkv_bias {
            return Err(self.wrong(
                &meta.name,
                "a bias where the model has none elsewhere".into(),
            ));
        }
        let plain = matches!(
            meta.block,
            BlockType::F32 | BlockType::F16 | BlockType::BF16
        );
        if is_vector(id) && !plain {
            return Err(ModelError::unsupported(
                self.path_of(&meta.name),
                &meta.name,
                format!("a {} norm or bias", meta.block),
                "norms and biases are read as F32, F16 or BF16",
            ));
        }
        if let TensorId::Layer(layer, _) = id
            && layer >= config.n_layers
        {
            return Err(self.wrong(
                &meta.name,
                format!("the model has only {} layers", config.n_layers),
            ));
        }
        Ok(())
    }

    fn require(&self, id: TensorId) -> Result<()> {
        self.require_meta(id).map(|_| ())
    }

    fn require_meta(&self, id: TensorId) -> Result<&TensorMeta> {
        let name = (self.name_of)(id);
        self.meta(id)
            .ok_or_else(|| self.wrong(&name, "the tensor is missing".into()))
    }

    fn wrong(&self, name: &str, problem: String) -> ModelError {
        ModelError::damaged(self.path_of(name), name, problem)
    }

    /// The file that holds the tensor `name`, or the first one.
    fn path_of(&self, name: &str) -> PathBuf {
        let holder = self
            .placed
            .values()
            .find(|p| p.meta.name == name)
            .map_or(0, |p| p.file);
        self.files
            .get(holder)
            .map(|f| f.0.clone())
            .unwrap_or_default()
    }
}

fn is_predictor(id: TensorId) -> bool {
    matches!(
        id,
        TensorId::Layer(_, LayerTensor::PredictorFc1 | LayerTensor::PredictorFc2)
    )
}

fn is_bias(id: TensorId) -> bool {
    matches!(id, TensorId::Layer(_, t) if BIASES.contains(&t))
}

fn is_vector(id: TensorId) -> bool {
    match id {
        TensorId::OutputNorm => true,
        TensorId::Layer(_, t) => {
            is_bias(id) || matches!(t, LayerTensor::AttnNorm | LayerTensor::FfnNorm)
        }
        TensorId::TokenEmbedding | TensorId::OutputHead => false,
    }
}

/// Rows and columns that follow from the configuration; `None` where the file decides (the
/// predictor's rank).
fn expected_shape(config: &ModelConfig, id: TensorId) -> (Option<usize>, Option<usize>) {
    let (d, ff, q, kv) = (config.d_model, config.d_ff, config.q_dim(), config.kv_dim());
    let (rows, cols) = match id {
        TensorId::TokenEmbedding | TensorId::OutputHead => (config.vocab_size, d),
        TensorId::OutputNorm => (1, d),
        TensorId::Layer(_, t) => match t {
            LayerTensor::AttnNorm | LayerTensor::FfnNorm => (1, d),
            LayerTensor::Q => (q, d),
            LayerTensor::K | LayerTensor::V => (kv, d),
            LayerTensor::O => (d, q),
            LayerTensor::QBias => (1, q),
            LayerTensor::KBias | LayerTensor::VBias => (1, kv),
            LayerTensor::Gate | LayerTensor::Up | LayerTensor::DownT => (ff, d),
            LayerTensor::Down => (d, ff),
            LayerTensor::PredictorFc1 => return (None, Some(d)),
            LayerTensor::PredictorFc2 => return (Some(ff), None),
        },
    };
    (Some(rows), Some(cols))
}
