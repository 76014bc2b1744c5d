//! GPT-2's byte alphabet: the bijection between the 256 bytes and 256 printable characters in which
//! byte-level BPE vocabularies are written (`bytes_to_unicode` of OpenAI's `encoder.py`).

/// First character given to bytes that have no printable character of their own.
const SHIFTED: u32 = 0x100;

/// Whether the byte stands for itself: the printable ranges of Latin-1.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The bytes that are not printable, in the order in which they are given `U+0100`, `U+0101`, ….
const UNPRINTABLE: [u8; 68] = {
    let mut list = [0u8; 68];
    let mut found = 0;
    let mut byte = 0;
    while byte < 256 {
        if !is_printable(byte as u8) {
            list[found] = byte as u8;
            found += 1;
        }
        byte += 1;
    }
    list
};

/// The byte that `c` stands for, `None` if `c` is not in the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    match u8::try_from(code) {
        Ok(byte) => is_printable(byte).then_some(byte),
        Err(_) => UNPRINTABLE.get((code - SHIFTED) as usize).copied(),
    }
}

/// Appends the bytes that `text` stands for. Returns `false`, with nothing appended, where a
/// character is not in the alphabet.
pub(super) fn decode_into(text: &str, out: &mut Vec<u8>) -> bool {
    let start = out.len();
    for c in text.chars() {
        let Some(byte) = byte_of(c) else {
            out.truncate(start);
            return false;
        };
        out.push(byte);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let mut seen = [0u32; 256];
        for code in 0..0x200 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                seen[usize::from(byte)] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
    }

    #[test]
    fn known_characters() {
        // The characters everybody meets in GPT-2 vocabularies: space, newline, tab, soft hyphen.
        for (c, byte) in [
            ('Ġ', b' '),
            ('Ċ', b'\n'),
            ('ĉ', b'\t'),
            ('Ń', 0xad),
            ('a', b'a'),
        ] {
            assert_eq!(byte_of(c), Some(byte), "{c}");
        }
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('你'), None);
    }

    #[test]
    fn text_outside_the_alphabet_leaves_no_trace() {
        let mut out = b"x".to_vec();
        assert!(!decode_into("ab 你", &mut out));
        assert_eq!(out, b"x");
        assert!(decode_into("Ġä½ł", &mut out));
        assert_eq!(out, "x 你".as_bytes());
    }
}
