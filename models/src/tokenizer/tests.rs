//! Tokenizers over small hand-made vocabularies.

use proptest::prelude::*;

use super::*;

mod breaks;
mod families;
mod gguf;
mod pieces;
mod random_texts;

const PLAIN: EncodeOptions = EncodeOptions {
    add_bos: false,
    parse_special: false,
};
const FULL: EncodeOptions = EncodeOptions {
    add_bos: true,
    parse_special: true,
};

/// The character of GPT-2's alphabet for a byte, found by searching the inverse.
fn letter(byte: u8) -> String {
    let c = (0..0x200)
        .filter_map(char::from_u32)
        .find(|&c| byte_alphabet::byte_of(c) == Some(byte));
    c.unwrap().into()
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

/// Ids 0..256 are the bytes; then "he", "ll", "hell", "hello", " w", "</", "</x>", and the specials
/// `<bos>` 263, `<end>` 264 (control), `[user]` 265 (user defined), an unused token 266.
fn bpe_spec() -> TokenizerSpec {
    let mut tokens: Vec<String> = (0..=255).map(letter).collect();
    tokens.extend(strings(&["he", "ll", "hell", "hello", "Ġw", "</", "</x>"]));
    tokens.extend(strings(&["<bos>", "<end>", "[user]", "[PAD]"]));
    let mut types = vec![1; 263];
    types.extend([3, 3, 4, 5]);
    let merges = strings(&["h e", "l l", "he ll", "hell o", "Ġ w", "< /"]);
    TokenizerSpec {
        model: TokenizerModel::ByteLevelBpe {
            pre: "gpt-2".into(),
            tokens,
            types,
            merges,
        },
        bos: Some(263),
        eog: vec![266, 264],
        add_bos: true,
    }
}

/// `<unk>` 0, `<s>` 1, `</s>` 2, the 256 byte tokens 3..259, then letters and pieces with scores.
fn spm_spec() -> TokenizerSpec {
    let pieces = [
        ("\u{2581}", -10.0),
        ("a", -11.0),
        ("b", -12.0),
        ("c", -13.0),
        ("ab", -2.0),
        ("bc", -1.0),
        ("abc", -3.0),
        ("\u{2581}a", -4.0),
        ("é", -14.0),
        ("aa", -5.0),
        ("<", -15.0),
        ("/", -15.0),
        ("s", -15.0),
        (">", -15.0),
        ("</", -1.0),
        ("s>", -1.0),
    ];
    let mut tokens = strings(&["<unk>", "<s>", "</s>"]);
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(pieces.iter().map(|p| p.0.to_owned()));
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    types.extend([1; 16]);
    let mut scores = vec![0.0; 259];
    scores.extend(pieces.iter().map(|p| p.1));
    TokenizerSpec {
        model: TokenizerModel::SentencePiece {
            tokens,
            scores,
            types,
            add_space_prefix: true,
            swallows_space: false,
        },
        bos: Some(1),
        eog: vec![2],
        add_bos: true,
    }
}

fn bpe() -> Tokenizer {
    Tokenizer::from_spec(bpe_spec()).unwrap()
}

fn spm() -> Tokenizer {
    Tokenizer::from_spec(spm_spec()).unwrap()
}

/// The id of the piece at `at` of [`spm_spec`]'s list.
fn piece(at: u32) -> u32 {
    259 + at
}

#[test]
fn bpe_merges_by_rank_inside_words() {
    let tokenizer = bpe();
    let encode = |text| tokenizer.encode(text, PLAIN).unwrap();
    assert_eq!(encode("hello"), [259]);
    assert_eq!(encode("hello world"), [259, 260, 111, 114, 108, 100]);
    assert_eq!(
        encode("lll"),
        [257, 108],
        "the leftmost of equal merges goes first"
    );
    assert_eq!(
        encode("hel lo"),
        [256, 108, 32, 108, 111],
        "no merge across words"
    );
    assert_eq!(encode("é"), [0xc3, 0xa9]);
    assert!(encode("").is_empty());
}

#[test]
fn special_tokens_are_parsed_on_request() {
    let tokenizer = bpe();
    let text = "<bos>he<end>[user]";
    let plain = tokenizer.encode(text, PLAIN).unwrap();
    assert!(!plain.contains(&263) && !plain.contains(&264));
    assert_eq!(
        plain.last(),
        Some(&265),
        "user-defined tokens are always found"
    );
    assert_eq!(
        tokenizer.encode(text, FULL).unwrap(),
        [263, 256, 264, 265],
        "one BOS"
    );
    assert_eq!(tokenizer.encode("he", FULL).unwrap(), [263, 256]);
    assert_eq!(tokenizer.decode(&[263, 256, 264, 265], true), "he[user]");
    assert_eq!(tokenizer.decode(&[263, 256, 264, 265], false), text);
}

#[test]
fn token_properties() {
    let tokenizer = bpe();
    assert_eq!(tokenizer.vocab_size(), 267);
    assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), (Some(263), true));
    assert!(tokenizer.is_eog(264) && tokenizer.is_eog(266) && !tokenizer.is_eog(263));
    assert!(tokenizer.is_control(263) && !tokenizer.is_control(265) && !tokenizer.is_control(999));
    assert_eq!(tokenizer.token_bytes(260), Some(&b" w"[..]));
    assert_eq!(tokenizer.token_bytes(0xc3), Some(&[0xc3][..]));
    assert_eq!(tokenizer.token_bytes(267), None);
}

