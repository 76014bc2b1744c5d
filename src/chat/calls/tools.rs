//! The tools that a request offers, and what their schemas say about arguments.

use serde_json::Value;

/// The tools that a request offers.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfferedTools(Vec<Value>);

impl OfferedTools {
    pub fn new(tools: Vec<Value>) -> Self {
        Self(tools)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is a tool of this name.
    pub fn have(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// What a model means by `text`, where it marks no types. The tool's schema decides; if it says nothing, JSON is
    /// JSON, and everything else a string.
    pub fn argument(&self, tool: &str, parameter: &str, text: &str) -> Value {
        let types = self.schema(tool, parameter).and_then(types);
        let meant = match types {
            Some(types) => serde_json::from_str(in_json(text))
                .ok()
                .filter(|value| types.iter().any(|name| is_of(value, name))),
            None => serde_json::from_str(text).ok(),
        };
        meant.unwrap_or_else(|| Value::from(text))
    }

    fn find(&self, name: &str) -> Option<&Value> {
        let functions = self.0.iter().map(|t| t.get("function").unwrap_or(t));
        let mut named = functions.filter(|f| f.get("name").and_then(Value::as_str) == Some(name));
        named.next()
    }

    fn schema(&self, tool: &str, parameter: &str) -> Option<&Value> {
        let parameters = self.find(tool)?.get("parameters")?;
        parameters.get("properties")?.get(parameter)
    }
}

/// Names of the types that a schema allows, if it tells them.
fn types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type") {
        Some(Value::String(name)) => Some(vec![name]),
        Some(Value::Array(names)) => names.iter().map(Value::as_str).collect(),
        _ => {
            let choices = schema.get("anyOf").or_else(|| schema.get("oneOf"))?;
            let each: Option<Vec<_>> = choices.as_array()?.iter().map(types).collect();
            each.map(|each| each.concat())
        }
    }
}

/// Whether a value that was read as JSON is of this type. A string is none that was read: it is the text itself.
fn is_of(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(_) => name == "number" || name == "integer",
        Value::String(_) => false,
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

/// Some templates, and so their models, write these words as Python does.
fn in_json(text: &str) -> &str {
    match text.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_schema_decides_what_an_argument_is() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
            "text": {"type": "string"},
            "whole": {"type": "integer"},
            "number": {"type": "number"},
            "flag": {"type": "boolean"},
            "map": {"type": "object"},
            "list": {"type": "array"},
            "maybe": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "any": {"description": "no type"},
        }}}});
        let tools = OfferedTools::new(vec![tool]);
        assert!(tools.have("f") && !tools.have("g") && !tools.is_empty());
        for (parameter, text, value) in [
            ("text", "5", json!("5")),
            ("text", "true", json!("true")),
            ("text", "\"quoted\"", json!("\"quoted\"")),
            ("text", "None", json!("None")),
            ("whole", "5", json!(5)),
            ("whole", "five", json!("five")),
            ("number", " 2.5 ", json!(2.5)),
            ("flag", "true", json!(true)),
            ("flag", "False", json!(false)),
            ("map", "{\"a\": [1]}", json!({"a": [1]})),
            ("list", "[1, \"x\"]", json!([1, "x"])),
            ("list", "[1,", json!("[1,")),
            ("maybe", "null", json!(null)),
            ("maybe", "12", json!("12")),
            ("either", "12", json!(12)),
            ("either", "None", json!(null)),
            ("either", "x", json!("x")),
            ("any", "12", json!(12)),
            ("any", "True", json!("True")),
            ("any", "Paris", json!("Paris")),
            ("unknown", "[1]", json!([1])),
        ] {
            assert_eq!(
                tools.argument("f", parameter, text),
                value,
                "{parameter} {text}"
            );
        }
        assert_eq!(tools.argument("g", "text", "5"), json!(5));
    }
}
