//! Typed access to a JSON object: an absent or null field is a default, a wrong one is an error.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{ModelError, Result};
use crate::source::limits;

/// Largest JSON side file read (`config.json`, the index of a checkpoint).
const MAX_JSON_BYTES: u64 = 64 << 20;

/// An object of a JSON file.
pub(super) struct Fields {
    path: PathBuf,
    /// Where the object is inside the file, as a prefix of field names.
    prefix: String,
    object: Map<String, Value>,
}

impl Fields {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let mut text = Vec::new();
        let read = File::open(path).and_then(|f| f.take(MAX_JSON_BYTES + 1).read_to_end(&mut text));
        read.map_err(|e| ModelError::io(path, "read the file", e))?;
        if text.len() as u64 > MAX_JSON_BYTES {
            return Err(ModelError::damaged(
                path,
                "file",
                format!("it exceeds {MAX_JSON_BYTES} bytes"),
            ));
        }
        match serde_json::from_slice(&text) {
            Ok(Value::Object(object)) => Ok(Self {
                path: path.to_path_buf(),
                prefix: String::new(),
                object,
            }),
            Ok(_) => Err(ModelError::damaged(path, "file", "it is not a JSON object")),
            Err(e) => Err(ModelError::damaged(
                path,
                "file",
                format!("it is not JSON: {e}"),
            )),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The field, unless it is absent or null.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.object.get(name).filter(|v| !v.is_null())
    }

    /// Whether the field is there, if only as null.
    pub(super) fn is_present(&self, name: &str) -> bool {
        self.object.contains_key(name)
    }

    /// The fields in order.
    pub(super) fn values(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.object.iter()
    }

    fn wrong(&self, name: &str, problem: &str) -> ModelError {
        ModelError::damaged(&self.path, format!("{}{name}", self.prefix), problem)
    }

    /// The error for a missing field.
    pub(super) fn missing(&self, name: &str) -> ModelError {
        self.wrong(name, "the field is missing")
    }

    /// [`ModelError::Unsupported`] for the field's value.
    pub(super) fn unsupported(
        &self,
        name: &str,
        value: impl Into<String>,
        remedy: &str,
    ) -> ModelError {
        ModelError::unsupported(&self.path, format!("{}{name}", self.prefix), value, remedy)
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        wanted: &str,
        get: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(name) {
            None => Ok(None),
            Some(v) => get(v)
                .map(Some)
                .ok_or_else(|| self.wrong(name, &format!("it is not {wanted}"))),
        }
    }

    /// An object inside this one.
    pub(super) fn optional_object(&self, name: &str) -> Result<Option<Self>> {
        let object = self.typed(name, "an object", Value::as_object)?;
        Ok(object.map(|o| Self {
            path: self.path.clone(),
            prefix: format!("{}{name}.", self.prefix),
            object: o.clone(),
        }))
    }

    pub(super) fn optional_str(&self, name: &str) -> Result<Option<&str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn optional_bool(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    pub(super) fn optional_u64(&self, name: &str) -> Result<Option<u64>> {
        self.typed(name, "a non-negative integer", Value::as_u64)
    }

    /// A number that is finite as f32.
    pub(super) fn optional_f32(&self, name: &str) -> Result<Option<f32>> {
        self.typed(name, "a finite number", |v| {
            v.as_f64().map(|f| f as f32).filter(|f| f.is_finite())
        })
    }

    /// A number above 0.
    pub(super) fn positive(&self, name: &str) -> Result<f32> {
        let v = self.optional_f32(name)?.ok_or_else(|| self.missing(name))?;
        limits::positive(&self.path, &format!("{}{name}", self.prefix), v)
    }

    /// A size between 1 and `max`.
    pub(super) fn size(&self, name: &str, max: u64) -> Result<usize> {
        self.optional_size(name, max)?
            .ok_or_else(|| self.missing(name))
    }

    /// A size between 1 and `max`, if the field is there.
    pub(super) fn optional_size(&self, name: &str, max: u64) -> Result<Option<usize>> {
        let n = self.optional_u64(name)?;
        n.map(|n| limits::size(&self.path, &format!("{}{name}", self.prefix), n, max))
            .transpose()
    }
}
