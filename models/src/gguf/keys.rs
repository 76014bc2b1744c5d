//! Typed access to `{arch}.*` metadata: an absent key is a default, a wrong one is an error.

use std::path::Path;

use super::value::{Array, Metadata, Value};
use crate::error::{ModelError, Result};
use crate::source::limits;

/// Metadata under the prefix of one architecture.
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) path: &'a Path,
    /// Value of `general.architecture`.
    pub(super) prefix: &'a str,
}

impl Keys<'_> {
    /// The full key of a suffix.
    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }

    pub(super) fn get(&self, suffix: &str) -> Option<&Value> {
        self.metadata.get(&self.key(suffix))
    }

    fn wrong(&self, suffix: &str, problem: String) -> ModelError {
        ModelError::damaged(self.path, self.key(suffix), problem)
    }

    fn wrong_type(&self, suffix: &str, wanted: &str, value: &Value) -> ModelError {
        self.wrong(
            suffix,
            format!("{} where {wanted} is expected", describe(value)),
        )
    }

    /// [`ModelError::Unsupported`] for a key's value.
    pub(super) fn unsupported(&self, suffix: &str, value: &str, remedy: &str) -> ModelError {
        ModelError::unsupported(self.path, self.key(suffix), value, remedy)
    }

    /// A size between 1 and `max`, if the key is there. Some converters write one value per layer:
    /// accepted where all are equal.
    pub(super) fn optional_size(&self, suffix: &str, max: u64) -> Result<Option<usize>> {
        let Some(value) = self.get(suffix) else {
            return Ok(None);
        };
        if let Value::Array(array) = value {
            let all = unsigned_items(array)
                .ok_or_else(|| self.wrong_type(suffix, "an integer", value))?;
            let Some((&first, rest)) = all.split_first() else {
                return Err(self.wrong(suffix, "the array is empty".into()));
            };
            if rest.iter().any(|&v| v != first) {
                let remedy = "all layers must have the same shape";
                return Err(self.unsupported(
                    suffix,
                    "a value that differs between layers",
                    remedy,
                ));
            }
            return limits::size(self.path, &self.key(suffix), first, max).map(Some);
        }
        let n = self.metadata.u64(&self.key(suffix));
        let n = n.ok_or_else(|| self.wrong_type(suffix, "a non-negative integer", value))?;
        limits::size(self.path, &self.key(suffix), n, max).map(Some)
    }

    /// A size between 1 and `max`.
    pub(super) fn size(&self, suffix: &str, max: u64) -> Result<usize> {
        let size = self.optional_size(suffix, max)?;
        size.ok_or_else(|| self.wrong(suffix, "the metadata key is missing".into()))
    }

    /// A finite number, if the key is there.
    pub(super) fn optional_f32(&self, suffix: &str) -> Result<Option<f32>> {
        let Some(value) = self.get(suffix) else {
            return Ok(None);
        };
        match self.metadata.f32(&self.key(suffix)) {
            Some(v) if v.is_finite() => Ok(Some(v)),
            _ => Err(self.wrong_type(suffix, "a finite number", value)),
        }
    }

    /// A string, if the key is there.
    pub(super) fn optional_str(&self, suffix: &str) -> Result<Option<&str>> {
        match self.get(suffix) {
            None => Ok(None),
            Some(Value::Str(s)) => Ok(Some(s)),
            Some(other) => Err(self.wrong_type(suffix, "a string", other)),
        }
    }
}

fn unsigned_items(array: &Array) -> Option<Vec<u64>> {
    match array {
        Array::U32(v) => Some(v.iter().map(|&x| x.into()).collect()),
        Array::U64(v) => Some(v.clone()),
        Array::I32(v) => v.iter().map(|&x| x.try_into().ok()).collect(),
        Array::I64(v) => v.iter().map(|&x| x.try_into().ok()).collect(),
        _ => None,
    }
}

/// A value for a message; never a whole vocabulary.
pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::Str(s) => format!("{:?}", s.chars().take(60).collect::<String>()),
        Value::Array(_) => "an array".into(),
    }
}

/// A scalar as a number; booleans are 0 and 1.
pub(super) fn number(value: &Value) -> Option<f64> {
    match *value {
        Value::U8(v) => Some(v.into()),
        Value::I8(v) => Some(v.into()),
        Value::U16(v) => Some(v.into()),
        Value::I16(v) => Some(v.into()),
        Value::U32(v) => Some(v.into()),
        Value::I32(v) => Some(v.into()),
        Value::U64(v) => Some(v as f64),
        Value::I64(v) => Some(v as f64),
        Value::F32(v) => Some(v.into()),
        Value::F64(v) => Some(v),
        Value::Bool(v) => Some(f64::from(u8::from(v))),
        Value::Str(_) | Value::Array(_) => None,
    }
}
