//! `forebay eval kl` and `eval multiple-choice` on the demo.

use serde_json::Value;

use crate::program::{Answer, answer, forebay};
use crate::support::{self, TemporaryFile};

fn eval(arguments: &[&str]) -> Answer {
    answer(forebay(support::scratch(), [&["eval"], arguments].concat()))
}

fn json(said: &Answer) -> Value {
    assert!(said.status.success(), "{}", said.stderr);
    serde_json::from_str(&said.stdout).expect("one JSON object")
}

fn demo() -> String {
    let folder = support::root().join("models/demo/hf");
    folder.to_str().expect("text").to_owned()
}

fn written(name: &str, text: &str) -> TemporaryFile {
    let file = TemporaryFile::new(name);
    std::fs::write(&file.0, text).expect("a writable folder");
    file
}

fn path(file: &TemporaryFile) -> &str {
    file.0.to_str().expect("text")
}

/// As dense, bit for bit. The demo has predictors, which are not.
const EXACT: [&str; 2] = ["--sparsity", "exact"];

const STORY: &str = "Once upon a time, there was a little girl named Lily. She had a big red ball. \
                     One day, she went to the park with her mom. They saw a dog and a cat. ";

#[test]
fn a_run_diverges_from_another_setting_and_not_from_itself() {
    let (demo, text) = (demo(), written("story.txt", &STORY.repeat(6)));
    let reference = TemporaryFile::new("reference.logits");
    let save = ["kl", &demo, "--save", path(&reference), "-f", path(&text)];
    let said = eval(&[&save[..], &["--ctx", "64", "--sparsity", "dense"]].concat());
    assert!(said.status.success(), "{}", said.stderr);
    let against = |flags: &[&str]| {
        let usual = ["kl", &demo, "--against", path(&reference), "--json"];
        json(&eval(&[&usual[..], &EXACT, flags].concat()))
    };
    let number = |d: &Value, field: &str| d[field].as_f64().expect("a number");
    let same = against(&[]);
    assert!(number(&same, "mean").abs() < 1e-4, "{same}");
    assert_eq!(number(&same, "same_top"), 1.0);
    let (own, reference_own) = (
        number(&same, "perplexity"),
        number(&same, "reference_perplexity"),
    );
    assert!((own / reference_own - 1.0).abs() < 1e-3, "{same}");
    let other = against(&["--kv", "q8", "--chunks", "2"]);
    assert_eq!(number(&other, "tokens"), 2.0 * 31.0);
    assert!(
        number(&other, "mean") > 10.0 * number(&same, "mean").abs(),
        "{other}"
    );
    assert!(number(&other, "max") >= number(&other, "p99"));
    assert!(number(&other, "p99") >= number(&other, "median"));

    // The same perplexity as by the other command.
    let perplexity = [
        "perplexity",
        &demo,
        "-f",
        path(&text),
        "--ctx",
        "64",
        "--json",
    ];
    let perplexity = number(
        &json(&eval(&[&perplexity[..], &EXACT].concat())),
        "perplexity",
    );
    assert!((own / perplexity - 1.0).abs() < 1e-6, "{own} {perplexity}");
}

#[test]
fn bad_references_are_refused() {
    let (demo, bad) = (demo(), written("bad.logits", "_logits_ and no more of it"));
    let said = eval(&["kl", &demo, "--against", path(&bad)]);
    assert!(
        !said.status.success() && said.stderr.contains("bad.logits"),
        "{said:?}"
    );
    let said = eval(&["kl", &demo]);
    assert!(
        !said.status.success() && said.stderr.contains("--against"),
        "{said:?}"
    );
    let (short, out) = (
        written("short.txt", "Once"),
        TemporaryFile::new("none.logits"),
    );
    let said = eval(&["kl", &demo, "--save", path(&out), "-f", path(&short)]);
    assert!(!said.status.success() && !out.0.exists(), "{said:?}");
}

#[test]
fn the_likelier_ending_is_chosen() {
    let lines = concat!(
        r#"{"context": "Once upon a time, there was a little", "choices": ["girl named Lily.", "of if to under."], "answer": 0}"#,
        "\n\n",
        r#"{"ctx": "She had a big red", "endings": ["because the the.", "ball."], "label": 1, "ind": 3}"#,
        "\n",
        r#"{"query": "They went to the park to", "choices": ["was was of.", "play."], "label": 0}"#,
    );
    let (demo, questions) = (demo(), written("questions.jsonl", lines));
    let usual = ["multiple-choice", &demo, "-f", path(&questions), "--json"];
    let result = json(&eval(&usual));
    assert_eq!(result["questions"], 3);
    // The third answer is wrong on purpose.
    for figure in ["accuracy", "accuracy_normalised"] {
        let right = result[figure].as_f64().expect("a number") * 3.0;
        assert!((right - 2.0).abs() < 1e-9, "{result}");
    }
    assert_eq!(
        json(&eval(&[&usual[..], &["-n", "1"]].concat()))["accuracy"],
        1.0
    );
}

#[test]
fn bad_questions_are_refused_by_file_and_line() {
    let demo = demo();
    let refused = |lines: &str, part: &str| {
        let questions = written("bad.jsonl", lines);
        let said = eval(&["multiple-choice", &demo, "-f", path(&questions)]);
        let names_both = said.stderr.contains("bad.jsonl") && said.stderr.contains(part);
        assert!(!said.status.success() && names_both, "{said:?}");
    };
    refused("{\"context\": 1}", "line 1");
    refused(
        r#"{"context": "a", "choices": ["b", "c"], "answer": 2}"#,
        "question 1",
    );
    refused("\n", "there are none");
}
