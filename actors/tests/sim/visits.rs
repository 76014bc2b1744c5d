//! Every cluster visits each of its stages exactly once per step, in order, and on its own core, except for what is in
//! memory and not stored by neuron, which any core may compute: read from the trace that the cores keep.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use forebay_models::bundle::{Bundle, DirectoryEntry};
use forebay_models::network::Content;
use forebay_models::tensor::{LayerTensor as T, TensorId};
use forebay_plans::residency::{Pipeline, Residency, Sparsity};
use forebay_traces::record::{Kind, Record, Stage};

use crate::case::Case;
use crate::generation::Batch;
use crate::world::World;

/// What one step's trace says about the clusters of a core.
#[derive(Default)]
struct Seen {
    /// Times that a stage had a cluster, by the layer that the core was at.
    counts: HashMap<(Stage, u16, u32), usize>,
}

impl Seen {
    fn times(&self, stage: Stage, (layer, cluster): (u16, u32)) -> usize {
        let times = self.counts.get(&(stage, layer, cluster));
        times.copied().unwrap_or(0)
    }

    /// Where a cluster has to have been before it comes to `stage`, if it has not.
    fn missed(&self, stage: Stage, residency: Residency, at: (u16, u32)) -> Option<&'static str> {
        let was = |stage| self.times(stage, at) == 1;
        let whole = residency == Residency::Streamed || was(Stage::Preload);
        let read = |own| was(own) != was(Stage::Preload);
        match stage {
            Stage::Gc if residency == Residency::Neurons && !read(Stage::Gio) => {
                Some("Gio or Preload")
            }
            Stage::Udc | Stage::Udio if !was(Stage::Gc) => Some("Gc"),
            Stage::Udc if residency.is_by_neuron() && !whole && !was(Stage::Udio) => Some("Udio"),
            Stage::HandOver if !was(Stage::Udc) => Some("Udc"),
            _ if uses(stage) && residency == Residency::Streamed && !read(Stage::Gio) => {
                Some("Gio or Preload")
            }
            _ => None,
        }
    }
}

/// Whether the stage is the first one that computes with a cluster.
fn uses(stage: Stage) -> bool {
    !matches!(
        stage,
        Stage::Gio | Stage::Preload | Stage::Udio | Stage::Udc | Stage::HandOver
    )
}

/// Checks traces step by step.
pub struct Visits {
    sparsity: Sparsity,
    predicted: bool,
    owner: Vec<u16>,
    residency: Vec<Residency>,
    clusters: Vec<DirectoryEntry>,
    /// Whether a device may compute a cluster, or core 0 where that fails.
    on_device: Vec<bool>,
    /// Whether one may compute it although it is streamed; where that fails, its core does.
    uploaded: Vec<bool>,
    /// Whether any core may compute clusters that are in memory.
    shares: bool,
    /// Whether cores lend clusters of experts to each other.
    lends: bool,
    /// Whether neurons of a cluster lie in panels.
    in_panels: Vec<bool>,
    /// By layer, how many of those before guess which experts it will use.
    guessed: Vec<usize>,
    /// By layer, whether its neurons are asked for before its attention.
    asked_ahead: Vec<bool>,
    /// Reads of streamed clusters that were used: each is used once.
    used: HashSet<(usize, u64)>,
    /// Clusters of FFNs without experts that another core than their own has computed.
    pub moved: u64,
    /// Clusters of experts from the cache that another core than their own has computed.
    pub lent: u64,
}

impl Visits {
    pub fn new(case: &Case, world: &World) -> Self {
        let shared = world.steps.shared();
        Self {
            sparsity: case.sparsity,
            predicted: case.sparsity == Sparsity::Predicted,
            owner: case.plan.owner.clone(),
            residency: case.plan.residency.clone(),
            on_device: (0..case.plan.residency.len() as u32)
                .map(|cluster| case.plan.device_places.contains_key(&cluster))
                .collect(),
            uploaded: {
                let uploads = case.on_device.uploads.iter();
                let mut uploaded = vec![false; case.plan.residency.len()];
                let clusters = uploads.flat_map(|uploads| uploads.clusters());
                clusters.for_each(|(cluster, _)| uploaded[cluster as usize] = true);
                uploaded
            },
            clusters: shared.bundle.clusters.clone(),
            in_panels: (shared.bundle.clusters.iter())
                .map(|e| shared.bundle.meta.geometry(e.content))
                .map(|geometry| geometry.is_some_and(|g| !g.layout.is_by_neuron()))
                .collect(),
            lends: case.pipeline == Pipeline::Cluster,
            shares: case.pipeline == Pipeline::Cluster && case.sparsity != Sparsity::Predicted,
            guessed: guessed(case, &shared.bundle),
            asked_ahead: asked_ahead(case, &shared.bundle),
            used: HashSet::new(),
            moved: 0,
            lent: 0,
        }
    }

