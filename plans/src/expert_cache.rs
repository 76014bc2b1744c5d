//! Memory for experts: cells, one cluster each.

use forebay_models::bundle::{Bundle, DirectoryEntry};
use forebay_models::network::Content;
use serde::Serialize;

/// Maximum bytes per cell of the expert cache's directory.
const CELL_DIRECTORY_BYTES: usize = 320;

/// Where parts of a cluster are read, bytes between two of them that are read rather than left out: a disk that reads
/// 3 GB per second begins 65,000 reads meanwhile.
pub const READ_GAP: usize = 40 << 10;

/// Cells of the expert cache of one core: each holds a cluster of an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExpertCachePlan {
    /// Clusters that fit, per core.
    pub cells: usize,
    /// Bytes of a cell: those of the largest cluster of an expert.
    pub cell_bytes: usize,
}

impl ExpertCachePlan {
    /// Minimum number of cells of a core: one is computed while others are read.
    pub const LEAST_CELLS: usize = 4;

    /// The smallest one; without cells for a model without experts.
    pub fn least(bundle: &Bundle) -> Self {
        let cell_bytes = cell_bytes(bundle);
        let cells = if cell_bytes == 0 {
            0
        } else {
            Self::LEAST_CELLS
        };
        Self { cells, cell_bytes }
    }

    /// Bytes per core: cells with their directory.
    pub fn bytes_per_core(&self) -> usize {
        self.cells * self.bytes_per_cell()
    }

    /// Bytes of a cell with its part of the directory.
    pub fn bytes_per_cell(&self) -> usize {
        self.cell_bytes + CELL_DIRECTORY_BYTES
    }
}

/// Bytes of a cell of the expert cache; 0 for a model without experts.
fn cell_bytes(bundle: &Bundle) -> usize {
    let experts = bundle.clusters.iter().filter(|e| is_expert(e));
    experts.map(DirectoryEntry::padded_len).max().unwrap_or(0)
}

/// Whether it is a cluster of an expert.
pub fn is_expert(e: &DirectoryEntry) -> bool {
    matches!(e.content, Content::Experts(_))
}
