//! Architectures: from a file's metadata to a [`Network`], and the names of its tensors in the file. One file per
//! architecture; no code outside this folder asks which one a model has.

mod arcee;
mod baichuan;
mod bamboo;
mod block;
mod cohere;
mod deepseek2;
mod ernie4_5;
mod exaone4;
mod experts;
mod falcon;
pub(crate) mod fields;
mod gemma2;
mod gemma3;
mod gemma4;
mod gguf_fields;
mod glm4;
mod glm4moe;
mod gpt2;
mod gpt_oss;
mod granite;
mod hunyuan;
mod internlm2;
mod lfm2;
mod llama;
mod metadata;
mod minicpm;
mod mistral3;
mod names;
mod nemotron;
mod neutral;
mod olmo2;
mod olmoe;
mod opt;
mod phi2;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35;
mod qwen3moe;
mod qwen3next;
mod rope;
mod seed_oss;
mod smallthinker;
mod smollm3;
mod stablelm;
mod starcoder2;
mod written;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{ModelError, Result};
use crate::gguf::Gguf;
use crate::network::Network;
use fields::Fields;
use metadata::{File, Metadata};
use names::Name;

pub(crate) use names::{Form, Format, InFile, Names, Part};
pub(crate) use written::gguf_metadata;

/// The field of `config.json` that tells the architecture.
const MODEL_TYPE: &str = "model_type";

/// All architectures. If several share a name, the first that fits is meant.
static ARCHITECTURES: &[&Architecture] = &[
    &arcee::ARCEE,
    &baichuan::BAICHUAN,
    &bamboo::BAMBOO,
    &cohere::COHERE2,
    &cohere::COMMAND_R,
    &deepseek2::DEEPSEEK2,
    &ernie4_5::ERNIE4_5,
    &exaone4::EXAONE4,
    &falcon::FALCON,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &gemma4::GEMMA4,
    &glm4::GLM4,
    &glm4moe::GLM4MOE,
    &gpt2::GPT2,
    &gpt_oss::GPT_OSS,
    &granite::GRANITE,
    &granite::GRANITE_MOE,
    &hunyuan::HUNYUAN,
    &internlm2::INTERNLM2,
    &lfm2::LFM2,
    &llama::LLAMA,
    &minicpm::MINICPM,
    &mistral3::MISTRAL3,
    &nemotron::NEMOTRON,
    &olmo2::OLMO2,
    &olmoe::OLMOE,
    &opt::OPT,
    &phi2::PHI2,
    &phi3::PHI3,
    &qwen2::QWEN2,
    &qwen2moe::QWEN2MOE,
    &qwen3::QWEN3,
    &qwen35::QWEN35,
    &qwen35::QWEN35MOE,
    &qwen3moe::QWEN3MOE,
    &qwen3next::QWEN3NEXT,
    &seed_oss::SEED_OSS,
    &smallthinker::SMALLTHINKER,
    &smollm3::SMOLLM3,
    &stablelm::STABLELM,
    &starcoder2::STARCODER2,
];

/// One architecture.
struct Architecture {
    /// Values of GGUF's `general.architecture`.
    gguf: &'static [&'static str],
    /// Whether there are PowerInfer files of it.
    powerinfer: bool,
    /// Values of `model_type` in `config.json`.
    hf: &'static [Hf],
    /// Names of its tensors.
    tensors: &'static [&'static [Name]],
    describe: fn(&Metadata<'_>) -> Result<Network>,
}

/// A `model_type` of transformers.
struct Hf {
    model_type: &'static str,
    /// Meant only if `architectures` names this class.
    class: Option<&'static str>,
    /// Class that `architectures` begins with in files that have no `model_type`.
    untyped: Option<&'static str>,
    /// Values of `model_type` of checkpoints for several kinds of input, of which this may be the `text_config`.
    inside: &'static [&'static str],
    /// What transformers assumes for absent fields, as JSON.
    defaults: &'static str,
    /// Fields as other architectures call them, and as this one does.
    spellings: &'static [(&'static str, &'static str)],
    /// Fields of this architecture, and other names that they have in some of its files.
    alternatives: &'static [(&'static str, &'static str)],
}

