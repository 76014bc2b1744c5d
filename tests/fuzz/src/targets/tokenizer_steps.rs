//! Real `tokenizer.json` files with other steps: texts in pieces have the tokens that the `tokenizers` crate finds in
//! the whole.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result};
use forebay_models::tokenizer::{EncodeOptions, Tokenizer, TokenizerModel, TokenizerSpec};
use serde_json::Value;

use super::tokenizer::{byte_level_json, sentence_piece_json};
use super::{check_decoding, refusal};
use crate::mutate;
use crate::random::Random;
use crate::target::Target;

/// Parts of texts: long enough together that a text is cut.
const PARTS: [&str; 20] = [
    "the other th",
    " the",
    "The",
    "\n\n",
    "  ",
    "\t",
    "12 345",
    "'s 're'LL",
    "<s>",
    "</s>",
    "<|end|>",
    "你好，",
    "。\n",
    "e\u{301}",
    "K\u{212a};\u{37e}",
    "<\u{338}",
    "\u{2581}th\u{2581}",
    "\u{a0}\u{3000}",
    "é½Ⅷ٣😀",
    "a, b. c!?",
];

struct Steps {
    seeds: Vec<Vec<u8>>,
}

/// Makes the target.
pub fn make(_: &Path) -> Result<Box<dyn Target>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut seeds = Vec::new();
    for name in ["models/demo/hf", "tests/golden/tiny/qwen3_bf16"] {
        let path = root.join(name).join("tokenizer.json");
        let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let whole: Value = serde_json::from_slice(&bytes)?;
        seeds.push(whole.to_string().into_bytes());
    }
    seeds.extend(
        [byte_level_json(), sentence_piece_json()].map(|json| json.to_string().into_bytes()),
    );
    Ok(Box::new(Steps { seeds }))
}

impl Target for Steps {
    fn seeds(&self) -> Vec<Vec<u8>> {
        self.seeds.clone()
    }

    fn mutate(&self, input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
        mutate::tokenizer::change(input, other, random);
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let json = std::str::from_utf8(input).map_err(|e| e.to_string())?;
        let spec = TokenizerSpec {
            model: TokenizerModel::HfJson(json.into()),
            bos: None,
            eog: Vec::new(),
            add_bos: false,
        };
        let tokenizer = Tokenizer::from_spec(spec).map_err(|e| refusal(&e))?;
        let seed = input.iter().fold(7, |sum: u64, &b| {
            sum.wrapping_mul(31).wrapping_add(b.into())
        });
        let mut random = Random::new(seed);
        let n = 20 + random.below(900);
        let text: String = (0..n).map(|_| *random.pick(&PARTS)).collect();
        for parse_special in [false, true] {
            let options = EncodeOptions {
                add_bos: false,
                parse_special,
            };
            let ids = tokenizer.encode(&text, options).map_err(|e| refusal(&e))?;
            check_decoding(&tokenizer, &ids);
            if let Some(whole) = by_the_crate(json, &text, parse_special) {
                let same = ids.iter().zip(&whole).take_while(|(a, b)| a == b).count();
                assert!(
                    ids == whole,
                    "pieces differ from the whole from token {same} on: {text:?}"
                );
            }
        }
        Ok(())
    }
}

/// What the crate makes of the whole text; `None` if it fails.
fn by_the_crate(json: &str, text: &str, parse_special: bool) -> Option<Vec<u32>> {
    let encode = || {
        let mut whole: Value = serde_json::from_str(json).ok()?;
        for name in ["truncation", "padding", "post_processor"] {
            whole[name] = Value::Null;
        }
        whole["model"]["dropout"] = Value::Null;
        let mut tokenizer: tokenizers::Tokenizer = whole.to_string().parse().ok()?;
        tokenizer.set_encode_special_tokens(!parse_special);
        let encoding = tokenizer.encode_fast(text, false).ok()?;
        Some(encoding.get_ids().to_vec())
    };
    catch_unwind(AssertUnwindSafe(encode)).ok()?
}
