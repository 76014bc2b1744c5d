//! A model in a GGUF file.

use std::path::{Path, PathBuf};

use super::config;
use super::container::Gguf;
use super::names::{self, ROPE_FREQS};
use crate::config::{Arch, ModelConfig};
use crate::error::{ModelError, Result};
use crate::source::inventory::Inventory;
use crate::tensor::{TensorId, TensorMeta, TensorSource};
use crate::tokenizer::{TokenizerSpec, spec_from_gguf};

/// A llama, qwen2 or bamboo model in a GGUF file.
pub struct GgufSource {
    path: PathBuf,
    config: ModelConfig,
    tokenizer: TokenizerSpec,
    inventory: Inventory,
}

impl GgufSource {
    /// Opens the file and checks its configuration and the shape of every tensor.
    ///
    /// # Errors
    /// Those of [`Gguf::open`]; a configuration this engine does not run; a missing, misshapen or
    /// unknown tensor.
    pub fn open(path: &Path) -> Result<Self> {
        let gguf = Gguf::open(path)?;
        let config = config::read(&gguf)?;
        let tokenizer = spec_from_gguf(gguf.metadata(), path)?;
        let tensors = gguf.tensors().to_vec();
        let mut inventory = Inventory::new(names::name_of);
        let file = inventory.add_file(path.to_path_buf(), gguf.into_file());
        for t in tensors {
            let Some(id) = names::role_of(&t.name) else {
                let in_config = t.name == ROPE_FREQS && config.arch == Arch::Llama;
                if in_config || names::is_redundant(&t.name) {
                    continue;
                }
                return Err(ModelError::unsupported(
                    path,
                    t.name,
                    "a tensor this engine would ignore, which would change the result,",
                    "use a model of a plain llama, qwen2 or bamboo architecture",
                ));
            };
            let Some((cols, rows)) = t.matrix() else {
                let remedy = "weights are matrices and vectors";
                return Err(ModelError::unsupported(
                    path,
                    t.name,
                    format!("a shape of {:?}", t.dims),
                    remedy,
                ));
            };
            let meta = TensorMeta {
                name: t.name,
                block: t.block,
                rows,
                cols,
            };
            inventory.place(id, meta, file, t.start)?;
        }
        inventory.check(&config)?;
        Ok(Self {
            path: path.to_path_buf(),
            config,
            tokenizer,
            inventory,
        })
    }
}

impl TensorSource for GgufSource {
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
