//! The device that computes beside the cores: which, what it gets, and what its memory is to the budget.

use std::sync::Arc;
use std::time::Duration;

use forebay_actors::device::{AttentionCosts, DeviceParts, job_memory};
use forebay_actors::shared::predictor_rank;
use forebay_devices::probe;
use forebay_devices::{Activated, DeviceDriver, DeviceFault, FORMATS};
use forebay_models::block::BlockType;
use forebay_models::bundle::Bundle;
use forebay_models::network::Content;
use forebay_plans::on_device::{Neurons, OnDevice, PhaseOnDevice, Room, Shares};
use forebay_plans::placement::{Operator, Placement, PlacementMachine, break_even};
use forebay_plans::preload::PROMPT_TOKENS;
use forebay_plans::process::rss_now;
use forebay_plans::program::Program;
use forebay_plans::residency::{Pipeline, Sparsity};
use forebay_plans::uploads::UploadShare;
use forebay_queues::pages::give_back_freed;
use forebay_stages::kernels::KernelTable;
use forebay_stages::weights::Resident;

use super::device_attention::fastest_attention;
use super::device_choice::{
    DECODED, DeviceChoice, DevicePlacing, LoadedDevice, OpenDevice, PIECE_SHARE, PROMPT, Placed,
};
use super::settings::EngineBuilder;
use crate::engine::facts::DeviceFacts;
use crate::engine::thread::device_share::share_of;
use crate::error::Error;
use crate::memory::{DeviceRequest, MemoryPlan};

/// Why there is no GPU, if one was asked for.
#[cfg(not(feature = "gpu"))]
fn not_built(choice: DeviceChoice) -> Option<DeviceFault> {
    let wanted = match choice {
        DeviceChoice::Gpu(Some(index)) => format!("gpu:{index}"),
        DeviceChoice::Gpu(None) => "gpu".to_owned(),
        DeviceChoice::Auto | DeviceChoice::Cpu => return None,
    };
    Some(DeviceFault::NotBuilt { wanted })
}

impl EngineBuilder {
    /// What computes beside the CPU. Default: [`DeviceChoice::Auto`]. No token depends on it.
    #[must_use]
    pub fn device(mut self, choice: DeviceChoice) -> Self {
        self.device = choice;
        self
    }

    /// A device of the caller's, for tests and simulations. It must have the CPU's bits, which is checked.
    #[must_use]
    pub fn own_device(mut self, driver: Box<dyn DeviceDriver>) -> Self {
        self.own_device = Some(driver);
        self
    }

    /// How much the device computes. Default: what is fastest, as far as the machine has been measured; all that it can
    /// of a device of the caller's.
    #[must_use]
    pub fn device_placing(mut self, placing: DevicePlacing) -> Self {
        self.device_placing = Some(placing);
        self
    }

    /// How long a job may take before the device counts as stuck and the cores compute it. Default: 30 seconds.
    #[must_use]
    pub fn device_patience(mut self, patience: Duration) -> Self {
        self.device_patience = patience;
        self
    }

    /// Opens the device, if one is wanted and there. Only [`DeviceChoice::Auto`] does without one that fails: then the
    /// text says why.
    ///
    /// # Errors
    /// It was asked for and cannot be used.
    pub(super) fn open_device(
        &mut self,
        bundle: &Bundle,
        kernels: &KernelTable,
    ) -> Result<(Option<OpenDevice>, Option<String>), Error> {
        // Wirings for comparison keep every cluster on its core.
        if self.neurons.pipeline != Pipeline::Cluster {
            return Ok((None, None));
        }
        let choice = self.device;
        let own = self.own_device.take();
        if own.is_none() && choice == DeviceChoice::Cpu {
            return Ok((None, None));
        }
        give_back_freed();
        let before = rss_now()?;
        let opened = match own {
            Some(driver) => self.check_own(driver, bundle, kernels).map(Some),
            None => self.open_gpu(choice, bundle, kernels),
        };
        match opened {
            Ok(None) => Ok((None, None)),
            Ok(Some(mut device)) => {
                device.request.runtime = rss_now()?.saturating_sub(before);
                device.request.shares_memory = device.driver.shares_memory();
                device.request.imports = device.driver.imports();
                if device.request.imports {
                    device.request.staging = 0;
                }
                let network = &bundle.meta.network;
                let context = self.context.unwrap_or(network.context_length);
                device.request.attends = self.part_of_attention(&device, bundle, context) > 0.0;
                Ok((Some(device), None))
            }
            Err(fault) if choice == DeviceChoice::Auto => {
                Ok((None, Some(format!("no device: {fault}"))))
            }
            Err(fault) => Err(Error::Device { fault }),
        }
    }

