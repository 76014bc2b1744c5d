//! One seed: a case, a few generations in it, with or without trouble, and all checks.

use std::collections::BTreeMap;

use forebay_actors::fault::Fault;
use forebay_actors::io::simulated::Weather;
use forebay_devices::simulated::Behaviour;
use forebay_models::kv_type::KvType;
use forebay_models::network::Content;
use forebay_models::oracle::Oracle;
use forebay_plans::expert_cache::ExpertCachePlan;
use forebay_plans::fewer_experts::FewerExperts;
use forebay_plans::on_device::OnDevice;
use forebay_plans::residency::{
    Loading, NeuronCachePlan, Pipeline, Residency, ResidencyPlan, Sparsity,
};
use forebay_stages::cache::PolicyKind;

use crate::case::Case;
use crate::device;
use crate::generation::{Batch, Ended, Generation, run, settle, shut_down};
use crate::models::{CONTEXT, Logits, Model};
use crate::random::Random;
use crate::rest::check_wreck;
use crate::trouble::{Death, Trouble};
use crate::visits::Visits;
use crate::world::{Moved, World};

/// What a seed did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub turns: u64,
    pub steps: u64,
    pub reads: u64,
    pub faults: u64,
    /// Times that the I/O actor died.
    pub deaths: u64,
    /// Jobs of a device, streamed clusters copied to one, and devices that were lost.
    pub jobs: u64,
    pub attention_jobs: u64,
    pub copied: u64,
    pub lost: u64,
    /// Clusters of FFNs that another core than their own has computed.
    pub moved: u64,
    /// [`Visits::lent`].
    pub lent: u64,
    /// Hash of all that happened.
    pub digest: u64,
    pub virtual_ns: u64,
}

/// Which cases seeds are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cases {
    /// Any.
    Any,
    /// Prompts of which a device computes streamed clusters: those are rare among all.
    Uploads,
}

/// Runs a seed.
///
/// # Errors
/// What went wrong, with the case.
pub fn simulate(seed: u64, models: &[Model], cases: Cases) -> Result<Report, String> {
    let mut random = Random::new(seed);
    let case = match cases {
        Cases::Any => {
            let mut case = Case::draw(&mut random, models);
            let model = &models[case.model];
            device::draw(seed, &mut case, model);
            case
        }
        Cases::Uploads => device::draw_uploads(&mut random, models),
    };
    let model = &models[case.model];
    let mut world = World::new(&case, model, &mut random);
    let mut sequel = Sequel {
        case: &case,
        model,
        visits: Visits::new(&case, &world),
        random,
        report: Report::default(),
        valid: 0,
    };
    let result = sequel.play(&mut world);
    let mut report = sequel.report;
    report.moved = sequel.visits.moved;
    report.lent = sequel.visits.lent;
    report.turns = world.turns;
    report.reads = world.medium.reads();
    if let Some(device) = &world.steps.shared().device {
        let done = device.account.counters();
        (report.jobs, report.copied) = (done.jobs, done.copied);
        report.attention_jobs = done.attention_jobs;
        report.lost = u64::from(device.account.is_gone());
    }
    report.digest = world.digest;
    report.virtual_ns = world.now_ns;
    result
        .map(|()| report)
        .map_err(|what| format!("{what}\nin {case:#?}\nof model {:?}", model.network.name))
}

/// The generations of a simulation, one after the other.
struct Sequel<'a> {
    case: &'a Case,
    model: &'a Model,
    visits: Visits,
    random: Random,
    report: Report,
    /// Positions whose keys and values are right.
    valid: usize,
}

