//! What an architecture reads from a file, independent of the format. Every read names a GGUF key (without the
//! architecture's prefix) and a field of `config.json`; `""` if a format has none.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::fields::Fields;
use super::gguf_fields;
use super::neutral::{self, Neutral};
use crate::block::{BlockType, dequantize};
use crate::error::{ModelError, Result};
use crate::gguf::Gguf;
use crate::limits::{self, MAX_CONTEXT, MAX_DIMENSION, MAX_LAYERS};

/// Key and field of the number of layers that predict further tokens.
const FURTHER: (&str, &str) = ("nextn_predict_layers", "num_nextn_predict_layers");

/// Field of what single layers have different from the others, and what that may be.
const OVERRIDES: &str = "per_layer_config";
const OVERRIDABLE: [&str; 2] = ["head_dim", "num_key_value_heads"];

/// Kinds of layers that `layer_types` of most architectures may name.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// Where the metadata is.
#[derive(Clone, Copy)]
pub(super) enum File<'a> {
    Gguf(&'a Gguf),
    /// A folder.
    Hf(&'a Path),
}

/// The metadata of one file.
pub(super) struct Metadata<'a> {
    file: File<'a>,
    kind: String,
    fields: Fields,
    /// The object around the text model's fields in a checkpoint for several kinds of input.
    outer: Option<Fields>,
    read_tensors: RefCell<BTreeSet<String>>,
    unit_head: Cell<Option<&'static str>>,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(file: File<'a>, kind: &str, fields: Fields, outer: Option<Fields>) -> Self {
        Self {
            file,
            kind: kind.to_owned(),
            fields,
            outer,
            read_tensors: RefCell::default(),
            unit_head: Cell::default(),
        }
    }

    /// The architecture's name in the file.
    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    pub(super) fn is_gguf(&self) -> bool {
        matches!(self.file, File::Gguf(_))
    }

    /// Whether it is in PowerInfer's container.
    pub(super) fn is_powerinfer(&self) -> bool {
        matches!(self.file, File::Gguf(gguf) if gguf.is_powerinfer())
    }

    /// The fields themselves, for those that only one format has.
    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    fn pick<'n>(&self, gguf: &'n str, hf: &'n str) -> &'n str {
        match self.file {
            File::Gguf(_) => gguf,
            File::Hf(_) => hf,
        }
    }

    /// A size.
    pub(super) fn size(&self, gguf: &str, hf: &str) -> Result<usize> {
        self.fields.size(self.pick(gguf, hf), MAX_DIMENSION)
    }

    /// A size, if the field is there.
    pub(super) fn optional_size(&self, gguf: &str, hf: &str) -> Result<Option<usize>> {
        self.fields
            .optional_size(self.pick(gguf, hf), MAX_DIMENSION)
    }

    /// A size for each of `n` layers, if the field is there.
    pub(super) fn optional_sizes(
        &self,
        gguf: &str,
        hf: &str,
        n: usize,
    ) -> Result<Option<Vec<usize>>> {
        self.sizes_of_layers(self.pick(gguf, hf), n, false)
    }

    /// A size for each of `n` layers, 0 for those that have nothing of the kind.
    pub(super) fn sizes_of_some(&self, gguf: &str, hf: &str, n: usize) -> Result<Vec<usize>> {
        let name = self.pick(gguf, hf);
        let sizes = self.sizes_of_layers(name, n, true)?;
        sizes.ok_or_else(|| self.fields.missing(name))
    }

    fn sizes_of_layers(&self, name: &str, n: usize, some: bool) -> Result<Option<Vec<usize>>> {
        // GGUF counts the layers that predict further tokens.
        let all = match self.is_gguf() {
            true => n + self.further_layers()?,
            false => n,
        };
        let mut sizes = self.fields.optional_sizes(name, MAX_DIMENSION, all, some)?;
        sizes.iter_mut().for_each(|sizes| sizes.truncate(n));
        Ok(sizes)
    }

    /// A size for each of `n` layers.
    pub(super) fn sizes(&self, gguf: &str, hf: &str, n: usize) -> Result<Vec<usize>> {
        self.optional_sizes(gguf, hf, n)?
            .ok_or_else(|| self.fields.missing(self.pick(gguf, hf)))
    }

    /// Layers of the model, without those that predict further tokens.
    pub(super) fn layers(&self) -> Result<usize> {
        let name = self.pick("block_count", "num_hidden_layers");
        let all = self.fields.size(name, MAX_LAYERS)?;
        if !self.is_gguf() {
            return Ok(all);
        }
        let further = self.further_layers()?;
        let left = all.checked_sub(further).filter(|&n| n > 0);
        left.ok_or_else(|| self.wrong(FURTHER.0, "", format!("there are only {all} layers")))
    }

    /// Number of layers behind the model's own that predict further tokens (multi-token prediction); they are not used.
    pub(super) fn further_layers(&self) -> Result<usize> {
        self.some_layers(FURTHER)
    }

    /// A number of layers, 0 if the field is absent.
    pub(super) fn some_layers(&self, (gguf, hf): (&str, &str)) -> Result<usize> {
        match self.fields.optional_u64(self.pick(gguf, hf))? {
            Some(n) if n > MAX_LAYERS => Err(self.wrong(gguf, hf, format!("{n} layers"))),
            n => Ok(n.unwrap_or(0) as usize),
        }
    }

    /// Sizes of all layers with what `per_layer_config` (transformers 5) says of some of them.
    pub(super) fn overridden(&self, name: &str, mut sizes: Vec<usize>) -> Result<Vec<usize>> {
        let Some(config) = self.fields.optional_object(OVERRIDES)? else {
            return Ok(sizes);
        };
        for (number, _) in config.values() {
            let layer = number.parse().ok().and_then(|l: usize| sizes.get_mut(l));
            let layer = layer.ok_or_else(|| config.wrong(number, "there is no such layer"))?;
            let of_layer = config.optional_object(number)?;
            let of_layer = of_layer.ok_or_else(|| config.missing(number))?;
            let mut names = of_layer.values().map(|(name, _)| name);
            if let Some(other) = names.find(|name| !OVERRIDABLE.contains(&name.as_str())) {
                let remedy = format!("{} are", OVERRIDABLE.join(" and "));
                return Err(of_layer.unsupported(other, "a value for one layer", remedy));
            }
            if let Some(size) = of_layer.optional_size(name, MAX_DIMENSION)? {
                *layer = size;
            }
        }
        Ok(sizes)
    }

    /// A number of positions, if the field is there.
    pub(super) fn optional_context(&self, gguf: &str, hf: &str) -> Result<Option<usize>> {
        self.fields.optional_size(self.pick(gguf, hf), MAX_CONTEXT)
    }

    /// Positions for which the model was trained.
    pub(super) fn context(&self) -> Result<usize> {
        let (gguf, hf) = ("context_length", "max_position_embeddings");
        self.optional_context(gguf, hf)?
            .ok_or_else(|| self.fields.missing(self.pick(gguf, hf)))
    }

    pub(super) fn optional_f32(&self, gguf: &str, hf: &str) -> Result<Option<f32>> {
        self.fields.optional_f32(self.pick(gguf, hf))
    }

    /// A number above 0, if the field is there.
    pub(super) fn optional_positive(&self, gguf: &str, hf: &str) -> Result<Option<f32>> {
        self.fields.optional_positive(self.pick(gguf, hf))
    }

    /// A number above 0; `None` if it is 0 or absent.
    pub(super) fn nonzero(&self, gguf: &str, hf: &str) -> Result<Option<f32>> {
        match self.optional_f32(gguf, hf)? {
            None | Some(0.0) => Ok(None),
            Some(_) => self.optional_positive(gguf, hf),
        }
    }

    /// A number above 0.
    pub(super) fn positive(&self, gguf: &str, hf: &str) -> Result<f32> {
        self.fields.positive(self.pick(gguf, hf))
    }

    pub(super) fn optional_str(&self, gguf: &str, hf: &str) -> Result<Option<&str>> {
        self.fields.optional_str(self.pick(gguf, hf))
    }

    /// The error for a missing field.
    pub(super) fn missing(&self, gguf: &str, hf: &str) -> ModelError {
        self.fields.missing(self.pick(gguf, hf))
    }

    /// The error for a value that contradicts the format.
    pub(super) fn wrong(&self, gguf: &str, hf: &str, problem: impl Into<String>) -> ModelError {
        self.fields.wrong(self.pick(gguf, hf), problem)
    }

    /// The error for a value that this engine does not support.
    pub(super) fn unsupported(
        &self,
        (gguf, hf): (&str, &str),
        value: impl Into<String>,
        remedy: &str,
    ) -> ModelError {
        self.fields.unsupported(self.pick(gguf, hf), value, remedy)
    }

    /// Human-readable name of the model.
    pub(super) fn name(&self) -> String {
        match self.file {
            File::Gguf(gguf) => gguf_fields::model_name(gguf),
            File::Hf(folder) => {
                // "." and ".." have no file name.
                let full = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf());
                let name = full.file_name().unwrap_or_default();
                name.to_string_lossy().into_owned()
            }
        }
    }

    /// Rows of the embedding.
    pub(super) fn vocab_size(&self) -> Result<usize> {
        match self.file {
            File::Gguf(gguf) => gguf_fields::vocab_size(gguf),
            File::Hf(_) => self.size("", "vocab_size"),
        }
    }

    /// Whether the output head is the embedding matrix, as far as the metadata tell.
    pub(super) fn tied_head(&self) -> Result<bool> {
        const FIELD: &str = "tie_word_embeddings";
        if let File::Gguf(_) = self.file {
            return Ok(!self.has_tensor("output.weight"));
        }
        let outer = self.outer.as_ref().map(|o| o.optional_bool(FIELD));
        let tied = |b: Option<Option<bool>>| b.flatten().unwrap_or(false);
        let inner = self.fields.optional_bool(FIELD)?;
        Ok(tied(Some(inner)) || tied(outer.transpose()?))
    }

    /// PowerInfer's `sparse_threshold`. For predictors in checkpoints it is a logit of 0.
    pub(super) fn predictor_threshold(&self) -> Result<f32> {
        match self.file {
            File::Gguf(gguf) => gguf_fields::predictor_threshold(gguf),
            File::Hf(_) => Ok(0.0),
        }
    }

    /// Whether a GGUF file has a tensor of this name.
    pub(super) fn has_tensor(&self, name: &str) -> bool {
        let File::Gguf(gguf) = self.file else {
            return false;
        };
        gguf.tensors().iter().any(|t| t.name == name)
    }

    /// `len` positive values of a tensor that is part of the description, if a GGUF file has it.
    pub(super) fn factors(&self, name: &str, len: usize) -> Result<Option<Vec<f32>>> {
        let File::Gguf(gguf) = self.file else {
            return Ok(None);
        };
        let Some(tensor) = gguf.tensors().iter().find(|t| t.name == name) else {
            return Ok(None);
        };
        let plain = matches!(
            tensor.block,
            BlockType::F32 | BlockType::F16 | BlockType::BF16
        );
        // Checked before reading, so that the allocation is bounded by the head's size.
        if tensor.matrix() != Some((len, 1)) || !plain {
            let problem = format!(
                "{:?} elements of {}, expected {len} of F32, F16 or BF16",
                tensor.dims, tensor.block
            );
            return Err(ModelError::damaged(gguf.path(), name, problem));
        }
        let mut bytes = vec![0; tensor.bytes as usize];
        gguf.read(tensor, 0, &mut bytes)?;
        let mut factors = vec![0.0; len];
        dequantize(tensor.block, &bytes, &mut factors);
        for &v in &factors {
            limits::positive(gguf.path(), name, v)?;
        }
        self.read_tensors.borrow_mut().insert(name.to_owned());
        Ok(Some(factors))
    }

    /// Quantised checkpoints have this field in addition to all others.
    pub(super) fn refuse_quantised(&self) -> Result<()> {
        const FIELD: &str = "quantization_config";
        let all = [Some(&self.fields), self.outer.as_ref()];
        for fields in all.into_iter().flatten() {
            if fields.get(FIELD).is_some() && !self.is_gguf() {
                let remedy =
                    "use the unquantised checkpoint, or a GGUF file of the quantised model";
                return Err(fields.unsupported(FIELD, "a quantised checkpoint", remedy));
            }
        }
        Ok(())
    }

    /// Refuses settings that would change the arithmetic and that the architecture did not read.
    pub(super) fn refuse_unread(&self) -> Result<()> {
        let list: &[Neutral] = match self.file {
            File::Gguf(_) => &neutral::GGUF,
            File::Hf(_) => &neutral::HF,
        };
        for entry in list {
            let Some(value) = self.fields.unasked(entry.name) else {
                continue;
            };
            if !entry.allows(value) {
                let shown = neutral::describe(value);
                return Err(self.fields.unsupported(entry.name, shown, entry.remedy));
            }
        }
        Ok(())
    }

    /// The rows of the head must have norms of 1; `remedy` is for models whose rows do not.
    pub(super) fn require_unit_head(&self, remedy: &'static str) {
        self.unit_head.set(Some(remedy));
    }

    /// What [`Self::require_unit_head`] was told, if it was called.
    pub(super) fn unit_head(&self) -> Option<&'static str> {
        self.unit_head.get()
    }

    pub(super) fn into_read_tensors(self) -> BTreeSet<String> {
        self.read_tensors.into_inner()
    }

    /// `layer_types` of `config.json`, checked to have one for each of `n` layers.
    pub(super) fn layer_types(&self, n: usize) -> Result<Option<Vec<&str>>> {
        self.layer_types_of(n, &LAYER_TYPES)
    }

    /// The same for layers of these kinds.
    pub(super) fn layer_types_of(&self, n: usize, kinds: &[&str]) -> Result<Option<Vec<&str>>> {
        const FIELD: &str = "layer_types";
        if self.is_gguf() {
            return Ok(None);
        }
        let Some(types) = self.fields.optional_array(FIELD)? else {
            return Ok(None);
        };
        let names: Option<Vec<&str>> = types.iter().map(Value::as_str).collect();
        let Some(names) = names.filter(|names| names.len() == n) else {
            let problem = format!("it is not {n} names, one for each layer");
            return Err(self.fields.wrong(FIELD, problem));
        };
        match names.iter().find(|name| !kinds.contains(name)) {
            None => Ok(Some(names)),
            Some(other) => {
                let remedy = format!("{} are", kinds.join(" and "));
                Err(self.fields.unsupported(FIELD, format!("{other:?}"), remedy))
            }
        }
    }
}
