//! Writing a GGUF file (v3): a model of plain blocks, or with experts, with a SentencePiece vocabulary, as llama.cpp
//! loads it.

use std::io::Write;
use std::path::Path;

use super::value::Value;
use crate::arch::{Names, gguf_metadata};
use crate::bundle::PackProgress;
use crate::error::{ModelError, Result};
use crate::files::Partial;
use crate::network::Content;
use crate::tensor::{TensorId, TensorMeta, TensorSource};
use crate::tokenizer::{TokenizerModel, TokenizerSpec};

/// Alignment of tensors, the format's default.
const ALIGN: u64 = 32;

/// Bytes copied at once.
const CHUNK: usize = 4 << 20;

/// Type ids of metadata values (`gguf_metadata_value_type`).
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Writes `source` to `out`. The file appears under its name only when it is whole (written beside it,
/// synced, renamed).
///
/// # Errors
/// A model that is not of plain blocks with a SentencePiece vocabulary; a tensor that is missing; reading
/// and writing (a full disk says so).
pub fn write_gguf(
    source: &dyn TensorSource,
    out: &Path,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<()> {
    let Some((keys, names)) = gguf_metadata(source.network()) else {
        let problem = format!("the architecture of {}", source.network().name);
        let remedy = "only plain blocks are written as GGUF: write a .fbay file";
        return Err(ModelError::unsupported(
            source.path(),
            "network",
            problem,
            remedy,
        ));
    };
    let metadata = Metadata::of(source, &keys)?;
    let tensors = tensors(source, names)?;
    let header = header(&metadata, &tensors);
    let partial = Partial::beside(out)
        .map_err(|e| ModelError::io(out, "create it here (give another path)", e))?;
    let append = |bytes: &[u8]| {
        let written = partial.file().write_all(bytes);
        written.map_err(|e| failed(out, e))
    };
    append(&header)?;
    let total = tensors.iter().map(|(_, _, m, _)| m.bytes() as u64).sum();
    let (mut done, mut buffer) = (0, vec![0; CHUNK]);
    for &(id, _, meta, _) in &tensors {
        for start in (0..meta.bytes()).step_by(CHUNK) {
            let bytes = &mut buffer[..CHUNK.min(meta.bytes() - start)];
            source.read(id, start, bytes)?;
            append(bytes)?;
            done += bytes.len() as u64;
            progress(PackProgress { done, total });
        }
        append(&padding(meta.bytes() as u64))?;
    }
    partial.publish().map_err(|e| failed(out, e))
}

/// A tensor to write, with its name, and of how many matrices it consists.
type Written<'a> = (TensorId, String, &'a TensorMeta, usize);

fn tensors(source: &dyn TensorSource, names: Names) -> Result<Vec<Written<'_>>> {
    let network = source.network();
    let of_content = |content: Content| match content {
        Content::Rows(id) | Content::Table(id) => vec![id],
        Content::Neurons(l) | Content::Experts(l) => {
            let (rows, down) = network.neuron_matrices(content);
            let all = rows.iter().copied().chain([down]);
            all.map(|t| TensorId::Layer(l, t)).collect()
        }
    };
    let vectors = network.vectors().into_iter().map(|(id, _)| id);
    let matrices = network.contents(false).into_iter().flat_map(of_content);
    let ids: Vec<TensorId> = matrices.chain(vectors).collect();
    let of = |id| {
        let name = names.name_of(id, false);
        let n = match id {
            TensorId::Layer(l, _) if id.is_of_experts() => {
                network.experts(l).map_or(1, |e| e.count)
            }
            _ => 1,
        };
        match source.meta(id) {
            Some(meta) => Ok((id, name, meta, n)),
            None => Err(ModelError::damaged(
                source.path(),
                name,
                "the tensor is missing",
            )),
        }
    };
    ids.into_iter().map(of).collect()
}

