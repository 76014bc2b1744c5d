//! Forebay runs language models that are larger than memory, fast, from flash storage.
//!
//! ```no_run
//! use forebay::{Engine, Request, StreamItem};
//!
//! # fn main() -> Result<(), forebay::Error> {
//! let engine = Engine::builder().model("model.gguf").memory(2 << 30).build()?;
//! let mut session = engine.session();
//! let request = Request::text("Once upon a time").max_tokens(200);
//! for item in session.generate(request)?.blocking() {
//!     match item? {
//!         StreamItem::Token(token) => print!("{}", token.text),
//!         StreamItem::Rest(text) => print!("{text}"),
//!         StreamItem::Done(statistics) => println!("\n{}", statistics.summary()),
//!         _ => {}
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! [`Session::chat`] takes a conversation and returns the model's next message.
//! [`Session::generate`] returns a [`TokenStream`], which is a [`futures_core::Stream`] and needs no particular
//! runtime; [`TokenStream::blocking`] makes it an iterator. Dropping either cancels the generation, and so does a
//! [`Canceller`], from any thread. [`EngineBuilder::build`] blocks while it reads gigabytes, and dropping an [`Engine`]
//! until its step is over: in an async program, give both to the runtime's threads for blocking work
//! (`tokio::task::spawn_blocking(move || builder.build())`).
//!
//! # In an application
//! - The budget is the process's: it includes what the application has in memory when the engine is built, but not what
//!   it takes afterwards. Engines of one process do not know of each other: give the second one the sum of both.
//! - Compute threads are pinned to the fastest cores, those of a second engine to the same ones.
//! - An engine runs one generation at a time, in the order of requests. It runs up to 64 tokens ahead of a slow reader,
//!   and a session's history has them even if they are never read: keep a [`Session::fork`] to go back to.
//! - The prompt's tokens are those read, [`PhaseStatistics::tokens`] of `prefill`, and those reused,
//!   [`PromptStatistics::reused_tokens`].
//! - Without optimisation an engine is 20 times slower, and this workspace's profiles do not apply to those who use it:
//!   for development, set `opt-level = 2` under `[profile.dev.package."*"]` in your own `Cargo.toml`.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cached;
mod chat;
pub mod demo;
#[cfg(feature = "gpu")]
pub mod devices;
mod engine;
mod error;
mod in_force;
pub mod learn;
mod lent;
mod live_budget;
mod memory;
pub mod packed;
mod planner;
mod profiles;
pub mod quality;
mod request;
mod speed;
mod stats;
mod stream;
mod token_rows;

pub use chat::{
    ChatAnswer, ChatFinish, ChatItem, ChatItems, ChatRequest, ChatStream, Message, Role, ToolCall,
};
pub use engine::{
    Decoded, DeviceChoice, DevicePlacing, Engine, EngineBuilder, ModelDescription, Perplexity,
    PlanGoal, Session,
};
pub use error::Error;
pub use in_force::{ClusterCounts, PlanInForce, StreamWindow};
pub use planner::{Measure, survey};
pub use request::{Prompt, Request};
pub use stats::{
    CacheStatistics, DeviceStatistics, DraftStatistics, FinishReason, IoStatistics,
    MemoryStatistics, PhaseStatistics, PromptStatistics, Statistics,
};
pub use stream::{
    BlockingTokens, Canceller, LogProbabilities, PromptProgress, StreamItem, Token,
    TokenLogProbability, TokenStream,
};

pub use forebay_actors::fault::Fault;
pub use forebay_actors::io::{DriverChoice, ReadFault};
pub use forebay_actors::shared::NeuronOptions;
pub use forebay_devices::DeviceFault;
pub use forebay_models::block::BlockType;
pub use forebay_models::bundle::{Bundle, PackOptions, PackProgress};
pub use forebay_models::error::ModelError;
pub use forebay_models::kv_type::KvType;
pub use forebay_models::network::{Content, Network};
pub use forebay_models::sampler::SamplerConfig;
pub use forebay_models::tensor::TensorId;
pub use forebay_models::tokenizer::{Detokenizer, EncodeOptions, TextPosition, Tokenizer};
pub use forebay_plans::PlanError;
pub use forebay_plans::budget::{Budget, BudgetItem, ImpossibleBudget};
pub use forebay_plans::expert_cache::ExpertCachePlan;
pub use forebay_plans::fewer_experts::FewerExperts;
pub use forebay_plans::machine::{DiskProfile, MachineProfile};
pub use forebay_plans::plan::{Choices, Expected, Plan, Reason};
pub use forebay_plans::predictor_fit::FitOptions;
pub use forebay_plans::residency::{Loading, NeuronCachePlan, Pipeline, Sparsity};
pub use forebay_stages::cache::PolicyKind;
pub use forebay_stages::frame::Observer;
pub use forebay_stages::kernels::Isa;
pub use forebay_stages::live_mask::LiveMask;
pub use forebay_traces::lane::TraceLane;
pub use forebay_traces::ledger::Bubbles;