    /// Some clusters may have given way, or come back: returns those that are streamed for it.
    pub fn follow(&mut self, world: &mut World) -> BTreeSet<u32> {
        // What was read back is no visit of a step.
        world.cores().for_each(|core| core.trace().clear());
        let censuses = world.censuses();
        let given: BTreeSet<u32> = censuses
            .into_iter()
            .flat_map(|(_, now)| now.evicted)
            .collect();
        self.residency
            .clone_from(&world.steps.shared().plan.residency);
        for &cluster in &given {
            self.residency[cluster as usize] = Residency::Streamed;
        }
        given
    }

    /// Checks the trace of a step, and clears it.
    ///
    /// # Errors
    /// The cluster and what is wrong with its way.
    pub fn check(&mut self, world: &mut World, step: &Batch) -> Result<(), String> {
        let mut all: Vec<Seen> = world.cores().map(|_| Seen::default()).collect();
        for (rank, core) in world.cores().enumerate() {
            let trace = core.trace();
            if trace.overwritten() > 0 {
                return Err("the trace is too short for this step".into());
            }
            let mut phase = (0, 0);
            for record in trace.iter() {
                let Kind::Stage(stage) = record.kind else {
                    continue;
                };
                if let Some(next) = phase_of(stage) {
                    let next = (record.layer, next);
                    if next < phase {
                        return Err(format!("core {rank}: {stage:?} out of order: {record:?}"));
                    }
                    phase = next;
                }
                let late = stage == Stage::Gio && phase >= (record.layer, 1);
                if late && self.is_asked_ahead(rank, record) {
                    return Err(format!(
                        "core {rank}: asked for after attention: {record:?}"
                    ));
                }
                self.see(rank, (stage, record), &mut all)?;
            }
            trace.clear();
        }
        let mut all = all.iter().enumerate();
        all.try_for_each(|(rank, seen)| self.compare(rank, step, seen))
    }

    /// Whether the record is of neurons that are asked for ahead: not if some of the core's clusters of the layer come
    /// through a window.
    fn is_asked_ahead(&self, rank: usize, record: &Record) -> bool {
        let layer = usize::from(record.layer);
        let own = |i: usize, e: &DirectoryEntry| {
            let is_ffn = e.content.is_ffn() && e.layer() == Some(layer);
            is_ffn && usize::from(self.owner[i]) == rank
        };
        let mut all = self.clusters.iter().enumerate();
        self.residency[record.cluster as usize] == Residency::Neurons
            && self.asked_ahead[layer]
            && all.all(|(i, e)| !own(i, e) || self.residency[i] != Residency::Streamed)
    }

