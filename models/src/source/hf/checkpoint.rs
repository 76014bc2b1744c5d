//! Safetensors files of a folder. Only headers are read here, with positioned reads; nothing is
//! mapped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::block::BlockType;
use crate::error::{ModelError, Result};
use crate::files::open_regular;
use crate::limits;
use crate::tensor::TensorMeta;

/// Longest header accepted; those of the largest public checkpoints are below 1 MiB.
const MAX_HEADER_BYTES: u64 = 8 << 20;

/// Most tensors of a file; the largest public checkpoints have some thousand.
const MAX_TENSORS: usize = 1 << 16;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// One safetensors file.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// First byte after the header.
    pub(super) data_start: u64,
    header: Metadata,
}

impl Shard {
    /// Reads and checks the header: tensors must be contiguous and fill the file.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let opened = open_regular(path).and_then(|f| f.metadata().map(|m| (f, m.len())));
        let (file, file_bytes) =
            opened.map_err(|e| ModelError::io(path, "open the checkpoint", e))?;
        let Some(after_length) = file_bytes.checked_sub(8) else {
            return Err(ModelError::damaged(
                path,
                "header length",
                format!("the file has only {file_bytes} bytes"),
            ));
        };
        let read = |at, out: &mut [u8]| {
            let done = file.read_exact_at(out, at);
            done.map_err(|e| ModelError::io(path, "read the header", e))
        };
        let mut length = [0; 8];
        read(0, &mut length)?;
        let header_bytes = u64::from_le_bytes(length);
        let limit = after_length.min(MAX_HEADER_BYTES);
        if header_bytes > limit {
            let problem = match header_bytes > MAX_HEADER_BYTES {
                true => format!("{header_bytes} bytes exceed the {MAX_HEADER_BYTES} accepted"),
                false => format!("{header_bytes} bytes, at most {limit} can follow"),
            };
            return Err(ModelError::damaged(path, "header length", problem));
        }
        let mut text = vec![0; header_bytes as usize];
        read(8, &mut text)?;
        check_count(path, &text)?;
        // Deserialising checks that offsets, shapes and types agree and leave no gaps.
        let header: Metadata = serde_json::from_slice(&text)
            .map_err(|e| ModelError::damaged(path, "header", e.to_string()))?;
        let data_bytes = header.data_len() as u64;
        if data_bytes != after_length - header_bytes {
            let there = after_length - header_bytes;
            let problem =
                format!("it describes {data_bytes} bytes of tensors where the file has {there}");
            return Err(ModelError::damaged(path, "header", problem));
        }
        Ok(Self {
            path: path.to_path_buf(),
            file,
            data_start: 8 + header_bytes,
            header,
        })
    }

    /// Names and infos in the file's order.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (String, &TensorInfo)> {
        let names = self.header.offset_keys();
        names
            .into_iter()
            .filter_map(|n| self.header.info(&n).map(|info| (n, info)))
    }

    /// The shape of a tensor as a matrix; a vector has one row.
    pub(super) fn meta(&self, name: &str, info: &TensorInfo, is_stack: bool) -> Result<TensorMeta> {
        let block = match info.dtype {
            Dtype::F32 => BlockType::F32,
            Dtype::F16 => BlockType::F16,
            Dtype::BF16 => BlockType::BF16,
            other => {
                let remedy = "save the checkpoint as F32, F16 or BF16";
                return Err(ModelError::unsupported(
                    &self.path,
                    name,
                    format!("dtype {other:?}"),
                    remedy,
                ));
            }
        };
        let (rows, cols) = match *info.shape.as_slice() {
            [cols] if cols > 0 => (1, cols),
            // Convolutions have one input channel for each output.
            [rows, cols] | [rows, 1, cols] if rows > 0 && cols > 0 => (rows, cols),
            // The header's bytes are those of the shape, so this does not overflow.
            [n, rows, cols] if is_stack && cols > 0 && n * rows > 0 => (n * rows, cols),
            ref shape => {
                let remedy = "weights are matrices and vectors";
                return Err(ModelError::unsupported(
                    &self.path,
                    name,
                    format!("a shape of {shape:?}"),
                    remedy,
                ));
            }
        };
        Ok(TensorMeta {
            name: name.to_owned(),
            block,
            rows,
            cols,
        })
    }
}

