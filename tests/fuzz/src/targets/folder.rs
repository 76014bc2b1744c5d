//! Hugging Face folders: the headers of safetensors files, `config.json` and the index of shards.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use forebay_models::source;
use forebay_models::tensor::TensorId;
use serde_json::json;

use super::hf_writer::{self, Folder};
use super::refusal;
use crate::mutate;
use crate::random::Random;
use crate::target::{Placed, Target};

/// A folder of which one file is the input.
struct OneFile {
    folder: PathBuf,
    file: Placed,
    seeds: Vec<Vec<u8>>,
    /// Zeros behind the input.
    tail: u64,
    /// The input is a header without the length before it.
    is_header: bool,
}

/// Copies the files of `made` to `folder`.
fn copy(made: &Folder, folder: &Path) -> Result<()> {
    let written = made.write();
    for entry in std::fs::read_dir(written.path())? {
        let from = entry?.path();
        let name = from.file_name().context("a file's name")?;
        std::fs::copy(&from, folder.join(name))?;
    }
    Ok(())
}

fn small() -> Folder {
    let mut made = hf_writer::tiny();
    made.tensors.retain(|name, _| !name.contains("layers.1."));
    made.set("num_hidden_layers", json!(1));
    made
}

/// The checkpoint's header is the input.
pub fn safetensors(folder: &Path) -> Result<Box<dyn Target>> {
    copy(&small(), folder)?;
    let name = "model.safetensors";
    let bytes = std::fs::read(folder.join(name))?;
    let (length, rest) = bytes.split_first_chunk::<8>().context("a header")?;
    let header = &rest[..u64::from_le_bytes(*length) as usize];
    Ok(Box::new(OneFile {
        folder: folder.into(),
        file: Placed::new(folder, name)?,
        seeds: vec![header.trim_ascii().to_vec()],
        tail: (rest.len() - header.len()) as u64,
        is_header: true,
    }))
}

/// `config.json` is the input.
pub fn config(folder: &Path) -> Result<Box<dyn Target>> {
    copy(&small(), folder)?;
    let mut scaled = small();
    scaled
        .set(
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 64}),
        )
        .set("head_dim", json!(16))
        .set("sliding_window", json!(null))
        .set("attention_bias", json!(false));
    let mut linear = small();
    linear
        .set("rope_scaling", json!({"type": "linear", "factor": 2.0}))
        .set("bos_token_id", json!(0))
        .set("eos_token_id", json!([1, 2]));
    let seeds = [small(), scaled, linear];
    let seeds: Result<_, _> = seeds
        .iter()
        .map(|f| serde_json::to_vec(&f.config))
        .collect();
    Ok(Box::new(OneFile {
        folder: folder.into(),
        file: Placed::new(folder, "config.json")?,
        seeds: seeds?,
        tail: 0,
        is_header: false,
    }))
}

/// `config.json` of a model with experts is the input: some in groups, with biases for the choice, and with latent
/// attention.
pub fn config_of_experts(folder: &Path) -> Result<Box<dyn Target>> {
    let model = super::tiny("deepseek_v3_bf16");
    for entry in std::fs::read_dir(&model)? {
        let from = entry?.path();
        std::fs::copy(
            &from,
            folder.join(from.file_name().context("a file's name")?),
        )?;
    }
    let name = "config.json";
    Ok(Box::new(OneFile {
        folder: folder.into(),
        file: Placed::new(folder, name)?,
        seeds: vec![std::fs::read(model.join(name))?],
        tail: 0,
        is_header: false,
    }))
}

/// The index of a checkpoint in two shards is the input.
pub fn index(folder: &Path) -> Result<Box<dyn Target>> {
    let made = Folder {
        shards: 2,
        ..small()
    };
    copy(&made, folder)?;
    let name = "model.safetensors.index.json";
    let seed = std::fs::read(folder.join(name))?;
    Ok(Box::new(OneFile {
        folder: folder.into(),
        file: Placed::new(folder, name)?,
        seeds: vec![seed],
        tail: 0,
        is_header: false,
    }))
}

impl Target for OneFile {
    fn seeds(&self) -> Vec<Vec<u8>> {
        self.seeds.clone()
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::json::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let length = (input.len() as u64).to_le_bytes();
        let before: &[u8] = if self.is_header { &length } else { &[] };
        let bytes = [before, input].concat();
        self.file
            .put(&bytes, self.tail)
            .map_err(|e| e.to_string())?;
        let source = source::open(&self.folder).map_err(|e| refusal(&e))?;
        let read = source.read(TensorId::OutputNorm, 0, &mut [0; 2]);
        read.map_err(|e| refusal(&e))
    }
}
