//! What a device does of attention, and what that takes.

use std::collections::BTreeSet;

use forebay_actors::device::AttentionCosts;
use forebay_devices::probe::HeadShape;
use forebay_models::bundle::Bundle;
use forebay_models::network::Network;
use forebay_plans::placement::{Operator, Placement, PlacementMachine};
use forebay_stages::attention::{DeviceHeads, KvRoom};

use super::device_choice::{DevicePlacing, OpenDevice, PIECE_SHARE, PROMPT, Placed};
use super::settings::EngineBuilder;
use crate::memory::MemoryPlan;

impl EngineBuilder {
    /// The shapes of heads for which a device can attend; none if somebody observes.
    pub(super) fn heads_on_device(&self, bundle: &Bundle) -> Vec<HeadShape> {
        let network = &bundle.meta.network;
        // Shapes depend neither on the cache's size nor on the number of cores.
        let room = KvRoom::new(network, self.kv_type, 1, 1, 1);
        let layers = (0..network.n_layers()).filter(|_| self.observer.is_none());
        let heads = layers.filter_map(|layer| DeviceHeads::of(network, &room, layer, (0, 1)));
        let shapes = heads.map(|heads| HeadShape {
            head_dim: heads.head_dim,
            value_dim: heads.value_dim,
            group: heads.group,
        });
        let possible = shapes.filter(HeadShape::is_possible);
        possible.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The part of attention in prompts of `context` positions that a device gets first; none if it cannot attend.
    pub(super) fn part_of_attention(
        &self,
        device: &OpenDevice,
        bundle: &Bundle,
        context: usize,
    ) -> f64 {
        if device.attends.is_err() || self.heads_on_device(bundle).is_empty() {
            return 0.0;
        }
        match &device.placing {
            DevicePlacing::Part(part) => part.clamp(0.0, 1.0),
            DevicePlacing::Fastest(machine) => {
                fastest_attention(machine, &bundle.meta.network, context).map_or(0.0, |f| f.0)
            }
        }
    }

    /// Adds what a device takes that attends in prompts to the budget, if there is room.
    pub(super) fn place_attention(
        &self,
        device: &OpenDevice,
        bundle: &Bundle,
        threads: usize,
        memory: &mut MemoryPlan,
    ) -> Placed<f64> {
        let part = self.part_of_attention(device, bundle, memory.context);
        let room = self.kv_room(bundle, memory);
        let costs = AttentionCosts::of((&bundle.meta.network, &room), threads, memory.max_batch);
        let Some(costs) = costs.filter(|_| part > 0.0) else {
            return Placed::NotFaster;
        };
        let (shared, own) = device.request.attention_bytes(&costs);
        let room = memory.budget.remaining() / PIECE_SHARE;
        if shared + own > room.max(memory.for_attention) {
            return Placed::NoRoom;
        }
        let why = "queries and results of attention on the device";
        memory.budget.claim("device_attention", own, why);
        let why = "keys and values for a device that shares the memory";
        memory.budget.claim("device_kv", shared, why);
        Placed::There(part)
    }

    /// What the KV cache has room for.
    pub(super) fn kv_room(&self, bundle: &Bundle, memory: &MemoryPlan) -> KvRoom {
        let network = &bundle.meta.network;
        KvRoom::new(network, self.kv_type, memory.context, memory.max_batch, 1)
    }
}

/// The fastest part of attention in prompts that a device gets, in the middle of a sequence of `context` positions, and
/// the alternatives that it beat; `None` if it does not pay.
pub(super) fn fastest_attention(
    machine: &PlacementMachine,
    network: &Network,
    context: usize,
) -> Option<(f64, String)> {
    let widest = network
        .attentions()
        .max_by_key(|a| a.window.unwrap_or(usize::MAX))?;
    let positions = context / 2;
    let operators = [Operator::of_attention(widest, positions)];
    let plan = Placement::plan(machine, &operators, PROMPT);
    let why = plan.explain(machine, &operators, PROMPT, 0);
    let why = format!("{why}, for {PROMPT} tokens that see {positions} positions");
    let part = plan.choices[0].part();
    (part > 0.0).then_some((part, why))
}
