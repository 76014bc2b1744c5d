//! Every cluster visits each of its stages exactly once per step, in order, and on its own core, but for rows in
//! memory, which any core may compute: read from the trace that the cores keep.

use std::collections::{BTreeSet, HashMap, HashSet};

use forebay_actors::decode::Step;
use forebay_models::bundle::{ClusterKind, DirectoryEntry};
use forebay_plans::residency::{Residency, Sparsity};
use forebay_traces::record::{Kind, Record, Stage};

use crate::case::Case;
use crate::world::World;

/// What one step's trace says about the clusters of a core.
#[derive(Default)]
struct Seen {
    /// Times that a stage had a cluster, by the layer that the core was at.
    counts: HashMap<(Stage, u16, u32), usize>,
    /// Place in the trace of a cluster's Gate.
    gate_at: HashMap<u32, usize>,
}

/// Checks traces step by step.
pub struct Visits {
    sparsity: Sparsity,
    looks_ahead: bool,
    predicted: bool,
    owner: Vec<u16>,
    residency: Vec<Residency>,
    clusters: Vec<DirectoryEntry>,
    /// Reads of streamed clusters that were used: each is used once.
    used: HashSet<(usize, u64)>,
}

impl Visits {
    pub fn new(case: &Case, world: &World) -> Self {
        let shared = world.steps.shared();
        Self {
            sparsity: case.sparsity,
            looks_ahead: shared.looks_ahead(),
            predicted: case.sparsity == Sparsity::Predicted,
            owner: case.plan.owner.clone(),
            residency: case.plan.residency.clone(),
            clusters: shared.bundle.clusters.clone(),
            used: HashSet::new(),
        }
    }

    /// Some clusters may have given way, or come back: returns those that are streamed for it.
    pub fn follow(&mut self, world: &mut World) -> BTreeSet<u32> {
        let censuses = world.censuses();
        let given: BTreeSet<u32> = censuses
            .into_iter()
            .flat_map(|(_, now)| now.given)
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
    pub fn check(&mut self, world: &mut World, step: &Step) -> Result<(), String> {
        let mut all: Vec<Seen> = world.cores().map(|_| Seen::default()).collect();
        for (rank, core) in world.cores().enumerate() {
            let trace = core.sequencer().trace();
            if trace.overwritten() > 0 {
                return Err("the trace is too short for this step".into());
            }
            let mut phase = (0, 0);
            for (at, record) in trace.iter().enumerate() {
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
                self.see(rank, at, (stage, record), &mut all)?;
            }
            trace.clear();
        }
        let mut all = all.iter().enumerate();
        all.try_for_each(|(rank, seen)| self.compare(rank, step, seen))
    }

    fn see(
        &mut self,
        rank: usize,
        at: usize,
        (stage, record): (Stage, &Record),
        all: &mut [Seen],
    ) -> Result<(), String> {
        let cluster = record.cluster;
        let kind = self.clusters[cluster as usize].kind;
        let visits = match stage {
            Stage::Qkv | Stage::Output | Stage::Head | Stage::Gc | Stage::Udc => true,
            // A few clusters' prediction is one record, which bears the first one's name.
            Stage::Pred => kind == ClusterKind::PredictorHidden,
            _ => false,
        };
        if !visits {
            return Ok(());
        }
        let owner = usize::from(self.owner[cluster as usize]);
        let is_shared =
            kind != ClusterKind::Ffn && self.residency[cluster as usize] == Residency::Pinned;
        if owner != rank && !is_shared {
            return Err(format!(
                "core {rank} had another's cluster {cluster} at {stage:?}"
            ));
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
        match stage {
            Stage::Gc => drop(seen.gate_at.insert(cluster, at)),
            Stage::Udc if !seen.gate_at.contains_key(&cluster) => {
                return Err(format!("cluster {cluster} was at Udc before Gc"));
            }
            _ => {}
        }
        let streamed = self.residency[cluster as usize] == Residency::Streamed;
        if streamed && stage != Stage::Udc {
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

    /// Whether each of the core's clusters was where it has to be, as often as it has to be.
    fn compare(&self, rank: usize, step: &Step, seen: &Seen) -> Result<(), String> {
        let mut expected = 0;
        for (i, entry) in self.clusters.iter().enumerate() {
            if usize::from(self.owner[i]) != rank || self.residency[i] == Residency::OnFlash {
                continue;
            }
            let (cluster, layer) = (i as u32, entry.layer.unwrap_or(0));
            let times = |stage, layer| {
                let count = seen.counts.get(&(stage, layer, cluster));
                count.copied().unwrap_or(0)
            };
            let wrong = |stage: Stage, times: usize| {
                let kind = entry.kind;
                format!(
                    "{kind:?} cluster {cluster} of layer {layer} was at {stage:?} {times} times in {step:?}"
                )
            };
            let once = |stage, layer| match times(stage, layer) {
                1 => Ok(1),
                n => Err(wrong(stage, n)),
            };
            expected += match entry.kind {
                ClusterKind::Q | ClusterKind::K | ClusterKind::V => once(Stage::Qkv, layer)?,
                ClusterKind::O => once(Stage::Output, layer)?,
                ClusterKind::Head if step.n_logits == 0 => 0,
                ClusterKind::Head => {
                    let layers = self.clusters.iter().filter_map(|e| e.layer).max();
                    once(Stage::Head, layers.map_or(0, |l| l + 1))?
                }
                ClusterKind::PredictorHidden => {
                    let ahead = self.looks_ahead && layer > 0;
                    let ahead = if ahead {
                        once(Stage::Pred, layer - 1)?
                    } else {
                        0
                    };
                    once(Stage::Pred, layer)? + ahead
                }
                ClusterKind::Ffn => {
                    let gc = match times(Stage::Gc, layer) {
                        // A predictor may name none of its neurons.
                        0 if self.predicted => 0,
                        1 => 1,
                        n => return Err(wrong(Stage::Gc, n)),
                    };
                    let udc = match times(Stage::Udc, layer) {
                        0 if self.sparsity != Sparsity::Dense => 0,
                        1 if gc == 1 => 1,
                        n => return Err(wrong(Stage::Udc, n)),
                    };
                    gc + udc
                }
                ClusterKind::Embedding | ClusterKind::PredictorScore => 0,
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
