//! Everything that can go wrong. A variant says what happened; what to do about it is said by whoever knows the
//! reader: `cli::remedy` for people at a command line.

use std::path::PathBuf;

use forebay_actors::fault::Fault;
use forebay_models::error::ModelError;
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
    /// Less memory for weights than passes them through.
    #[error(
        "a weight memory of {asked} bytes is too small; the least possible on {threads} cores is {least} bytes"
    )]
    WeightMemory {
        /// Bytes that there were.
        asked: u64,
        /// Bytes that would do.
        least: u64,
        /// Compute cores.
        threads: usize,
    },
    /// No memory within the budget gives the speed that was asked for.
    #[error(
        "{tokens_per_second} tokens per second would take about {}, more than the {} that there are",
        format_size(*needed), format_size(*available)
    )]
    SpeedOutOfReach {
        /// What was asked for.
        tokens_per_second: f64,
        /// Bytes.
        needed: u64,
        /// Bytes.
        available: u64,
    },
    /// Neither the request nor the session has any tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A text and one token more do not fit.
    #[error("the text has at least {tokens} tokens but the context holds {context}")]
    ContextTooSmall {
        /// Tokens of the text; a longer one is not counted to its end.
        tokens: usize,
        /// Positions of the KV cache.
        context: usize,
    },
    /// A context that the model cannot use.
    #[error("a context of {asked} tokens is beyond the {trained} that the model was trained for")]
    ContextTooLarge {
        /// Positions that were asked for.
        asked: usize,
        /// Positions that the model was trained for.
        trained: usize,
    },
    /// A token that the model has no embedding for.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    TokenOutsideVocabulary {
        /// Its id.
        token: u32,
        /// Tokens of the vocabulary.
        vocabulary: usize,
    },
    /// A text that is too short to be measured or learned from.
    #[error("the text has {tokens} tokens, fewer than one piece of {piece}")]
    TooFewTokens {
        /// Its tokens.
        tokens: usize,
        /// Tokens of a piece.
        piece: usize,
    },
    /// A parameter outside its range.
    #[error("{name}: {problem}")]
    InvalidParameter {
        /// Its name in the library.
        name: String,
        /// What is wrong with it, and what would be accepted.
        problem: String,
    },
    /// An instruction set that the CPU does not have.
    #[error("this CPU does not have {asked}; it has {}", names(available))]
    MissingIsa {
        /// What was asked for.
        asked: Isa,
        /// What there is.
        available: Vec<Isa>,
    },
    /// Thresholds were asked for that have not been calibrated.
    #[error("{model}: thresholds have not been calibrated for this model")]
    NotCalibrated {
        /// The packed model.
        model: PathBuf,
    },
    /// Predictions were asked for of a model without predictors.
    #[error("{model}: the model has no activation predictors")]
    NoPredictors {
        /// The packed model.
        model: PathBuf,
    },
    /// Predictors were asked for that the model's activation has no use for.
    #[error("{model}: its FFN has no true zeros (SwiGLU); predictors are for ReLU models")]
    NotSparse {
        /// The model as it was named.
        model: String,
    },
    /// A profile was asked for where all neurons are wanted.
    #[error("a model of which all neurons are computed has nothing to profile")]
    NothingToProfile,
    /// A profile's file.
    #[error("{path}: not a profile ({source})")]
    Profile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// A device or a core failed while tokens flowed; the engine stays usable.
    #[error("{path}: {fault}")]
    Fault {
        /// The packed model.
        path: PathBuf,
        /// What happened.
        fault: Fault,
    },
    /// The system refused a resource.
    #[error("cannot {action}: {reason}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's answer.
        reason: String,
    },
    /// The engine thread has panicked, which is a bug of ours or of a `tracing` subscriber. Every job fails then, whether
    /// it is under way, waits or comes later.
    #[error("the engine has failed: {cause}; build a new one")]
    EngineFailed {
        /// Panic message.
        cause: String,
    },
    /// The engine has been shut down.
    #[error("the engine has stopped; build a new one")]
    Stopped,
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
    /// An instruction set that was asked for and is not there.
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