/// Everything before the first tensor's bytes, padded.
fn header(metadata: &Metadata, tensors: &[Written<'_>]) -> Vec<u8> {
    let mut b = b"GGUF".to_vec();
    b.extend(3u32.to_le_bytes());
    b.extend((tensors.len() as u64).to_le_bytes());
    b.extend(metadata.entries.to_le_bytes());
    b.extend(&metadata.bytes);
    let mut offset = 0u64;
    for (_, name, meta, n) in tensors {
        put_string(&mut b, name);
        let [cols, rows, n] = [meta.cols, meta.rows / n, *n].map(|n| n as u64);
        let dims = match (rows, n) {
            (1, 1) => &[cols][..],
            (_, 1) => &[cols, rows],
            _ => &[cols, rows, n],
        };
        b.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|d| b.extend(d.to_le_bytes()));
        b.extend(meta.block.ggml_id().to_le_bytes());
        b.extend(offset.to_le_bytes());
        offset = (offset + meta.bytes() as u64).next_multiple_of(ALIGN);
    }
    b.extend(padding(b.len() as u64));
    b
}

/// Zeros from `len` to the next aligned offset.
fn padding(len: u64) -> Vec<u8> {
    vec![0; (len.next_multiple_of(ALIGN) - len) as usize]
}

fn put_tokenizer(source: &dyn TensorSource, metadata: &mut Metadata) -> Result<()> {
    let TokenizerSpec {
        model,
        bos,
        eog,
        add_bos,
    } = source.tokenizer();
    let TokenizerModel::SentencePiece {
        tokens,
        scores,
        types,
        add_space_prefix,
    } = model
    else {
        let remedy = "only SentencePiece vocabularies are written as GGUF: write a .fbay file";
        let problem = "another tokenizer";
        return Err(ModelError::unsupported(
            source.path(),
            "tokenizer",
            problem,
            remedy,
        ));
    };
    metadata.string("tokenizer.ggml.model", "llama");
    metadata.array("tokenizer.ggml.tokens", STRING, tokens, |b, t| {
        put_string(b, t)
    });
    metadata.array("tokenizer.ggml.scores", F32, scores, |b, s| {
        b.extend(s.to_le_bytes())
    });
    metadata.array("tokenizer.ggml.token_type", I32, types, |b, t| {
        b.extend(t.to_le_bytes())
    });
    if let Some(bos) = *bos {
        metadata.number("tokenizer.ggml.bos_token_id", bos);
    }
    if let Some(&eos) = eog.first() {
        metadata.number("tokenizer.ggml.eos_token_id", eos);
    }
    metadata.flag("tokenizer.ggml.add_bos_token", *add_bos);
    metadata.flag("tokenizer.ggml.add_space_prefix", *add_space_prefix);
    Ok(())
}

/// Metadata being encoded.
#[derive(Default)]
struct Metadata {
    entries: u64,
    bytes: Vec<u8>,
}

impl Metadata {
    fn of(source: &dyn TensorSource, keys: &[(String, Value)]) -> Result<Self> {
        let mut metadata = Self::default();
        for (key, value) in keys {
            match value {
                Value::Str(text) => metadata.string(key, text),
                Value::U32(number) => metadata.number(key, *number),
                Value::F32(number) => metadata.float(key, *number),
                other => unreachable!("{key} is written as {other:?}"),
            }
        }
        // Of ggml's block formats: 2 since May 2023.
        metadata.number("general.quantization_version", 2);
        put_tokenizer(source, &mut metadata)?;
        Ok(metadata)
    }

    fn key(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.entries += 1;
        put_string(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        &mut self.bytes
    }

    fn string(&mut self, key: &str, value: &str) {
        put_string(self.key(key, STRING), value);
    }

    fn number(&mut self, key: &str, value: u32) {
        self.key(key, U32).extend(value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.key(key, F32).extend(value.to_le_bytes());
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.key(key, BOOL).push(value.into());
    }

    fn array<T>(&mut self, key: &str, kind: u32, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        let b = self.key(key, ARRAY);
        b.extend(kind.to_le_bytes());
        b.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| put(b, item));
    }
}

fn put_string(b: &mut Vec<u8>, s: &str) {
    b.extend((s.len() as u64).to_le_bytes());
    b.extend(s.as_bytes());
}

/// What could not be written, and what helps.
fn failed(target: &Path, e: std::io::Error) -> ModelError {
    let action = match e.kind() {
        std::io::ErrorKind::StorageFull => "write it (free some space or give another path)",
        _ => "write it",
    };
    ModelError::io(target, action, e)
}
