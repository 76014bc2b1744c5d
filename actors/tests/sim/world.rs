//! The real actors on one thread and one virtual clock: a seed says whose turn it is.

use std::fmt::Write;
use std::sync::Arc;

use forebay_actors::core::{Census, Core};
use forebay_actors::fault::FaultCell;
use forebay_actors::io::simulated::{Medium, SimulatedDriver, Weather};
use forebay_actors::io::{Driver, IoActor, IoLimits};
use forebay_actors::io_link::{Completions, Requests, RowLink};
use forebay_actors::load::{HotSet, load_resident};
use forebay_actors::memory::{CoreMemory, WeightMemory};
use forebay_actors::runtime::{Assembly, CoreSeed, Steps, when_io_stops};
use forebay_actors::shared::{Shared, predictor_rank};
use forebay_actors::step::StepTokens;
use forebay_devices::simulated::SimulatedDevice;
use forebay_models::bundle::HotNeuron;
use forebay_plans::preload::SEQUENTIAL_GAIN;
use forebay_plans::program::{Program, compile};
use forebay_plans::residency::{Residency, Sparsity};
use forebay_queues::lending::Lending;
use forebay_queues::slab::Slot;
use forebay_stages::attention::KvRoom;
use forebay_stages::boards::Boards;
use forebay_stages::contract::Turn;
use forebay_stages::kernels::KernelTable;
use forebay_stages::rule::Rule;
use forebay_stages::sequences::{SequenceId, Sequences, TokenPlace};
use forebay_stages::weights::Resident;
use forebay_traces::record::Reason;

use crate::case::Case;
use crate::device::{self, Beside};
use crate::generation::Batch;
use crate::models::{CONTEXT, Model};
use crate::random::Random;
use crate::trouble::Death;

/// Records that a core's trace holds: more than a step makes.
const RECORDS: usize = 4096;
/// More turns than any simulation needs: who takes them runs in circles.
const MOST_TURNS: u64 = 2_000_000;
/// Activated gates below this are skipped, in the mode with thresholds.
const THRESHOLD: f32 = 0.15;

/// A core, and what it sleeps for.
struct Place {
    /// `None` once it has finished: its thread would be gone, and its lanes closed.
    core: Option<Core>,
    sleep: Option<Reason>,
    /// As the core began.
    first: Census,
    /// As it finished.
    last: Option<Census>,
}

impl Place {
    fn census(&mut self) -> Census {
        let now = self.core.as_mut().map(|core| core.census());
        now.or_else(|| self.last.clone())
            .expect("a core has finished or is there")
    }
}

/// What the world did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Somebody had a turn, or time passed.
    Yes,
    /// All sleep, and no read is in flight.
    Still,
}

/// Everything that runs.
pub struct World {
    pub steps: Steps,
    pub medium: Medium,
    pub now_ns: u64,
    /// Turns so far.
    pub turns: u64,
    /// Hash of all that happened, to compare a replay with.
    pub digest: u64,
    /// The engine thread's own client, for embedding rows.
    pub rows: RowLink,
    pub row_buffers: Vec<Slot>,
    pub sequences: Sequences,
    sequence: SequenceId,
    /// Whether reads may bring wrong bytes and not say so.
    pub disk_lies: bool,
    places: Vec<Place>,
    /// `None` once it has died.
    io: Option<IoActor<SimulatedDriver, Requests, Completions>>,
    io_sleeps: bool,
    /// The device actor; `None` without a device, or once it has ended.
    beside: Option<Beside>,
    /// When and how the I/O actor dies: after so many of its turns.
    dies: Option<(usize, Death)>,
    /// Told when it has.
    mourner: Box<dyn Fn(String)>,
    random: Random,
    weights: Vec<usize>,
    turn_ns: usize,
}