    /// Whether there is a device that nobody asked for.
    pub(super) fn may_do_without(&self, device: Option<&OpenDevice>) -> bool {
        device.is_some() && self.device == DeviceChoice::Auto
    }

    fn check_own(
        &self,
        mut driver: Box<dyn DeviceDriver>,
        bundle: &Bundle,
        kernels: &KernelTable,
    ) -> Result<OpenDevice, DeviceFault> {
        let mut clock = probe::wall_clock();
        probe::check(driver.as_mut(), kernels, &formats(bundle), &mut clock)?;
        let heads = self.heads_on_device(bundle);
        let attends = probe::check_attention(driver.as_mut(), kernels, &heads, &mut clock);
        Ok(OpenDevice {
            driver,
            attends,
            placing: self
                .device_placing
                .clone()
                .unwrap_or(DevicePlacing::Part(1.0)),
            request: DeviceRequest {
                piece: u64::MAX,
                ..DeviceRequest::default()
            },
            why_uploads: None,
        })
    }

    /// Refuses a device that this program has no code for.
    #[cfg(not(feature = "gpu"))]
    pub(super) fn check_device(&self) -> Result<(), Error> {
        match (&self.own_device, not_built(self.device)) {
            (None, Some(fault)) => Err(Error::Device { fault }),
            _ => Ok(()),
        }
    }

    #[cfg(not(feature = "gpu"))]
    #[expect(clippy::unused_self, reason = "with the feature it is used")]
    fn open_gpu(
        &self,
        choice: DeviceChoice,
        _bundle: &Bundle,
        _kernels: &KernelTable,
    ) -> Result<Option<OpenDevice>, DeviceFault> {
        not_built(choice).map_or(Ok(None), Err)
    }

    /// Which neurons a device may compute.
    fn neurons_on_device(&self, bundle: &Bundle, sparsity: Sparsity) -> Neurons {
        let activation = bundle.meta.network.ffn(0).activation;
        match sparsity {
            _ if self.observer.is_some() || Activated::of(activation).is_none() => Neurons::None,
            Sparsity::Dense | Sparsity::Exact => Neurons::All,
            Sparsity::Predicted => Neurons::Hot,
            Sparsity::Threshold => Neurons::None,
        }
    }

    /// Decides which part of streamed clusters is copied to the device in prompts, if the memory will not hold all
    /// weights, and from which batch on.
    pub(super) fn place_uploads(
        &self,
        device: &mut OpenDevice,
        (bundle, kernels): (&Bundle, &KernelTable),
        sparsity: Sparsity,
    ) {
        if self.neurons_on_device(bundle, sparsity) != Neurons::All {
            return;
        }
        device.request.uploads = match &device.placing {
            DevicePlacing::Part(part) => Some(UploadShare::always(*part)),
            DevicePlacing::Fastest(machine) => {
                let rate = self.known_disk_rate(bundle, *kernels, sparsity);
                let fastest = fastest_uploads(machine, bundle, rate);
                device.why_uploads = fastest.as_ref().map(|(_, why)| why.clone());
                fastest.map(|(share, _)| share)
            }
        };
    }

