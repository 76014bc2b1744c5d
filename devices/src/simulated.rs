//! A device that exists only in memory and in virtual time: the CPU's kernels compute its jobs, which take as long as
//! [`Behaviour`] says, and it fails on demand.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Deref, Range};
use std::sync::Arc;

use forebay_kernels::KernelTable;
use forebay_queues::slab::Slot;

use crate::driver::{DeviceDriver, bytes_of_parts};
use crate::fault::DeviceFault;
use crate::job::{DeviceDone, DeviceJob, SegmentId, Work};
use crate::on_cpu;

/// How the device behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Time from the start of a job to its end, ns. Jobs run one after the other.
    pub job_ns: u64,
    /// The device's memory, bytes.
    pub memory_bytes: u64,
    /// Whether an engine counts that as the CPU's memory, which it really is.
    pub shares_memory: bool,
    /// Whether it computes with weights where the CPU has them.
    pub imports: bool,
    /// The device is lost when this many more jobs have been submitted; the jobs in flight then are lost with it.
    pub lost_after: Option<u64>,
    /// In the results of every job, the last bit of the one with this number is wrong, or of the last one, if there are
    /// fewer.
    pub wrong_result: Option<usize>,
}

impl Behaviour {
    /// Everything succeeds, and takes no time.
    pub fn ideal() -> Self {
        Self {
            job_ns: 0,
            memory_bytes: u64::MAX,
            shares_memory: true,
            imports: false,
            lost_after: None,
            wrong_result: None,
        }
    }
}

/// A piece of weights.
#[derive(Clone, Debug)]
enum Segment {
    Copied(Arc<Vec<u8>>),
    Imported(Arc<Slot>, Range<usize>),
}

impl Segment {
    /// Bytes of the device's memory.
    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Copied(bytes) => bytes.len() as u64,
            Self::Imported(..) => 0,
        }
    }
}

impl Deref for Segment {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Imported(memory, range) => &memory[range.clone()],
        }
    }
}

#[derive(Debug)]
struct Running {
    job: DeviceJob,
    /// Its weights, also after they were unloaded or others took their place.
    segment: Option<Segment>,
    /// Whether what it brings could be written.
    patched: Result<(), DeviceFault>,
    submitted_ns: u64,
    due_ns: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct SimulatedDevice {
    kernels: KernelTable,
    behaviour: Behaviour,
    capacity: usize,
    segments: BTreeMap<u32, Segment>,
    next_segment: u32,
    running: VecDeque<Running>,
    lost: bool,
}

impl SimulatedDevice {
    /// A device that computes with `kernels` and has at most `capacity` jobs in flight.
    pub fn new(kernels: KernelTable, capacity: usize, behaviour: Behaviour) -> Self {
        Self {
            kernels,
            behaviour,
            capacity,
            segments: BTreeMap::new(),
            next_segment: 0,
            running: VecDeque::new(),
            lost: false,
        }
    }

    /// Changes the behaviour, but not the times of jobs in flight.
    pub fn set_behaviour(&mut self, behaviour: Behaviour) {
        self.behaviour = behaviour;
    }

    /// How it behaves.
    pub fn behaviour(&self) -> &Behaviour {
        &self.behaviour
    }

    /// When the next job is over, if any is in flight.
    pub fn next_due(&self) -> Option<u64> {
        match self.lost {
            true => self.running.front().map(|_| 0),
            false => self.running.front().map(|running| running.due_ns),
        }
    }

    fn fault(&self) -> Option<DeviceFault> {
        self.lost.then(|| DeviceFault::Lost {
            reason: "the simulation says so".into(),
        })
    }

    /// Whether there is memory for so many bytes more.
    fn room_for(&self, bytes: u64) -> Result<(), DeviceFault> {
        if let Some(lost) = self.fault() {
            return Err(lost);
        }
        let used = self.memory_bytes();
        let left = self.behaviour.memory_bytes.saturating_sub(used);
        match bytes > left {
            true => Err(DeviceFault::OutOfMemory {
                bytes,
                left: Some(left),
            }),
            false => Ok(()),
        }
    }

    fn keep(&mut self, segment: Segment) -> SegmentId {
        let id = self.next_segment;
        self.next_segment += 1;
        self.segments.insert(id, segment);
        SegmentId(id)
    }

