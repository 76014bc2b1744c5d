//! The hot set: neurons that were in the cache when a run ended, kept beside the packed model so that the
//! next run starts with them (PowerInfer-2 keeps its cache warm within a process only).
//!
//! File `NAME.fbay.hot`, little-endian: `FBHOT\0\0\1`, the identity of the FFN (8 bytes), then for each neuron, best
//! first, its cluster's directory index (4 bytes) and its number in the cluster (4), then XXH3-64 of everything before.

use std::path::{Path, PathBuf};

use super::format::checksum;
use super::reader::Bundle;
use crate::files::{read_regular, side_file, write_whole};

const MAGIC: &[u8; 8] = b"FBHOT\0\0\x01";

/// A neuron, by its location in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotNeuron {
    /// Directory index of its cluster.
    pub cluster: u32,
    /// Its number in the cluster.
    pub neuron: u32,
}

/// Name of the hot set of the packed model at `path`.
pub fn hot_set_path(path: &Path) -> PathBuf {
    side_file(path, ".hot")
}

/// Writes the hot set of `bundle`, best first. It is a hint: a failure to write it is ignored.
pub fn save_hot_set(bundle: &Bundle, neurons: &[HotNeuron]) {
    let mut bytes = Vec::with_capacity(24 + neurons.len() * 8);
    bytes.extend(MAGIC);
    bytes.extend(ffn_identity(bundle).to_le_bytes());
    for n in neurons {
        bytes.extend(n.cluster.to_le_bytes());
        bytes.extend(n.neuron.to_le_bytes());
    }
    bytes.extend(checksum(&bytes).to_le_bytes());
    let _ = write_whole(&hot_set_path(bundle.path()), &bytes);
}

/// The hot set of `bundle`, best first; empty if there is none, or if it is damaged or of another model.
pub fn load_hot_set(bundle: &Bundle) -> Vec<HotNeuron> {
    // Each neuron is in it once at most.
    let ffn = bundle.clusters.iter().filter(|e| e.content.is_ffn());
    let neurons: u64 = ffn.map(|e| u64::from(e.count)).sum();
    let most = 24 + neurons * 8;
    let bytes = read_regular(&hot_set_path(bundle.path()), most).unwrap_or_default();
    decode(&bytes, bundle).unwrap_or_default()
}

fn decode(bytes: &[u8], bundle: &Bundle) -> Option<Vec<HotNeuron>> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    let rest = body.strip_prefix(MAGIC)?;
    let (identity, neurons) = rest.split_first_chunk::<8>()?;
    let whole = checksum(body) == u64::from_le_bytes(*sum)
        && u64::from_le_bytes(*identity) == ffn_identity(bundle);
    let (pairs, tail) = neurons.as_chunks::<8>();
    let valid = |n: &HotNeuron| {
        let entry = bundle.clusters.get(n.cluster as usize);
        entry.is_some_and(|e| e.content.is_ffn() && n.neuron < e.count)
    };
    let neurons: Vec<HotNeuron> = pairs
        .iter()
        .map(|p| HotNeuron {
            cluster: u32::from_le_bytes([p[0], p[1], p[2], p[3]]),
            neuron: u32::from_le_bytes([p[4], p[5], p[6], p[7]]),
        })
        .collect();
    (whole && tail.is_empty() && neurons.iter().all(valid)).then_some(neurons)
}

/// Changes with the FFN's weights and their order, not with what is learned about them.
pub fn ffn_identity(bundle: &Bundle) -> u64 {
    let ffn = bundle.clusters.iter().enumerate();
    let ffn = ffn.filter(|(_, e)| e.content.is_ffn());
    let sums: Vec<u8> = ffn
        .flat_map(|(i, e)| [(i as u64).to_le_bytes(), e.sum.to_le_bytes()].concat())
        .collect();
    checksum(&sums)
}
