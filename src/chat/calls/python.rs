//! Calls of LFM2, a list in Python: `[NAME(key='text', other=[1, True])]`.

use serde_json::Value;

/// The same list in JSON, of objects with a name and arguments, if `text` is one; otherwise no JSON or none at all.
pub(super) fn to_json(text: &str) -> Option<String> {
    let mut json = String::with_capacity(2 * text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '\'' || first == '"' {
            let (text, after) = string(&rest[1..], first)?;
            json.push_str(&quoted(&text));
            rest = after;
            continue;
        }
        let after = rest.trim_start_matches(|c: char| c.is_alphanumeric() || "_.-+".contains(c));
        let word = &rest[..rest.len() - after.len()];
        rest = after;
        if word.is_empty() {
            match first {
                ')' => json.push_str("}}"),
                other => json.push(other),
            }
            rest = &rest[first.len_utf8()..];
        } else if let Some(arguments) = rest.strip_prefix('(') {
            json.push_str(&format!("{{\"name\":{},\"arguments\":{{", quoted(word)));
            rest = arguments;
        } else if let Some(value) = rest.strip_prefix('=') {
            json.push_str(&quoted(word));
            json.push(':');
            rest = value;
        } else {
            json.push_str(match word {
                "True" => "true",
                "False" => "false",
                "None" => "null",
                number => number,
            });
        }
    }
    Some(json)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The string that ends with `quote`, and what follows it. Characters by their numbers and the rarer control characters
/// are not read.
fn string(text: &str, quote: char) -> Option<(String, &str)> {
    let mut string = String::new();
    let mut chars = text.chars();
    loop {
        match chars.next()? {
            '\\' => match chars.next()? {
                'n' => string.push('\n'),
                't' => string.push('\t'),
                'r' => string.push('\r'),
                same @ ('\\' | '\'' | '"') => string.push(same),
                'x' | 'u' | 'U' | 'N' | '0'..='7' | 'a' | 'b' | 'f' | 'v' | '\n' => return None,
                other => string.extend(['\\', other]),
            },
            end if end == quote => return Some((string, chars.as_str())),
            other => string.push(other),
        }
    }
}
