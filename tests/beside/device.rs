//! A simulated device whose faults begin when a test says so, after the engine has checked and filled it.
#![allow(
    dead_code,
    reason = "each test binary uses its own part of this module"
)]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay::{DevicePlacing, EngineBuilder};
use forebay_devices::simulated::{Behaviour, SimulatedDevice};
use forebay_devices::{DeviceDone, DeviceDriver, DeviceFault, DeviceJob, SegmentId};
use forebay_queues::slab::Slot;
use forebay_stages::kernels::KernelTable;

/// Jobs in flight.
const CAPACITY: usize = 2;

/// What a device does instead of its job.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// The job ends with a fault.
    Ends(DeviceFault),
    /// The job never ends.
    NeverEnds,
    /// The driver panics.
    Panics,
}

/// What a device has been asked so often, and what goes wrong.
#[derive(Debug, Default)]
struct Calls {
    number: AtomicU64,
    /// What happens to the one of this number.
    trouble: Mutex<Option<(u64, Trouble)>>,
}

impl Calls {
    fn fail_after(&self, more: u64, trouble: Trouble) {
        let at = self.number.load(Ordering::Relaxed) + more;
        *self.trouble.lock().expect("no panic") = Some((at, trouble));
    }

    /// What happens to the next one.
    fn next(&self) -> Option<Trouble> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let mut trouble = self.trouble.lock().expect("no panic");
        trouble
            .take_if(|(at, _)| *at == number)
            .map(|(_, what)| what)
    }
}

/// The device of an engine, as its test holds it.
#[derive(Clone, Debug)]
pub struct Hold {
    jobs: Arc<Calls>,
    writes: Arc<Calls>,
    /// Bytes in its memory, and how many segments it has been asked to take.
    memory: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    loads: Arc<AtomicU64>,
}

impl Hold {
    /// After this many more jobs, the next one fails.
    pub fn fail_after(&self, more: u64, trouble: Trouble) {
        self.jobs.fail_after(more, trouble);
    }

    /// After this many more clusters have been copied into a window, the next one fails.
    pub fn fail_write_after(&self, more: u64, trouble: Trouble) {
        self.writes.fail_after(more, trouble);
    }

    /// Jobs so far, those of the check included.
    pub fn jobs(&self) -> u64 {
        self.jobs.number.load(Ordering::Relaxed)
    }

    /// Clusters that have been copied into a window so far.
    pub fn writes(&self) -> u64 {
        self.writes.number.load(Ordering::Relaxed)
    }

    /// Segments that it has been asked to take, those of the check included.
    pub fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }

    /// Bytes of weights in its memory.
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Most bytes that it has been asked for so far.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Fragile {
    device: Box<dyn DeviceDriver>,
    hold: Hold,
    failed: Vec<DeviceDone>,
    never: Vec<DeviceJob>,
    /// Segments for which it still has memory.
    segments: usize,
    /// Whether it has memory for a window.
    reserves: bool,
}

/// The engine gets a simulated device with this part of every phase.
pub fn with_device(builder: EngineBuilder, part: f64) -> (EngineBuilder, Hold) {
    with_behaviour(builder, part, (usize::MAX, Behaviour::ideal()))
}

/// The same with a device that has memory for so many segments, and behaves otherwise from the beginning.
pub fn with_behaviour(
    builder: EngineBuilder,
    part: f64,
    limits: (usize, Behaviour),
) -> (EngineBuilder, Hold) {
    with_driver(builder, part, limits, true)
}

/// The same with a device that has no memory for a window.
pub fn without_window(builder: EngineBuilder, part: f64) -> EngineBuilder {
    with_driver(builder, part, (usize::MAX, Behaviour::ideal()), false).0
}

fn with_driver(
    builder: EngineBuilder,
    part: f64,
    (segments, behaviour): (usize, Behaviour),
    reserves: bool,
) -> (EngineBuilder, Hold) {
    let hold = Hold {
        jobs: Arc::default(),
        writes: Arc::default(),
        memory: Arc::default(),
        most: Arc::default(),
        loads: Arc::default(),
    };
    let driver = Fragile {
        device: device(behaviour),
        hold: hold.clone(),
        failed: Vec::new(),
        never: Vec::new(),
        segments,
        reserves,
    };
    let builder = builder
        .own_device(Box::new(driver))
        .device_placing(DevicePlacing::Part(part))
        .device_patience(Duration::from_millis(200));
    (builder, hold)
}

