//! The packed file (`.fbay`, a *bundle* in code): a model laid out for streaming in units of
//! clusters.
//!
//! docs/format.md describes the format byte by byte. In short: a header page, then every weight matrix cut into
//! *clusters* that start on 4 KiB boundaries and carry a checksum each, most of them regrouped into panels of 16 rows
//! ([`crate::panel`]), then the small sections (metadata, tokenizer, vectors, directory, neuron checksums).

mod amend;
mod check;
mod format;
mod geometry;
mod hot_set;
mod meta;
mod options;
mod pack;
mod reader;
mod room;
mod texts;
mod vectors;
mod writer;

pub use amend::{Amendment, PackedPredictor, amend};
pub use format::{ALIGN, DirectoryEntry, FORMAT_VERSION, HOT_VERSION, checksum};
pub use geometry::{FfnGeometry, FfnLayout, MAX_BUNDLES, MAX_NEURONS};
pub use hot_set::{HotNeuron, ffn_identity, hot_set_path, load_hot_set, save_hot_set};
pub use meta::{BundleMeta, GateCalibration, LayerPredictor, SourceIdentity, StoredMatrix};
pub use options::{COLUMN_FORMAT, PackOptions, for_narrow_rows};
pub use pack::{PackProgress, Weighing, outline, pack, pack_consuming};
pub use reader::{Bundle, FileStamp, NeuronSums};
pub use vectors::Vectors;