    /// Chooses the device's clusters, and adds its memory to the budget. If it gets nothing, the text says why.
    pub(super) fn place_on_device(
        &self,
        device: &OpenDevice,
        bundle: &Bundle,
        (programs, sparsity): (&[Program], Sparsity),
        memory: &mut MemoryPlan,
    ) -> Result<Option<String>, Error> {
        let attention = self.place_attention(device, bundle, programs.len(), memory);
        let copies = device.request.copies();
        let neurons = self.neurons_on_device(bundle, sparsity);
        let choose = |room| match &device.placing {
            DevicePlacing::Part(part) => {
                let shares = Shares {
                    decode: part.clamp(0.0, 1.0),
                    prompts: part.clamp(0.0, 1.0),
                };
                OnDevice::choose(bundle, programs, neurons, |_| shares, room)
            }
            DevicePlacing::Fastest(machine) => {
                let shares = fastest(machine, bundle, programs);
                OnDevice::choose(bundle, programs, neurons, |i| shares[i], room)
            }
        };
        let mut on_device = choose(room_for_weights(&device.request, memory.budget.remaining()));
        on_device.uploads = memory.on_device.uploads.take();
        on_device.attention = match attention {
            Placed::There(part) => Some(part),
            Placed::NotFaster | Placed::NoRoom => None,
        };
        on_device.learns = matches!(device.placing, DevicePlacing::Fastest(_));
        if on_device.is_empty() {
            let all = room_for_weights(&device.request, u64::MAX);
            let fits = attention != Placed::NoRoom && choose(all).is_empty();
            let name = device.driver.name();
            return Ok(Some(match fits {
                true => format!("nothing is faster on {name}"),
                false => format!("beside the weights, the budget has no room for work on {name}"),
            }));
        }
        if copies {
            let of_phase = |phase: &PhaseOnDevice| phase.bytes(bundle);
            let largest = on_device.phases.iter().map(of_phase).max().unwrap_or(0);
            let why = "the largest phase's weights on their way to the device";
            memory.budget.claim("device_staging", largest, why);
            let bytes = on_device.bytes(bundle);
            let why = "copies for a device that shares the memory";
            memory.budget.claim("device_weights", bytes, why);
        }
        memory.residency.device_places = on_device.places();
        memory.on_device = on_device;
        memory.budget.check()?;
        Ok(None)
    }

    /// Copies its clusters to the device, and leaves memory of its own for jobs; what went wrong is noted.
    pub(super) fn load_device(
        &self,
        device: OpenDevice,
        bundle: &Bundle,
        (memory, sparsity): (&MemoryPlan, Sparsity),
        (resident, threads): (&Arc<Resident>, usize),
        notes: &mut Vec<String>,
    ) -> LoadedDevice {
        let (mut driver, on_device) = (device.driver, &memory.on_device);
        let steps = (memory.max_batch, memory.max_logits);
        let rank = predictor_rank(bundle, sparsity == Sparsity::Predicted);
        let room = self.kv_room(bundle, memory);
        let cores = (&bundle.meta.network, &room);
        let attention = AttentionCosts::of(cores, threads, memory.max_batch);
        let attention = attention.filter(|_| on_device.attention.is_some());
        let spare = job_memory(bundle, steps, rank) + attention.map_or(0, |costs| costs.buffers);
        let limits = (self.device_patience, spare);
        let of_cores = (&**resident, &room, threads);
        let (parts, fault) =
            DeviceParts::load(driver.as_mut(), bundle, on_device, of_cores, limits);
        notes.extend(fault.map(|fault| format!("{}: {fault}", driver.name())));
        let facts = DeviceFacts {
            name: driver.name().to_owned(),
            account: Arc::clone(&parts.account),
        };
        notes.extend(device.why_uploads.filter(|_| parts.window().is_some()));
        notes.extend(device.attends.err().map(|fault| fault.to_string()));
        if let (Some(_), DevicePlacing::Fastest(machine)) = (parts.kv(), &device.placing) {
            let fastest = fastest_attention(machine, &bundle.meta.network, memory.context);
            notes.extend(fastest.map(|(_, why)| why));
        }
        let share = share_of(bundle, on_device, &parts);
        let attends = match parts.kv().is_some() {
            true => ", and attends in prompts",
            false => "",
        };
        notes.push(format!(
            "{} multiplies {:.0}% of the weights for a generated token, {:.0}% in prompts{attends}",
            facts.name,
            100.0 * share.decode,
            100.0 * share.prompts
        ));
        LoadedDevice {
            driver,
            parts,
            facts,
        }
    }
}

