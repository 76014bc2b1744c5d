//! A model in a Hugging Face folder.

use std::path::{Path, PathBuf};

use super::checkpoint::{Shard, open_checkpoint};
use super::config;
use super::fields::Fields;
use super::names::{self, LM_HEAD};
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::source::inventory::Inventory;
use crate::tensor::{LayerTensor, TensorId, TensorMeta, TensorSource};
use crate::tokenizer::{TokenizerSpec, spec_from_hf};

/// Predictors that are not part of the checkpoint itself.
const PREDICTORS: &str = "predictor.safetensors";

/// A llama, mistral, qwen2 or bamboo model as `config.json`, safetensors and `tokenizer.json`.
pub struct HfSource {
    path: PathBuf,
    config: ModelConfig,
    tokenizer: TokenizerSpec,
    inventory: Inventory,
}

impl HfSource {
    /// Opens the folder and checks its configuration and the shape of every tensor.
    ///
    /// # Errors
    /// A missing or damaged file; a configuration this engine does not run; a missing, misshapen
    /// or unknown tensor.
    pub fn open(folder: &Path) -> Result<Self> {
        let config_file = folder.join("config.json");
        if !config_file.exists() {
            return Err(ModelError::Format {
                path: folder.into(),
                field: "config.json".into(),
                problem: "the folder has no such file".into(),
                remedy: "give a .gguf file, or a folder with config.json, tokenizer.json and \
                         .safetensors files"
                    .into(),
            });
        }
        let fields = Fields::read(&config_file)?;
        let config = config::read(folder, &fields)?;
        let mut inventory = Inventory::new(names::name_of);
        for shard in open_checkpoint(folder)? {
            add_checkpoint(&mut inventory, shard, &config)?;
        }
        let predictors = folder.join(PREDICTORS);
        if predictors.exists() {
            add_predictors(&mut inventory, Shard::open(&predictors)?)?;
        }
        inventory.check(&config)?;
        Ok(Self {
            path: folder.to_path_buf(),
            tokenizer: spec_from_hf(folder)?,
            config,
            inventory,
        })
    }
}

fn add_checkpoint(inventory: &mut Inventory, shard: Shard, config: &ModelConfig) -> Result<()> {
    // transformers ties the head after loading, so a stored copy has no effect.
    let skipped = |name: &str| (config.tied_head && name == LM_HEAD) || names::is_redundant(name);
    let mut placed = Vec::new();
    for (name, info) in shard.tensors().filter(|(n, _)| !skipped(n)) {
        let Some(id) = names::role_of(&name) else {
            return Err(unknown(&shard, name));
        };
        let start = shard.data_start + info.data_offsets.0 as u64;
        placed.push((id, shard.meta(&name, info)?, start));
    }
    place_all(inventory, shard, placed)
}

fn add_predictors(inventory: &mut Inventory, shard: Shard) -> Result<()> {
    let mut placed = Vec::new();
    for (name, info) in shard.tensors() {
        let id = names::role_of(&name);
        let Some(id @ TensorId::Layer(_, LayerTensor::PredictorFc1 | LayerTensor::PredictorFc2)) =
            id
        else {
            return Err(unknown(&shard, name));
        };
        let start = shard.data_start + info.data_offsets.0 as u64;
        placed.push((id, shard.meta(&name, info)?, start));
    }
    place_all(inventory, shard, placed)
}

fn place_all(
    inventory: &mut Inventory,
    shard: Shard,
    placed: Vec<(TensorId, TensorMeta, u64)>,
) -> Result<()> {
    let file = inventory.add_file(shard.path, shard.file);
    placed
        .into_iter()
        .try_for_each(|(id, meta, start)| inventory.place(id, meta, file, start))
}

fn unknown(shard: &Shard, name: String) -> ModelError {
    ModelError::unsupported(
        &shard.path,
        name,
        "a tensor this engine would ignore, which would change the result,",
        "use a checkpoint of the plain model type",
    )
}

impl TensorSource for HfSource {
    fn path(&self) -> &Path {
        &self.path
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn tokenizer(&self) -> &TokenizerSpec {
        &self.tokenizer
    }

    fn meta(&self, id: TensorId) -> Option<&TensorMeta> {
        self.inventory.meta(id)
    }

    fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        self.inventory.read(id, offset, out)
    }
}
