//! `forebay eval multiple-choice`

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::Args;
use forebay::Error;
use forebay::quality::{Choices, Question, choose};

use super::super::engine_flags::EngineFlags;
use super::super::numbers::at_least;
use super::super::output::{print_json, print_text, say, warn_of_loss};
use super::super::text::read_text;
use super::engine;

#[derive(Debug, Args)]
pub struct MultipleChoice {
    /// A .gguf or .fbay file, or a safetensors folder.
    model: PathBuf,
    /// Questions, a JSON object per line: context (or ctx, query, question), choices (or endings), answer (or label),
    /// which counts from 0.
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Questions to ask [default: all].
    #[arg(short, value_name = "N", value_parser = at_least::<1>)]
    n: Option<u32>,
    #[command(flatten)]
    engine: EngineFlags,
    /// Longest question with its ending, tokens.
    #[arg(
        long,
        short = 'c',
        alias = "ctx-size",
        value_name = "N",
        default_value_t = 512
    )]
    #[arg(value_parser = at_least::<3>)]
    ctx: u32,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl MultipleChoice {
    pub fn execute(self) -> anyhow::Result<()> {
        let most = self.n.map_or(usize::MAX, |n| n as usize);
        let text = read_text(&self.file, "questions")?;
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, l)| !l.trim().is_empty());
        let questions = lines.take(most).map(|(i, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("{}, line {}: not a question", self.file.display(), i + 1))
        });
        let questions: Vec<Question> = questions.collect::<anyhow::Result<_>>()?;
        let engine = engine(&self.model, self.ctx as usize, &self.engine, self.json)?;
        let said = |done, of, so_far: &Choices| {
            if !self.json {
                let percent = 100.0 * so_far.accuracy_normalised;
                say(format_args!("question {done} of {of}: {percent:.2}%"));
            }
        };
        let result = choose(&engine, &questions, said).map_err(with_remedy);
        let result = result.with_context(|| self.file.display().to_string())?;
        warn_of_loss(engine.device_problem());
        if self.json {
            return print_json(&result);
        }
        print_text(&format!(
            "{:.2}% ± {:.2} right by probability per byte, {:.2}% by probability, of {} questions\n",
            100.0 * result.accuracy_normalised,
            100.0 * result.stderr,
            100.0 * result.accuracy,
            result.questions
        ))
    }
}

/// What the user can do is not what can be done about other texts.
fn with_remedy(error: Error) -> anyhow::Error {
    match error {
        Error::QuestionTooLong { .. } => {
            anyhow!("{error}; give a larger --ctx, or leave the question out")
        }
        other => other.into(),
    }
}