impl Sequel<'_> {
    fn play(&mut self, world: &mut World) -> Result<(), String> {
        let generations = self.random.within(1..=3);
        let troubled = match self.random.chance(35) {
            true => Some(self.random.within(0..=generations - 1)),
            false => None,
        };
        for number in 0..generations {
            if troubled == Some(number) {
                self.trouble(world, number == 0)?;
            }
            if world.io_is_dead() {
                return self.after_death(world);
            }
            self.must_succeed(world)?;
        }
        settle(world)?;
        shut_down(world)
    }

    /// A generation on a disk with trouble: right, or failed for the right reason. Afterwards the disk is
    /// repaired, and what comes next has to be right.
    fn trouble(&mut self, world: &mut World, first: bool) -> Result<(), String> {
        let trouble = Trouble::draw(&mut self.random, self.case, self.model, first);
        if trouble == Trouble::Death {
            return self.death(world);
        }
        world.disk_lies = trouble.lies();
        let weather = trouble.weather(&mut self.random, self.case, self.model);
        world.medium.set_weather(weather);
        let failed = self.may_fail(world, trouble)?;
        world.medium.set_weather(Weather {
            // Reads that began before: as above.
            passing: 0,
            ..self.case.weather.clone()
        });
        if !failed {
            // What the last step read ahead may be bad, and then the next one says so.
            self.may_fail(world, trouble)?;
        }
        world.disk_lies = false;
        Ok(())
    }

    /// The I/O actor dies, now or some turns into a generation, which is right if it needed no more reads, or fails
    /// with the cause.
    fn death(&mut self, world: &mut World) -> Result<(), String> {
        // As with other trouble, a failed read shall not be the cause.
        world.medium.set_weather(Weather {
            passing: 0,
            ..self.case.weather.clone()
        });
        let how = self.random.one_of(&[Death::Error, Death::Panic]);
        let turns = self.random.one_of(&[0, 1, 3, 10, 40, 200]);
        let turns = self.random.within(0..=turns);
        world.doom(turns, how);
        let failed = self.may_fail(world, Trouble::Death)?;
        // It may have been longer than the generation's reads took.
        world.doom(0, how);
        while world.advance()? == Moved::Yes {}
        if !failed && !self.may_fail(world, Trouble::Death)? {
            return Err("a generation without an I/O actor or cores".into());
        }
        Ok(())
    }

    /// Everything has ended, and further requests get an error.
    fn after_death(&mut self, world: &mut World) -> Result<(), String> {
        self.report.deaths += 1;
        check_wreck(world)?;
        match self.generate(world) {
            Err(Ended::Failed(Fault::CoreStopped { .. } | Fault::IoStopped { .. })) => Ok(()),
            Err(Ended::Failed(fault)) => Err(format!("after the death, and yet: {fault}")),
            Err(Ended::Wrong(what)) => Err(what),
            Ok(()) => Err("a generation after the death of the I/O actor".into()),
        }
    }

    fn may_fail(&mut self, world: &mut World, trouble: Trouble) -> Result<bool, String> {
        match self.generate(world) {
            Ok(()) => Ok(false),
            Err(Ended::Failed(fault)) if trouble.explains(&fault) => {
                self.report.faults += 1;
                Ok(true)
            }
            Err(Ended::Failed(fault)) => Err(format!("{trouble:?} was reported as: {fault}")),
            Err(Ended::Wrong(what)) => Err(format!("{what}\nwith {trouble:?}")),
        }
    }

    fn must_succeed(&mut self, world: &mut World) -> Result<(), String> {
        self.generate(world).map_err(|ended| match ended {
            Ended::Failed(fault) => format!("a sound disk, and yet: {fault}"),
            Ended::Wrong(what) => what,
        })
    }

    /// A new conversation, or one that continues.
    fn generate(&mut self, world: &mut World) -> Result<(), Ended> {
        let from = match self.random.chance(30) {
            true => self.valid.min(CONTEXT - 1),
            false => 0,
        };
        let generation = Generation::draw(&mut self.random, self.case, from);
        self.report.steps += generation.steps.len() as u64;
        self.valid = from;
        let right = self.model.right(self.case.sparsity);
        let tools = (&mut self.visits, &mut self.random);
        run(
            world,
            self.model,
            &generation,
            tools,
            &mut |position, logits| match self.case.fewer.is_off() {
                true => same_bits(position, logits, &right[position]),
                false => all_numbers(position, logits),
            },
        )?;
        self.valid = generation.end();
        Ok(())
    }
}

fn same_bits(position: usize, logits: &[f32], right: &[f32]) -> Result<(), String> {
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
    match logits.iter().zip(right).position(differs) {
        None => Ok(()),
        Some(i) => Err(format!(
            "WRONG: logit {i} of position {position} is {}, not {}",
            logits[i], right[i]
        )),
    }
}

