//! The tokenizer of a Hugging Face model folder.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::hf::outline;
use super::limits::MAX_TOKENIZER_JSON;
use super::{TokenizerModel, TokenizerSpec, end_of_generation};
use crate::error::{ModelError, Result};
use crate::limits::{MAX_SIDE_FILE, read_file};

/// Longest `tokenizer_config.json`; the longest known have 1.2 MB.
const MAX_SETTINGS: u64 = 16 << 20;

/// The parts of `tokenizer.json` that name tokens.
#[derive(Deserialize)]
struct Names {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    post_processor: Option<Value>,
    /// Unread; required, so that some other JSON file is distinguished from a tokenizer.
    #[serde(rename = "model")]
    _model: IgnoredAny,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    special: bool,
}

impl Names {
    fn id_of(&self, name: &str) -> Option<u32> {
        self.added_tokens
            .iter()
            .find(|t| t.content == name)
            .map(|t| t.id)
    }

    fn id_of_name(&self, name: Option<TokenName>) -> Option<u32> {
        self.id_of(&name?.0)
    }
}

/// What is read of `tokenizer_config.json`, which may list all added tokens once more.
#[derive(Default, Deserialize)]
struct Settings {
    bos_token: Option<TokenName>,
    eos_token: Option<TokenName>,
    add_bos_token: Option<bool>,
}

/// A token given as text or as `{"content": text}`.
pub(crate) struct TokenName(pub(crate) String);

impl<'de> Deserialize<'de> for TokenName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Written;
        impl<'de> Visitor<'de> for Written {
            type Value = TokenName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the text of a token")
            }

            fn visit_str<E>(self, text: &str) -> std::result::Result<TokenName, E> {
                Ok(TokenName(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<TokenName, A::Error> {
                let mut content = None;
                while let Some(field) = map.next_key::<String>()? {
                    match field.as_str() {
                        "content" => content = Some(map.next_value()?),
                        _ => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                let content = content.ok_or_else(|| A::Error::missing_field("content"))?;
                Ok(TokenName(content))
            }
        }
        deserializer.deserialize_any(Written)
    }
}

impl Settings {
    fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = read_file(path, "the tokenizer's settings", MAX_SETTINGS)?;
        serde_json::from_slice(&text)
            .map_err(|e| ModelError::damaged(path, "(whole file)", e.to_string()))
    }
}

/// Reads the tokenizer of the model in `folder`: `tokenizer.json`, and where they exist
/// `tokenizer_config.json`, `generation_config.json` and `config.json`.
///
/// Prompts are always encoded without the file's own post-processor, and BOS is put in front here:
/// where `add_bos_token` says so, or, if that is not given, where the post-processor would have done
/// it. Hence there is never more than one.
///
/// # Errors
/// A missing `tokenizer.json`, and files that cannot be read or are not what their names say.
pub fn spec_from_hf(folder: &Path) -> Result<TokenizerSpec> {
    let path = folder.join("tokenizer.json");
    if !path.exists() {
        return Err(ModelError::Format {
            path,
            field: "(whole file)".into(),
            problem: "the file is missing".into(),
            remedy: "download it from the model's repository, or use the model's GGUF form".into(),
        });
    }
    let json = read_file(&path, "a tokenizer", MAX_TOKENIZER_JSON)?;
    let json = String::from_utf8(json)
        .map_err(|_| ModelError::damaged(&path, "(whole file)", "not UTF-8"))?;
    outline::check(&json).map_err(|e| e.about(&path))?;
    let names: Names = serde_json::from_str(&json)
        .map_err(|e| ModelError::damaged(&path, "(whole file)", e.to_string()))?;
    let tokenizer = Settings::read(&folder.join("tokenizer_config.json"))?;
    let mut bos = names.id_of_name(tokenizer.bos_token);
    let mut eog: BTreeSet<u32> = names.id_of_name(tokenizer.eos_token).into_iter().collect();
    for file in ["generation_config.json", "config.json"] {
        let path = folder.join(file);
        let settings = read_object(&path)?;
        let first = stated_ids(&path, &settings, "bos_token_id")?.next();
        bos = bos.or(first);
        eog.extend(stated_ids(&path, &settings, "eos_token_id")?);
    }
    let named = names
        .added_tokens
        .iter()
        .filter(|t| end_of_generation::is_named(&t.content, t.special));
    eog.extend(named.map(|t| t.id));
    end_of_generation::keep_message_ends(&mut eog, |name| names.id_of(name));

    let add_bos = match (bos, tokenizer.add_bos_token) {
        (None, _) => false,
        (Some(_), Some(stated)) => stated,
        (Some(bos), None) => names
            .post_processor
            .as_ref()
            .is_some_and(|p| prepends(p, bos)),
    };
    Ok(TokenizerSpec {
        model: TokenizerModel::HfJson(json),
        bos,
        eog: eog.into_iter().collect(),
        add_bos,
    })
}

/// The JSON object in an optional file; null if there is no file.
fn read_object(path: &Path) -> Result<Value> {
    if !path.exists() {
        return Ok(Value::Null);
    }
    let text = read_file(path, "the model's settings", MAX_SIDE_FILE)?;
    match serde_json::from_slice(&text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err(ModelError::damaged(
            path,
            "(whole file)",
            "not a JSON object",
        )),
        Err(e) => Err(ModelError::damaged(path, "(whole file)", e.to_string())),
    }
}

/// The ids that `field` of `settings`, which are those of the file at `path`, has: one, a list of them, or none.
///
/// # Errors
/// It has something else, which would be passed over: a model that never ends its answers.
fn stated_ids<'a>(
    path: &Path,
    settings: &'a Value,
    field: &str,
) -> Result<impl Iterator<Item = u32> + use<'a>> {
    let value = &settings[field];
    match listed(value)
        .iter()
        .find(|id| !id.is_i64() && !id.is_u64() && !id.is_null())
    {
        None => Ok(ids(value)),
        Some(other) => Err(ModelError::Format {
            path: path.into(),
            field: field.into(),
            problem: format!("{other} is not the number of a token"),
            remedy: "write a number, or a list of numbers".into(),
        }),
    }
}

