//! One simulation's circumstances, drawn from its seed: model, plan, modes, disk, schedule.

use std::collections::BTreeMap;

use forebay_actors::io::simulated::Weather;
use forebay_actors::shared::NeuronOptions;
use forebay_devices::simulated::Behaviour;
use forebay_models::bundle::{Bundle, FfnGeometry, FfnLayout};
use forebay_models::network::Content;
use forebay_plans::expert_cache::ExpertCachePlan;
use forebay_plans::fewer_experts::FewerExperts;
use forebay_plans::on_device::OnDevice;
use forebay_plans::residency::{
    Loading, NeuronCachePlan, Pipeline, Residency, ResidencyPlan, ResidencyRequest, STREAM_WINDOW,
    Sparsity, all_pinned_bytes, assign_owners, decide, least_weight_bytes,
};
use forebay_queues::slab::PAGE;
use forebay_stages::cache::PolicyKind;

use crate::models::{CONTEXT, HEADS, Model, is_weight};
use crate::random::Random;

/// What is simulated.
#[derive(Debug)]
pub struct Case {
    pub model: usize,
    pub threads: usize,
    pub sparsity: Sparsity,
    pub pipeline: Pipeline,
    pub loading: Loading,
    pub policy: PolicyKind,
    pub max_batch: usize,
    pub max_logits: usize,
    /// Sequences that the KV cache has room for.
    pub sequences: usize,
    pub io_depth: u16,
    pub plan: ResidencyPlan,
    /// What of it a device computes.
    pub on_device: OnDevice,
    /// Part of the cached neurons that are there from the start, percent.
    pub hot_percent: usize,
    /// The disk while nothing is wrong.
    pub weather: Weather,
    /// How often each core, and last the I/O actor, gets its turn, where several could.
    pub weights: Vec<usize>,
    /// Longest time that a turn takes, ns.
    pub turn_ns: usize,
    /// Experts that are left out or preferred: what is right then is not known, but everything has to come to its end.
    pub fewer: FewerExperts,
    /// Of how many of the next layers the experts are guessed.
    pub guesses: usize,
    /// The device that has the clusters `on_device`, if there are any.
    pub device: Behaviour,
}

impl Case {
    pub fn draw(random: &mut Random, models: &[Model]) -> Self {
        let number = random.within(0..=models.len() - 1);
        let model = &models[number];
        let bundle = model.bundle();
        let threads = random.within(1..=HEADS.min(model.network.most_cores()));
        let sparsity = random.one_of(&model.sparsities());
        let pipeline = random.one_of(&[
            Pipeline::Cluster,
            Pipeline::Cluster,
            Pipeline::Matrix,
            Pipeline::None,
        ]);
        // Where all but cached neurons is kept, prompts are read in another way.
        let prompts = random.chance(15);
        let how = (threads, sparsity, pipeline, prompts);
        let plan = plan(random, &bundle, how);
        // Most batches are small, since time is spent on products; now and then a prompt's.
        let max_batch = match prompts || random.chance(5) {
            true => random.within(16..=CONTEXT),
            false => random.within(1..=6),
        };
        Self {
            model: number,
            threads,
            sparsity,
            pipeline,
            loading: random.one_of(&[Loading::Bundle, Loading::Split, Loading::Rows]),
            policy: random.one_of(&PolicyKind::ALL),
            max_batch,
            max_logits: random.within(1..=max_batch.min(4)),
            sequences: 1,
            io_depth: random.one_of(&[1, 2, 3, 4, 8, 16, 64]),
            plan,
            hot_percent: random.one_of(&[0, 0, 50, 100]),
            weather: weather(random),
            weights: (0..=threads)
                .map(|_| random.one_of(&[1, 1, 4, 16, 256]))
                .collect(),
            turn_ns: random.one_of(&[1, 1_000, 20_000, 200_000]),
            fewer: match bundle.meta.has_experts() && random.chance(30) {
                true => fewer_experts(random),
                false => FewerExperts::default(),
            },
            guesses: random.one_of(&[0, 0, 1, 2, 3]),
            on_device: OnDevice::default(),
            device: Behaviour::ideal(),
        }
    }

    /// How neurons are kept and read.
    pub fn neurons(&self) -> NeuronOptions {
        NeuronOptions {
            policy: self.policy,
            loading: self.loading,
            pipeline: self.pipeline,
            guesses: self.guesses,
        }
    }
}

fn fewer_experts(random: &mut Random) -> FewerExperts {
    let mut share = || random.one_of(&[0.0, 0.1, 0.5, 1.0]);
    FewerExperts {
        per_token: None,
        drop_cold: share(),
        prefer_cached: share(),
    }
}

/// A disk that loses nothing, but is as awkward as one may be.
fn weather(random: &mut Random) -> Weather {
    let least = random.one_of(&[0, 1_000, 80_000]);
    let span = random.one_of(&[1, 50_000, 1_000_000, 20_000_000]);
    Weather {
        latency_ns: least..least + span,
        stalls: random.one_of(&[0, 0, 5, 50]),
        stall_ns: 3_000_000_000,
        interruptions: random.one_of(&[0, 0, 50, 300]),
        partial: random.one_of(&[0, 0, 50, 300]),
        passing: random.one_of(&[0, 0, 20, 300]),
        ..Weather::calm()
    }
}

