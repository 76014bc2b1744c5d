//! From settings to a running engine.

pub(super) mod build;
pub(super) mod checks;
pub(super) mod depths;
pub(super) mod device;
pub(super) mod device_attention;
pub(super) mod device_choice;
pub(super) mod draft_model;
pub(super) mod fewer_experts;
#[cfg(feature = "gpu")]
pub(super) mod gpu;
pub(super) mod laid_out;
pub(super) mod plan_goal;
pub(super) mod planning;
pub(super) mod settings;
pub(super) mod start;
