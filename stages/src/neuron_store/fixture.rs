//! A small store for tests.

use forebay_models::block::BlockType;
use forebay_models::bundle::{FfnGeometry, FfnLayout};
use forebay_plans::residency::Loading;
use forebay_queues::slab::{PAGE, Slab};

use super::{NeuronMemory, NeuronRules, NeuronStore};
use crate::cache::PolicyKind;

/// Neurons of its only cluster.
pub const NEURONS: usize = 64;

pub fn geometry() -> FfnGeometry {
    FfnGeometry {
        layout: FfnLayout::Neuron,
        gate: BlockType::F32,
        up: Some(BlockType::F32),
        down: BlockType::F32,
        d_model: 128,
        neurons: NEURONS,
    }
}

/// A store of `slots` slots with nothing in it, and one read buffer.
pub fn store(slots: usize, policy: PolicyKind) -> NeuronStore {
    let slot_bytes = geometry().bundle_bytes();
    let (bytes, buffer) = (slots * slot_bytes, 2 * PAGE);
    let mut slab = Slab::new(bytes.next_multiple_of(PAGE) + buffer).expect("small");
    let memory = NeuronMemory {
        neurons: NEURONS,
        slots,
        slot_bytes,
        store: slab.carve(bytes),
        buffers: slab.carve(buffer).into_iter().collect(),
        ..NeuronMemory::default()
    };
    let rules = NeuronRules {
        policy,
        loading: Loading::Bundle,
        whole: true,
    };
    NeuronStore::new(memory, rules, (4, NEURONS))
}
