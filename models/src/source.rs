//! Opens a source model in any format.

use std::io::Read;
use std::path::Path;

use crate::error::{ModelError, Result};
use crate::files::open_regular;
use crate::gguf::Gguf;
use crate::tokenizer::{TokenizerSpec, spec_from_gguf, spec_from_hf};

mod gguf;
mod hf;
mod inventory;
mod latent;
pub(crate) mod placed;
mod tensor_source;
mod transposed;

pub use gguf::GgufSource;
pub use hf::HfSource;
pub use tensor_source::{TensorSource, read_vector};

/// Opens the model at `path`: a GGUF file (recognised by its first bytes), or a folder with
/// `config.json` and safetensors. Every tensor's shape has been checked when this returns.
///
/// # Errors
/// A missing, empty or damaged file, another format (the message tells what to do with it), or a
/// model that this engine does not support.
pub fn open(path: &Path) -> Result<Box<dyn TensorSource>> {
    match form_of(path)? {
        Form::Folder => Ok(Box::new(HfSource::open(path)?)),
        Form::Gguf => Ok(Box::new(GgufSource::open(path)?)),
    }
}

/// The same to plan with: a GGUF file may end anywhere after its header. Tells whether it is whole; what is missing of
/// the tensors reads as zeros.
///
/// # Errors
/// As [`open`]'s.
pub fn open_header(path: &Path) -> Result<(Box<dyn TensorSource>, bool)> {
    match form_of(path)? {
        Form::Folder => Ok((Box::new(HfSource::open(path)?), true)),
        Form::Gguf => {
            let (source, is_whole) = GgufSource::open_header(path)?;
            Ok((Box::new(source), is_whole))
        }
    }
}

/// Reads the tokenizer of the model at `path`, which may be all there is: a GGUF file without tensors, or a
/// folder without safetensors.
///
/// # Errors
/// As [`open`]'s about the file and its tokenizer.
pub fn open_tokenizer(path: &Path) -> Result<TokenizerSpec> {
    match form_of(path)? {
        Form::Folder => spec_from_hf(path),
        Form::Gguf => spec_from_gguf(Gguf::open(path)?.take_metadata(), path),
    }
}

/// What a model is stored as.
enum Form {
    Folder,
    Gguf,
}

fn form_of(path: &Path) -> Result<Form> {
    let describe =
        std::fs::metadata(path).map_err(|e| ModelError::io(path, "open the model", e))?;
    if describe.is_dir() {
        return Ok(Form::Folder);
    }
    if !describe.is_file() {
        return Err(wrong_kind(path, "neither a file nor a folder"));
    }
    match first_bytes(path)?.as_slice() {
        [] => Err(ModelError::damaged(path, "file", "it is empty")),
        b"GGUF" | b"PWRI" => Ok(Form::Gguf),
        head => Err(other_format(path, head)),
    }
}

/// The first four bytes of a file, or all of a shorter one.
pub(crate) fn first_bytes(path: &Path) -> Result<Vec<u8>> {
    let mut head = Vec::with_capacity(4);
    open_regular(path)
        .and_then(|f| f.take(4).read_to_end(&mut head))
        .map_err(|e| ModelError::io(path, "read the first bytes", e))?;
    Ok(head)
}

fn wrong_kind(path: &Path, problem: &str) -> ModelError {
    ModelError::Format {
        path: path.into(),
        field: "model".into(),
        problem: problem.into(),
        remedy: "give a .gguf file, or a folder with config.json and .safetensors files".into(),
    }
}

/// What to do about a file that is not GGUF.
fn other_format(path: &Path, head: &[u8]) -> ModelError {
    let extension = path
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or_default();
    match (extension, head) {
        ("safetensors", _) => ModelError::unsupported(
            path,
            "model",
            "a single safetensors file",
            "give the folder that holds it, with config.json and tokenizer.json",
        ),
        ("json", _) => wrong_kind(path, "a JSON file"),
        // A zip archive or a pickle, as written by torch.save.
        ("bin" | "pt" | "pth" | "ckpt", _) | (_, [b'P', b'K', 3, 4] | [0x80, ..]) => {
            ModelError::unsupported(
                path,
                "model",
                "a PyTorch checkpoint",
                "save the model as safetensors (save_pretrained(..., safe_serialization=True)) \
             and give that folder",
            )
        }
        ("fbay", _) => ModelError::unsupported(
            path,
            "model",
            "a packed model as the source of a conversion",
            "give the GGUF file or safetensors folder that it was packed from",
        ),
        // Old GGML magics and anything else: the GGUF reader has the messages.
        _ => match GgufSource::open(path) {
            Ok(_) => wrong_kind(path, "the file changed while it was opened"),
            Err(e) => e,
        },
    }
}
