//! Renders of real models' templates, held to those of transformers: see `tests/golden/README.md`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use forebay_models::chat_templates::{ChatTemplate, ChatTemplates};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::answer::{AnswerReader, marks};
use super::message::{ChatRequest, Message, ToolCall};
use super::prompt::ChatFormat;
use super::template::Template;
use super::values::Texts;

#[derive(Deserialize)]
struct Conversation {
    messages: Vec<Message>,
    #[serde(default)]
    tools: Vec<Value>,
    #[serde(default)]
    options: Map<String, Value>,
}

impl Conversation {
    fn request(&self) -> ChatRequest {
        let mut request = ChatRequest::new(self.messages.clone()).tools(self.tools.clone());
        request.template_options = self.options.clone();
        request
    }
}

#[derive(Deserialize)]
struct Golden {
    tokens: BTreeMap<String, String>,
    cases: BTreeMap<String, Render>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Render {
    Text(String),
    Error(String),
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat")
}

fn text(file: &str) -> String {
    let path = folder().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn json<T: DeserializeOwned>(file: &str) -> T {
    serde_json::from_str(&text(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// What `raise_exception` raises.
const REFUSED: &str = "TemplateError: ";

/// 2026-01-02 03:04:05 UTC.
const NOW: Duration = Duration::from_secs(1_767_323_045);

#[test]
fn renders_equal_those_of_transformers() {
    let conversations: BTreeMap<String, Conversation> = json("conversations.json");
    let sources: BTreeMap<String, Value> = json("sources.json");
    assert!(sources.len() >= 20, "{} templates", sources.len());
    let mut different = Vec::new();
    for name in sources.keys() {
        let source = text(&format!("{name}.jinja"));
        let template = Template::new(&source, name.clone());
        // The lines of a file may end as Windows' do.
        let windows = Template::new(&source.replace('\n', "\r\n"), name.clone());
        let golden: Golden = json(&format!("{name}.json"));
        assert_eq!(golden.cases.len(), conversations.len(), "{name}");
        let mut equal = 0;
        for (title, expected) in &golden.cases {
            let request = conversations[title].request();
            let variables = Texts::plain().variables(&request, &golden.tokens, true);
            let again = windows.render(variables.clone(), 1 << 20, UNIX_EPOCH + NOW);
            let render = template.render(variables, 1 << 20, UNIX_EPOCH + NOW);
            assert_eq!(again.ok(), render.as_ref().ok().cloned(), "{name}, {title}");
            match (render, expected) {
                (Ok(text), Render::Text(expected)) if text == *expected => equal += 1,
                (Err(_), Render::Error(_)) => equal += 1,
                // Only what a template itself refuses has to be refused: Python fails over more than Jinja does.
                (Ok(_), Render::Error(error)) if !error.starts_with(REFUSED) => equal += 1,
                (Ok(text), Render::Text(expected)) => {
                    different.push(format!(
                        "{name}, {title}:\n{text:?}\ninstead of\n{expected:?}"
                    ));
                }
                (Ok(text), Render::Error(error)) => {
                    different.push(format!("{name}, {title}: {text:?}\ninstead of {error}"));
                }
                (Err(error), Render::Text(_)) => {
                    different.push(format!("{name}, {title}: {error}"))
                }
            }
        }
        println!("{name}: {equal} of {}", golden.cases.len());
    }
    assert!(different.is_empty(), "{}", different.join("\n\n"));
}

/// No template of a real model loses what the user says.
#[test]
fn what_the_user_says_last_is_never_lost() {
    let conversations: BTreeMap<String, Conversation> = json("conversations.json");
    let sources: BTreeMap<String, Value> = json("sources.json");
    for name in sources.keys() {
        let golden: Golden = json(&format!("{name}.json"));
        let given = ChatTemplate {
            origin: name.clone(),
            text: text(&format!("{name}.jinja")),
        };
        let own = ChatTemplates {
            tokens: golden.tokens,
            ..ChatTemplates::default()
        };
        let format = ChatFormat::new(name, own, Some(&given)).expect("a template");
        let template = format.template(false).expect("the given one");
        for (title, expected) in &golden.cases {
            let Render::Text(written) = expected else {
                continue;
            };
            let request = conversations[title].request();
            let checked = format.check_said(template, &request, written, (1 << 20, UNIX_EPOCH));
            checked.unwrap_or_else(|e| panic!("{name}, {title}: {e}"));
        }
    }
}

/// What templates write for calls that were made is what their models write to make them.
#[test]
fn calls_are_read_as_templates_write_them() {
    const QUESTION: &str = "Zebra-quartz 7";
    let properties = serde_json::json!({"text": {"type": "string"}, "count": {"type": "integer"}, "flag": {"type":
        "boolean"}, "list": {"type": "array"}, "map": {"type": "object"}});
    let tool = serde_json::json!({"type": "function", "function": {"name": "look", "description": "d", "parameters":
        {"type": "object", "properties": properties}}});
    let arguments = serde_json::json!({"text": "12", "count": 3, "flag": true, "list": ["a", 1], "map": {"x": "y é"}});
    let mut said = Message::assistant("");
    said.tool_calls.push(ToolCall {
        id: "call00000".to_owned(),
        name: "look".to_owned(),
        arguments,
    });
    for file in [
        "deepseek-r1-distill.jinja",
        "deepseek-v3.1.jinja",
        "glm-4.6.jinja",
        "granite-4.0.jinja",
        "hermes-2-pro.jinja",
        "llama-3.1.jinja",
        "llama-3.2.jinja",
        "mistral-nemo.jinja",
        "mistral-small-3.2.jinja",
        "qwen2.5.jinja",
        "qwen3.jinja",
        "qwen3-coder.jinja",
        "qwq-32b.jinja",
    ] {
        let template = Template::new(&text(file), file.to_owned());
        let name = file.trim_end_matches(".jinja");
        let golden: Golden = json(&format!("{name}.json"));
        let messages = [Message::user(QUESTION), said.clone()];
        let request = ChatRequest::new(messages).tools([tool.clone()]);
        let variables = Texts::plain().variables(&request, &golden.tokens, false);
        let render = template.render(variables, 1 << 20, UNIX_EPOCH + NOW);
        let render = render.unwrap_or_else(|e| panic!("{name}: {e}"));
        let (_, after) = render.rsplit_once(QUESTION).expect("the question");
        let begin = after.find(marks(template.text())[2]);
        let begin = begin.or_else(|| after.find('{')).expect("a call");
        let mut answer = &after[begin..];
        if let Some(end) = golden.tokens.get("eos_token") {
            answer = answer.split(end).next().unwrap_or(answer);
        }
        let mut reader = AnswerReader::new(template.text(), vec![tool.clone()], false, 0);
        reader.push(answer);
        reader.finish();
        let read = reader.message();
        assert_eq!(read.tool_calls, said.tool_calls, "{name}: {answer}");
        assert_eq!(read.content.trim(), "", "{name}: {answer}");
    }
}
