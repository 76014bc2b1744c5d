//! Token ids against those of other implementations.
//!
//! The vocabularies of llama.cpp's own tests are found under `FOREBAY_TOKENIZERS`, models under
//! `FOREBAY_MODELS`; the demo model's tokenizer is part of the repository.

mod vocab_reader;

use std::path::{Path, PathBuf};

use forebay_models::gguf::Metadata;
use forebay_models::tokenizer::{
    EncodeOptions, TextPosition, Tokenizer, spec_from_gguf, spec_from_hf,
};
use serde::Deserialize;
use vocab_reader::read_metadata;

const PLAIN: EncodeOptions = EncodeOptions {
    add_bos: false,
    parse_special: false,
};

/// The folder an environment variable names; loud where there is none.
fn folder(variable: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(variable).map(PathBuf::from);
    if folder.is_none() {
        eprintln!(
            "SKIPPED: {variable} is not set; it names the folder with the files of this test"
        );
    }
    folder
}

fn tokenizer(meta: &Metadata, path: &Path) -> Tokenizer {
    Tokenizer::from_spec(spec_from_gguf(meta.clone(), path).unwrap()).unwrap()
}

/// Decodes token by token and all at once, and expects the same of both.
fn decode_both_ways(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let whole = tokenizer.decode(ids, false);
    let mut stream = tokenizer.detokenizer(false, TextPosition::Start);
    let mut pieces: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    pieces.push(stream.finish());
    assert_eq!(pieces.concat(), whole);
    whole
}

/// Compares with `<name>.inp` and `<name>.out` beside the vocabulary. Returns the number of vectors.
fn check_vocabulary(name: &str) -> usize {
    let Some(folder) = folder("FOREBAY_TOKENIZERS") else {
        return 0;
    };
    let path = folder.join(format!("ggml-vocab-{name}.gguf"));
    let tokenizer = tokenizer(&read_metadata(&path), &path);
    let read = |ext: &str| std::fs::read_to_string(path.with_extension(ext)).unwrap();
    let (input, output) = (read("gguf.inp"), read("gguf.out"));
    let texts: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.len() >= 40, "{} vectors", lines.len());
    assert!(texts.len() == lines.len() || texts.len() == lines.len() + 1);
    for (text, line) in texts.iter().zip(&lines) {
        let expected: Vec<u32> = line
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        let ids = tokenizer.encode(text, PLAIN).unwrap();
        assert_eq!(ids, expected, "{name}: {text:?}");
        assert_eq!(decode_both_ways(&tokenizer, &ids), *text, "{name}");
    }
    lines.len()
}

/// Kinds of tokenizers (`tokenizer.ggml.model`) that this engine does not have, and says so.
const REFUSED: [&str; 2] = ["bert", "t5"];

/// Whatever the folder holds: what has vectors is compared, everything else is loaded, or refused by name.
#[test]
fn all_vocabularies() {
    let Some(folder) = folder("FOREBAY_TOKENIZERS") else {
        return;
    };
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("a readable folder")
        .filter_map(|entry| entry.expect("an entry").file_name().into_string().ok())
        .filter_map(|name| {
            let name = name.strip_prefix("ggml-vocab-")?.strip_suffix(".gguf")?;
            Some(name.to_owned())
        })
        .collect();
    names.sort();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let meta = read_metadata(&path);
        let kind = meta.str("tokenizer.ggml.model").expect("a kind");
        if REFUSED.contains(&kind) {
            let message = spec_from_gguf(meta.clone(), &path).unwrap_err().to_string();
            assert!(message.contains("tokenizer.ggml.model") && message.contains(kind));
            println!("{name}: REFUSED: {message}");
        } else if path.with_extension("gguf.out").exists() {
            let n = check_vocabulary(&name);
            println!("{name}: {n} vectors");
        } else {
            let n = tokenizer(&meta, &path).vocab_size();
            println!("{name}: NO VECTORS; its {n} tokens can be loaded");
        }
    }
}

#[test]
fn gpt2_vocabulary() {
    check_vocabulary("gpt-2");
}

#[test]
fn llama_bpe_vocabulary() {
    check_vocabulary("llama-bpe");
}

#[test]
fn llama_spm_vocabulary() {
    check_vocabulary("llama-spm");
}

#[test]
fn qwen2_vocabulary() {
    check_vocabulary("qwen2");
}

/// A text and its ids, without BOS.
#[derive(Deserialize)]
struct Vector {
    text: String,
    ids: Vec<u32>,
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo")
}

