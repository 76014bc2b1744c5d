//! A vocabulary for a model whose output is meaningless: bytes, so that any text can be a prompt,
//! and made-up words, so that any token can be shown.

use crate::tokenizer::{TokenizerModel, TokenizerSpec};

/// `<unk>`, `<s>` and `</s>`.
pub(super) const N_CONTROL: usize = 3;
const BOS: u32 = 1;
const EOS: u32 = 2;
const N_BYTES: usize = 256;

/// ggml's token types.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const BYTE: i32 = 6;

/// A SentencePiece vocabulary of `size` tokens; a prompt becomes one token per byte, since no
/// merges lead to words.
pub(super) fn vocabulary(size: usize) -> TokenizerSpec {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).into();
    tokens.extend((0..N_BYTES).map(|b| format!("<0x{b:02X}>")));
    tokens.extend((0..size.saturating_sub(tokens.len())).map(word));
    let types = (0..size).map(|id| match id {
        0 => UNKNOWN,
        1..N_CONTROL => CONTROL,
        _ if id < N_CONTROL + N_BYTES => BYTE,
        _ => NORMAL,
    });
    let scores = (0..size).map(|id| match id {
        _ if id < N_CONTROL + N_BYTES => 0.0,
        _ => -(id as f32),
    });
    TokenizerSpec {
        model: TokenizerModel::SentencePiece {
            tokens,
            scores: scores.collect(),
            types: types.collect(),
            add_space_prefix: true,
            swallows_space: false,
        },
        bos: Some(BOS),
        eog: vec![EOS],
        add_bos: true,
    }
}

/// Three syllables that no other index has.
fn word(index: usize) -> String {
    const CONSONANTS: &[u8] = b"bdfgklmnprstvz";
    const VOWELS: &[u8] = b"aeiou";
    const WORDS: usize = (CONSONANTS.len() * VOWELS.len()).pow(3);
    // The factor and the number of words have no divisor in common.
    let (mut rest, mut word) = (index * 48_271 % WORDS, String::from("\u{2581}"));
    for _ in 0..3 {
        word.push(char::from(CONSONANTS[rest % CONSONANTS.len()]));
        rest /= CONSONANTS.len();
        word.push(char::from(VOWELS[rest % VOWELS.len()]));
        rest /= VOWELS.len();
    }
    word
}
