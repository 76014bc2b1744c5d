//! The engine's greedy texts beside llama.cpp's, on real models.
//!
//! llama.cpp does not keep to one text itself: reading the prompt at once or token by token, with or
//! without flash attention, changes rounding, and at near ties the choice. Where its own four ways
//! agree (`stable` in the golden data), there is one text to agree with.

mod support;

use std::path::Path;

use forebay::{Engine, Request, StreamItem};
use serde::Deserialize;

/// Tokens that have to be the same.
const TOKENS: usize = 32;
/// Prompts that are compared.
const PROMPTS: usize = 10;
/// How many of them have to agree.
const AGREE: usize = 8;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    kind: String,
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    stable: usize,
}

fn greedy(engine: &Engine, case: &Case) -> Vec<u32> {
    let request = Request::text(&*case.prompt)
        .parse_special(true)
        .max_tokens(TOKENS);
    let stream = engine.session().generate(request.ignore_eog(true));
    let items = stream
        .expect("a usable prompt")
        .blocking()
        .map(|item| item.expect("no fault"));
    let tokens = items.filter_map(|item| match item {
        StreamItem::Token(token) => Some(token.id),
        _ => None,
    });
    tokens.collect()
}

fn compare(model: &str) {
    let Some(path) = support::real_model(&format!("{model}.gguf")) else {
        return;
    };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama_cpp");
    let golden =
        std::fs::read_to_string(golden.join(format!("{model}.json"))).expect("golden data");
    let golden: Golden = serde_json::from_str(&golden).expect("golden data");
    let engine = Engine::builder()
        .model(path)
        .cache_folder(support::scratch())
        .context(512);
    let engine = engine.build().expect("the model opens");

    let cases: Vec<&Case> = golden
        .prompts
        .iter()
        .filter(|c| c.stable >= TOKENS)
        .collect();
    assert!(
        cases.len() >= PROMPTS,
        "only {} prompts are stable",
        cases.len()
    );
    // Spread over the list, so that all kinds of prompts are among them.
    let cases = (0..PROMPTS).map(|i| cases[i * cases.len() / PROMPTS]);
    let mut agreed = 0;
    for case in cases {
        let tokenizer = engine.tokenizer();
        let options = forebay_models::tokenizer::EncodeOptions {
            add_bos: tokenizer.adds_bos(),
            parse_special: true,
        };
        assert_eq!(
            tokenizer.encode(&case.prompt, options).expect("text"),
            case.prompt_ids
        );
        let ours = greedy(&engine, case);
        let same = ours
            .iter()
            .zip(&case.ids)
            .take_while(|(a, b)| a == b)
            .count();
        eprintln!(
            "{model} {}: {same} of {TOKENS} tokens as llama.cpp",
            case.kind
        );
        agreed += usize::from(same == TOKENS);
    }
    assert!(agreed >= AGREE, "{agreed} of {PROMPTS} prompts agree");
}

#[test]
fn smollm2_writes_what_llama_cpp_writes() {
    compare("SmolLM2-135M-Instruct.Q4_1");
}

#[test]
fn qwen2_writes_what_llama_cpp_writes() {
    compare("qwen2.5-coder-0.5b-instruct-q4_k_m");
}
