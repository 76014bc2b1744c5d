//! Every scanner against the regular expression it stands for, run by a backtracking engine.

use proptest::prelude::*;
use tokenizers::utils::SysRegex;

use super::*;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const MARKS: &str = r"[\p{P}\$\+<=>\^~\|]+";

/// The stages of each pre-tokenizer: each cuts the pieces of the one before it.
const STAGES: [(PreTokenizer, &[&str]); 5] = [
    (PreTokenizer::Gpt2, &[GPT2]),
    (PreTokenizer::LlamaBpe, &[LLAMA]),
    (PreTokenizer::Qwen2, &[QWEN2]),
    (PreTokenizer::Smollm, &[r"\p{N}", GPT2]),
    (
        PreTokenizer::Default,
        &[MARKS, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    ),
];

fn by_expressions<'t>(text: &'t str, stages: &[SysRegex]) -> Vec<&'t str> {
    let mut pieces = vec![text];
    for regex in stages {
        let mut cut = Vec::new();
        for piece in pieces {
            let mut end = 0;
            for (from, to) in regex.find_iter(piece) {
                cut.push(&piece[end..from]);
                cut.push(&piece[from..to]);
                end = to;
            }
            cut.push(&piece[end..]);
        }
        pieces = cut;
        pieces.retain(|piece| !piece.is_empty());
    }
    pieces
}

fn by_scanner<'t>(pre: PreTokenizer, text: &'t str, classes: &CharClasses) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    pre.split(text, classes, &mut |piece| pieces.push(piece));
    pieces
}

fn compile(stages: &[&str]) -> Vec<SysRegex> {
    stages.iter().map(|s| SysRegex::new(s).unwrap()).collect()
}

/// Texts in which the interesting characters are frequent, with arbitrary ones between them.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => "[ \t\r\n'a-zA-Z0-9.,!$+_-]{1,4}",
        2 => "'(s|t|re|ve|m|ll|d|S|RE|lL|x)",
        2 => "[\u{a0}\u{2003}\u{3000}\u{85} ]{1,3}",
        2 => "[é中ʰ½Ⅷ٣\u{301}😀！—]{1,3}",
        1 => "\\PC{1,3}",
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

#[test]
fn scanners_equal_their_expressions() {
    let classes = CharClasses::new();
    let compiled: Vec<_> = STAGES.iter().map(|(pre, s)| (*pre, compile(s))).collect();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&texts(), |text| {
            for (pre, stages) in &compiled {
                let pieces = by_scanner(*pre, &text, &classes);
                prop_assert_eq!(&pieces, &by_expressions(&text, stages), "{:?}", pre);
                prop_assert_eq!(pieces.concat(), text.clone());
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn words_of_a_sentence() {
    let classes = CharClasses::new();
    let text = "I'll say\t\"Hi\"  1234 TIMES'S\r\n\r\n x";
    let gpt2 = [
        "I", "'ll", " say", "\t", "\"", "Hi", "\"", " ", " 1234", " TIMES", "'", "S", "\r\n\r\n",
        " x",
    ];
    let llama = [
        "I", "'ll", " say", "\t", "\"Hi", "\"", " ", " ", "123", "4", " TIMES", "'S", "\r\n\r\n",
        " x",
    ];
    assert_eq!(by_scanner(PreTokenizer::Gpt2, text, &classes), gpt2);
    assert_eq!(by_scanner(PreTokenizer::LlamaBpe, text, &classes), llama);
}

#[test]
fn a_long_run_of_spaces_is_one_word() {
    // A backtracking expression gives up on such a run.
    let text = format!("{}x", " ".repeat(3_000_000));
    let pieces = by_scanner(PreTokenizer::Gpt2, &text, &CharClasses::new());
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces[1], " x");
}