/// A simulated device. With `FOREBAY_TEST_DEVICE=vulkan` and the feature `gpu`, the first Vulkan device does what an
/// ideal one would.
fn device(behaviour: Behaviour) -> Box<dyn DeviceDriver> {
    #[cfg(feature = "gpu")]
    if std::env::var_os("FOREBAY_TEST_DEVICE").is_some() {
        let imports = behaviour.imports;
        let ideal = Behaviour {
            imports,
            ..Behaviour::ideal()
        };
        if behaviour == ideal {
            return vulkan(imports);
        }
    }
    Box::new(SimulatedDevice::new(
        KernelTable::best(),
        CAPACITY,
        behaviour,
    ))
}

/// The first Vulkan device, which may use the CPU's memory if it `imports`. The engine checks its bits.
#[cfg(feature = "gpu")]
fn vulkan(imports: bool) -> Box<dyn DeviceDriver> {
    use forebay_devices::gpu::{Arithmetic, DeviceKind, GpuDriver, GpuOptions, adapters};
    use forebay_devices::probe::HeadShape;
    let adapter = adapters()
        .into_iter()
        .next()
        .expect("no Vulkan device; install mesa-vulkan-drivers for one in software");
    let arithmetic = match adapter.kind() {
        DeviceKind::Software => Arithmetic::Emulated,
        _ => Arithmetic::Native,
    };
    // A shader for each size of heads.
    let heads = [64, 128, 256].map(|d| HeadShape {
        head_dim: d,
        value_dim: d,
        group: 1,
    });
    let options = GpuOptions {
        imports,
        heads: heads.to_vec(),
        ..GpuOptions::default()
    };
    let driver = GpuDriver::with_arithmetic(&adapter, &options, arithmetic);
    Box::new(driver.expect("the Vulkan device opens"))
}

/// The fault of a device that is gone.
pub fn lost() -> DeviceFault {
    DeviceFault::Lost {
        reason: "the test says so".into(),
    }
}

impl Fragile {
    fn count_memory(&self) {
        let bytes = self.device.memory_bytes();
        self.hold.memory.store(bytes, Ordering::Relaxed);
        self.hold.most.fetch_max(bytes, Ordering::Relaxed);
    }

    /// It is asked to take one more.
    fn take_segment(&mut self, bytes: u64) -> Result<(), DeviceFault> {
        self.hold.loads.fetch_add(1, Ordering::Relaxed);
        let left = self.segments.checked_sub(1);
        self.segments = left.ok_or(DeviceFault::OutOfMemory {
            bytes,
            left: Some(0),
        })?;
        Ok(())
    }
}

impl DeviceDriver for Fragile {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn load_parts(&mut self, parts: &[&[u8]]) -> Result<SegmentId, DeviceFault> {
        self.take_segment(parts.iter().map(|part| part.len() as u64).sum())?;
        let loaded = self.device.load_parts(parts);
        self.count_memory();
        loaded
    }

    fn imports(&self) -> bool {
        self.device.imports()
    }

    fn import(
        &mut self,
        memory: &Arc<Slot>,
        range: Range<usize>,
    ) -> Result<SegmentId, DeviceFault> {
        self.take_segment(range.len() as u64)?;
        self.device.import(memory, range)
    }

    fn reserve(&mut self, bytes: u64) -> Result<SegmentId, DeviceFault> {
        if !self.reserves {
            let left = Some(0);
            return Err(DeviceFault::OutOfMemory { bytes, left });
        }
        self.take_segment(bytes)?;
        let reserved = self.device.reserve(bytes);
        self.count_memory();
        reserved
    }

    fn write(&mut self, segment: SegmentId, at: usize, bytes: &[u8]) -> Result<(), DeviceFault> {
        match self.hold.writes.next() {
            None => self.device.write(segment, at, bytes),
            Some(Trouble::Ends(fault)) => Err(fault),
            Some(Trouble::NeverEnds) => loop {
                std::thread::park();
            },
            Some(Trouble::Panics) => panic!("the driver panics, as the test wants"),
        }
    }

    fn unload(&mut self, segment: SegmentId) {
        self.device.unload(segment);
        self.count_memory();
    }

    fn shares_memory(&self) -> bool {
        self.device.shares_memory()
    }

    fn memory_bytes(&self) -> u64 {
        self.device.memory_bytes()
    }

    fn submit(&mut self, job: DeviceJob, now_ns: u64) -> Result<(), DeviceJob> {
        match self.hold.jobs.next() {
            None => return self.device.submit(job, now_ns),
            Some(Trouble::Ends(fault)) => self.failed.push(DeviceDone {
                job,
                result: Err(fault),
                elapsed_ns: 0,
            }),
            Some(Trouble::NeverEnds) => self.never.push(job),
            Some(Trouble::Panics) => panic!("the driver panics, as the test wants"),
        }
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<DeviceDone>) -> usize {
        out.append(&mut self.failed);
        self.device.poll(now_ns, out)
    }

    fn in_flight(&self) -> usize {
        self.device.in_flight() + self.failed.len() + self.never.len()
    }
}
