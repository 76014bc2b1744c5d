//! Writes a model as a GGUF file (v3): a model of plain blocks, or with experts, with a SentencePiece vocabulary, as
//! llama.cpp loads it.

use std::io::Write;
use std::path::Path;

use crate::arch::{Names, gguf_metadata};
use crate::bundle::PackProgress;
use crate::error::{ModelError, Result};
use crate::files::Partial;
use crate::gguf::Value;
use crate::gguf::encoded::{Encoded, Entry, header, padding};
use crate::network::Content;
use crate::source::TensorSource;
use crate::tensor::{TensorId, TensorMeta};
use crate::tokenizer::{TokenizerModel, TokenizerSpec};

/// Bytes copied at once.
const CHUNK: usize = 4 << 20;

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
    let metadata = metadata(source, &keys)?;
    let tensors = tensors(source, names)?;
    let entries: Vec<Entry> = tensors.iter().map(entry).collect();
    let header = header(&metadata, &entries);
    let partial = Partial::beside(out)
        .map_err(|e| ModelError::io(out, "create it here (give another path)", e))?;
    let append = |bytes: &[u8]| {
        let written = partial.file().write_all(bytes);
        written.map_err(|e| ModelError::not_written(out, e))
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
    partial
        .publish()
        .map_err(|e| ModelError::not_written(out, e))
}

/// A tensor to write, with its name, and of how many matrices it consists.
type Written<'a> = (TensorId, String, &'a TensorMeta, usize);

fn tensors(source: &dyn TensorSource, names: Names) -> Result<Vec<Written<'_>>> {
    let network = source.network();
    let of_content = |content: Content| match content {
        Content::Rows(id) | Content::Table(id) => vec![id],
        Content::HotNeurons(_) => Vec::new(),
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

/// The tensor in the file's header.
fn entry((_, name, meta, n): &Written<'_>) -> Entry {
    let dims = match (meta.rows / n, *n) {
        (1, 1) => vec![meta.cols],
        (rows, 1) => vec![meta.cols, rows],
        (rows, n) => vec![meta.cols, rows, n],
    };
    Entry {
        name: name.clone(),
        dims,
        block: meta.block,
        bytes: meta.bytes() as u64,
    }
}

/// All keys: the network's, and those of the tokenizer.
fn metadata(source: &dyn TensorSource, keys: &[(String, Value)]) -> Result<Encoded> {
    let mut metadata = Encoded::default();
    keys.iter()
        .for_each(|(key, value)| metadata.value(key, value));
    // Of ggml's block formats: 2 since May 2023.
    metadata.number("general.quantization_version", 2);
    put_tokenizer(source, &mut metadata)?;
    Ok(metadata)
}

fn put_tokenizer(source: &dyn TensorSource, metadata: &mut Encoded) -> Result<()> {
    let TokenizerSpec {
        model,
        bos,
        eog,
        add_bos,
    } = &*source.tokenizer();
    let TokenizerModel::SentencePiece {
        tokens,
        scores,
        types,
        add_space_prefix,
        swallows_space: false,
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
    metadata.strings("tokenizer.ggml.tokens", tokens);
    metadata.floats("tokenizer.ggml.scores", scores);
    metadata.integers("tokenizer.ggml.token_type", types);
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
