//! A model in a GGUF file, or in several.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::TensorSource;
use super::inventory::{Inventory, unknown_tensor};
use super::placed::Found;
use crate::arch::{self, Part};
use crate::chat_templates::{ChatTemplates, templates_from_gguf};
use crate::error::{ModelError, Result};
use crate::gguf::Gguf;
use crate::network::Network;
use crate::tensor::{Stored, TensorId, TensorMeta};
use crate::tokenizer::{TokenizerSpec, spec_from_gguf};

/// A model in a GGUF file, or in several.
pub struct GgufSource {
    path: PathBuf,
    network: Network,
    /// As JSON: its 300,000 strings take three times as much memory.
    tokenizer: Vec<u8>,
    chat_templates: ChatTemplates,
    inventory: Inventory,
}

impl GgufSource {
    /// Opens the file, and the others if it is the first of several, and checks its description and the shape of every
    /// tensor.
    ///
    /// # Errors
    /// Those of [`Gguf::open`]; a model that this engine does not support; a missing, misshapen or unknown tensor.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(Gguf::open(path)?)?.checked()
    }

    /// The same for a file whose blocks may have been given back in part, and which is marked as such.
    pub(crate) fn open_consumed(path: &Path) -> Result<Self> {
        Self::of(Gguf::open_consumed(path)?)
    }

    /// The same for a file that may end anywhere after its header, and whether it is whole: what is missing of the
    /// tensors reads as zeros.
    pub(crate) fn open_header(path: &Path) -> Result<(Self, bool)> {
        let gguf = Gguf::open_header(path)?;
        let is_whole = gguf.is_whole();
        let source = Self::of(gguf)?;
        match is_whole {
            true => Ok((source.checked()?, true)),
            false => Ok((source, false)),
        }
    }

    /// Checks what can be checked only where all tensors are there.
    fn checked(self) -> Result<Self> {
        self.inventory.check_unit_head(&self.network)?;
        Ok(self)
    }

    fn of(mut gguf: Gguf) -> Result<Self> {
        let path = &gguf.path().to_path_buf();
        if gguf.tensors().is_empty() {
            return Err(ModelError::Format {
                path: path.into(),
                field: "tensor count".into(),
                problem: "the file holds a vocabulary but no weights".into(),
                remedy: "give the file of the model itself".into(),
            });
        }
        let described = arch::of_gguf(&gguf)?;
        let chat_templates = templates_from_gguf(gguf.metadata(), path)?;
        let tokenizer = serde_json::to_vec(&spec_from_gguf(gguf.take_metadata(), path)?)
            .map_err(|e| ModelError::io(path, "keep the tokenizer", e.into()))?;
        let tensors = gguf.tensors().to_vec();
        let mut inventory = Inventory::new(described.names, described.unit_head);
        let files = gguf.into_files().into_iter();
        let files: Vec<(PathBuf, usize)> = files
            .map(|(path, file)| (path.clone(), inventory.add_file(path, file)))
            .collect();
        for t in tensors {
            if described.read.contains(&t.name) {
                continue;
            }
            let (path, file) = &files[t.file];
            let part = described.names.part(&t.name);
            if part == Some(Part::Redundant) {
                continue;
            }
            let shape = match &part {
                Some(part) if part.is_stack() => {
                    let shape = t.matrices();
                    shape.and_then(|(cols, rows, n)| Some((cols, rows.checked_mul(n)?)))
                }
                _ => t.matrix(),
            };
            let Some((cols, rows)) = shape else {
                let remedy = "weights are matrices and vectors";
                let problem = format!("a shape of {:?}", t.dims);
                return Err(ModelError::unsupported(path, t.name, problem, remedy));
            };
            let found = Found {
                meta: TensorMeta {
                    name: t.name,
                    block: t.block,
                    rows,
                    cols,
                },
                file: *file,
                start: t.start,
            };
            match part {
                Some(Part::Tensors(ids, stored)) => {
                    inventory.place(&described.network, &ids, stored, found)?;
                }
                Some(Part::Redundant) | None => {
                    return Err(unknown_tensor(path, found.meta.name));
                }
            }
        }
        inventory.check(&described.network)?;
        Ok(Self {
            path: path.to_path_buf(),
            network: described.network,
            tokenizer,
            chat_templates,
            inventory,
        })
    }
}

impl GgufSource {
    /// Where all tensors are.
    pub(crate) fn inventory(&self) -> &Inventory {
        &self.inventory
    }
}

impl TensorSource for GgufSource {
    fn path(&self) -> &Path {
        &self.path
    }

    fn network(&self) -> &Network {
        &self.network
    }

    fn tokenizer(&self) -> Cow<'_, TokenizerSpec> {
        let spec = serde_json::from_slice(&self.tokenizer);
        Cow::Owned(spec.expect("written here, of the same type"))
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
        let mut names = self.inventory.gguf_names(&self.network, id);
        // What the file itself says, unless that is the name of one expert.
        let own = self.inventory.meta(id).map(|m| &m.name);
        if let Some(place) = names.iter().position(|name| own == Some(name)) {
            names.swap(0, place);
        }
        names
    }

    fn stored(&self, id: TensorId) -> Stored {
        self.inventory.stored(id)
    }
}
