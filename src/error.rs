//! Everything that can go wrong, with the remedy in the message.

use forebay_actors::fault::Fault;
use forebay_models::error::ModelError;
use forebay_plans::PlanError;
use forebay_plans::budget::ImpossibleBudget;
use forebay_stages::kernels::Isa;

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model file, tokenizer, prompt or parameter.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The machine's topology, limits or cache folder.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The memory budget.
    #[error(transparent)]
    Budget(#[from] ImpossibleBudget),
    /// A device or a core failed while tokens flowed; the engine stays usable.
    #[error("{path}: {fault}")]
    Fault {
        /// The packed model.
        path: String,
        /// What happened.
        fault: Fault,
    },
    /// The system refused a resource.
    #[error("cannot {action}: {reason}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's answer and the remedy.
        reason: String,
    },
    /// A request that cannot be served.
    #[error("{0}")]
    Request(String),
    /// The engine has been shut down.
    #[error("the engine has stopped; build a new one")]
    Stopped,
}

impl Error {
    /// An instruction set that was asked for and is not there.
    pub(crate) fn no_isa(asked: Isa) -> Self {
        let names: Vec<&str> = Isa::available().map(Isa::name).collect();
        Self::Request(format!(
            "this CPU does not have {asked}; it has {}: give one of these with --isa, or leave it away",
            names.join(", ")
        ))
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
