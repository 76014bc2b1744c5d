//! A GGUF file's description of its model: metadata as typed fields, and what is outside the architecture's keys.

use serde_json::{Map, Number, Value as Json};

use super::fields::Fields;
use crate::error::{ModelError, Result};
use crate::gguf::{Array, Gguf, Value};
use crate::limits::{self, MAX_DIMENSION, MAX_LAYERS};

/// The keys under `prefix`, without it.
pub(super) fn fields(gguf: &Gguf, prefix: &str) -> Fields {
    let prefix = format!("{prefix}.");
    let entries = gguf.metadata().entries.iter();
    let under = entries.filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value)));
    let object: Map<String, Json> = under
        .map(|(suffix, value)| (suffix.to_owned(), json(value)))
        .collect();
    Fields::new(gguf.path(), prefix, object)
}

/// A value as JSON. Numbers that JSON cannot represent, and arrays longer than any list of layers, become text, which
/// is not a valid value of any key.
fn json(value: &Value) -> Json {
    let float = |v: f64| Number::from_f64(v).map_or_else(|| v.to_string().into(), Json::Number);
    match *value {
        Value::U8(v) => v.into(),
        Value::I8(v) => v.into(),
        Value::U16(v) => v.into(),
        Value::I16(v) => v.into(),
        Value::U32(v) => v.into(),
        Value::I32(v) => v.into(),
        Value::U64(v) => v.into(),
        Value::I64(v) => v.into(),
        Value::F32(v) => float(v.into()),
        Value::F64(v) => float(v),
        Value::Bool(v) => v.into(),
        Value::Str(ref s) => s.as_str().into(),
        Value::Array(ref array) => json_array(array, float),
    }
}

fn json_array(array: &Array, float: impl Fn(f64) -> Json) -> Json {
    fn all<T: Copy>(items: &[T], of: impl Fn(T) -> Json) -> Json {
        match items.len() as u64 > MAX_LAYERS {
            true => format!("an array of {}", items.len()).into(),
            false => Json::Array(items.iter().map(|&v| of(v)).collect()),
        }
    }
    match array {
        Array::U8(v) => all(v, Json::from),
        Array::I8(v) => all(v, Json::from),
        Array::U16(v) => all(v, Json::from),
        Array::I16(v) => all(v, Json::from),
        Array::U32(v) => all(v, Json::from),
        Array::I32(v) => all(v, Json::from),
        Array::U64(v) => all(v, Json::from),
        Array::I64(v) => all(v, Json::from),
        Array::F32(v) => all(v, |x| float(x.into())),
        Array::F64(v) => all(v, &float),
        Array::Bool(v) => all(v, Json::from),
        Array::Str(v) => format!("an array of {} strings", v.len()).into(),
    }
}

/// The model's name, or else the file's.
pub(super) fn model_name(gguf: &Gguf) -> String {
    let stem = || {
        let stem = gguf.path().file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    };
    let name = gguf.metadata().str("general.name");
    name.map_or_else(stem, str::to_owned)
}

/// The number of rows of the embedding; the vocabulary must not have more tokens.
pub(super) fn vocab_size(gguf: &Gguf) -> Result<usize> {
    const NAME: &str = "token_embd.weight";
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let embedding = gguf.tensors().iter().find(|t| t.name == NAME);
    let rows = embedding
        .and_then(|t| t.matrix())
        .map(|(_, rows)| rows as u64);
    let Some(rows) = rows else {
        return Err(ModelError::damaged(
            gguf.path(),
            NAME,
            "the tensor is missing or not a matrix",
        ));
    };
    let rows = limits::size(gguf.path(), NAME, rows, MAX_DIMENSION)?;
    match gguf.metadata().strings(TOKENS) {
        Some(tokens) if tokens.len() > rows => Err(ModelError::damaged(
            gguf.path(),
            TOKENS,
            format!("{} tokens, but {NAME} has only {rows} rows", tokens.len()),
        )),
        _ => Ok(rows),
    }
}

/// PowerInfer's threshold of a predictor's scores.
pub(super) fn predictor_threshold(gguf: &Gguf) -> Result<f32> {
    const KEY: &str = "powerinfer.sparse_threshold";
    match gguf.metadata().get(KEY) {
        None => Ok(0.0),
        Some(&Value::F32(v)) if v.is_finite() => Ok(v),
        Some(_) => Err(ModelError::damaged(
            gguf.path(),
            KEY,
            "it is not a finite f32",
        )),
    }
}
