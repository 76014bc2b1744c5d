//! Version 2 of Baichuan normalises the rows of its head whenever it uses them. Files whose rows are stored so are
//! read; others would give wrong tokens, and are refused by the head's name.

mod gguf_writer;
mod hf_writer;

use std::path::Path;

use forebay_models::block::BlockType;
use forebay_models::source;
use gguf_writer::{GgufWriter, Model};
use half::bf16;
use hf_writer::{Folder, tiny};
use safetensors::tensor::Dtype;
use serde_json::json;
use tempfile::TempDir;

const D_MODEL: usize = 64;
const VOCABULARY_2: usize = 125_696;

/// Rows of these norms, which repeat.
fn rows(n: usize, norms: &[f32]) -> Vec<f32> {
    let mut random = gguf_writer::Random(7);
    let mut all = random.values(n * D_MODEL, 1.0, 0.0);
    for (row, norm) in all.chunks_exact_mut(D_MODEL).zip(norms.iter().cycle()) {
        let own = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        row.iter_mut().for_each(|v| *v *= norm / own);
    }
    all
}

/// A folder of a Baichuan with a head of these norms.
fn folder(vocab: usize, norms: &[f32]) -> Folder {
    let mut folder = tiny();
    folder
        .set("model_type", json!("baichuan"))
        .set("num_key_value_heads", json!(4))
        .set("vocab_size", json!(vocab))
        .set("tie_word_embeddings", json!(false))
        .put("model.embed_tokens.weight", &[vocab, D_MODEL]);
    for n in 0..2 {
        for part in ["q", "k", "v"] {
            let name = format!("model.layers.{n}.self_attn.{part}_proj.weight");
            folder.tensors.remove(&name);
        }
        let fused = format!("model.layers.{n}.self_attn.W_pack.weight");
        folder.put(&fused, &[3 * D_MODEL, D_MODEL]);
    }
    let head = rows(vocab, norms).into_iter().map(bf16::from_f32);
    let head = hf_writer::Tensor {
        dtype: Dtype::BF16,
        shape: vec![vocab, D_MODEL],
        data: head.flat_map(bf16::to_le_bytes).collect(),
    };
    folder.tensors.insert("lm_head.weight".into(), head);
    folder
}

/// A GGUF file of the same.
fn gguf(vocab: usize, block: BlockType, norms: &[f32]) -> GgufWriter {
    let model = Model {
        arch: "baichuan",
        n_kv_heads: 4,
        vocab,
        tied_head: false,
        ..Model::default()
    };
    let mut writer = model.writer();
    writer.remove("output.weight").tensor(
        "output.weight",
        D_MODEL,
        Some(vocab),
        block,
        &rows(vocab, norms),
    );
    writer
}

fn refusal(path: &Path) -> Option<String> {
    source::open(path).err().map(|e| e.to_string())
}

fn has(message: Option<String>, parts: &[&str]) {
    let message = message.expect("a model that must be refused");
    for part in parts.iter().chain(&["not supported", "normalise lm_head"]) {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

#[test]
fn folders_of_version_2_have_a_normalised_head() {
    let refused = |folder: &Folder| refusal(folder.write().path());
    let version_2 = |norms| {
        let mut folder = folder(264, norms);
        folder.set("z_loss_weight", json!(0));
        folder
    };
    has(
        refused(&version_2(&[1.0, 1.1])),
        &["model.safetensors: lm_head.weight", "row 1", "norm of 1.10"],
    );
    has(refused(&version_2(&[2.0])), &["row 0", "norm of 2.00"]);
    has(refused(&version_2(&[f32::NAN])), &["row 0"]);
    assert_eq!(refused(&version_2(&[1.0])), None);
    // Padding stays what it is when it is divided.
    assert_eq!(refused(&version_2(&[1.0, 0.0])), None);
    // Version 1 has no such field, and fewer tokens.
    assert_eq!(refused(&folder(264, &[1.0, 1.1])), None);
    // Some tokens were added.
    has(
        refused(&folder(VOCABULARY_2 + 4, &[0.9])),
        &["norm of 0.90"],
    );
}

#[test]
fn gguf_files_of_version_2_have_a_normalised_head() {
    let written = TempDir::new().expect("a folder");
    let refused = |block, norms| {
        let path = gguf(VOCABULARY_2, block, norms).write(written.path(), "m.gguf");
        refusal(&path)
    };
    // Only where the vocabulary is looked at as a whole, a row of another norm is found.
    let mut late = vec![1.0; VOCABULARY_2];
    late[VOCABULARY_2 / 2..].fill(1.5);
    has(
        refused(BlockType::F16, &late),
        &["m.gguf: output.weight", "norm of 1.50"],
    );
    has(
        refused(BlockType::Q8_0, &[1.0, 0.8]),
        &["row 1", "norm of 0.80"],
    );
    assert_eq!(refused(BlockType::F16, &[1.0]), None);
    assert_eq!(refused(BlockType::Q8_0, &[1.0]), None);
}

/// What is missing of a file reads as zeros, here from the middle of a row on.
#[test]
fn norms_of_a_part_of_a_file_are_not_looked_at() {
    let written = TempDir::new().expect("a folder");
    let path = gguf(VOCABULARY_2, BlockType::F16, &[1.0]).write(written.path(), "m.gguf");
    let bytes = std::fs::read(&path).expect("the file");
    // The head is last.
    let cut = bytes.len() - VOCABULARY_2 * D_MODEL * 2 + D_MODEL;
    std::fs::write(&path, &bytes[..cut]).expect("written");
    let opened = source::open_header(&path).map(|(_, is_whole)| is_whole);
    assert!(matches!(opened, Ok(false)));
}