#[test]
fn without_add_bos_none_is_added() {
    let spec = TokenizerSpec {
        add_bos: false,
        ..bpe_spec()
    };
    let tokenizer = Tokenizer::from_spec(spec).unwrap();
    assert!(!tokenizer.adds_bos());
    assert_eq!(tokenizer.encode("he", FULL).unwrap(), [256]);
}

#[test]
fn llama_bpe_takes_whole_words_first() {
    let mut spec = bpe_spec();
    if let TokenizerModel::ByteLevelBpe { pre, merges, .. } = &mut spec.model {
        *pre = "llama3".into();
        merges.retain(|m| m != "he ll");
    }
    let tokenizer = Tokenizer::from_spec(spec).unwrap();
    assert_eq!(tokenizer.encode("hello", PLAIN).unwrap(), [259]);
    assert_eq!(
        tokenizer.encode("hellos", PLAIN).unwrap(),
        [256, 257, 111, 115]
    );
}

#[test]
fn spm_merges_by_score() {
    let tokenizer = spm();
    let encode = |text| tokenizer.encode(text, PLAIN).unwrap();
    // " abc": bc (-1) goes before ab (-2); then a+bc makes abc (-3) before " a" (-4).
    assert_eq!(encode("abc"), [piece(0), piece(6)]);
    assert_eq!(encode("aaa"), [piece(7), piece(9)], "\u{2581}a, then aa");
    assert_eq!(encode(" a"), [piece(0), piece(7)]);
    assert_eq!(encode("é"), [piece(0), piece(8)]);
    assert!(encode("").is_empty());
}

#[test]
fn spm_merges_across_words_where_a_token_does() {
    let mut spec = spm_spec();
    if let TokenizerModel::SentencePiece { tokens, .. } = &mut spec.model {
        tokens[piece(9) as usize] = "b\u{2581}".into();
        tokens[piece(4) as usize] = "b\u{2581}a".into();
    }
    let tokenizer = Tokenizer::from_spec(spec).unwrap();
    assert_eq!(
        tokenizer.encode("b a", PLAIN).unwrap(),
        [piece(0), piece(4)]
    );
    assert_eq!(
        spm().encode("b a", PLAIN).unwrap(),
        [piece(0), piece(2), piece(7)]
    );
}

#[test]
fn spm_spells_the_unknown_in_bytes() {
    let tokenizer = spm();
    let expected: Vec<u32> = [piece(7)]
        .into_iter()
        .chain("你\n".bytes().map(|b| 3 + u32::from(b)))
        .collect();
    assert_eq!(tokenizer.encode("a你\n", PLAIN).unwrap(), expected);
    assert_eq!(tokenizer.decode(&expected, true), "a你\n");
}

#[test]
fn spm_without_byte_tokens_says_unknown() {
    let mut spec = spm_spec();
    if let TokenizerModel::SentencePiece { types, .. } = &mut spec.model {
        types[3..259].fill(5);
    }
    let tokenizer = Tokenizer::from_spec(spec).unwrap();
    assert_eq!(
        tokenizer.encode("a你b", PLAIN).unwrap(),
        [piece(7), 0, piece(2)]
    );
}

#[test]
fn spm_never_makes_a_control_token_out_of_text() {
    let tokenizer = spm();
    assert_eq!(
        tokenizer.encode("</s>", PLAIN).unwrap(),
        [piece(0), piece(14), piece(15)]
    );
    let parsed = tokenizer.encode("a</s>a", FULL).unwrap();
    assert_eq!(
        parsed,
        [1, piece(7), 2, piece(7)],
        "a space after every special token"
    );
}