/// Counts the tensors before anything is made of them.
fn check_count(path: &Path, header: &[u8]) -> Result<()> {
    let damaged = |e: serde_json::Error| ModelError::damaged(path, "header", e.to_string());
    let Count(n) = serde_json::from_slice(header).map_err(damaged)?;
    if n <= MAX_TENSORS {
        return Ok(());
    }
    Err(ModelError::Format {
        path: path.into(),
        field: "header".into(),
        problem: format!("{n} tensors exceed the {MAX_TENSORS} accepted in a file"),
        remedy: "save the checkpoint again, with a tensor for each matrix, in several files".into(),
    })
}

/// How many keys an object has.
struct Count(usize);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Count, A::Error> {
                let mut n = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    n += 1;
                }
                Ok(Count(n))
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// The checkpoint of `folder`: `model.safetensors`, or the shards of its index.
pub(super) fn open_checkpoint(folder: &Path) -> Result<Vec<Shard>> {
    let single = folder.join(SINGLE);
    if single.exists() {
        return Ok(vec![Shard::open(&single)?]);
    }
    let index = folder.join(INDEX);
    if !index.exists() {
        return Err(no_checkpoint(folder));
    }
    open_shards(folder, &index)
}

/// The shard that each tensor is in. What else an index says is not kept.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn open_shards(folder: &Path, index: &Path) -> Result<Vec<Shard>> {
    let text = limits::read_file(index, "the index of a checkpoint", limits::MAX_INDEX)?;
    let Index { weight_map } = serde_json::from_slice(&text)
        .map_err(|e| ModelError::damaged(index, "file", e.to_string()))?;
    let wrong = |tensor: &str, problem: String| {
        let field = format!("weight_map.{tensor}");
        Err(ModelError::damaged(index, field, problem))
    };
    let mut names = BTreeSet::new();
    for (tensor, shard) in &weight_map {
        // Only a plain file name: an index must not lead out of its folder.
        if Path::new(shard).file_name().is_none_or(|n| n != &**shard) {
            let problem = format!("\"{shard}\" is not the name of a file in the folder");
            return wrong(tensor, problem);
        }
        if names.insert(shard) && !folder.join(shard).exists() {
            return Err(ModelError::Format {
                path: index.into(),
                field: format!("weight_map.{tensor}"),
                problem: format!("{shard} is missing"),
                remedy: "download it into the same folder".into(),
            });
        }
    }
    if names.is_empty() {
        return Err(ModelError::damaged(index, "weight_map", "it names no file"));
    }
    let opened: Result<Vec<Shard>> = names.iter().map(|n| Shard::open(&folder.join(n))).collect();
    let shards = opened?;
    for (tensor, shard) in &weight_map {
        let position = names.iter().position(|n| *n == shard);
        if position.is_none_or(|i| shards[i].header.info(tensor).is_none()) {
            return wrong(tensor, format!("the tensor is not in {shard}"));
        }
    }
    Ok(shards)
}

fn no_checkpoint(folder: &Path) -> ModelError {
    let torch = [
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "consolidated.00.pth",
    ];
    if let Some(name) = torch.iter().find(|n| folder.join(n).exists()) {
        return ModelError::unsupported(
            folder.join(name),
            "checkpoint",
            "a PyTorch checkpoint",
            "save the model as safetensors: save_pretrained(..., safe_serialization=True)",
        );
    }
    let mut files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let has_shards = files.any(|f| f.path().extension().is_some_and(|e| e == "safetensors"));
    let remedy = match has_shards {
        true => format!("download {INDEX} as well, or rename the only file to {SINGLE}"),
        false => "download the model's .safetensors files into this folder".into(),
    };
    ModelError::Format {
        path: folder.into(),
        field: "checkpoint".into(),
        problem: format!("there is neither {SINGLE} nor {INDEX}"),
        remedy,
    }
}