    fn see(
        &mut self,
        rank: usize,
        (stage, record): (Stage, &Record),
        all: &mut [Seen],
    ) -> Result<(), String> {
        let cluster = record.cluster;
        let content = self.clusters[cluster as usize].content;
        let visits = match stage {
            Stage::Qkv | Stage::Output | Stage::Head | Stage::Gc | Stage::Udc => true,
            Stage::Inputs => true,
            Stage::Gio | Stage::Udio | Stage::Preload => true,
            // That of the stream window is no cluster's.
            Stage::HandOver => self.residency[cluster as usize].is_by_neuron(),
            // A few clusters' prediction is one record, which bears the first one's name.
            Stage::Pred => [T::PredictorFc1, T::Router, T::SharedGate]
                .iter()
                .any(|t| is(content, *t)),
            _ => false,
        };
        if !visits {
            return Ok(());
        }
        let owner = usize::from(self.owner[cluster as usize]);
        let moves = !content.is_ffn() || self.shares && self.in_panels[cluster as usize];
        let is_shared = moves && self.residency[cluster as usize] == Residency::Pinned;
        let makes_good = rank == 0 && self.on_device[cluster as usize];
        let computes = matches!(stage, Stage::Gc | Stage::Udc);
        let is_lent =
            computes && self.lends && self.residency[cluster as usize] == Residency::Cached;
        if owner != rank && is_lent {
            self.lent += u64::from(stage == Stage::Udc);
        } else if owner != rank && !is_shared && !makes_good {
            return Err(format!(
                "core {rank} had another's cluster {cluster} at {stage:?}"
            ));
        }
        if owner != rank && is_shared && matches!(content, Content::Neurons(_)) {
            self.moved += u64::from(stage == Stage::Udc);
        }
        let seen = &mut all[owner];
        let visits = seen.counts.entry((stage, record.layer, cluster));
        let visits = visits.or_default();
        if record.count == 0 {
            // A part of a cluster that waits for the rest.
            let single = matches!(stage, Stage::Gc | Stage::Udc);
            return match single && *visits == 0 {
                true => Ok(()),
                false => Err(format!(
                    "cluster {cluster} was at {stage:?} in part: {record:?}"
                )),
            };
        }
        *visits += 1;
        let residency = self.residency[cluster as usize];
        if let Some(missed) = seen.missed(stage, residency, (record.layer, cluster)) {
            return Err(format!(
                "cluster {cluster} was at {stage:?} before {missed}"
            ));
        }
        let streamed = residency == Residency::Streamed;
        if streamed && uses(stage) {
            let fresh = self.used.insert((rank, record.flow));
            if record.flow == 0 || !fresh {
                return Err(format!(
                    "cluster {cluster} at {stage:?} used read {} a second time",
                    record.flow
                ));
            }
        }
        Ok(())
    }

    fn last_layer(&self) -> u16 {
        let layers = self.clusters.iter().filter_map(DirectoryEntry::layer);
        layers.max().unwrap_or(0) as u16
    }

    /// The layers that a layer's router is applied in: its own, and those that guess for it.
    fn routed_at(&self, layer: u16, step: &Batch) -> RangeInclusive<u16> {
        // Several tokens are guessed for in the layer before only.
        let most = if step.n_tokens == 1 { usize::MAX } else { 1 };
        layer - self.guessed[usize::from(layer)].min(most) as u16..=layer
    }

    /// Whether an FFN cluster was computed as often as it has to be: how often it was at Gc and at Udc. `at` is how
    /// often it was at a stage, and the complaint if that is wrong.
    fn computed(
        &self,
        i: usize,
        step: &Batch,
        at: &dyn Fn(Stage) -> (usize, String),
    ) -> Result<usize, String> {
        let content = self.clusters[i].content;
        let is_hot = matches!(content, Content::HotNeurons(_));
        let is_expert = matches!(content, Content::Experts(_));
        let skipped = step.drafts && self.residency[i] == Residency::Streamed;
        let gc = match at(Stage::Gc) {
            (0, _) if skipped => 0,
            // A predictor may name none of its neurons, and no token may use the expert.
            (0, _) if self.predicted && !is_hot || is_expert => 0,
            (0, _) if self.on_device[i] || self.uploaded[i] => 0,
            (1, _) if !skipped => 1,
            (_, wrong) => return Err(wrong),
        };
        let udc = match at(Stage::Udc) {
            (0, _) if self.sparsity != Sparsity::Dense || gc == 0 => 0,
            (1, _) if gc == 1 => 1,
            (_, wrong) => return Err(wrong),
        };
        Ok(gc + udc)
    }

