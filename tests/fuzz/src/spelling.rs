//! Messages without what is particular to an input, so that the ways of refusal can be told apart and counted.

/// Longest part of a message that is looked at.
const PREFIX: usize = 120;

/// The plain words of `message`: no quoted names, no numbers, no keys or paths.
pub fn kind(message: &str) -> String {
    let mut kind = String::with_capacity(PREFIX);
    let (mut quote, mut escaped) = (None, false);
    let unquoted = message.chars().map(|c| match (quote, c) {
        (Some(q), c) => {
            let ends = c == q && !escaped;
            escaped = c == '\\' && !escaped;
            quote = quote.filter(|_| !ends);
            ' '
        }
        (None, '"' | '`') => {
            quote = Some(c);
            ' '
        }
        (None, c) => c,
    });
    let unquoted: String = unquoted.collect();
    let plain = |word: &&str| word.len() > 1 && word.bytes().all(|b| b.is_ascii_lowercase());
    for word in unquoted.split([' ', ',', ';', ':', '(', ')']).filter(plain) {
        if kind.len() + word.len() > PREFIX {
            break;
        }
        kind.push_str(word);
        kind.push(' ');
    }
    kind
}
