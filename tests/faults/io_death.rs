//! The I/O actor itself ends while cores wait for its reads: the step fails, and no core waits for
//! ever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_actors::fault::{Fault, FaultCell};
use forebay_actors::io::{Driver, DriverChoice, ReadDone, ReadOp, Waker, open_driver};
use forebay_actors::load::load_resident;
use forebay_actors::memory::WeightMemory;
use forebay_actors::runtime::{Runtime, RuntimeOptions};
use forebay_actors::shared::{NeuronOptions, Shared};
use forebay_actors::step::{Step, StepTokens};
use forebay_models::bundle::Bundle;
use forebay_models::kv_type::KvType;
use forebay_plans::fewer_experts::FewerExperts;
use forebay_plans::on_device::OnDevice;
use forebay_plans::preload::SEQUENTIAL_GAIN;
use forebay_plans::program::compile;
use forebay_plans::residency::{
    Pipeline, ResidencyRequest, STREAM_WINDOW, Sparsity, decide, least_weight_bytes,
};
use forebay_queues::lending::Lending;
use forebay_stages::attention::KvRoom;
use forebay_stages::boards::Boards;
use forebay_stages::kernels::KernelTable;
use forebay_stages::rule::Rule;
use forebay_stages::sequences::{Sequences, TokenPlace};
use forebay_stages::weights::Resident;

use crate::panics::PLANTED;
use crate::scratch::Scratch;
use crate::stage::packed_demo;
use crate::watchdog::within;

const CONTEXT: usize = 16;

/// How the driver breaks.
#[derive(Clone, Copy, Debug)]
enum Death {
    Error,
    Panic,
}

/// A driver that breaks when it is to start its `left`-th read.
struct Dying {
    inner: Box<dyn Driver>,
    left: Arc<AtomicUsize>,
    death: Death,
}

impl Driver for Dying {
    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn submit(&mut self, op: ReadOp, now_ns: u64) -> Result<(), ReadOp> {
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .ok();
        self.inner.submit(op, now_ns)
    }

    fn flush(&mut self) -> io::Result<()> {
        match (self.left.load(Ordering::Relaxed), self.death) {
            (0, Death::Error) => Err(io::Error::other("the ring is gone")),
            (0, Death::Panic) => panic!("{PLANTED}a bug in the driver"),
            _ => self.inner.flush(),
        }
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<ReadDone>) -> usize {
        self.inner.poll(now_ns, out)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.inner.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn name(&self) -> &'static str {
        "dying"
    }
}

/// A graph over the demo model that streams everything through a driver that dies after `reads`.
fn graph(scratch: &Scratch, reads: usize, death: Death) -> Runtime {
    let path = scratch.write("demo.fbay", packed_demo());
    let bundle = Bundle::open(&path).expect("a sound file");
    let threads = crate::stage::threads();
    let request = ResidencyRequest {
        weight_bytes: least_weight_bytes(&bundle, threads, Sparsity::Dense),
        threads,
        sparsity: Sparsity::Dense,
        pipeline: Pipeline::Cluster,
        stream_window: STREAM_WINDOW,
        neuron_cache: 0,
    };
    let plan = decide(&bundle, &request).expect("the least memory");
    let options = NeuronOptions::default().program(false);
    let programs: Vec<_> = (0..threads)
        .map(|rank| compile(&bundle, &plan, rank, options))
        .collect();
    let mut memory = WeightMemory::carve(&bundle, &plan, &programs, 1).expect("memory");
    let open = || {
        open_driver(&path, DriverChoice::Pread, 8, &[])
            .expect("a driver")
            .0
    };
    load_resident(
        open().as_mut(),
        &bundle,
        &plan,
        &mut memory.resident,
        &mut |_| {},
    )
    .expect("read");
    let network = &bundle.meta.network;
    let kv = KvRoom::new(network, KvType::F16, CONTEXT, 1, 1);
    let shared = Arc::new(Shared {
        rule: Rule::new(Sparsity::Dense, network.ffn(0).activation, Vec::new()),
        neurons: NeuronOptions::default(),
        fewer: FewerExperts::default(),
        sequential_gain: SEQUENTIAL_GAIN,
        observer: None,
        device: None,
        boards: Boards::new(network, threads, 1, 1, 0),
        lending: Lending::new(threads),
        resident: Arc::new(Resident::new(memory.resident)),
        kernels: KernelTable::best(),
        faults: FaultCell::default(),
        kv,
        max_batch: 1,
        threads,
        plan,
        on_device: OnDevice::default(),
        bundle,
    });
    let dying = Dying {
        inner: open(),
        left: Arc::new(AtomicUsize::new(reads)),
        death,
    };
    let options = RuntimeOptions::default();
    Runtime::start(
        shared,
        programs,
        memory.cores,
        Box::new(dying),
        None,
        &options,
    )
    .expect("threads")
}

#[test]
fn a_step_ends_when_the_io_actor_does() {
    for death in [Death::Error, Death::Panic] {
        for reads in [1, 20, 100, 250] {
            within(Duration::from_secs(20), move || {
                let scratch = Scratch::new();
                let mut graph = graph(&scratch, reads, death);
                let mut reports = Vec::new();
                let mut sequences = Sequences::new(&graph.shared().kv.pools, 0);
                let sequence = sequences.open();
                let mut step = |position: u32| {
                    let mut tokens = StepTokens {
                        places: vec![TokenPlace { sequence, position }],
                        wanted: vec![0],
                        ..StepTokens::default()
                    };
                    let room = sequences.extend(sequence, 1, &mut tokens.copies);
                    room.expect("a block for every position");
                    tokens.take_tables(&sequences);
                    Step {
                        tokens: Arc::new(tokens),
                        ..Step::default()
                    }
                };
                let steps = (0..CONTEXT as u32 - 1).map(&mut step);
                let mut failed = steps.map(|step| graph.step(step, &mut reports, |_| ()));
                let fault = failed.find_map(Result::err);
                let fault =
                    fault.unwrap_or_else(|| panic!("{death:?} after {reads} reads goes unnoticed"));
                drop(failed);
                let Fault::IoStopped { cause } = fault else {
                    panic!("{death:?}: {fault}")
                };
                assert!(
                    cause.contains("the ring is gone") || cause.contains("a bug in the driver")
                );
                // It stays dead, and says so.
                assert!(
                    graph
                        .step(step(CONTEXT as u32 - 1), &mut reports, |_| ())
                        .is_err()
                );
            });
        }
    }
}