impl Hf {
    const fn new(model_type: &'static str, defaults: &'static str) -> Self {
        Self {
            model_type,
            class: None,
            untyped: None,
            inside: &[],
            defaults,
            spellings: &[],
            alternatives: &[],
        }
    }

    /// With its own names of fields.
    const fn with_spellings(self, spellings: &'static [(&'static str, &'static str)]) -> Self {
        Self { spellings, ..self }
    }

    /// With fields that have another name in some files.
    const fn with_alternatives(
        self,
        alternatives: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self {
            alternatives,
            ..self
        }
    }

    const fn with_class(self, class: &'static str) -> Self {
        Self {
            class: Some(class),
            ..self
        }
    }

    /// Also where there is no `model_type`, but this class.
    const fn with_untyped(self, class: &'static str) -> Self {
        Self {
            untyped: Some(class),
            ..self
        }
    }

    /// Also as the text model of checkpoints for several kinds of input, which have these values of `model_type`.
    const fn inside(self, inside: &'static [&'static str]) -> Self {
        Self { inside, ..self }
    }

    fn fits(&self, model_type: &str, classes: &[Value], outer: Option<&str>) -> bool {
        let class = |class: &str| classes.iter().any(|c| c == class);
        self.model_type == model_type
            && self.class.is_none_or(class)
            && outer.is_none_or(|outer| self.inside.contains(&outer))
    }
}

/// All values of `model_type`.
fn model_types() -> Vec<&'static str> {
    let all = ARCHITECTURES.iter().copied().flat_map(|a| a.hf);
    let names: BTreeSet<&str> = all.map(|hf| hf.model_type).collect();
    names.into_iter().collect()
}

/// The `model_type` of a file with these `architectures`, which tell it if the file does not.
fn model_type(fields: &Fields, classes: &[Value]) -> Result<String> {
    if let Some(named) = fields.optional_str(MODEL_TYPE)? {
        return Ok(named.to_owned());
    }
    let class = classes.first().and_then(Value::as_str);
    let mut all = ARCHITECTURES.iter().copied().flat_map(|a| a.hf);
    match all.find(|hf| hf.untyped.is_some() && hf.untyped == class) {
        Some(hf) => Ok(hf.model_type.to_owned()),
        None => {
            let supported = supported(&model_types());
            let remedy = format!("add the one that the model's own code has; {supported}");
            Err(fields.incomplete(MODEL_TYPE, remedy))
        }
    }
}

/// What can be done about an architecture that is not among `names`.
fn supported(names: &[&str]) -> String {
    let issues = concat!(env!("CARGO_PKG_REPOSITORY"), "/issues");
    let names = names.join(", ");
    format!("supported are {names}; ask for another one at {issues}")
}

/// An architecture's description of a file.
pub(crate) struct Description {
    pub(crate) network: Network,
    pub(crate) names: Names,
    /// Tensors whose values are part of the description.
    pub(crate) read: BTreeSet<String>,
    /// What helps if the rows of the head do not have norms of 1, for models that are right only if they do.
    pub(crate) unit_head: Option<&'static str>,
}

/// Describes the model in a GGUF file.
///
/// # Errors
/// An unknown architecture, a missing or wrong key, or one that requires what this engine does not support.
pub(crate) fn of_gguf(gguf: &Gguf) -> Result<Description> {
    const KEY: &str = "general.architecture";
    let missing = || ModelError::damaged(gguf.path(), KEY, "the metadata key is missing");
    let name = gguf.metadata().str(KEY).ok_or_else(missing)?;
    let has = |a: &&Architecture| a.powerinfer || !gguf.is_powerinfer();
    let known = || ARCHITECTURES.iter().copied().filter(has);
    let Some(architecture) = known().find(|a| a.gguf.contains(&name)) else {
        let kind = match gguf.is_powerinfer() {
            true => "PowerInfer ",
            false => "",
        };
        let names: Vec<&str> = known().flat_map(|a| a.gguf).copied().collect();
        let problem = format!("{kind}architecture {name:?}");
        let remedy = supported(&names);
        return Err(ModelError::unsupported(gguf.path(), KEY, problem, remedy));
    };
    let metadata = Metadata::new(
        File::Gguf(gguf),
        name,
        gguf_fields::fields(gguf, name),
        None,
    );
    describe(architecture, metadata, gguf.path(), Format::Gguf)
}

