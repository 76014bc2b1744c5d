//! A device beside the simulated cores: what it has, how slow it is, and when it is lost. It is drawn apart from the
//! rest, so that a seed means the same with it and without.

use std::time::Duration;

use forebay_actors::device::{DeviceActor, DeviceLanes, DeviceParts, KvCopies};
use forebay_actors::shared::Shared;
use forebay_devices::DeviceDriver;
use forebay_devices::simulated::{Behaviour, SimulatedDevice};
use forebay_models::bundle::Bundle;
use forebay_plans::on_device::{Neurons, OnDevice, Room, Shares};
use forebay_plans::program::{Program, compile};
use forebay_plans::residency::{Pipeline, Sparsity};
use forebay_plans::uploads::{UploadShare, UploadWindow, Uploads};
use forebay_stages::attention::KvRoom;
use forebay_stages::contract::Turn;
use forebay_stages::kernels::KernelTable;
use forebay_stages::weights::Resident;

use crate::case::Case;
use crate::models::{CONTEXT, Model};
use crate::random::Random;

/// Makes a seed's device another stream than the rest of it.
const APART: u64 = 0x5e_1f_d0_0d;

/// A device with some of a case's clusters, perhaps.
pub fn draw(seed: u64, case: &mut Case, model: &Model) {
    let mut random = Random::new(seed ^ APART);
    if case.pipeline == Pipeline::Cluster && random.chance(30) {
        let bundle = model.bundle();
        place(&mut random, case, &bundle);
        case.on_device.uploads = uploads(&mut random, case, &bundle);
    }
}

/// A device with some of a case's pinned clusters.
fn place(random: &mut Random, case: &mut Case, bundle: &Bundle) {
    let predicted = case.sparsity == Sparsity::Predicted;
    let options = case.neurons().program(predicted);
    let programs: Vec<Program> = (0..case.threads)
        .map(|rank| compile(bundle, &case.plan, rank, options))
        .collect();
    let mut share = || random.one_of(&[0.0, 0.3, 0.6, 1.0, 1.0]);
    let shares = Shares {
        decode: share(),
        prompts: share(),
    };
    let neurons = match case.sparsity {
        Sparsity::Dense | Sparsity::Exact => Neurons::All,
        Sparsity::Predicted => Neurons::Hot,
        Sparsity::Threshold => Neurons::None,
    };
    let room = Room {
        total: random.one_of(&[20_000, u64::MAX, u64::MAX]),
        piece: u64::MAX,
        in_pages: false,
    };
    case.on_device = OnDevice::choose(bundle, &programs, neurons, |_| shares, room);
    case.plan.device_places = case.on_device.places();
    case.device = Behaviour {
        job_ns: random.one_of(&[0, 1_000, 300_000, 30_000_000]),
        memory_bytes: random.one_of(&[10_000, u64::MAX, u64::MAX, u64::MAX]),
        shares_memory: true,
        imports: false,
        lost_after: random.one_of(&[None, None, Some(0), Some(3), Some(40)]),
        wrong_result: None,
    };
    case.device.imports = random.chance(30);
    let part = random.one_of(&[0.3, 0.7, 1.0]);
    // Nothing learns: that takes real time, and a seed means the same every time.
    case.on_device.attention = random.chance(60).then_some(part);
}

/// The streamed clusters that a device computes in prompts, perhaps.
fn uploads(random: &mut Random, case: &Case, bundle: &Bundle) -> Option<Uploads> {
    let all_neurons = matches!(case.sparsity, Sparsity::Dense | Sparsity::Exact);
    if case.pipeline != Pipeline::Cluster || !all_neurons {
        return None;
    }
    let longest = bundle.clusters.iter().map(|e| e.padded_len()).max();
    let window = UploadWindow {
        threads: case.threads,
        places: random.within(1..=5),
        place_bytes: longest.unwrap_or(0),
    };
    let part = random.one_of(&[0.0, 0.5, 1.0, 1.0]);
    Uploads::choose(bundle, &case.plan, window, UploadShare::always(part))
}

