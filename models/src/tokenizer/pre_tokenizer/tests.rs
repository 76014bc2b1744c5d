//! Every scanner against the regular expression it stands for, run by a backtracking engine.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use tokenizers::utils::SysRegex;

use super::*;
use crate::tokenizer::expressions::*;

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

fn by_scanner<'t>(name: &str, text: &'t str, classes: &CharClasses) -> Vec<&'t str> {
    let pre = PreTokenizer::parse(name).expect("a known name");
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
        8 => "[ \t\r\n'a-zA-Z0-9.,!$+_/`-]{1,4}",
        2 => "'(s|t|re|ve|m|ll|d|S|RE|lL|ſ|x)",
        2 => "[\u{a0}\u{2003}\u{3000}\u{85} ]{1,3}",
        2 => "[é中ʰ½Ⅷ٣\u{301}😀！—。〇⺀\u{200b}]{1,3}",
        2 => "[aAéÉяЯǅʰ中\u{301}\u{93e}]{1,6}",
        1 => "\\PC{1,3}",
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

#[test]
fn scanners_equal_their_expressions() {
    let classes = CharClasses::new();
    let compiled: Vec<_> = STAGES.iter().map(|(pre, s)| (*pre, compile(s))).collect();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 1500,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    runner
        .run(&texts(), |text| {
            for (pre, stages) in &compiled {
                let pieces = by_scanner(pre, &text, &classes);
                prop_assert_eq!(&pieces, &by_expressions(&text, stages), "{}", pre);
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
    assert_eq!(by_scanner("gpt-2", text, &classes), gpt2);
    assert_eq!(by_scanner("llama-bpe", text, &classes), llama);
}

#[test]
fn words_are_cut_at_unicodes_cases() {
    let classes = CharClasses::new();
    let text = "ÉtéÉté ПриветМир don't 1234中A";
    let tekken = [
        "Été",
        "Été",
        " Привет",
        "Мир",
        " don",
        "'t",
        " ",
        "1",
        "2",
        "3",
        "4",
        "中",
        "A",
    ];
    let o200k = [
        "Été",
        "Été",
        " Привет",
        "Мир",
        " don't",
        " ",
        "123",
        "4",
        "中",
        "A",
    ];
    assert_eq!(by_scanner("tekken", text, &classes), tekken);
    assert_eq!(by_scanner("gpt-4o", text, &classes), o200k);
}

#[test]
fn long_runs_take_linear_time() {
    // Backtracking expressions give up on some of them, or take quadratic time.
    let classes = CharClasses::new();
    let runs = [
        "a", "A", "É", "中", "中A", "\u{301}", " ", "\n", "1", "!", "\u{200b}", " \u{301}",
    ];
    for run in runs {
        let text = format!("{}x", run.repeat(100_000 / run.len()));
        for (name, _) in STAGES {
            let bytes: usize = by_scanner(name, &text, &classes)
                .iter()
                .map(|p| p.len())
                .sum();
            assert_eq!(bytes, text.len(), "{name}: {run:?}");
        }
    }
    let text = format!("{}x", " ".repeat(3_000_000));
    let pieces = by_scanner("gpt-2", &text, &classes);
    assert_eq!(pieces.len(), 2);
    assert_eq!(pieces[1], " x");
}

#[test]
fn names_are_known_once_and_messages_list_them() {
    let names: Vec<_> = PreTokenizer::names().collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    let error = PreTokenizer::unknown(Path::new("m.gguf"), "tokenizer.ggml.pre", "klingon");
    let message = error.to_string();
    assert!(message.contains("m.gguf: tokenizer.ggml.pre: the pre-tokenizer \"klingon\" is not"));
    assert!(
        message.contains("/issues") && !message.contains('…'),
        "{message}"
    );
    for name in names {
        assert!(message.contains(name), "{message} does not name {name}");
    }
}
