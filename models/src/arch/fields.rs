//! Typed access to named values of any format: an absent or null field is a default, a wrong one is an error, and it is
//! known which fields have not been read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::map::Entry;
use serde_json::{Map, Value};

use crate::error::{ModelError, Result};
use crate::limits;

/// An object of a JSON file, or the metadata keys of a GGUF file under one prefix.
pub(crate) struct Fields {
    path: PathBuf,
    /// Path of the object inside the file, as a prefix of field names.
    prefix: String,
    object: Map<String, Value>,
    /// Names by which fields are asked for, with those that this file has for them.
    spellings: &'static [(&'static str, &'static str)],
    /// Fields that the file does not have, with a default as their value.
    assumed: BTreeSet<String>,
    asked: RefCell<BTreeSet<String>>,
}

impl Fields {
    /// The values in `object`, which is at `prefix` in the file at `path`.
    pub(crate) fn new(path: &Path, prefix: String, object: Map<String, Value>) -> Self {
        Self {
            path: path.to_path_buf(),
            prefix,
            object,
            spellings: &[],
            assumed: BTreeSet::new(),
            asked: RefCell::default(),
        }
    }

    /// The same object, in which some fields have other names than those by which they are asked for.
    pub(crate) fn with_spellings(self, spellings: &'static [(&'static str, &'static str)]) -> Self {
        Self { spellings, ..self }
    }

