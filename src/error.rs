//! Everything that can go wrong. A variant tells what happened; what to do about it is added by the caller's interface:
//! `cli::remedy` on the command line.

use std::path::PathBuf;

use forebay_actors::fault::Fault;
use forebay_devices::DeviceFault;
use forebay_models::error::{ModelError, Shown};
use forebay_plans::PlanError;
use forebay_plans::budget::ImpossibleBudget;
use forebay_plans::size::format_size;
use forebay_stages::kernels::Isa;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model file, folder or tokenizer.
    #[error(transparent)]
    Model(ModelError),
    /// The machine's topology, limits or cache folder, or a plan's file.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The memory budget.
    #[error(transparent)]
    Budget(#[from] ImpossibleBudget),
    /// Less memory for weights than the minimum for running the model.
    #[error(
        "a weight memory of {asked} bytes is too small; the minimum on {threads} cores is {least} bytes"
    )]
    WeightMemory {
        /// Bytes that were given.
        asked: u64,
        /// Minimum number of bytes.
        least: u64,
        /// Compute cores.
        threads: usize,
    },
    /// No memory within the budget gives the requested speed.
    #[error(
        "{tokens_per_second} tokens per second would need about {}, more than the {} that there are for it",
        format_size(*needed), format_size(*available)
    )]
    SpeedOutOfReach {
        /// The requested speed.
        tokens_per_second: f64,
        /// Memory that the speed would need, bytes.
        needed: u64,
        /// Memory that is available, bytes.
        available: u64,
    },
    /// A conversation with a model that was not trained on any, as far as its file says.
    #[error("{model}: the model has no chat template")]
    NoChatTemplate {
        /// The model as the caller named it.
        model: String,
    },
    /// A chat template that fails.
    #[error("{}: {}", Shown::name(template), Shown::message(problem))]
    ChatTemplate {
        /// Its file, or the model and the key in it.
        template: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A chat template refuses a conversation.
    #[error(
        "{}: the chat template refuses this conversation: {}",
        Shown::name(template),
        Shown::message(message)
    )]
    ChatRefused {
        /// Its file, or the model and the key in it.
        template: String,
        /// Why, in the template's words.
        message: String,
    },
    /// A message names control tokens, and the chat template changes it so that they cannot be told from its own.
    #[error(
        "{}: a message has the name of a control token in it, and the chat template changes it in a way that makes it \
         one",
        Shown::name(template)
    )]
    ControlTokenInText {
        /// Its file, or the model and the key in it.
        template: String,
    },
    /// Neither the request nor the session has any tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A text and one token more do not fit.
    #[error(
        "the text has at least {tokens} tokens but the context holds {context}{}{}",
        match context == trained {
            true => ", for which the model was trained",
            false => "",
        },
        match tokens == context {
            true => ", and one more has to fit",
            false => "",
        }
    )]
    ContextTooSmall {
        /// Tokens of the text, and the room that was asked for; a longer text is not counted to its end.
        tokens: usize,
        /// Positions of the KV cache.
        context: usize,
        /// The most positions that it can have.
        trained: usize,
    },
    /// A multiple-choice question that does not fit.
    #[error(
        "question {question} has {tokens} tokens with one of its endings, but the context holds {context}"
    )]
    QuestionTooLong {
        /// Counted from 1.
        question: usize,
        /// Tokens of the question with the ending.
        tokens: usize,
        /// Positions of the KV cache.
        context: usize,
    },
    /// A context that the model cannot use.
    #[error("a context of {asked} tokens is beyond the {trained} for which the model was trained")]
    ContextTooLarge {
        /// Requested positions.
        asked: usize,
        /// Positions for which the model was trained.
        trained: usize,
    },
    /// A token for which the model has no embedding.
    #[error(
        "token {token}{} is outside the vocabulary of {vocabulary}",
        named(text)
    )]
    TokenOutsideVocabulary {
        /// Its id.
        token: u32,
        /// What it stands for, if the tokenizer knows it.
        text: String,
        /// Number of tokens in the vocabulary.
        vocabulary: usize,
    },
    /// A text that is too short to be measured or learned from.
    #[error("the text has {tokens} tokens, fewer than the {piece} of one piece")]
    TooFewTokens {
        /// Its tokens.
        tokens: usize,
        /// Tokens of a piece.
        piece: usize,
    },
    /// A text that is too short to be learned from, beside what is only for measuring.
    #[error(
        "{tokens} tokens of the text are used, fewer than {tests} pieces of {piece} to measure perplexity on, and one \
         to learn from"
    )]
    TooFewForTests {
        /// Its tokens.
        tokens: usize,
        /// Pieces that are only for measuring.
        tests: usize,
        /// Tokens of a piece.
        piece: usize,
    },
    /// A parameter outside its range.
    #[error("{name}: {problem}")]
    InvalidParameter {
        /// Its name in the library.
        name: String,
        /// What is wrong with it, and which values are accepted.
        problem: String,
    },
    /// An instruction set that the CPU does not have.
    #[error("this CPU does not have {asked}; it has {}", names(available))]
    MissingIsa {
        /// The requested one.
        asked: Isa,
        /// Those that it has.
        available: Vec<Isa>,
    },
    /// Thresholds were requested that have not been calibrated.
    #[error("{model}: thresholds have not been calibrated for this model")]
    NotCalibrated {
        /// The packed model.
        model: PathBuf,
    },
    /// Predictions were requested of a model without predictors.
    #[error("{model}: the model has no activation predictors")]
    NoPredictors {
        /// The packed model.
        model: PathBuf,
    },
    /// Predictors were requested for a model whose activation has no true zeros.
    #[error("{model}: its FFN has no true zeros (SwiGLU); predictors are for ReLU models")]
    NotSparse {
        /// The model as the caller named it.
        model: String,
    },
    /// A profile was requested in a mode that wants all neurons.
    #[error(
        "a model whose neurons are all computed, and that has no experts, has nothing to profile"
    )]
    NothingToProfile,
    /// A bad profile file.
    #[error("{path}: not a profile ({source})")]
    Profile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// A device or a core failed during a step. After a read that failed, the engine stays usable; when a core or the
    /// I/O actor has stopped, every later request fails likewise, and a new engine has to be built.
    #[error("{path}: {fault}")]
    Fault {
        /// The packed model.
        path: PathBuf,
        /// What happened.
        fault: Fault,
    },
    /// The device that was asked for cannot be used.
    #[error("{fault}")]
    Device {
        /// Why.
        fault: DeviceFault,
    },
    /// The system refused a resource.
    #[error("cannot {action}: {reason}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's answer.
        reason: String,
    },
    /// The engine thread has panicked, which is a bug of ours or of a `tracing` subscriber. Every job fails then,
    /// whether it is under way, waits or comes later.
    #[error("the engine has failed: {cause}; build a new one")]
    EngineFailed {
        /// Panic message.
        cause: String,
    },
    /// The engine has been shut down.
    #[error("the engine has stopped; build a new one")]
    Stopped,
}

/// What a token stands for, behind its number.
fn named(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!(" ({})", Shown::name(text)),
    }
}

fn names(isas: &[Isa]) -> String {
    let names: Vec<&str> = isas.iter().map(|isa| isa.name()).collect();
    names.join(", ")
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Parameter {
                field,
                problem,
                remedy,
            } => Self::InvalidParameter {
                name: field,
                problem: format!("{problem}; {remedy}"),
            },
            other => Self::Model(other),
        }
    }
}

impl Error {
    /// A requested instruction set that the CPU does not have.
    pub(crate) fn no_isa(asked: Isa) -> Self {
        Self::MissingIsa {
            asked,
            available: Isa::available().collect(),
        }
    }

    pub(crate) fn parameter(name: &str, problem: impl Into<String>) -> Self {
        Self::InvalidParameter {
            name: name.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn system(action: impl Into<String>, reason: impl ToString) -> Self {
        Self::System {
            action: action.into(),
            reason: reason.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_instruction_set_names_those_there_are() {
        let message = Error::no_isa(Isa::Avx512).to_string();
        assert!(message.contains("not have avx512vnni"), "{message}");
        for isa in Isa::available() {
            assert!(message.contains(isa.name()), "{message}");
        }
    }
}