/// The ids in a value that is an id, a list of ids, or neither.
fn ids(value: &Value) -> impl Iterator<Item = u32> + '_ {
    let listed = listed(value).iter();
    listed.filter_map(|id| u32::try_from(id.as_u64()?).ok())
}

/// The values of a list; of anything else, itself.
fn listed(value: &Value) -> &[Value] {
    let list = value.as_array().map(Vec::as_slice);
    list.unwrap_or(std::slice::from_ref(value))
}

/// Whether a post-processor puts `bos` in front of a single sequence.
fn prepends(processor: &Value, bos: u32) -> bool {
    if let Some(parts) = processor["processors"].as_array() {
        return parts.iter().any(|part| prepends(part, bos));
    }
    let first = &processor["single"][0]["SpecialToken"]["id"];
    let Some(name) = first.as_str() else {
        return false;
    };
    ids(&processor["special_tokens"][name]["ids"]).any(|id| id == bos)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    fn tokenizer_json() -> Value {
        json!({
            "added_tokens": [
                {"id": 0, "content": "<s>", "special": true},
                {"id": 1, "content": "</s>", "special": true},
                {"id": 7, "content": "<|im_end|>", "special": true},
            ],
            "post_processor": {"type": "Sequence", "processors": [
                {"type": "ByteLevel"},
                {
                    "type": "TemplateProcessing",
                    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
                    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
                },
            ]},
            "model": {},
        })
    }

    fn folder(files: &[(&str, Value)]) -> TempDir {
        let folder = TempDir::new().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content.to_string()).unwrap();
        }
        folder
    }

    #[test]
    fn settings_come_from_all_files() {
        let folder = folder(&[
            ("tokenizer.json", tokenizer_json()),
            (
                "tokenizer_config.json",
                json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>"}),
            ),
            (
                "generation_config.json",
                json!({"bos_token_id": 5, "eos_token_id": [1, 9]}),
            ),
            ("config.json", json!({"eos_token_id": 4})),
        ]);
        let spec = spec_from_hf(folder.path()).unwrap();
        assert_eq!(spec.bos, Some(0));
        assert_eq!(spec.eog, [1, 4, 7, 9]);
        assert!(spec.add_bos, "the post-processor adds it");
    }

    #[test]
    fn ends_that_are_no_ids_are_refused() {
        for (stated, sound) in [
            (json!(null), true),
            (json!([9, null, -1]), true),
            (json!("9"), false),
            (json!(9.0), false),
            (json!([[9]]), false),
        ] {
            let folder = folder(&[
                ("tokenizer.json", tokenizer_json()),
                ("generation_config.json", json!({"eos_token_id": stated})),
            ]);
            let read = spec_from_hf(folder.path()).map_err(|e| e.to_string());
            match read {
                Ok(_) => assert!(sound, "{stated}"),
                Err(message) => {
                    assert!(!sound, "{message}");
                    assert!(
                        message.contains("generation_config.json: eos_token_id: "),
                        "{message}"
                    );
                }
            }
        }
    }

    #[test]
    fn add_bos_token_overrules_the_post_processor() {
        for stated in [false, true] {
            let folder = folder(&[
                ("tokenizer.json", tokenizer_json()),
                (
                    "tokenizer_config.json",
                    json!({"bos_token": "<s>", "add_bos_token": stated}),
                ),
            ]);
            assert_eq!(spec_from_hf(folder.path()).unwrap().add_bos, stated);
        }
    }

    #[test]
    fn without_a_bos_token_none_is_added() {
        let folder = folder(&[
            ("tokenizer.json", tokenizer_json()),
            (
                "tokenizer_config.json",
                json!({"bos_token": null, "add_bos_token": true}),
            ),
            ("config.json", json!({"bos_token_id": null})),
        ]);
        let spec = spec_from_hf(folder.path()).unwrap();
        assert_eq!((spec.bos, spec.add_bos), (None, false));
    }

    #[test]
    fn missing_and_damaged_files_are_named() {
        let empty = folder(&[]);
        let message = spec_from_hf(empty.path()).unwrap_err().to_string();
        assert!(
            message.contains("tokenizer.json") && message.contains("missing"),
            "{message}"
        );

        for (name, content) in [
            ("tokenizer.json", json!({"a": 1})),
            ("config.json", json!([1])),
        ] {
            let damaged = folder(&[("tokenizer.json", tokenizer_json()), (name, content)]);
            let message = spec_from_hf(damaged.path()).unwrap_err().to_string();
            assert!(
                message.contains(name) && message.contains("damaged"),
                "{message}"
            );
        }
        let cut = folder(&[]);
        fs::write(
            cut.path().join("tokenizer.json"),
            &tokenizer_json().to_string()[..40],
        )
        .unwrap();
        let message = spec_from_hf(cut.path()).unwrap_err().to_string();
        assert!(
            message.contains("tokenizer.json") && message.contains("damaged"),
            "{message}"
        );
    }
}
