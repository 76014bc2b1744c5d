//! What the machine offers and how it is divided: topology, limits, measurements, the itemised
//! memory budget, and the doctor that explains them. Nothing here starts an actor or opens a model.
#![forbid(unsafe_code)]

pub mod bandwidth;
pub mod budget;
pub mod cache_dir;
pub mod cgroup;
pub mod cost;
pub mod cpu_features;
pub mod device_formats;
pub mod doctor;
pub mod error;
pub mod expert_cache;
#[cfg(test)]
mod fake_tree;
pub mod fewer_experts;
pub mod giving_way;
pub mod kernel_files;
pub mod limits;
pub mod machine;
pub mod mounts;
pub mod on_device;
pub mod pinning;
pub mod placement;
pub mod plan;
pub mod predictor_fit;
pub mod preload;
pub mod process;
pub mod program;
pub mod residency;
pub mod room_to_start;
pub mod size;
pub mod storage;
pub mod topology;
pub mod uploads;

pub use error::PlanError;
