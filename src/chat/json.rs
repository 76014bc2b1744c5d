//! Values of templates as JSON, character for character as Python's `json.dumps` writes them.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// How deep values may be nested.
const MOST_DEPTH: usize = 100;

/// Arguments of `json.dumps`.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout {
    /// Spaces for each level; everything is on one line without.
    pub indent: Option<usize>,
    /// Between items, and between key and value.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

impl Layout {
    /// More is cut: nested deeply, it would fill the memory.
    pub const MOST_INDENT: usize = 16;

    fn separators(&self) -> (&str, &str) {
        match (&self.separators, self.indent) {
            (Some((item, key)), _) => (item, key),
            (None, Some(_)) => (",", ": "),
            (None, None) => (", ", ": "),
        }
    }

    /// Begins a line at this depth, if there are lines.
    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }
}

/// `value` as JSON.
///
/// # Errors
/// Something that JSON cannot say, or that is nested too deeply.
pub(super) fn to_json(value: &Value, layout: &Layout) -> Result<String, Error> {
    let mut out = String::new();
    write_value(value, layout, 0, &mut out)?;
    Ok(out)
}

fn write_value(
    value: &Value,
    layout: &Layout,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if depth > MOST_DEPTH {
        return Err(refused("a value that is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => string(value.as_str().unwrap_or_default(), layout, out),
        ValueKind::Seq | ValueKind::Iterable => {
            write_items(
                value.try_iter()?,
                ('[', ']'),
                layout,
                depth,
                out,
                |item, out| write_value(&item, layout, depth + 1, out),
            )?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if layout.sort_keys {
                keys.sort();
            }
            write_items(
                keys.into_iter(),
                ('{', '}'),
                layout,
                depth,
                out,
                |key, out| {
                    write_key(&key, layout, out)?;
                    out.push_str(layout.separators().1);
                    write_value(&value.get_item(&key)?, layout, depth + 1, out)
                },
            )?;
        }
        kind => return Err(refused(&format!("a value that is {kind}"))),
    }
    Ok(())
}

fn write_items(
    items: impl Iterator<Item = Value>,
    (open, close): (char, char),
    layout: &Layout,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    let mut is_empty = true;
    for item in items {
        if !std::mem::take(&mut is_empty) {
            out.push_str(layout.separators().0);
        }
        layout.line(depth + 1, out);
        write(item, out)?;
    }
    if !is_empty {
        layout.line(depth, out);
    }
    out.push(close);
    Ok(())
}

fn write_key(key: &Value, layout: &Layout, out: &mut String) -> Result<(), Error> {
    let text = match key.kind() {
        ValueKind::String => key.as_str().unwrap_or_default().to_owned(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        ValueKind::Number => number(key),
        kind => return Err(refused(&format!("a key that is {kind}"))),
    };
    string(&text, layout, out);
    Ok(())
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"))
}

/// A number as Python writes it.
fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => python_float(float),
        _ => value.to_string(),
    }
}

/// The shortest digits that mean the same, with an exponent where Python has one.
fn python_float(float: f64) -> String {
    if !float.is_finite() {
        let sign = if float < 0.0 { "-" } else { "" };
        return match float.is_nan() {
            true => "NaN".to_owned(),
            false => format!("{sign}Infinity"),
        };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{float:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn string(text: &str, layout: &Layout, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' '
                || (layout.ensure_ascii && !c.is_ascii())
                || (layout.ensure_ascii && c == '\u{7f}') =>
            {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        let json: serde_json::Value = serde_json::from_str(text).expect("JSON");
        super::super::values::plain(&json)
    }

    #[test]
    fn text_is_laid_out_as_python_does() {
        let all = r#"{"b":[1,2.0,-0.5,1e16,1e-7,true,null],"a":{},"e":[],"t":"<é>\"\\\n\u0001'"}"#;
        let value = value(all);
        let plain = to_json(&value, &Layout::default()).expect("JSON");
        let expected = r#"{"b": [1, 2.0, -0.5, 1e+16, 1e-07, true, null], "a": {}, "e": [], "t": "<é>\"\\\n\u0001'"}"#;
        assert_eq!(plain, expected);
        let layout = Layout {
            indent: Some(2),
            sort_keys: true,
            ensure_ascii: true,
            separators: None,
        };
        let lines = to_json(&value, &layout).expect("JSON");
        assert!(
            lines.starts_with("{\n  \"a\": {},\n  \"b\": [\n    1,\n"),
            "{lines}"
        );
        assert!(lines.contains(r#""<\u00e9>"#), "{lines}");
        let layout = Layout {
            separators: Some((",".into(), ":".into())),
            ..Layout::default()
        };
        let tight = to_json(&value, &layout).expect("JSON");
        assert!(tight.starts_with(r#"{"b":[1,2.0,"#), "{tight}");
        to_json(&Value::UNDEFINED, &Layout::default()).expect_err("nothing to write");
    }
}
