//! Chat templates as models bring them: Jinja programs that write a conversation the way the model was trained on it.
//! They are only carried here; the engine runs them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{ModelError, Result};
use crate::files::read_at_most;
use crate::gguf::{Metadata, Value};
use crate::limits::read_file;
use crate::tokenizer::TokenName;

/// Longest template; the longest known has 40 KB.
pub const MAX_TEMPLATE: usize = 256 << 10;
/// Most templates of a model; the most known are 3.
const MAX_TEMPLATES: usize = 16;
/// Longest `tokenizer_config.json`; the longest known have 1.2 MB.
const MAX_SETTINGS: u64 = 16 << 20;

/// Name of the template that is used unless there is a better one for the conversation.
pub const DEFAULT: &str = "default";

const KEY: &str = "tokenizer.chat_template";
const TOKENS: &str = "tokenizer.ggml.tokens";
/// Keys of special tokens, and what templates call their texts.
const TOKEN_KEYS: [(&str, &str); 4] = [
    ("tokenizer.ggml.bos_token_id", "bos_token"),
    ("tokenizer.ggml.eos_token_id", "eos_token"),
    ("tokenizer.ggml.unknown_token_id", "unk_token"),
    ("tokenizer.ggml.padding_token_id", "pad_token"),
];

/// Folders of templates beside the usual one: transformers' name, and an older one.
const FOLDERS: [&str; 2] = ["additional_chat_templates", "chat_templates"];

/// A chat template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTemplate {
    /// The key or file that it was found under, for messages.
    pub origin: String,
    /// The program.
    pub text: String,
}

/// The chat templates of a model; empty for one that was not trained on conversations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTemplates {
    /// By name: [`DEFAULT`], and others such as `tool_use`.
    pub templates: BTreeMap<String, ChatTemplate>,
    /// Texts of special tokens, by the names that templates know them by (`bos_token`).
    pub tokens: BTreeMap<String, String>,
}

impl ChatTemplates {
    /// Those of a model without any.
    pub const NONE: &Self = &Self {
        templates: BTreeMap::new(),
        tokens: BTreeMap::new(),
    };

    fn add(&mut self, path: &Path, name: &str, origin: &str, text: String) -> Result<()> {
        let problem = if text.len() > MAX_TEMPLATE {
            format!(
                "a template of {} bytes, more than {MAX_TEMPLATE}",
                text.len()
            )
        } else if self.templates.len() == MAX_TEMPLATES {
            format!("more than {MAX_TEMPLATES} templates")
        } else {
            let origin = origin.to_owned();
            self.templates
                .insert(name.to_owned(), ChatTemplate { origin, text });
            return Ok(());
        };
        Err(ModelError::damaged(path, origin, problem))
    }
}

/// Reads the templates out of the metadata of the GGUF file at `path`: `tokenizer.chat_template`, and variants as
/// `tokenizer.chat_template.<name>`.
///
/// # Errors
/// A template that is no text, or implausibly long.
pub fn templates_from_gguf(meta: &Metadata, path: &Path) -> Result<ChatTemplates> {
    let mut found = ChatTemplates::default();
    for (key, value) in &meta.entries {
        let name = match key.strip_prefix(KEY) {
            Some("") => DEFAULT,
            Some(rest) => match rest.strip_prefix('.') {
                Some(name) => name,
                None => continue,
            },
            None => continue,
        };
        let Value::Str(text) = value else {
            return Err(ModelError::damaged(path, key, "it is not a string"));
        };
        found.add(path, name, key, text.clone())?;
    }
    let tokens = meta.strings(TOKENS).unwrap_or_default();
    for (key, name) in TOKEN_KEYS {
        let id = meta.u64(key).and_then(|id| usize::try_from(id).ok());
        if let Some(text) = id.and_then(|id| tokens.get(id)) {
            found.tokens.insert(name.to_owned(), text.clone());
        }
    }
    Ok(found)
}