#[test]
fn demo_tokenizer() {
    let golden = std::fs::read_to_string(demo().join("golden_tokenizer.json")).unwrap();
    let vectors: Vec<Vector> = serde_json::from_str(&golden).unwrap();
    assert!(vectors.len() >= 7);
    let spec = spec_from_hf(&demo().join("hf")).unwrap();
    assert_eq!(
        (spec.bos, spec.add_bos, &spec.eog[..]),
        (Some(0), true, &[1][..])
    );
    let tokenizer = Tokenizer::from_spec(spec).unwrap();
    assert_eq!(tokenizer.vocab_size(), 1024);
    for Vector { text, ids } in &vectors {
        assert_eq!(&tokenizer.encode(text, PLAIN).unwrap(), ids, "{text:?}");
        assert_eq!(&decode_both_ways(&tokenizer, ids), text);
        let with_bos = EncodeOptions {
            add_bos: true,
            ..PLAIN
        };
        let expected: Vec<u32> = [0].into_iter().chain(ids.iter().copied()).collect();
        assert_eq!(
            tokenizer.encode(text, with_bos).unwrap(),
            expected,
            "exactly one BOS"
        );
    }
}

/// What llama.cpp says to a list of texts.
#[derive(Deserialize)]
struct LlamaCpp {
    cases: Vec<Case>,
    vocabularies: std::collections::BTreeMap<String, Answers>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    parse_special: bool,
}

#[derive(Deserialize)]
struct Answers {
    add_bos: bool,
    eog: Vec<u32>,
    /// By case.
    ids: Vec<Vec<u32>>,
}

/// Compares with llama.cpp's answers for `name`, over the vocabulary in `file` of the folder that
/// `variable` names, with its pre-tokenizer replaced where `pre` is given.
fn check_against_llama_cpp(name: &str, variable: &str, file: &str, pre: Option<&str>) {
    let Some(folder) = folder(variable) else {
        return;
    };
    let path = folder.join(file);
    let mut meta = read_metadata(&path);
    if let Some(pre) = pre {
        let value = forebay_models::gguf::Value::Str(pre.into());
        meta.entries.insert("tokenizer.ggml.pre".into(), value);
    }
    let LlamaCpp {
        cases,
        vocabularies,
    } = serde_json::from_str(include_str!("data/llama_cpp_tokens.json")).unwrap();
    let answers = &vocabularies[name];
    let tokenizer = tokenizer(&meta, &path);
    assert_eq!(tokenizer.adds_bos(), answers.add_bos);
    // To llama.cpp any token named </s> is special and ends a generation, even where the model knows
    // it as HTML (Qwen 2); the models' own tokenizers, and this one, take it for text there.
    let is_html = |id| tokenizer.token_bytes(id) == Some(b"</s>") && !tokenizer.is_control(id);
    for id in 0..tokenizer.vocab_size() as u32 {
        let expected = answers.eog.contains(&id) && !is_html(id);
        assert_eq!(
            tokenizer.is_eog(id),
            expected,
            "{name}: token {id} ends a generation"
        );
    }
    assert_eq!(answers.ids.len(), cases.len());
    for (
        Case {
            text,
            parse_special,
        },
        expected,
    ) in cases.iter().zip(&answers.ids)
    {
        if *parse_special && expected.iter().copied().any(is_html) {
            continue;
        }
        let options = EncodeOptions {
            add_bos: false,
            parse_special: *parse_special,
        };
        let ids = tokenizer.encode(text, options).unwrap();
        assert_eq!(
            &ids, expected,
            "{name}: {text:?}, parse_special {parse_special}"
        );
        decode_both_ways(&tokenizer, &ids);
    }
}

#[test]
fn llama_cpp_gpt2() {
    check_against_llama_cpp("gpt-2", "FOREBAY_TOKENIZERS", "ggml-vocab-gpt-2.gguf", None);
}

#[test]
fn llama_cpp_default() {
    let file = "ggml-vocab-gpt-2.gguf";
    check_against_llama_cpp("default", "FOREBAY_TOKENIZERS", file, Some("default"));
}

#[test]
fn llama_cpp_llama_bpe() {
    check_against_llama_cpp(
        "llama-bpe",
        "FOREBAY_TOKENIZERS",
        "ggml-vocab-llama-bpe.gguf",
        None,
    );
}

#[test]
fn llama_cpp_llama_spm() {
    check_against_llama_cpp(
        "llama-spm",
        "FOREBAY_TOKENIZERS",
        "ggml-vocab-llama-spm.gguf",
        None,
    );
}

#[test]
fn llama_cpp_qwen2() {
    check_against_llama_cpp("qwen2", "FOREBAY_TOKENIZERS", "ggml-vocab-qwen2.gguf", None);
}

#[test]
fn llama_cpp_smollm2() {
    let file = "SmolLM2-135M-Instruct.Q4_1.gguf";
    check_against_llama_cpp("smollm2", "FOREBAY_MODELS", file, None);
}

#[test]
fn llama_cpp_qwen25_coder() {
    let file = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
    check_against_llama_cpp("qwen2.5-coder", "FOREBAY_MODELS", file, None);
}