/// Room for pinned weights on a device, of whose memory the budget leaves so many bytes. What it copies to memory of
/// its own is never on the way as a whole.
fn room_for_weights(device: &DeviceRequest, left: u64) -> Room {
    let (total, piece) = match device.copies() {
        true => (left - left / PIECE_SHARE, left / PIECE_SHARE),
        false => (u64::MAX, u64::MAX),
    };
    Room {
        total,
        piece: device.piece.min(piece),
        in_pages: device.imports,
    }
}

/// The fastest shares of every phase, by number.
fn fastest(machine: &PlacementMachine, bundle: &Bundle, programs: &[Program]) -> Vec<Shares> {
    let phases = programs.iter().map(|p| p.phases.len()).max().unwrap_or(0);
    let operators: Vec<Option<Operator>> = (0..phases)
        .map(|number| Operator::of_phase(bundle, programs, number))
        .collect();
    let all: Vec<Operator> = operators.iter().flatten().cloned().collect();
    let of_batch = |batch| Placement::plan(machine, &all, batch).choices.into_iter();
    let mut choices = of_batch(DECODED).zip(of_batch(PROMPT));
    let shares = operators.iter().map(|operator| {
        let chosen = operator.as_ref().and_then(|_| choices.next());
        chosen.map_or_else(Shares::default, |(decode, prompts)| Shares {
            decode: decode.part(),
            prompts: prompts.part(),
        })
    });
    shares.collect()
}

/// The fastest part of streamed FFNs that a device gets, as one layer shows it, and the alternatives that it beat;
/// `None` if it does not pay in batches of at most as many tokens as a prompt's usual ones.
fn fastest_uploads(
    machine: &PlacementMachine,
    bundle: &Bundle,
    bytes_per_second: f64,
) -> Option<(UploadShare, String)> {
    let mut layers = 0..bundle.meta.network.n_layers();
    let streamed = |layer| Operator::of_streamed_ffn(bundle, layer, bytes_per_second);
    let operators = [layers.find_map(streamed)?];
    let from = break_even(machine, &operators[0], false)?.max(PROMPT_TOKENS);
    let plan = Placement::plan(machine, &operators, PROMPT);
    let part = plan.choices[0].part();
    let share = UploadShare {
        part,
        from_tokens: from,
    };
    let why = plan.explain(machine, &operators, PROMPT, 0);
    let why = format!("{why}, for {PROMPT} tokens; it pays from {from} on");
    (part > 0.0 && from <= PROMPT).then_some((share, why))
}

/// The model's formats that devices multiply.
pub(super) fn formats(bundle: &Bundle) -> Vec<BlockType> {
    let mut used: Vec<BlockType> = Vec::new();
    for entry in &bundle.clusters {
        match entry.content {
            Content::Rows(tensor) => used.extend(bundle.meta.matrix(tensor).map(|m| m.block)),
            Content::HotNeurons(_) | Content::Neurons(_) | Content::Experts(_) => {
                let geometry = bundle.meta.geometry(entry.content);
                used.extend(geometry.into_iter().flat_map(|g| [g.gate, g.down]));
                used.extend(geometry.and_then(|g| g.up));
            }
            Content::Table(_) => {}
        }
        used.dedup();
    }
    FORMATS.into_iter().filter(|f| used.contains(f)).collect()
}
