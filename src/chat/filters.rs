//! What transformers adds to Jinja for chat templates.

use std::fmt;
use std::time::SystemTime;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use super::json::{Layout, to_json};
use super::time::format_time;

/// Adds functions and filters; `now` is the time that templates are told.
pub(super) fn add(environment: &mut Environment<'_>, now: SystemTime) {
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| format_time(format, now));
}

/// As in Python, where nothing can be done with each item of `None`; the engine's own test says otherwise.
fn is_iterable(value: &Value) -> bool {
    !matches!(
        value.kind(),
        ValueKind::None | ValueKind::Bool | ValueKind::Number
    )
}

/// As in Jinja, where texts and maps are sequences, too.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::String | ValueKind::Seq | ValueKind::Map
    )
}

/// A template has refused its conversation.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = message.to_string();
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

/// The message of a template that has called `raise_exception`.
pub(super) fn raised(error: &Error) -> Option<String> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Some(message.clone());
        }
        cause = error.source();
    }
    None
}

/// Python's `json.dumps`, which escapes no HTML.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let layout = Layout {
        indent: indent.map(|n| n.min(Layout::MOST_INDENT)),
        separators: match separators.as_deref() {
            Some([item, key]) => Some((item.clone(), key.clone())),
            Some(_) => {
                let problem = "tojson: separators are two strings";
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
            None => None,
        },
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
    };
    options.assert_all_used()?;
    to_json(value, &layout)
}