    /// The file's name for a field.
    fn spelling<'n>(&self, name: &'n str) -> &'n str {
        let own = self.spellings.iter().find(|(asked, _)| *asked == name);
        own.map_or(name, |(_, own)| own)
    }

    /// Reads the JSON file at `path`.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = limits::read_file(path, "the model's description", limits::MAX_SIDE_FILE)?;
        let damaged = |problem: String| Err(ModelError::damaged(path, "file", problem));
        match serde_json::from_slice(&text) {
            Ok(Value::Object(object)) => Ok(Self::new(path, String::new(), object)),
            Ok(_) => damaged("it is not a JSON object".into()),
            Err(e) => damaged(format!("it is not JSON: {e}")),
        }
    }

    /// Adds `defaults` for fields that are absent (null is not absent).
    pub(crate) fn with_defaults(mut self, defaults: Map<String, Value>) -> Self {
        for (name, value) in defaults {
            if let Entry::Vacant(absent) = self.object.entry(name) {
                self.assumed.insert(absent.key().clone());
                absent.insert(value);
            }
        }
        self
    }

    /// The same object, in which each field of `alternatives` may have the second name as well as the first.
    pub(crate) fn with_alternatives(mut self, alternatives: &[(&str, &str)]) -> Result<Self> {
        for &(name, other) in alternatives {
            let Some(value) = self.object.remove(other).filter(|v| !v.is_null()) else {
                continue;
            };
            match self.object.get(name).filter(|v| !v.is_null()) {
                Some(own) if *own != value => {
                    let remedy = format!("{name} is {own}: give one of both");
                    return Err(self.unsupported(other, value.to_string(), remedy));
                }
                _ => self.object.insert(name.to_owned(), value),
            };
        }
        Ok(self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The full name of a field, for messages.
    pub(crate) fn full_name(&self, name: &str) -> String {
        format!("{}{}", self.prefix, self.spelling(name))
    }

    /// The field, unless it is absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(name.to_owned());
        let value = self.object.get(self.spelling(name));
        value.filter(|v| !v.is_null())
    }

    /// The field, if the file itself has it and it is not null.
    pub(crate) fn given(&self, name: &str) -> Option<&Value> {
        let value = self.get(name);
        value.filter(|_| !self.assumed.contains(self.spelling(name)))
    }

    /// The field, unless it is absent, null or has already been read.
    pub(crate) fn unasked(&self, name: &str) -> Option<&Value> {
        let asked = self.asked.borrow();
        let spelled =
            |(asked_name, own): &(&str, &str)| *own == name && asked.contains(*asked_name);
        match asked.contains(name) || self.spellings.iter().any(spelled) {
            true => None,
            false => {
                let value = self.object.get(self.spelling(name));
                value.filter(|v| !v.is_null())
            }
        }
    }

    /// The fields in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.object.iter()
    }

    /// The error for a field whose value contradicts the format.
    pub(crate) fn wrong(&self, name: &str, problem: impl Into<String>) -> ModelError {
        ModelError::damaged(&self.path, self.full_name(name), problem)
    }

    /// The error for a missing field.
    pub(crate) fn missing(&self, name: &str) -> ModelError {
        self.wrong(name, "it is missing")
    }

    /// The error for a field that even a sound file may lack, and what to add.
    pub(crate) fn incomplete(&self, name: &str, remedy: impl Into<String>) -> ModelError {
        ModelError::Format {
            path: self.path.clone(),
            field: self.full_name(name),
            problem: "it is missing".into(),
            remedy: remedy.into(),
        }
    }

    /// [`ModelError::Unsupported`] for the field's value.
    pub(crate) fn unsupported(
        &self,
        name: &str,
        value: impl Into<String>,
        remedy: impl Into<String>,
    ) -> ModelError {
        ModelError::unsupported(&self.path, self.full_name(name), value, remedy)
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
                .ok_or_else(|| self.wrong(name, format!("it is not {wanted}"))),
        }
    }

    /// An object inside this one.
    pub(crate) fn optional_object(&self, name: &str) -> Result<Option<Self>> {
        let object = self.typed(name, "an object", Value::as_object)?;
        Ok(object.map(|o| Self::new(&self.path, format!("{}{name}.", self.prefix), o.clone())))
    }

    pub(crate) fn optional_array(&self, name: &str) -> Result<Option<&Vec<Value>>> {
        self.typed(name, "an array", Value::as_array)
    }

    pub(crate) fn optional_str(&self, name: &str) -> Result<Option<&str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn optional_bool(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    pub(crate) fn optional_u64(&self, name: &str) -> Result<Option<u64>> {
        self.typed(name, "a non-negative integer", Value::as_u64)
    }

    /// A number that is finite as f32.
    pub(crate) fn optional_f32(&self, name: &str) -> Result<Option<f32>> {
        self.typed(name, "a finite number", finite)
    }

    /// Numbers that are finite as f32.
    pub(crate) fn optional_f32s(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.typed(name, "an array of finite numbers", |v| {
            v.as_array()?.iter().map(finite).collect()
        })
    }

    /// A number above 0, if the field is there.
    pub(crate) fn optional_positive(&self, name: &str) -> Result<Option<f32>> {
        let value = self.optional_f32(name)?;
        let check = |v| limits::positive(&self.path, &self.full_name(name), v);
        value.map(check).transpose()
    }

    /// A number above 0.
    pub(crate) fn positive(&self, name: &str) -> Result<f32> {
        self.optional_positive(name)?
            .ok_or_else(|| self.missing(name))
    }

    /// A size between 1 and `max`.
    pub(crate) fn size(&self, name: &str, max: u64) -> Result<usize> {
        self.optional_size(name, max)?
            .ok_or_else(|| self.missing(name))
    }

    /// A size between 1 and `max`, if the field is there.
    pub(crate) fn optional_size(&self, name: &str, max: u64) -> Result<Option<usize>> {
        let n = self.optional_u64(name)?;
        n.map(|n| limits::size(&self.path, &self.full_name(name), n, max))
            .transpose()
    }

    /// Sizes between 1 and `max`, one for each of `n` layers: the same for all, or an array, in which they may be 0 if
    /// `some` layers only have it.
    pub(crate) fn optional_sizes(
        &self,
        name: &str,
        max: u64,
        n: usize,
        some: bool,
    ) -> Result<Option<Vec<usize>>> {
        let Some(Value::Array(values)) = self.get(name) else {
            return Ok(self.optional_size(name, max)?.map(|size| vec![size; n]));
        };
        if values.len() != n {
            let problem = format!("{} values for {n} layers", values.len());
            return Err(self.wrong(name, problem));
        }
        let size = |v: &Value| {
            let value = v.as_u64();
            let value = value.ok_or_else(|| self.wrong(name, "it is not an array of integers"))?;
            match value {
                0 if some => Ok(0),
                _ => limits::size(&self.path, &self.full_name(name), value, max),
            }
        };
        values.iter().map(size).collect::<Result<_>>().map(Some)
    }
}

fn finite(value: &Value) -> Option<f32> {
    let value = value.as_f64().map(|f| f as f32);
    value.filter(|f| f.is_finite())
}