#[test]
fn the_prefix_space_is_stripped_at_the_start_only() {
    let tokenizer = spm();
    let ids = [1, piece(7), piece(7)];
    assert_eq!(tokenizer.decode(&ids, true), "a a");
    let mut reply = tokenizer.detokenizer(true, TextPosition::Continuation);
    assert_eq!(reply.push(piece(7)) + &reply.push(piece(7)), " a a");
    let mut spec = spm_spec();
    if let TokenizerModel::SentencePiece {
        add_space_prefix, ..
    } = &mut spec.model
    {
        *add_space_prefix = false;
    }
    let bare = Tokenizer::from_spec(spec).unwrap();
    assert_eq!(bare.encode("a", PLAIN).unwrap(), [piece(1)]);
    assert_eq!(bare.decode(&ids, true), " a a");
}

#[test]
fn characters_are_held_back_until_whole() {
    let tokenizer = bpe();
    let mut stream = tokenizer.detokenizer(true, TextPosition::Start);
    let pieces: Vec<String> = "a😀b".bytes().map(|b| stream.push(b.into())).collect();
    assert_eq!(pieces, ["a", "", "", "", "😀", "b"]);
    // A lead byte that turns out to be wrong, and one left at the end.
    assert_eq!(stream.push(0xf0), "");
    assert_eq!(stream.push(b'x'.into()), "\u{fffd}x");
    assert_eq!(stream.push(0xff), "\u{fffd}");
    assert_eq!(stream.push(0xe4), "");
    assert_eq!(stream.finish(), "\u{fffd}");
}

fn contradictions() -> Vec<(&'static str, TokenizerSpec)> {
    let bpe_with = |change: fn(&mut String, &mut Vec<String>, &mut Vec<i32>, &mut Vec<String>)| {
        let mut spec = bpe_spec();
        if let TokenizerModel::ByteLevelBpe {
            pre,
            tokens,
            types,
            merges,
        } = &mut spec.model
        {
            change(pre, tokens, types, merges);
        }
        spec
    };
    let spm_with = |change: fn(&mut Vec<f32>)| {
        let mut spec = spm_spec();
        if let TokenizerModel::SentencePiece { scores, .. } = &mut spec.model {
            change(scores);
        }
        spec
    };
    vec![
        ("klingon", bpe_with(|pre, _, _, _| *pre = "klingon".into())),
        ("266 types", bpe_with(|_, _, types, _| types.truncate(266))),
        ("empty", bpe_with(|_, tokens, _, _| tokens.clear())),
        (
            "merge 6",
            bpe_with(|_, _, _, merges| merges.push("q q".into())),
        ),
        (
            "merge 6",
            bpe_with(|_, _, _, merges| merges.push("h你".into())),
        ),
        ("274 scores", spm_with(|scores| scores.truncate(274))),
        ("token 7", spm_with(|scores| scores[7] = f32::NAN)),
        (
            "token 300",
            TokenizerSpec {
                bos: Some(300),
                ..bpe_spec()
            },
        ),
        (
            "tokenizer.json",
            TokenizerSpec {
                model: TokenizerModel::HfJson("{\"model\":".into()),
                ..bpe_spec()
            },
        ),
    ]
}

#[test]
fn contradictions_are_errors_that_say_where() {
    for (expected, spec) in contradictions() {
        let message = Tokenizer::from_spec(spec).unwrap_err().to_string();
        assert!(
            message.contains(expected),
            "{message:?} does not say {expected:?}"
        );
    }
}

/// Texts with all that is difficult in UTF-8.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-c <>/s]{0,6}",
        "\\PC{0,4}",
        "[😀🏽🇩é你好\u{200d}\u{301}\n]{0,4}"
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn encoding_loses_nothing(text in texts()) {
        let (bpe, spm) = (bpe(), spm());
        prop_assert_eq!(bpe.decode(&bpe.encode(&text, PLAIN).unwrap(), false), text.clone());
        let spaced = text.replace('\u{2581}', " ");
        prop_assert_eq!(spm.decode(&spm.encode(&text, PLAIN).unwrap(), false), spaced);
    }

    #[test]
    fn pushed_tokens_equal_the_whole(ids in prop::collection::vec(0u32..280, 0..60), skip: bool) {
        for tokenizer in [bpe(), spm()] {
            let mut stream = tokenizer.detokenizer(skip, TextPosition::Start);
            let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
            text += &stream.finish();
            prop_assert_eq!(&text, &tokenizer.decode(&ids, skip));

            let mut bytes = Vec::new();
            for &id in &ids {
                let is_hidden = id == 266 && tokenizer.vocab_size() == 267
                    || skip && (tokenizer.is_control(id) || id == 0 && tokenizer.vocab_size() != 267);
                if !is_hidden {
                    bytes.extend_from_slice(tokenizer.token_bytes(id).unwrap_or_default());
                }
            }
            let whole = String::from_utf8_lossy(&bytes);
            let stripped = whole.strip_prefix(' ').filter(|_| tokenizer.vocab_size() != 267);
            prop_assert_eq!(&text, stripped.unwrap_or(&whole));
        }
    }
}