/// A case with prompts whose streamed clusters a device computes, as far as it has room.
pub fn draw_uploads(random: &mut Random, models: &[Model]) -> Case {
    for _ in 0..10_000 {
        let mut case = Case::draw(random, models);
        let bundle = models[case.model].bundle();
        if let Some(uploads) = uploads(random, &case, &bundle) {
            case.max_batch = random.within(16..=CONTEXT);
            place(random, &mut case, &bundle);
            case.on_device.uploads = Some(uploads);
            return case;
        }
    }
    unreachable!("one in a few cases streams clusters that a device can compute")
}

/// The device with its clusters, if it has any.
pub fn load(
    case: &Case,
    bundle: &Bundle,
    (resident, kv): (&Resident, &KvRoom),
) -> (SimulatedDevice, Option<DeviceParts>) {
    let mut driver = SimulatedDevice::new(KernelTable::best(), 2, case.device.clone());
    let on_device = &case.on_device;
    let limits = (Duration::MAX, 0);
    let of_cores = (resident, kv, case.threads);
    let (parts, _) = DeviceParts::load(&mut driver, bundle, on_device, of_cores, limits);
    (driver, (!on_device.is_empty()).then_some(parts))
}

/// The device actor, and whether it sleeps.
pub struct Beside {
    actor: DeviceActor<SimulatedDevice>,
    seen: u64,
    sleeps: bool,
}

impl Beside {
    pub fn new(driver: SimulatedDevice, lanes: DeviceLanes) -> Self {
        Self {
            actor: DeviceActor::new(driver, lanes),
            seen: 0,
            sleeps: false,
        }
    }

    /// Whether it has something to do.
    pub fn is_awake(&self, now_ns: u64) -> bool {
        let rung = self.actor.bell().epoch() != self.seen;
        !self.sleeps || rung || self.next_due().is_some_and(|due| due <= now_ns)
    }

    /// When the device has finished its job.
    pub fn next_due(&self) -> Option<u64> {
        self.actor.driver().next_due()
    }

    /// Whether the device has the clusters of the first `keep` phases and no others, as far as it ever had room for
    /// them, or of none if it is lost; and memory for nothing else.
    ///
    /// # Errors
    /// It has too much, or too little.
    pub fn check_memory(&self, shared: &Shared, keep: usize) -> Result<(), String> {
        let Some(parts) = &shared.device else {
            return Ok(());
        };
        let (gone, behaviour) = (parts.account.is_gone(), self.actor.driver().behaviour());
        let (mut bytes, phases) = (0, &shared.on_device.phases);
        for (number, phase) in phases.iter().enumerate() {
            let has = parts.of(number).is_some() && !gone;
            if has && !behaviour.imports {
                bytes += phase.bytes(&shared.bundle);
            }
            // What takes no memory stays.
            let (keeps, roomy) = match behaviour.imports {
                true => (true, true),
                false => (number < keep, behaviour.memory_bytes == u64::MAX),
            };
            let missing = roomy && !gone && !phase.items.is_empty() && keeps && !has;
            if missing || has && !keeps {
                return Err(format!("phase {number} of {keep}: on the device: {has}"));
            }
        }
        let window = parts.window().and_then(|window| window.segment());
        if let (Some(_), Some(uploads), false) = (window, &shared.on_device.uploads, gone) {
            if keep <= phases.len() {
                return Err(format!("the window is there with {keep} phases"));
            }
            bytes += uploads.window.device_bytes();
        }
        if !gone && parts.kv().is_some_and(|kv| kv.is_there()) {
            if keep != usize::MAX {
                return Err(format!("keys and values are there with {keep} phases"));
            }
            bytes += KvCopies::bytes(shared.network(), &shared.kv, shared.threads);
        }
        let used = self.actor.driver().memory_bytes();
        match used == bytes {
            true => Ok(()),
            false => Err(format!("{used} bytes on the device, not {bytes}")),
        }
    }

    /// A turn; false once it has ended.
    pub fn turn(&mut self, now_ns: u64) -> bool {
        self.seen = self.actor.bell().epoch();
        let turn = self.actor.turn(now_ns);
        self.sleeps = matches!(turn, Turn::Blocked(_));
        turn != Turn::Finished
    }
}
