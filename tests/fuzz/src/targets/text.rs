//! Prompts: any text becomes tokens, and these become the same text again.

use std::path::Path;

use anyhow::Result;
use forebay_models::tokenizer::{
    EncodeOptions, Tokenizer, TokenizerModel, TokenizerSpec, spec_from_gguf,
};

use super::gguf_writer::Model;
use super::tokenizer::{PRE_TOKENIZERS, by_merges};
use super::{check_decoding, refusal};
use crate::mutate;
use crate::random::Random;
use crate::target::Target;

/// One tokenizer of each kind; the first byte of an input chooses.
struct Text {
    tokenizers: Vec<Tokenizer>,
}

/// Makes the target.
pub fn make(folder: &Path) -> Result<Box<dyn Target>> {
    let path = Model {
        n_layers: 1,
        ..Model::default()
    }
    .writer()
    .write(folder, "tokenizer.gguf");
    let mut gguf = forebay_models::gguf::Gguf::open(&path)?;
    let whole = spec_from_gguf(gguf.take_metadata(), &path)?;
    let mut specs = Vec::new();
    for name in PRE_TOKENIZERS {
        let mut spec = whole.clone();
        if let TokenizerModel::ByteLevelBpe { pre, .. } = &mut spec.model {
            *pre = name.into();
        }
        specs.push(spec);
    }
    specs.push(pieces(true));
    specs.push(pieces(false));
    let merges = ["t h", "th e", "\u{2581} t", "\u{2581} \u{2581}"];
    specs.push(by_merges(pieces(false), &merges));
    let tokenizers = specs.into_iter().map(Tokenizer::from_spec);
    Ok(Box::new(Text {
        tokenizers: tokenizers.collect::<Result<_, _>>()?,
    }))
}

/// SentencePiece with all byte tokens.
fn pieces(add_space_prefix: bool) -> TokenizerSpec {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![2, 3, 3];
    for byte in 0..=255 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
    }
    for piece in [
        "\u{2581}",
        "t",
        "h",
        "e",
        "\u{2581}t",
        "th",
        "the",
        "\u{2581}\u{2581}",
        "e\u{2581}t",
        "你",
    ] {
        tokens.push(piece.into());
        types.push(1);
    }
    TokenizerSpec {
        model: TokenizerModel::SentencePiece {
            scores: (0..tokens.len()).map(|i| -(i as f32)).collect(),
            tokens,
            types,
            add_space_prefix,
            swallows_space: false,
        },
        bos: Some(1),
        eog: vec![2],
        add_bos: true,
    }
}

impl Target for Text {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let texts = [
            "",
            "the other side of the thing",
            "  It's 12345 o'clock,\r\n\n\t we'LL see: 3.14159!  ",
            "你好，世界 — שלום Привет ½ Ⅷ １２３",
            "<s>user</s><|im_end|><0x0A> \u{2581}the\u{2581}e\u{301}",
        ];
        let one = |(i, text): (usize, &str)| [&[i as u8], text.as_bytes()].concat();
        let all = texts.into_iter().cycle().take(2 * self.tokenizers.len());
        all.enumerate().map(one).collect()
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::text::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let Some((&which, bytes)) = input.split_first() else {
            return Err("no input".into());
        };
        let which = usize::from(which) % self.tokenizers.len();
        let tokenizer = &self.tokenizers[which];
        let text = String::from_utf8_lossy(bytes);
        for parse_special in [false, true] {
            let options = EncodeOptions {
                add_bos: true,
                parse_special,
            };
            let ids = tokenizer.encode(&text, options).map_err(|e| refusal(&e))?;
            let back = check_decoding(tokenizer, &ids);
            // SentencePiece has one character for spaces and their sign.
            if !parse_special && !text.contains('\u{2581}') {
                assert_eq!(
                    back, text,
                    "text through tokens {ids:?} of tokenizer {which}"
                );
            }
        }
        // The bytes as tokens, in and outside the vocabulary.
        let ids: Vec<u32> = bytes
            .chunks(2)
            .map(|b| b.iter().fold(0, |id, &b| id << 8 | u32::from(b)))
            .collect();
        check_decoding(tokenizer, &ids);
        Ok(())
    }
}
