//! A model in a Hugging Face folder: `config.json`, safetensors and `tokenizer.json`.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::TensorSource;
use super::inventory::{Inventory, unknown_tensor};
use super::placed::Found;
use crate::arch::fields::Fields;
use crate::arch::{self, Description, Part};
use crate::chat_templates::{ChatTemplates, templates_from_hf};
use crate::error::{ModelError, Result};
use crate::network::Network;
use crate::tensor::{Stored, TensorId, TensorMeta};
use crate::tokenizer::{TokenizerSpec, spec_from_hf};
use checkpoint::{Shard, open_checkpoint};

mod checkpoint;

/// Predictors that are not part of the checkpoint itself.
const PREDICTORS: &str = "predictor.safetensors";

/// A model as `config.json`, safetensors and `tokenizer.json`.
pub struct HfSource {
    path: PathBuf,
    network: Network,
    tokenizer: TokenizerSpec,
    chat_templates: ChatTemplates,
    inventory: Inventory,
}

impl HfSource {
    /// Opens the folder and checks its description and the shape of every tensor.
    ///
    /// # Errors
    /// A missing or damaged file; a model that this engine does not support; a missing, misshapen or unknown tensor.
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
        let mut described = arch::of_hf(folder, Fields::read(&config_file)?)?;
        let mut inventory = Inventory::new(described.names, described.unit_head);
        let stored_as_tied = described.network.head.tied;
        // While tensors are added, a stored head counts.
        described.network.head.tied = false;
        for shard in open_checkpoint(folder)? {
            add_checkpoint(&mut inventory, shard, &described)?;
        }
        described.network.head.tied = stored_as_tied && !inventory.has_head_of_its_own()?;
        let predictors = folder.join(PREDICTORS);
        if predictors.exists() {
            add_predictors(&mut inventory, Shard::open(&predictors)?, &described)?;
        }
        inventory.check(&described.network)?;
        inventory.check_unit_head(&described.network)?;
        Ok(Self {
            path: folder.to_path_buf(),
            tokenizer: spec_from_hf(folder)?,
            chat_templates: templates_from_hf(folder)?,
            network: described.network,
            inventory,
        })
    }
}

fn add_checkpoint(inventory: &mut Inventory, shard: Shard, described: &Description) -> Result<()> {
    let known = |name: &str| described.names.part(name);
    add(inventory, shard, described, known)
}

fn add_predictors(inventory: &mut Inventory, shard: Shard, described: &Description) -> Result<()> {
    let of_predictors =
        |part: &Part| matches!(part, Part::Tensors(ids, _) if ids.iter().all(|t| t.is_predictor()));
    let known = |name: &str| described.names.part(name).filter(of_predictors);
    add(inventory, shard, described, known)
}

/// Adds the tensors of `shard`; `known` tells what they are.
fn add(
    inventory: &mut Inventory,
    shard: Shard,
    described: &Description,
    known: impl Fn(&str) -> Option<Part>,
) -> Result<()> {
    let mut found = Vec::new();
    for (name, info) in shard.tensors() {
        let part = known(&name);
        let is_stack = part.as_ref().is_some_and(Part::is_stack);
        match part {
            Some(Part::Redundant) => {}
            Some(Part::Tensors(ids, stored)) => {
                let start = shard.data_start + info.data_offsets.0 as u64;
                found.push((ids, stored, shard.meta(&name, info, is_stack)?, start));
            }
            None => return Err(unknown_tensor(&shard.path, name)),
        }
    }
    let file = inventory.add_file(shard.path, shard.file);
    found
        .into_iter()
        .try_for_each(|(ids, stored, meta, start)| {
            let found = Found { meta, file, start };
            inventory.place(&described.network, &ids, stored, found)
        })
}

impl TensorSource for HfSource {
    fn path(&self) -> &Path {
        &self.path
    }

    fn network(&self) -> &Network {
        &self.network
    }

    fn tokenizer(&self) -> Cow<'_, TokenizerSpec> {
        Cow::Borrowed(&self.tokenizer)
    }

    fn chat_templates(&self) -> &ChatTemplates {
        &self.chat_templates
    }

    fn meta(&self, id: TensorId) -> Option<&TensorMeta> {
        self.inventory.meta(id)
    }

    fn read(&self, id: TensorId, offset: usize, out: &mut [u8]) -> Result<()> {
        self.inventory.read(id, offset, out)
    }

    fn gguf_names(&self, id: TensorId) -> Vec<String> {
        self.inventory.gguf_names(&self.network, id)
    }

    fn stored(&self, id: TensorId) -> Stored {
        self.inventory.stored(id)
    }
}
