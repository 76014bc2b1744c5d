//! How much a setting changes what a model says: its divergence from a reference run, and its choices among given
//! answers. Everything here uses the engine as any caller could.

mod choices;
mod divergence;
mod experts;
mod saved_logits;

pub use choices::{Choices, Question, choose};
pub use divergence::{Divergence, compare, save};
pub(crate) use experts::divergence_path;
pub use experts::{AllExperts, ExpertsDivergence};
pub use saved_logits::{Header, LogitsReader, LogitsWriter};
