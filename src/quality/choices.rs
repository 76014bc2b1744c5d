//! Multiple-choice questions, as HellaSwag has them: the model chooses the ending that it finds most likely.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::engine::{Engine, best_and_log_sum};
use crate::error::Error;
use forebay_models::tokenizer::EncodeOptions;

/// A question: one line of a JSONL file.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Question {
    /// The text before every ending.
    #[serde(alias = "ctx", alias = "query", alias = "question")]
    pub context: String,
    /// The endings to choose from; a space comes before each.
    #[serde(alias = "endings")]
    pub choices: Vec<String>,
    /// Index of the right one.
    #[serde(alias = "label", deserialize_with = "number_or_digits")]
    pub answer: usize,
}

/// A number, or its digits as a text, as Hugging Face exports labels.
fn number_or_digits<'de, D: Deserializer<'de>>(input: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Label {
        Number(usize),
        Digits(String),
    }
    match Label::deserialize(input) {
        Ok(Label::Number(n)) => Ok(n),
        Ok(Label::Digits(text)) => text.parse().map_err(|_| {
            D::Error::custom(format!("answer {text:?} is not the number of a choice"))
        }),
        Err(_) => Err(D::Error::custom("the answer is not the number of a choice")),
    }
}

/// How many questions were answered right.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Choices {
    /// Questions asked.
    pub questions: usize,
    /// Part in which the ending with the largest probability was right.
    pub accuracy: f64,
    /// The same with log-probabilities per byte of the ending, which does not favour short endings. This is the figure
    /// that is usually quoted.
    pub accuracy_normalised: f64,
    /// Standard error of the normalised accuracy.
    pub stderr: f64,
}

/// Asks all questions. `progress` is told the questions asked, their number and the result so far.
///
/// # Errors
/// No questions; one without two choices, with an answer that is none of them or with an empty context or ending; one
/// that is longer than the engine's context; a fault. Questions are counted from 1.
pub fn choose(
    engine: &Engine,
    questions: &[Question],
    mut progress: impl FnMut(usize, usize, &Choices),
) -> Result<Choices, Error> {
    for (i, question) in questions.iter().enumerate() {
        if let Some(problem) = problem(question) {
            return Err(Error::parameter(&format!("question {}", i + 1), problem));
        }
    }
    let (mut right, mut right_normalised) = (0, 0);
    let mut result = Choices::default();
    for (i, question) in questions.iter().enumerate() {
        let mut scores = Vec::with_capacity(question.choices.len());
        for ending in &question.choices {
            let score = log_probability(engine, &question.context, ending)
                .map_err(|error| of_question(i + 1, error))?;
            scores.push((score, score / ending.len() as f64));
        }
        right += usize::from(largest(scores.iter().map(|s| s.0)) == question.answer);
        right_normalised += usize::from(largest(scores.iter().map(|s| s.1)) == question.answer);
        let n = (i + 1) as f64;
        let part = right_normalised as f64 / n;
        result = Choices {
            questions: i + 1,
            accuracy: right as f64 / n,
            accuracy_normalised: part,
            stderr: (part * (1.0 - part) / n).sqrt(),
        };
        progress(i + 1, questions.len(), &result);
    }
    match questions.is_empty() {
        true => Err(Error::parameter("questions", "there are none")),
        false => Ok(result),
    }
}

/// The error with the question's number.
fn of_question(question: usize, error: Error) -> Error {
    match error {
        Error::ContextTooSmall {
            tokens, context, ..
        } => Error::QuestionTooLong {
            question,
            tokens,
            context,
        },
        other => Error::parameter(&format!("question {question}"), other.to_string()),
    }
}

fn problem(question: &Question) -> Option<String> {
    let n = question.choices.len();
    if n < 2 {
        return Some(format!("it has {n} choices; at least 2 are needed"));
    }
    if question.answer >= n {
        return Some(format!(
            "answer {} is not one of its {n} choices, which are counted from 0",
            question.answer
        ));
    }
    let is_empty = question.context.is_empty() || question.choices.iter().any(String::is_empty);
    is_empty.then(|| "its context or one of its choices is empty".into())
}

/// The first of the largest.
fn largest(scores: impl Iterator<Item = f64>) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (i, score) in scores.enumerate() {
        if score > best.1 {
            best = (i, score);
        }
    }
    best.0
}

/// Log-probability of the ending's tokens after the context's.
fn log_probability(engine: &Engine, context: &str, ending: &str) -> Result<f64, Error> {
    let tokenizer = engine.tokenizer();
    let options = EncodeOptions {
        add_bos: tokenizer.adds_bos(),
        parse_special: false,
    };
    let alone = tokenizer.encode(context, options)?;
    let tokens = tokenizer.encode(&format!("{context} {ending}"), options)?;
    // A token may reach from the context into the ending.
    let same = alone
        .iter()
        .zip(&tokens)
        .take_while(|(a, b)| a == b)
        .count();
    let first = same.clamp(1, tokens.len().saturating_sub(1).max(1)) - 1;
    let mut sum = 0.0;
    engine.logits(&tokens, first, |position, logits| {
        if let Some(&next) = tokens.get(position + 1) {
            let (_, log_sum) = best_and_log_sum(logits);
            sum += f64::from(logits[next as usize]) - log_sum;
        }
    })?;
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_by_any_of_their_usual_names() {
        let expected = Question {
            context: "a".into(),
            choices: vec!["b".into(), "c".into()],
            answer: 1,
        };
        for line in [
            r#"{"context": "a", "choices": ["b", "c"], "answer": 1}"#,
            r#"{"ctx": "a", "endings": ["b", "c"], "label": 1, "ind": 7}"#,
            r#"{"query": "a", "choices": ["b", "c"], "label": 1}"#,
            r#"{"query": "a", "choices": ["b", "c"], "label": "1"}"#,
        ] {
            let question: Question = serde_json::from_str(line).expect(line);
            assert_eq!(question, expected);
            assert_eq!(problem(&question), None);
        }
    }

    #[test]
    fn an_answer_that_is_no_number_is_told() {
        for answer in ["\"\"", "\"b\"", "-1", "0.5", "null"] {
            let line = format!(r#"{{"query": "a", "choices": ["b", "c"], "label": {answer}}}"#);
            let read = serde_json::from_str::<Question>(&line);
            let problem = read.expect_err(answer).to_string();
            assert!(problem.contains("not the number of a choice"), "{problem}");
        }
    }

    #[test]
    fn bad_questions_are_told() {
        let question = |choices: &[&str], answer| Question {
            context: "a".into(),
            choices: choices.iter().map(|c| (*c).into()).collect(),
            answer,
        };
        assert!(problem(&question(&["b"], 0)).is_some());
        assert!(problem(&question(&["b", "c"], 2)).is_some());
        assert!(problem(&question(&["b", ""], 0)).is_some());
    }

    #[test]
    fn of_equals_the_first_is_chosen() {
        assert_eq!(largest([-2.0, -1.0, -1.0].into_iter()), 1);
    }
}