fn plan(
    random: &mut Random,
    bundle: &Bundle,
    (threads, sparsity, pipeline, prompts): (usize, Sparsity, Pipeline, bool),
) -> ResidencyPlan {
    if !prompts && random.chance(30) {
        let least = least_weight_bytes(bundle, threads, sparsity);
        let most = all_pinned_bytes(bundle, sparsity).max(least);
        let weight_bytes = random.within(least as usize..=most as usize);
        let request = ResidencyRequest {
            weight_bytes: weight_bytes as u64,
            threads,
            sparsity,
            pipeline,
            stream_window: random.within(1..=STREAM_WINDOW),
            neuron_cache: random.within(0..=weight_bytes) as u64,
        };
        return decide(bundle, &request).expect("at least the least");
    }
    // Any residency that the graph can run, whether the planner would choose it for real sizes or not: tiny
    // models would never have a neuron cache otherwise.
    let mut geometries = bundle.meta.ffns.iter().flatten();
    let by_neuron = geometries.all(|g| g.layout == FfnLayout::Neuron)
        && !bundle.meta.has_experts()
        && sparsity != Sparsity::Dense
        && (prompts || random.chance(75));
    let mut plan = ResidencyPlan {
        residency: vec![Residency::OnFlash; bundle.clusters.len()],
        owner: assign_owners(bundle, threads),
        stream_slots: 0,
        stream_slot_bytes: 0,
        neuron_cache: NeuronCachePlan::default(),
        expert_cache: ExpertCachePlan::default(),
        pinned_bytes: 0,
        device_places: BTreeMap::new(),
    };
    let pinned = if prompts {
        100
    } else {
        random.one_of(&[0, 30, 70, 100])
    };
    let cached = random.one_of(&[50, 100, 100]);
    // Then models can draft.
    let rows_pinned = random.chance(30);
    for (entry, kept) in bundle.clusters.iter().zip(&mut plan.residency) {
        *kept = match entry.content {
            content if content.is_predictor() && sparsity == Sparsity::Predicted => {
                Residency::Pinned
            }
            content if !is_weight(content) => Residency::OnFlash,
            Content::Neurons(_) if by_neuron && random.chance(cached) => match sparsity {
                Sparsity::Predicted => Residency::Neurons,
                _ => Residency::GatePinned,
            },
            Content::Rows(_) if rows_pinned => Residency::Pinned,
            _ if random.chance(pinned) => Residency::Pinned,
            Content::Experts(_) => Residency::Cached,
            _ => Residency::Streamed,
        };
    }
    window(random, bundle, &mut plan);
    expert_cache(random, bundle, &mut plan, threads);
    cache(random, bundle, &mut plan, (threads, sparsity, pipeline));
    plan
}

fn window(random: &mut Random, bundle: &Bundle, plan: &mut ResidencyPlan) {
    let entries = bundle.clusters.iter().zip(&plan.residency);
    let streamed = entries.filter(|(_, r)| **r == Residency::Streamed);
    let largest = streamed.map(|(e, _)| e.padded_len()).max();
    if let Some(largest) = largest {
        plan.stream_slots = random.within(1..=6);
        plan.stream_slot_bytes = largest;
    }
}

/// Any number of cells: with one, a core's clusters come one after the other.
fn expert_cache(random: &mut Random, bundle: &Bundle, plan: &mut ResidencyPlan, threads: usize) {
    let mut owned = vec![0; threads];
    let mut cell_bytes = 0;
    for (i, e) in bundle.clusters.iter().enumerate() {
        if plan.residency[i] == Residency::Cached {
            owned[usize::from(plan.owner[i])] += 1;
            cell_bytes = cell_bytes.max(e.padded_len());
        }
    }
    let most = owned.into_iter().max().unwrap_or(0);
    if most > 0 {
        let cells = random.within(1..=most);
        plan.expert_cache = ExpertCachePlan { cells, cell_bytes };
    }
}

/// Sizes of the neuron cache, from the least with which each pipeline can move.
fn cache(
    random: &mut Random,
    bundle: &Bundle,
    plan: &mut ResidencyPlan,
    (threads, sparsity, pipeline): (usize, Sparsity, Pipeline),
) {
    let (mut owned, mut most_of_layer) = (vec![0; threads], 0);
    for layer in 0..bundle.meta.ffns.len() {
        let mut of_layer = vec![0; threads];
        for (i, e) in bundle.clusters.iter().enumerate() {
            if e.layer() == Some(layer) && plan.residency[i].is_by_neuron() {
                of_layer[usize::from(plan.owner[i])] += e.count as usize;
            }
        }
        most_of_layer = of_layer
            .iter()
            .copied()
            .max()
            .unwrap_or(0)
            .max(most_of_layer);
        owned.iter_mut().zip(&of_layer).for_each(|(o, n)| *o += n);
    }
    let most = owned.into_iter().max().unwrap_or(0);
    if most == 0 {
        return;
    }
    let geometry = || bundle.meta.ffns.iter().flatten();
    let clusters = 2 * geometry().map(|g| g.neurons).max().unwrap_or(0);
    let least = match pipeline {
        Pipeline::Cluster => clusters.min(most),
        Pipeline::Matrix | Pipeline::None => most_of_layer,
    };
    let slot_bytes = match sparsity {
        Sparsity::Predicted => geometry().map(|g| g.bundle_bytes()).max(),
        _ => geometry().map(FfnGeometry::up_down_bytes).max(),
    };
    let slot_bytes = slot_bytes.unwrap_or(0).next_multiple_of(64);
    let one = (slot_bytes + 2 * PAGE).next_multiple_of(PAGE);
    plan.neuron_cache = NeuronCachePlan {
        slots: random.within(least..=most),
        slot_bytes,
        staging: random.one_of(&[1, 2, 4, 8]),
        staging_bytes: one + random.within(0..=4) * PAGE,
        least_slots: least,
    };
}
