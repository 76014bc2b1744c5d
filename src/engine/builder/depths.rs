//! How many reads are in flight.

/// Maximum number of reads in flight: NVMe and UFS gain little beyond, and a core's window is
/// shorter anyway.
pub(super) const IO_DEPTH: usize = 64;
/// Reads in flight while the disk's ceiling is measured.
pub(super) const PROBE_DEPTH: usize = 16;