impl World {
    pub fn new(case: &Case, model: &Model, random: &mut Random) -> Self {
        let bundle = model.bundle();
        let predicted = case.sparsity == Sparsity::Predicted;
        let neurons = case.neurons();
        let options = neurons.program(predicted);
        let programs: Vec<Program> = (0..case.threads)
            .map(|rank| compile(&bundle, &case.plan, rank, options))
            .collect();
        let mut memory = WeightMemory::carve(&bundle, &case.plan, &programs, case.max_batch)
            .expect("little memory");
        let calm = Medium::new(Arc::clone(&model.file), 0, Weather::calm());
        let mut loader = SimulatedDriver::new(calm, 16).expect("an eventfd");
        load_resident(
            &mut loader,
            &bundle,
            &case.plan,
            &mut memory.resident,
            &mut |_| {},
        )
        .expect("a sound file");
        let hot = hot_set(case, &bundle, random);
        let cores = &mut memory.cores;
        let hot = HotSet::new(&hot, &programs, cores);
        hot.load(
            &mut loader,
            &bundle,
            (&programs, cores),
            predicted,
            &mut |_| {},
        )
        .expect("a sound file");
        memory.gather();
        let resident = Arc::new(Resident::new(memory.resident));
        let network = &bundle.meta.network;
        let rank = predictor_rank(&bundle, predicted);
        let thresholds = vec![THRESHOLD; network.n_layers()];
        let (max_batch, sequences) = (case.max_batch, case.sequences);
        let kv = KvRoom::new(network, model.kv, CONTEXT, max_batch, sequences);
        let (driver, device) = device::load(case, &bundle, (&resident, &kv));
        let shared = Arc::new(Shared {
            rule: Rule::new(case.sparsity, network.ffn(0).activation, thresholds),
            boards: Boards::new(network, case.threads, case.max_batch, case.max_logits, rank),
            lending: Lending::new(case.threads),
            bundle,
            plan: case.plan.clone(),
            on_device: case.on_device.clone(),
            neurons,
            fewer: case.fewer,
            sequential_gain: SEQUENTIAL_GAIN,
            observer: None,
            kernels: KernelTable::best(),
            resident,
            device,
            faults: FaultCell::default(),
            threads: case.threads,
            kv,
            max_batch: case.max_batch,
        });
        let medium = Medium::new(
            Arc::clone(&model.file),
            random.number(),
            case.weather.clone(),
        );
        let reader = SimulatedDriver::new(medium.clone(), case.io_depth).expect("an eventfd");
        let memory = (memory.cores, memory.rows);
        let drivers = (reader, driver);
        Self::assemble(case, shared, programs, memory, drivers, medium, random)
    }

    fn assemble(
        case: &Case,
        shared: Arc<Shared>,
        programs: Vec<Program>,
        (memory, row_buffers): (Vec<CoreMemory>, Vec<Slot>),
        (driver, device): (SimulatedDriver, SimulatedDevice),
        medium: Medium,
        random: &mut Random,
    ) -> Self {
        let assembly = Assembly::new(&shared, programs, memory, &driver, RECORDS);
        let (requests, completions) = assembly.lanes.split();
        let limits = IoLimits {
            // Shorter than some clusters, so that reads are cut and put together.
            chunk_bytes: random.one_of(&[4096, 8192, 512 << 10]),
            ..IoLimits::new(completions.clients(), driver.capacity())
        };
        let place = |seed: CoreSeed| {
            let mut core = seed.build();
            Place {
                first: core.census(),
                core: Some(core),
                sleep: None,
                last: None,
            }
        };
        let mut sequences = Sequences::new(&shared.kv.pools, shared.kv.states);
        Self {
            sequence: sequences.open(),
            sequences,
            steps: assembly.steps,
            rows: assembly.rows,
            row_buffers,
            disk_lies: false,
            mourner: Box::new(when_io_stops(&shared, &assembly.aborter)),
            places: assembly.cores.into_iter().map(place).collect(),
            io: Some(IoActor::new(driver, requests, completions, limits)),
            io_sleeps: false,
            beside: assembly.device.map(|lanes| Beside::new(device, lanes)),
            dies: None,
            medium,
            now_ns: 0,
            turns: 0,
            digest: 0,
            random: random.fork(),
            // The device has its turns as often as the I/O actor.
            weights: case
                .weights
                .iter()
                .chain(case.weights.last())
                .copied()
                .collect(),
            turn_ns: case.turn_ns,
        }
    }