    fn compute(&self, running: &mut Running) -> Result<(), DeviceFault> {
        let Running {
            job,
            segment,
            patched,
            ..
        } = running;
        if let Some(lost) = self.fault() {
            return Err(lost);
        }
        let Some(segment) = segment else {
            return Err(DeviceFault::BadJob("there is no such segment".into()));
        };
        patched.clone()?;
        on_cpu::compute(&self.kernels, segment, job)?;
        let Some(wrong) = self.behaviour.wrong_result else {
            return Ok(());
        };
        let of = |len: usize| wrong.min(len.saturating_sub(1));
        let number = match &mut job.work {
            Work::Share { out, .. } => {
                let wrong = of(out.len());
                out.get_mut(wrong)
                    .into_iter()
                    .for_each(|result| *result ^= 1);
                return Ok(());
            }
            Work::Rows { out, .. } => out,
            Work::Attention(work) => &mut work.out,
        };
        let wrong = of(number.len());
        if let Some(result) = number.get_mut(wrong) {
            *result = f32::from_bits(result.to_bits() ^ 1);
        }
        Ok(())
    }

    /// Writes what a job of attention brings.
    fn patch(&mut self, job: &DeviceJob) -> Result<(), DeviceFault> {
        let Work::Attention(work) = &job.work else {
            return Ok(());
        };
        work.check(self.segments.get(&job.segment.0).map_or(0, |s| s.len()))?;
        let mut patches = work.patches();
        patches.try_for_each(|(at, bytes)| self.write(job.segment, at, bytes))
    }
}

impl DeviceDriver for SimulatedDevice {
    fn name(&self) -> &str {
        "simulated"
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn load_parts(&mut self, parts: &[&[u8]]) -> Result<SegmentId, DeviceFault> {
        let len = bytes_of_parts(parts);
        self.room_for(len as u64)?;
        let mut bytes = Vec::with_capacity(len);
        for part in parts {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        Ok(self.keep(Segment::Copied(Arc::new(bytes))))
    }

    fn imports(&self) -> bool {
        self.behaviour.imports
    }

    fn import(
        &mut self,
        memory: &Arc<Slot>,
        range: Range<usize>,
    ) -> Result<SegmentId, DeviceFault> {
        if let Some(lost) = self.fault() {
            return Err(lost);
        }
        match self.imports() && range.end <= memory.len() {
            true => Ok(self.keep(Segment::Imported(Arc::clone(memory), range))),
            false => Err(DeviceFault::BadJob("it cannot be imported".into())),
        }
    }

    fn reserve(&mut self, bytes: u64) -> Result<SegmentId, DeviceFault> {
        self.room_for(bytes)?;
        Ok(self.keep(Segment::Copied(Arc::new(vec![0; bytes as usize]))))
    }

    fn write(&mut self, segment: SegmentId, at: usize, bytes: &[u8]) -> Result<(), DeviceFault> {
        if let Some(lost) = self.fault() {
            return Err(lost);
        }
        let place = match self.segments.get_mut(&segment.0) {
            Some(Segment::Copied(bytes)) => Some(Arc::make_mut(bytes)),
            Some(Segment::Imported(..)) | None => None,
        };
        let place = place.and_then(|all| all.get_mut(at..)?.get_mut(..bytes.len()));
        let problem = || DeviceFault::BadJob(format!("no room for {} bytes", bytes.len()));
        place.ok_or_else(problem)?.copy_from_slice(bytes);
        Ok(())
    }

    fn unload(&mut self, segment: SegmentId) {
        self.segments.remove(&segment.0);
    }

    fn shares_memory(&self) -> bool {
        self.behaviour.shares_memory
    }

    fn memory_bytes(&self) -> u64 {
        self.segments.values().map(Segment::memory_bytes).sum()
    }

    fn submit(&mut self, job: DeviceJob, now_ns: u64) -> Result<(), DeviceJob> {
        if self.running.len() >= self.capacity {
            return Err(job);
        }
        match &mut self.behaviour.lost_after {
            Some(0) => self.lost = true,
            Some(more) => *more -= 1,
            None => {}
        }
        let free_ns = self.running.back().map_or(0, |running| running.due_ns);
        let patched = self.patch(&job);
        self.running.push_back(Running {
            patched,
            segment: self.segments.get(&job.segment.0).cloned(),
            job,
            submitted_ns: now_ns,
            due_ns: free_ns.max(now_ns) + self.behaviour.job_ns,
        });
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<DeviceDone>) -> usize {
        let before = out.len();
        while self.next_due().is_some_and(|due| due <= now_ns) {
            let Some(mut running) = self.running.pop_front() else {
                break;
            };
            let result = self.compute(&mut running);
            out.push(DeviceDone {
                job: running.job,
                result,
                elapsed_ns: now_ns.saturating_sub(running.submitted_ns),
            });
        }
        out.len() - before
    }

    fn in_flight(&self) -> usize {
        self.running.len()
    }
}