    /// Whether each of the core's clusters was where it has to be, as often as it has to be.
    fn compare(&self, rank: usize, step: &Batch, seen: &Seen) -> Result<(), String> {
        let mut expected = 0;
        for (i, entry) in self.clusters.iter().enumerate() {
            if usize::from(self.owner[i]) != rank || self.residency[i] == Residency::OnFlash {
                continue;
            }
            let (cluster, layer) = (i as u32, entry.layer().unwrap_or(0) as u16);
            let times = |stage, layer| seen.times(stage, (layer, cluster));
            let name = || format!("{:?} cluster {cluster} of layer {layer}", entry.content);
            let wrong =
                |stage, times| format!("{} was at {stage:?} {times} times in {step:?}", name());
            let once = |stage, layer| match times(stage, layer) {
                1 => Ok(1),
                0 if self.on_device[i] => Ok(0),
                n => Err(wrong(stage, n)),
            };
            // What is read, and what is kept of it: that it came before what was computed, `see` has checked.
            for stage in [Stage::Gio, Stage::Preload, Stage::Udio, Stage::HandOver] {
                let at = match entry.content {
                    Content::Rows(TensorId::InputsProjection) => 0,
                    content if content.layer().is_some() => layer,
                    _ => self.last_layer() + 1,
                };
                expected += match times(stage, at) {
                    n @ 0..=1 => n,
                    n => return Err(wrong(stage, n)),
                };
            }
            expected += match entry.content {
                Content::Rows(TensorId::Layer(_, T::Q | T::K | T::V | T::QDown | T::KUp)) => {
                    once(Stage::Qkv, layer)?
                }
                Content::Rows(TensorId::Layer(_, T::O | T::VUp)) => once(Stage::Output, layer)?,
                Content::Rows(TensorId::Layer(_, T::InputGate | T::InputProjection)) => {
                    once(Stage::Inputs, layer)?
                }
                Content::Rows(TensorId::InputsProjection) => once(Stage::Inputs, 0)?,
                Content::Rows(TensorId::Layer(_, T::Router)) => {
                    let mut routed = self.routed_at(layer, step);
                    routed.try_fold(0, |n, at| Ok::<_, String>(n + once(Stage::Pred, at)?))?
                }
                Content::Rows(TensorId::Layer(_, T::SharedGate | T::PredictorFc1)) => {
                    once(Stage::Pred, layer)?
                }
                Content::HotNeurons(_) | Content::Neurons(_) | Content::Experts(_) => self
                    .computed(i, step, &|stage| {
                        (times(stage, layer), wrong(stage, times(stage, layer)))
                    })?,
                Content::Rows(TensorId::Layer(..)) | Content::Table(_) => 0,
                Content::Rows(_) if step.n_logits == 0 => 0,
                Content::Rows(_) => once(Stage::Head, self.last_layer() + 1)?,
            };
        }
        match seen.counts.values().sum::<usize>() {
            all if all == expected => Ok(()),
            all => Err(format!(
                "core {rank}: {all} visits of clusters, but {expected} are due in {step:?}"
            )),
        }
    }
}

/// By layer, in how many of those just before its router is applied, too: it and those between have to be in memory.
fn guessed(case: &Case, bundle: &Bundle) -> Vec<usize> {
    let network = &bundle.meta.network;
    let is_here = |layer: usize| {
        let mut all = bundle.clusters.iter().zip(&case.plan.residency);
        let router = Content::Rows(TensorId::Layer(layer, T::Router));
        all.all(|(e, kept)| e.content != router || *kept == Residency::Pinned)
    };
    let guessed = |layer: usize| {
        let before = (1..=case.guesses.min(layer)).take_while(|&before| {
            let from = layer - before;
            (1..=before).all(|n| is_here(from + n) && network.guessed_at(from, n).is_some())
        });
        before.count()
    };
    (0..network.n_layers()).map(guessed).collect()
}

/// By layer, whether predictors name neurons before its attention, and the graph asks for them then.
fn asked_ahead(case: &Case, bundle: &Bundle) -> Vec<bool> {
    let asks = case.pipeline == Pipeline::Cluster && case.sparsity == Sparsity::Predicted;
    let network = &bundle.meta.network;
    let before = |l: usize| asks && network.ffn(l).predictor_before_layer;
    (0..network.n_layers()).map(before).collect()
}

/// Whether a cluster is a part of this matrix of a layer.
fn is(content: Content, tensor: T) -> bool {
    matches!(content, Content::Rows(TensorId::Layer(_, t)) if t == tensor)
}

/// The order of a layer's phases.
fn phase_of(stage: Stage) -> Option<u8> {
    match stage {
        Stage::Qkv => Some(0),
        Stage::Attention => Some(1),
        Stage::Output => Some(2),
        Stage::Gc | Stage::Udc => Some(3),
        Stage::Fold => Some(4),
        _ => None,
    }
}
