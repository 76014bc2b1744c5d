//! The demo model that is part of the program: a 3.4 M parameter story model with ReLU-sparse FFNs.

use std::path::{Path, PathBuf};

use forebay_models::error::ModelError;
use forebay_models::files::{read_regular, write_whole};

use crate::error::Error;
use crate::packed::{self, Preparation};

const FILES: [(&str, &[u8]); 5] = [
    (
        "config.json",
        include_bytes!("../models/demo/hf/config.json"),
    ),
    (
        "generation_config.json",
        include_bytes!("../models/demo/hf/generation_config.json"),
    ),
    (
        "model.safetensors",
        include_bytes!("../models/demo/hf/model.safetensors"),
    ),
    (
        "tokenizer.json",
        include_bytes!("../models/demo/hf/tokenizer.json"),
    ),
    (
        "tokenizer_config.json",
        include_bytes!("../models/demo/hf/tokenizer_config.json"),
    ),
];

/// Prompt of the demo.
pub const PROMPT: &str = "Once upon a time, there was a little girl named Lily.";

/// Name of the folder and of the model.
pub const NAME: &str = "stories-relu-3.4M";

/// Bytes of the model's weights.
pub fn weight_bytes() -> u64 {
    FILES[2].1.len() as u64
}

/// Writes the demo model below `folder`, unless it is there, and returns its own folder. It is then treated like every
/// model: packed, planned and read from disk.
///
/// # Errors
/// The folder cannot be written.
pub fn unpack(folder: &Path, report: &mut dyn FnMut(Preparation)) -> Result<PathBuf, Error> {
    let target = folder.join(NAME);
    let ready = || {
        FILES
            .iter()
            .all(|(name, bytes)| is_same(&target.join(name), bytes))
    };
    if ready() {
        return Ok(target);
    }
    let _lock = packed::lock(&target, report)?;
    if ready() {
        return Ok(target);
    }
    let write = || -> std::io::Result<()> {
        std::fs::create_dir_all(&target)?;
        for (name, bytes) in FILES {
            write_whole(&target.join(name), bytes)?;
        }
        Ok(())
    };
    let action = "write the demo model (check free space and permissions, or choose another folder with \
                  FOREBAY_CACHE)";
    write().map_err(|e| ModelError::io(&target, action, e))?;
    Ok(target)
}

/// Removes what [`unpack`] wrote below `folder`, and nothing else.
pub(crate) fn remove(folder: &Path) {
    let target = folder.join(NAME);
    // Best effort: what stays only takes up space.
    for (name, _) in FILES {
        let _ = std::fs::remove_file(target.join(name));
    }
    let _ = std::fs::remove_dir(target);
}

fn is_same(path: &Path, bytes: &[u8]) -> bool {
    read_regular(path, bytes.len() as u64).is_ok_and(|found| found == bytes)
}
