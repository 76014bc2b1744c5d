//! Small always-resident vectors: norms and biases, kept in f32.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::Result;
use crate::network::Network;
use crate::source::{TensorSource, read_vector};
use crate::tensor::TensorId;

/// All vectors of a model, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors {
    values: Vec<f32>,
    /// Where each is in `values`.
    ranges: BTreeMap<TensorId, Range<usize>>,
}

impl Vectors {
    /// The vectors of `network`, whose values follow each other in the order of [`Network::vectors`]; `None` if the
    /// number of values does not match.
    pub fn new(network: &Network, values: Vec<f32>) -> Option<Self> {
        let (mut ranges, mut end) = (BTreeMap::new(), 0usize);
        for (id, len) in network.vectors() {
            let start = end;
            end = start.checked_add(len)?;
            ranges.insert(id, start..end);
        }
        (end == values.len()).then_some(Self { values, ranges })
    }

    /// Reads the vectors of `source`.
    ///
    /// # Errors
    /// A missing vector, or a failed read.
    pub fn read(source: &dyn TensorSource) -> Result<Self> {
        let (mut values, mut ranges) = (Vec::new(), BTreeMap::new());
        for (id, _) in source.network().vectors() {
            let start = values.len();
            values.extend(read_vector(source, id)?);
            ranges.insert(id, start..values.len());
        }
        Ok(Self { values, ranges })
    }

    /// A norm or bias; empty if the network has none in this role.
    pub fn get(&self, id: TensorId) -> &[f32] {
        &self.values[self.range(id)]
    }

    /// Where it is in [`Vectors::values`]; biases of Q, K and V of a layer are consecutive.
    pub fn range(&self, id: TensorId) -> Range<usize> {
        self.ranges.get(&id).cloned().unwrap_or(0..0)
    }

    /// All values, one vector after the other.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Little-endian f32.
    pub(super) fn encode(&self) -> Vec<u8> {
        let bytes = self.values.iter().flat_map(|x| x.to_le_bytes());
        bytes.collect()
    }

    /// Inverse of [`Vectors::encode`]; `None` if the length does not fit the network.
    pub(super) fn decode(bytes: &[u8], network: &Network) -> Option<Self> {
        let (floats, rest) = bytes.as_chunks::<4>();
        let values = floats.iter().map(|b| f32::from_le_bytes(*b)).collect();
        rest.is_empty().then(|| Self::new(network, values))?
    }
}