fn all_numbers(position: usize, logits: &[f32]) -> Result<(), String> {
    match logits.iter().all(|l| l.is_finite()) {
        true => Ok(()),
        false => Err(format!("no numbers at position {position}: {logits:?}")),
    }
}

/// Computes a model's right logits: in memory, on one core, token by token; compared with the naive
/// reference as far as that can be exact.
///
/// # Errors
/// The engine and the reference disagree.
pub fn find_right(model: &mut Model) -> Result<(), String> {
    for sparsity in model.sparsities() {
        let logits = in_memory(model, sparsity)?;
        let source = model.source.as_ref().ok_or("a model from a file")?;
        let oracle = Oracle::new(source).map_err(|e| e.to_string())?;
        let oracle = match sparsity {
            // The reference knows no thresholds.
            Sparsity::Threshold => None,
            // It does not round keys to bytes, and a score near the cut makes a neuron of such a difference.
            Sparsity::Predicted if model.kv == KvType::Q8 => None,
            Sparsity::Predicted => Some(oracle.with_predictors().map_err(|e| e.to_string())?),
            Sparsity::Dense | Sparsity::Exact => Some(oracle),
        };
        if let Some(oracle) = oracle {
            compare(&mut oracle.with_engine_precision(), model, &logits)
                .map_err(|what| format!("{} {sparsity:?}: {what}", model.network.name))?;
        }
        model.right.push((sparsity, logits));
    }
    Ok(())
}

fn compare(oracle: &mut Oracle, model: &Model, logits: &Logits) -> Result<(), String> {
    for (position, (&token, ours)) in model.tokens.iter().zip(logits).enumerate() {
        let theirs = oracle.forward(token);
        let size = theirs.iter().fold(1.0f32, |most, l| most.max(l.abs()));
        let off = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs());
        let worst = off.fold(0.0f32, f32::max) / size;
        if worst.is_nan() || worst > 0.05 {
            return Err(format!(
                "position {position} is off by {worst} of the largest logit"
            ));
        }
    }
    Ok(())
}

fn in_memory(model: &Model, sparsity: Sparsity) -> Result<Logits, String> {
    let bundle = model.bundle();
    let used = |content| {
        crate::models::is_weight(content)
            || sparsity == Sparsity::Predicted && !matches!(content, Content::Table(_))
    };
    let residency = bundle.clusters.iter().map(|e| match used(e.content) {
        true => Residency::Pinned,
        false => Residency::OnFlash,
    });
    let case = Case {
        model: 0,
        threads: 1,
        sparsity,
        pipeline: Pipeline::Cluster,
        loading: Loading::Bundle,
        policy: PolicyKind::Lru,
        max_batch: 1,
        max_logits: 1,
        sequences: 1,
        io_depth: 1,
        plan: ResidencyPlan {
            residency: residency.collect(),
            owner: vec![0; bundle.clusters.len()],
            stream_slots: 0,
            stream_slot_bytes: 0,
            neuron_cache: NeuronCachePlan::default(),
            expert_cache: ExpertCachePlan::default(),
            pinned_bytes: 0,
            device_places: BTreeMap::new(),
        },
        hot_percent: 0,
        weather: Weather::calm(),
        weights: vec![1; 2],
        turn_ns: 1,
        fewer: FewerExperts::default(),
        guesses: 0,
        on_device: OnDevice::default(),
        device: Behaviour::ideal(),
    };
    let mut random = Random::new(0);
    let mut world = World::new(&case, model, &mut random);
    let steps = (0..CONTEXT).map(|position| Batch {
        n_tokens: 1,
        position,
        n_logits: 1,
        more: false,
        drafts: false,
    });
    let generation = Generation {
        steps: steps.collect(),
    };
    let mut visits = Visits::new(&case, &world);
    let mut logits = Logits::new();
    run(
        &mut world,
        model,
        &generation,
        (&mut visits, &mut random),
        &mut |_, row| {
            logits.push(row.to_vec());
            Ok(())
        },
    )
    .map_err(|ended| format!("{ended:?}"))?;
    Ok(logits)
}
