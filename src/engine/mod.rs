//! The engine: a model opened under a budget, and the thread that drives its decode graph.

mod builder;
mod chat;
mod facts;
mod handle;
mod session;
mod thread;

pub use builder::build::ModelDescription;
pub use builder::device_choice::{DeviceChoice, DevicePlacing};
pub(crate) use builder::fewer_experts::checked;
pub use builder::plan_goal::PlanGoal;
pub use builder::settings::EngineBuilder;
pub use handle::Engine;
pub use session::Session;
pub use thread::decoded::Decoded;
pub use thread::score::Perplexity;
pub(crate) use thread::score::chunks_to_score;
pub(crate) use thread::softmax::best_and_log_sum;
