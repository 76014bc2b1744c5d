//! Changes that keep JSON whole most of the time: values replaced, removed, doubled, exchanged or wrapped.

use std::ops::Range;

use super::NUMBERS;
use crate::random::Random;

/// What a value is replaced with.
const VALUES: [&str; 26] = [
    "null",
    "true",
    "false",
    "0",
    "1",
    "-1",
    "0.5",
    "-0.0",
    "1e300",
    "-1e300",
    "1e-320",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "\"\"",
    "\"a\"",
    "\"\\u0000\"",
    "\"\\ud83d\\ude00\u{2581}\"",
    "\"0x7f\"",
    "[]",
    "{}",
    "[[]]",
    "{\"type\":\"x\"}",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Open,
    Close,
    Comma,
    Colon,
    Text,
    Scalar,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

/// The tokens of `input`; what is no JSON becomes scalars.
fn tokens(input: &[u8]) -> Vec<Token> {
    let mut tokens = Vec::with_capacity(input.len() / 4);
    let mut at = 0;
    while at < input.len() {
        let start = at;
        at += 1;
        let kind = match input[start] {
            b' ' | b'\n' | b'\r' | b'\t' => continue,
            b'{' | b'[' => Kind::Open,
            b'}' | b']' => Kind::Close,
            b',' => Kind::Comma,
            b':' => Kind::Colon,
            b'"' => {
                while at < input.len() && input[at] != b'"' {
                    at += if input[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(input.len());
                Kind::Text
            }
            _ => {
                while at < input.len() && !b"{}[],:\" \n\r\t".contains(&input[at]) {
                    at += 1;
                }
                Kind::Scalar
            }
        };
        tokens.push(Token {
            kind,
            start,
            end: at,
        });
    }
    tokens
}

/// Index behind the value that begins with token `at`.
fn behind(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// A value somewhere: its tokens.
fn value(tokens: &[Token], random: &mut Random) -> Option<Range<usize>> {
    let start = random.below(tokens.len());
    let at = (start..tokens.len()).find(|&i| {
        let begins = matches!(tokens[i].kind, Kind::Open | Kind::Text | Kind::Scalar);
        let is_key = tokens.get(i + 1).is_some_and(|t| t.kind == Kind::Colon);
        begins && !is_key
    })?;
    Some(at..behind(tokens, at))
}

/// The bytes of these tokens, which are some.
fn place(tokens: &[Token], range: &Range<usize>) -> Range<usize> {
    tokens[range.start].start..tokens[range.end - 1].end
}

/// An element of an object or a list, key included.
fn element(tokens: &[Token], random: &mut Random) -> Option<Range<usize>> {
    let value = value(tokens, random)?;
    let keyed = value.start >= 2 && tokens[value.start - 1].kind == Kind::Colon;
    Some(value.start - if keyed { 2 } else { 0 }..value.end)
}

/// Changes `input`, in one of ten times by its bytes alone; `other` is another input.
pub fn change(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    loop {
        if random.one_in(10) || change_tokens(input, other, random).is_none() {
            super::bytes(input, other, random);
        }
        if random.below(3) != 0 {
            return;
        }
    }
}

fn change_tokens(input: &mut Vec<u8>, other: &[u8], random: &mut Random) -> Option<()> {
    let tokens = tokens(input);
    if tokens.is_empty() {
        return None;
    }
    let any = |random: &mut Random| value(&tokens, random).map(|v| place(&tokens, &v));
    match random.below(10) {
        0..=2 => {
            let new = random.pick(&VALUES).bytes();
            input.splice(any(random)?, new);
        }
        3 | 4 => {
            let start = random.below(tokens.len());
            let found = tokens[start..].iter().find(|t| t.kind == Kind::Scalar)?;
            let new = renumbered(&input[found.start..found.end], random);
            input.splice(found.start..found.end, new.into_bytes());
        }
        5 => {
            let gone = element(&tokens, random)?;
            // With the comma on one side, so that the rest stays whole.
            let comma = |i: usize| tokens.get(i).is_some_and(|t| t.kind == Kind::Comma);
            let range = match (comma(gone.end), gone.start > 0 && comma(gone.start - 1)) {
                (true, _) => gone.start..gone.end + 1,
                (false, true) => gone.start - 1..gone.end,
                _ => gone,
            };
            input.drain(place(&tokens, &range));
        }
        6 => {
            let twice = place(&tokens, &element(&tokens, random)?);
            let copy = [b",", &input[twice.clone()]].concat();
            let times = if random.one_in(8) { 100 } else { 1 };
            input.splice(twice.end..twice.end, copy.repeat(times));
        }
        7 => {
            let new = input[any(random)?].to_vec();
            input.splice(any(random)?, new);
        }
        8 => {
            let theirs = self::tokens(other);
            let new = other[place(&theirs, &value(&theirs, random)?)].to_vec();
            input.splice(any(random)?, new);
        }
        _ => {
            let inner = any(random)?;
            let depth = *random.pick(&[1, 2, 100, 1000]);
            let wrapped = [
                &b"[".repeat(depth),
                &input[inner.clone()],
                &b"]".repeat(depth),
            ]
            .concat();
            input.splice(inner, wrapped);
        }
    }
    Some(())
}

/// Another number near the one that stands there, or at an edge.
fn renumbered(old: &[u8], random: &mut Random) -> String {
    let text = std::str::from_utf8(old).unwrap_or_default();
    if let Ok(n) = text.parse::<i128>() {
        return match random.below(7) {
            0 => n + 1,
            1 => n - 1,
            2 => n * 2,
            3 => -n,
            4 => n / 2,
            _ => i128::from(*random.pick(&NUMBERS)),
        }
        .to_string();
    }
    match text.parse::<f64>() {
        Ok(x) => {
            let factor = *random.pick(&[0.0, -1.0, 0.5, 2.0, 1e9, 1e-9, 1e30]);
            format!("{:?}", (x * factor).clamp(f64::MIN, f64::MAX))
        }
        Err(_) => random.pick(&VALUES).to_string(),
    }
}