/// What is read of `tokenizer_config.json`.
#[derive(Default, Deserialize)]
struct Settings {
    bos_token: Option<TokenName>,
    eos_token: Option<TokenName>,
    unk_token: Option<TokenName>,
    pad_token: Option<TokenName>,
    chat_template: Option<Listed>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Listed {
    One(String),
    Several(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// Reads the templates of the model in `folder`: `chat_template.jinja`, which wins over `chat_template` in
/// `tokenizer_config.json`, and the files of `additional_chat_templates`.
///
/// # Errors
/// Files that cannot be read or are not what their names say.
pub fn templates_from_hf(folder: &Path) -> Result<ChatTemplates> {
    let mut found = ChatTemplates::default();
    let path = folder.join("tokenizer_config.json");
    let mut settings = Settings::default();
    if path.exists() {
        let text = read_file(&path, "the tokenizer's settings", MAX_SETTINGS)?;
        settings = serde_json::from_slice(&text)
            .map_err(|e| ModelError::damaged(&path, "(whole file)", e.to_string()))?;
    }
    let origin = "tokenizer_config.json: chat_template";
    match settings.chat_template {
        None => {}
        Some(Listed::One(text)) => found.add(&path, DEFAULT, origin, text)?,
        Some(Listed::Several(list)) => {
            for Named { name, template } in list {
                found.add(&path, &name, origin, template)?;
            }
        }
    }
    for file in template_files(folder)? {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let name = match file.parent() == Some(folder) {
            true => DEFAULT,
            false => &name,
        };
        add_file(&mut found, name, &file)?;
    }
    for (name, token) in [
        ("bos_token", settings.bos_token),
        ("eos_token", settings.eos_token),
        ("unk_token", settings.unk_token),
        ("pad_token", settings.pad_token),
    ] {
        if let Some(TokenName(text)) = token {
            found.tokens.insert(name.to_owned(), text);
        }
    }
    Ok(found)
}

/// The files of their own that templates of the model in `folder` have, in the order in which they are read.
///
/// # Errors
/// A folder that cannot be listed.
pub(crate) fn template_files(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    for more in FOLDERS.map(|name| folder.join(name)) {
        files.extend(jinja_files(&more)?);
    }
    let own = folder.join("chat_template.jinja");
    files.extend(own.exists().then_some(own));
    Ok(files)
}

/// The `.jinja` files of a folder that need not exist, in order.
fn jinja_files(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(folder).and_then(|entries| {
        let paths = entries.map(|entry| entry.map(|e| e.path()));
        paths.collect::<std::io::Result<Vec<_>>>()
    });
    let mut files = entries.map_err(|e| ModelError::io(folder, "list the chat templates", e))?;
    files.retain(|path| path.extension().is_some_and(|e| e == "jinja"));
    files.sort();
    Ok(files)
}

fn add_file(found: &mut ChatTemplates, name: &str, file: &Path) -> Result<()> {
    let ChatTemplate { origin, text } = ChatTemplate::read(file)?;
    // The model's own folder says the rest.
    let origin = Path::new(&origin).file_name().unwrap_or_default();
    found.add(file, name, &origin.to_string_lossy(), text)
}

impl ChatTemplate {
    /// Reads a template from a file of its own.
    ///
    /// # Errors
    /// A file that cannot be read, is too long, or is not UTF-8.
    pub fn read(file: &Path) -> Result<Self> {
        let wrong = |problem: String| ModelError::Format {
            path: file.into(),
            field: "chat template".into(),
            problem,
            remedy: "give a file with a Jinja template, such as a model's chat_template.jinja"
                .into(),
        };
        let bytes = read_at_most(file, MAX_TEMPLATE as u64)
            .map_err(|e| ModelError::io(file, "read the chat template", e))?;
        let bytes =
            bytes.map_err(|n| wrong(format!("it has {n} bytes, more than {MAX_TEMPLATE}")))?;
        let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".into()))?;
        let origin = file.display().to_string();
        Ok(Self { origin, text })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entries(found: &ChatTemplates) -> Vec<(&str, &str, &str)> {
        found
            .templates
            .iter()
            .map(|(name, t)| (&**name, &*t.origin, &*t.text))
            .collect()
    }

    #[test]
    fn a_gguf_file_has_a_template_and_variants() {
        let mut meta = Metadata::default();
        for (key, text) in [
            ("tokenizer.chat_template", "usual"),
            ("tokenizer.chat_template.tool_use", "with tools"),
            ("tokenizer.chat_templates", "a list of names"),
        ] {
            meta.entries.insert(key.into(), Value::Str(text.into()));
        }
        let tokens = ["<s>", "</s>"].map(String::from).to_vec();
        meta.entries
            .insert(TOKENS.into(), Value::Array(crate::gguf::Array::Str(tokens)));
        meta.entries
            .insert("tokenizer.ggml.eos_token_id".into(), Value::U32(1));
        meta.entries
            .insert("tokenizer.ggml.bos_token_id".into(), Value::U32(9));
        let found = templates_from_gguf(&meta, Path::new("m.gguf")).expect("sound");
        assert_eq!(
            entries(&found),
            [
                ("default", "tokenizer.chat_template", "usual"),
                ("tool_use", "tokenizer.chat_template.tool_use", "with tools"),
            ]
        );
        assert_eq!(found.tokens["eos_token"], "</s>");
        assert!(!found.tokens.contains_key("bos_token"));
        let long = Value::Str("x".repeat(MAX_TEMPLATE + 1));
        for wrong in [Value::U32(1), long] {
            meta.entries.insert("tokenizer.chat_template".into(), wrong);
            let error = templates_from_gguf(&meta, Path::new("m.gguf")).expect_err("refused");
            let message = error.to_string();
            assert!(
                message.contains("m.gguf: tokenizer.chat_template"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_file_wins_over_the_settings_and_a_list_has_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("writable");
        };
        let list = json!([
            {"name": "default", "template": "listed"},
            {"name": "rag", "template": "documents"},
        ]);
        let settings = json!({"chat_template": list, "eos_token": {"content": "</s>"}});
        write("tokenizer_config.json", &settings.to_string());
        let found = templates_from_hf(folder.path()).expect("sound");
        assert_eq!(found.tokens["eos_token"], "</s>");
        let listed: Vec<_> = entries(&found).iter().map(|e| (e.0, e.2)).collect();
        assert_eq!(listed, [("default", "listed"), ("rag", "documents")]);

        write("chat_template.jinja", "a file");
        std::fs::create_dir(folder.path().join("additional_chat_templates")).expect("created");
        write("additional_chat_templates/tool_use.jinja", "tools");
        write("additional_chat_templates/README.md", "nothing");
        let found = templates_from_hf(folder.path()).expect("sound");
        let names: Vec<_> = entries(&found).iter().map(|e| e.0).collect();
        assert_eq!(names, ["default", "rag", "tool_use"]);
        assert_eq!(entries(&found)[0].1, "chat_template.jinja");
        assert_eq!(entries(&found)[0].2, "a file");

        write("chat_template.jinja", &"x".repeat(MAX_TEMPLATE + 1));
        let message = templates_from_hf(folder.path()).expect_err("too long");
        assert!(message.to_string().contains("chat_template.jinja"));
        let none = tempfile::tempdir().expect("a folder");
        let found = templates_from_hf(none.path()).expect("nothing is no error");
        assert_eq!(&found, ChatTemplates::NONE);
    }
}
