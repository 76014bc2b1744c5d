//! Text of strangers that names special tokens.

use super::*;
use crate::tokenizer::TextPosition::{Continuation, Start};

/// A `tokenizer.json` with the tokens of [`bpe_spec`] that matter here.
fn hf_spec() -> TokenizerSpec {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255u8 {
        vocab.insert(letter(byte), byte.into());
    }
    let token = |id: u32, content: &str, special: bool| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": special})
    };
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [token(256, "<bos>", true), token(257, "<end>", true), token(258, "[user]", false)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "byte_fallback": false, "fuse_unk": false,
            "ignore_merges": false, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "vocab": vocab, "merges": []},
    });
    TokenizerSpec {
        model: TokenizerModel::HfJson(json.to_string()),
        bos: None,
        eog: vec![],
        add_bos: false,
    }
}

/// With control tokens `<bos>` and `<end>`, and a user-defined one, `[user]`.
fn tokenizers() -> [Tokenizer; 2] {
    [bpe_spec(), hf_spec()].map(|spec| Tokenizer::from_spec(spec).unwrap())
}

#[test]
fn breaks_stand_inside_names_and_where_a_name_may_go_on() {
    for tokenizer in tokenizers() {
        let breaks = |text: &str| tokenizer.breaks(text, |_| false);
        assert!(breaks("nothing, [user], a > b").is_empty());
        assert_eq!(breaks("a<end>b<<bos>"), [2, 9]);
        assert_eq!(breaks("a<en"), [4]);
        assert_eq!(breaks("a <"), [3]);
        assert_eq!(breaks("nd> a"), [0]);
        assert_eq!(breaks("> a"), [0]);
        assert_eq!(breaks("<end>"), [1]);
        assert!(breaks("").is_empty());
        let user = tokenizer.special_token("[user]").unwrap();
        assert_eq!(tokenizer.breaks("x[user]", |id| id == user), [2]);
        assert_eq!(tokenizer.user_defined().collect::<Vec<_>>(), [user]);
        let end = tokenizer.special_token("<end>");
        assert_eq!(tokenizer.first_special("<end>\n"), end);
        assert_eq!(tokenizer.first_special("\n<end>"), None);
        assert_eq!(tokenizer.special_token("hello"), None);
    }
}

#[test]
fn no_special_token_reaches_across_a_break() {
    for tokenizer in tokenizers() {
        let end = tokenizer.special_token("<end>").unwrap();
        let user = tokenizer.special_token("[user]").unwrap();
        let ids = |text: &str, breaks: &[usize]| {
            tokenizer
                .encode_unbroken((text, Start), breaks, usize::MAX)
                .unwrap()
        };
        let text = "<end>a<end>b[user]<end>";
        let all = ids(text, &[]);
        assert_eq!(all.iter().filter(|&&id| id == end).count(), 3);
        let broken = ids(text, &[7, 13]);
        assert_eq!(broken.iter().filter(|&&id| id == end).count(), 2);
        assert!(!broken.contains(&user) && broken[0] == end && broken.last() == Some(&end));
        assert_eq!(tokenizer.decode(&broken, false), text);
        // Breaks at the ends of tokens, and none that is needed.
        assert_eq!(ids(text, &[0, 5, 6, 11, text.len()]), all);
    }
}

#[test]
fn a_space_is_put_in_front_of_texts_and_not_of_parts_of_them() {
    let tokenizer = Tokenizer::from_spec(spm_spec()).unwrap();
    let of = |text, position, breaks: &[usize]| {
        tokenizer
            .encode_unbroken((text, position), breaks, usize::MAX)
            .unwrap()
    };
    let plain = tokenizer.encode("ab", PLAIN).unwrap();
    assert_eq!(of("ab", Start, &[]), plain);
    assert_eq!(of("ab", Start, &[1]), plain, "a break is no end of a text");
    assert_ne!(of("ab", Continuation, &[]), plain);
    assert_eq!(tokenizer.decode(&of("ab", Continuation, &[]), false), "ab");
}
