//! Forebay runs language models that are larger than memory, fast, from flash storage.
//!
//! ```no_run
//! use forebay::{Engine, Request, StreamItem};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let engine = Engine::builder().model("model.gguf").memory(2 << 30).build()?;
//! let mut session = engine.session();
//! for item in session.generate(Request::text("Once upon a time"))? {
//!     match item? {
//!         StreamItem::Prompt(progress) => eprintln!("{} of {}", progress.done, progress.total),
//!         StreamItem::Token(token) => print!("{}", token.text),
//!         StreamItem::Rest(text) => print!("{text}"),
//!         StreamItem::Done(statistics) => println!("\n{}", statistics.summary()),
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! The stream is a [`futures_core::Stream`] as well as a blocking iterator; dropping it cancels.
#![forbid(unsafe_code)]

pub mod bench;
pub mod demo;
mod engine;
mod error;
pub mod learn;
pub mod packed;
mod planner;
mod request;
mod stats;
mod stream;

pub use engine::{Engine, EngineBuilder, Perplexity, PlanGoal, Session};
pub use error::Error;
pub use forebay_actors::decode::{NeuronOptions, Observer};
pub use forebay_actors::io::DriverChoice;
pub use forebay_models as models;
pub use forebay_models::kv_cache::KvType;
pub use forebay_models::sampler::SamplerConfig;
pub use forebay_plans as plans;
pub use forebay_plans::residency::{Loading, Pipeline, Sparsity};
pub use forebay_stages::cache::PolicyKind;
pub use forebay_stages::kernels::Isa;
pub use forebay_traces as traces;
pub use planner::{Measure, survey};
pub use request::{Prompt, Request};
pub use stats::{
    CacheStatistics, IoStatistics, MemoryStatistics, PhaseStatistics, PromptStatistics, Statistics,
};
pub use stream::{PromptProgress, StreamItem, Token, TokenStream};