    /// After a resize: the device has the clusters of the first `keep` phases and no others, and memory for nothing
    /// else.
    ///
    /// # Errors
    /// It has too much, or too little.
    pub fn check_device(&self, keep: usize) -> Result<(), String> {
        match &self.beside {
            Some(beside) => beside.check_memory(self.steps.shared(), keep),
            None => Ok(()),
        }
    }

    /// Makes the model's only sequence end where `batch` begins, and gives its tokens their places.
    pub fn place(&mut self, batch: &Batch) -> Arc<StepTokens> {
        let mut tokens = StepTokens::default();
        let kept = self.sequences.cut(self.sequence, batch.position);
        assert_eq!(kept, batch.position, "no window has been left");
        let room = self
            .sequences
            .extend(self.sequence, batch.n_tokens, &mut tokens.copies);
        room.expect("blocks for the whole context");
        let positions = batch.position..batch.position + batch.n_tokens;
        tokens.places.extend(positions.map(|position| TokenPlace {
            sequence: self.sequence,
            position: position as u32,
        }));
        let first = batch.n_tokens - batch.n_logits;
        tokens
            .wanted
            .extend((first..batch.n_tokens).map(|t| t as u32));
        tokens.take_tables(&self.sequences);
        Arc::new(tokens)
    }

    /// Gives an actor that has work a turn; if none has, lets time pass until a read is back.
    ///
    /// # Errors
    /// It has gone on for ever.
    pub fn advance(&mut self) -> Result<Moved, String> {
        let awake = |p: &Place| match (&p.core, p.sleep) {
            (Some(core), Some(_)) => core.is_rung(),
            (core, None) => core.is_some(),
            (None, _) => false,
        };
        let mut able: Vec<usize> = (0..self.places.len())
            .filter(|&i| awake(&self.places[i]))
            .collect();
        let driver = self.io.as_ref().map(IoActor::driver);
        if driver.is_some_and(|driver| !self.io_sleeps || driver.is_awake(self.now_ns)) {
            able.push(self.places.len());
        }
        let beside = self.beside.as_ref();
        if beside.is_some_and(|beside| beside.is_awake(self.now_ns)) {
            able.push(self.places.len() + 1);
        }
        if able.is_empty() {
            let read = driver.and_then(SimulatedDriver::next_due);
            let job = beside.and_then(Beside::next_due);
            let Some(due) = read.into_iter().chain(job).min() else {
                return Ok(Moved::Still);
            };
            self.now_ns = self.now_ns.max(due);
            return Ok(Moved::Yes);
        }
        self.turns += 1;
        if self.turns > MOST_TURNS {
            return Err(format!("no end after {MOST_TURNS} turns"));
        }
        let who = self.draw(&able);
        let io = self.places.len();
        match self.places.get_mut(who) {
            Some(place) => {
                place.sleep = None;
                match place.core.as_mut().map(Core::turn) {
                    Some(Turn::Blocked(reason)) => place.sleep = Some(reason),
                    Some(Turn::Finished) => {
                        place.last = Some(place.census());
                        place.core = None;
                    }
                    Some(Turn::Progress) | None => {}
                }
            }
            None if who == io => self.io_turn()?,
            None => {
                let now = self.now_ns;
                self.beside.take_if(|beside| !beside.turn(now));
            }
        }
        self.now_ns += 1 + self.random.within(0..=self.turn_ns) as u64;
        let event = who as u64 ^ self.now_ns << 8;
        self.digest = (self.digest ^ event).wrapping_mul(0x0100_0000_01b3);
        Ok(Moved::Yes)
    }