/// Describes the model in a Hugging Face folder with these fields in its `config.json`.
///
/// # Errors
/// As [`of_gguf`].
pub(crate) fn of_hf(folder: &Path, config: Fields) -> Result<Description> {
    let text = config.optional_object("text_config")?;
    let outer_type = config.optional_str(MODEL_TYPE)?.map(str::to_owned);
    let (fields, outer) = match text {
        Some(text) => (text, Some(config)),
        None => (config, None),
    };
    let classes = fields.get("architectures").and_then(Value::as_array);
    let classes = classes.cloned().unwrap_or_default();
    let model_type = model_type(&fields, &classes)?;
    let around = outer.as_ref().and(outer_type.as_deref());
    let all = ARCHITECTURES
        .iter()
        .flat_map(|a| a.hf.iter().map(move |hf| (*a, hf)));
    let mut fitting = all.filter(|(_, hf)| hf.fits(&model_type, &classes, around));
    let Some((architecture, hf)) = fitting.next() else {
        let problem = match around {
            Some(outer) => format!("{outer:?} around {model_type:?}"),
            None => format!("{model_type:?}"),
        };
        let remedy = supported(&model_types());
        return Err(fields.unsupported(MODEL_TYPE, problem, remedy));
    };
    let path = fields.path().to_path_buf();
    let format = match outer.is_some() {
        true => Format::HfParts,
        false => Format::Hf,
    };
    let fields = fields.with_alternatives(hf.alternatives)?;
    let fields = fields.with_defaults(defaults(hf));
    let fields = fields.with_spellings(hf.spellings);
    let metadata = Metadata::new(File::Hf(folder), hf.model_type, fields, outer);
    describe(architecture, metadata, &path, format)
}

/// The defaults of a `model_type`; a test checks that they can be read.
fn defaults(hf: &Hf) -> Map<String, Value> {
    serde_json::from_str(hf.defaults).unwrap_or_default()
}

fn describe(
    architecture: &Architecture,
    metadata: Metadata<'_>,
    path: &Path,
    format: Format,
) -> Result<Description> {
    metadata.refuse_quantised()?;
    let network = (architecture.describe)(&metadata)?;
    let names = Names::new(architecture.tensors, format).of_network(&network);
    let names = match metadata.further_layers()? {
        0 => names,
        _ => names.of_layers(network.n_layers()),
    };
    metadata.refuse_unread()?;
    network.check(path)?;
    Ok(Description {
        network,
        names,
        unit_head: metadata.unit_head(),
        read: metadata.into_read_tensors(),
    })
}

/// The description of a checkpoint whose `config.json` has the fields of `config`, and those of `more` in their place.
#[cfg(test)]
fn described(mut config: Value, more: Value) -> Result<Network> {
    let fields = config.as_object_mut().expect("an object");
    fields.extend(more.as_object().expect("an object").clone());
    let fields = Fields::new(Path::new("config.json"), String::new(), fields.clone());
    of_hf(Path::new("."), fields).map(|d| d.network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_json_objects() {
        for hf in ARCHITECTURES.iter().copied().flat_map(|a| a.hf) {
            let parsed = serde_json::from_str::<Map<String, Value>>(hf.defaults);
            assert!(parsed.is_ok(), "{}: {parsed:?}", hf.model_type);
        }
    }

    #[test]
    fn every_role_has_one_name_in_each_format() {
        for a in ARCHITECTURES.iter().copied() {
            for format in [Format::Gguf, Format::Hf] {
                Names::new(a.tensors, format).check();
            }
        }
    }
}
