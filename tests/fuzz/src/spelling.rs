//! Messages without what is particular to an input, so that the ways of refusal can be told apart and counted.

/// Longest part of a message that is looked at.
const PREFIX: usize = 120;

/// `message` without quoted names, paths and numbers.
pub fn kind(message: &str) -> String {
    let mut kind = String::with_capacity(PREFIX);
    let mut quote = None;
    for c in message.chars() {
        if kind.len() >= PREFIX {
            break;
        }
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '`') => quote = Some(c),
            (None, c) if c.is_ascii_digit() => {
                if !kind.ends_with('#') {
                    kind.push('#');
                }
            }
            (None, c) if c.is_ascii_alphabetic() || c == ' ' => kind.push(c),
            _ => {}
        }
    }
    kind
}
