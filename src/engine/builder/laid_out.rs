//! A model that was read, before it is loaded.

use forebay_models::bundle::Bundle;
use forebay_models::network::Network;
use forebay_models::tokenizer::Tokenizer;
use forebay_plans::plan::Plan;
use forebay_plans::residency::Sparsity;
use forebay_stages::kernels::KernelTable;
use forebay_stages::rule::Rule;

use super::device_choice::OpenDevice;
use crate::chat::ChatFormat;
use crate::memory::MemoryPlan;

/// A model's description, and how it is to be run.
pub(super) struct Described {
    pub kernels: KernelTable,
    pub bundle: Bundle,
    pub texts: (Tokenizer, ChatFormat),
    pub network: Network,
    pub sparsity: Sparsity,
    /// That may compute.
    pub cores: Vec<usize>,
    pub rule: Rule,
}

/// The same with its memory divided.
pub(super) struct LaidOut {
    pub described: Described,
    pub memory: MemoryPlan,
    pub threads: usize,
    /// What was in memory before.
    pub process: u64,
    /// The plan that was followed, if there was one.
    pub made: Option<Plan>,
    /// The device, or why there is none.
    pub device: Option<OpenDevice>,
    pub no_device: Option<String>,
}