    fn draw(&mut self, able: &[usize]) -> usize {
        let total: usize = able.iter().map(|&i| self.weights[i]).sum();
        let mut at = self.random.within(0..=total - 1);
        for &i in able {
            if at < self.weights[i] {
                return i;
            }
            at -= self.weights[i];
        }
        unreachable!("the draw is below the total")
    }

    fn io_turn(&mut self) -> Result<(), String> {
        let death = match &mut self.dies {
            Some((0, death)) => Some(*death),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        match death {
            Some(Death::Panic) => {
                self.bury(Death::PANIC.into());
                return Ok(());
            }
            Some(Death::Error) => self.medium.set_weather(Weather {
                broken_driver: true,
                ..Weather::calm()
            }),
            None => {}
        }
        let Some(io) = &mut self.io else {
            return Ok(());
        };
        match io.turn(self.now_ns) {
            Ok(turn) => self.io_sleeps = matches!(turn, Turn::Blocked(_)),
            Err(e) if death.is_some() => {
                self.bury(e.to_string());
                return Ok(());
            }
            Err(e) => return Err(e.to_string()),
        }
        if self.io_sleeps {
            // Announces the sleep; nothing waits here.
            io.wait(None).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// What the I/O actor's thread does when the actor ends before its time.
    fn bury(&mut self, cause: String) {
        (self.mourner)(cause);
        self.io = None;
    }

    /// Has the I/O actor die after so many more of its turns; it is woken for the last one, if need be.
    pub fn doom(&mut self, turns: usize, death: Death) {
        self.dies = Some((turns, death));
        if turns == 0 {
            self.io_sleeps = false;
        }
    }

    /// Whether the I/O actor has died.
    pub fn io_is_dead(&self) -> bool {
        self.io.is_none()
    }

    /// The cores, by rank, as long as they are there.
    pub fn cores(&mut self) -> impl Iterator<Item = &mut Core> {
        self.places.iter_mut().filter_map(|p| p.core.as_mut())
    }

    /// Each core's census as it began and now.
    pub fn censuses(&mut self) -> Vec<(Census, Census)> {
        let now = |p: &mut Place| (p.first.clone(), p.census());
        self.places.iter_mut().map(now).collect()
    }

    /// Whether all cores have ended.
    pub fn all_finished(&self) -> bool {
        self.places.iter().all(|p| p.core.is_none())
    }

    /// Whether all cores sleep for want of a step.
    pub fn is_idle(&self) -> bool {
        let idle = |p: &Place| p.sleep == Some(Reason::Idle);
        self.places.iter().all(idle)
    }

    /// Who stands where, for people.
    pub fn dump(&mut self) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "at {} ns after {} turns; reads in flight: {}, the I/O actor {}",
            self.now_ns,
            self.turns,
            self.io.as_ref().map_or(0, |io| io.driver().in_flight()),
            match (&self.io, self.io_sleeps) {
                (None, _) => "is dead",
                (_, true) => "sleeps",
                (_, false) => "is awake",
            },
        );
        for (rank, place) in self.places.iter_mut().enumerate() {
            let sleep = place.sleep;
            let census = place.census();
            let _ = writeln!(text, "core {rank} waits for {sleep:?}: {census:?}");
        }
        text
    }
}

/// Neurons that an earlier run might have left in the caches.
fn hot_set(
    case: &Case,
    bundle: &forebay_models::bundle::Bundle,
    random: &mut Random,
) -> Vec<HotNeuron> {
    let mut hot = Vec::new();
    for (cluster, entry) in bundle.clusters.iter().enumerate() {
        let neurons = match case.plan.residency[cluster] {
            residency if residency.is_by_neuron() => entry.count,
            // Kept as a whole.
            Residency::Cached => 1,
            _ => 0,
        };
        for neuron in 0..if case.hot_percent == 0 { 0 } else { neurons } {
            if random.chance(case.hot_percent as u64) {
                hot.push(HotNeuron {
                    cluster: cluster as u32,
                    neuron,
                });
            }
        }
    }
    hot
}
