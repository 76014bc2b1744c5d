//! [`DeviceDriver`] of a Vulkan device.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_kernels::KernelTable;
use forebay_queues::slab;

use crate::driver::{DeviceDriver, bytes_of_parts};
use crate::fault::DeviceFault;
use crate::job::{DeviceDone, DeviceJob, SegmentId};
use crate::probe;
use crate::shaders::Arithmetic;

use super::adapters::{Adapter, DeviceKind};
use super::arithmetic::{Fma, Roundings};
use super::context::{Context, Piece};
use super::kept::{Kept, SLOTS};
use super::options::GpuOptions;
use super::pipelines::Pipelines;
use super::slot::{Shared, Slot};

/// Triples that show how a device rounds.
const TRIPLES: usize = 4096;

/// What is done with buffers of weights.
const SEGMENT: wgpu::BufferUsages = wgpu::BufferUsages::COPY_DST.union(wgpu::BufferUsages::STORAGE);

/// Bytes that are copied to the device at once: the driver keeps a copy meanwhile.
pub const UPLOAD_BYTES: usize = 16 << 20;

/// A Vulkan device that is open: up to two jobs in flight, and segments in its memory.
#[derive(Debug)]
pub struct GpuDriver {
    pub(super) context: Context,
    pipelines: Pipelines,
    arithmetic: Arithmetic,
    slots: [Slot; SLOTS],
    kept: Kept,
    /// With their sizes as they were given.
    segments: BTreeMap<u32, (Piece, usize)>,
    next_segment: u32,
    no_attention: Option<DeviceFault>,
    /// What was imported; the last field, since the device must be gone before it.
    imported: Vec<Arc<slab::Slot>>,
}

impl GpuDriver {
    /// Opens a device and finds out with which arithmetic it has the bits of `kernels`. If it is only attention that
    /// differs, it is open without: see [`Self::no_attention`].
    ///
    /// # Errors
    /// With none, or it cannot be opened.
    pub fn open(
        adapter: &Adapter,
        options: &GpuOptions,
        kernels: &KernelTable,
    ) -> Result<Self, DeviceFault> {
        let mut context = Context::open(adapter, options.memory_bytes, options.imports)?;
        let roundings = Roundings::of(&mut context, Arithmetic::Native, TRIPLES)?;
        if !roundings.products_are_exact() {
            return Err(DeviceFault::WrongRounding {
                wrong: roundings.total - roundings.products,
                total: roundings.total,
            });
        }
        drop(context);
        if roundings.fma() == Fma::Fused {
            match Self::checked(adapter, options, kernels, Arithmetic::Native) {
                Err(DeviceFault::WrongResults { .. }) => {}
                opened => return opened,
            }
        }
        Self::checked(adapter, options, kernels, Arithmetic::Emulated)
    }

    fn checked(
        adapter: &Adapter,
        options: &GpuOptions,
        kernels: &KernelTable,
        arithmetic: Arithmetic,
    ) -> Result<Self, DeviceFault> {
        let opened = Self::with_arithmetic(adapter, options, arithmetic);
        let mut driver = match opened {
            Err(fault @ DeviceFault::NotOpened { .. }) if !options.heads.is_empty() => {
                // Perhaps it is only the shader of attention that its driver does not take.
                let without = GpuOptions {
                    heads: Vec::new(),
                    ..options.clone()
                };
                let mut driver = Self::with_arithmetic(adapter, &without, arithmetic)?;
                driver.no_attention = Some(fault);
                driver
            }
            opened => opened?,
        };
        let mut clock = probe::wall_clock();
        let mut check =
            |driver: &mut Self| probe::check(driver, kernels, &options.formats, &mut clock);
        let mut checked = check(&mut driver);
        if checked.is_err() && driver.imports() {
            // Perhaps it is only what was imported that it does not read as it is.
            driver.context.stop_importing();
            checked = check(&mut driver);
        }
        checked?;
        if driver.no_attention.is_none() {
            match probe::check_attention(&mut driver, kernels, &options.heads, &mut clock) {
                Err(fault @ DeviceFault::WrongAttention { .. }) => {
                    driver.no_attention = Some(fault);
                }
                checked => checked?,
            }
        }
        Ok(driver)
    }

    /// Opens a device with an arithmetic that nobody has checked, for tests and measurements.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn with_arithmetic(
        adapter: &Adapter,
        options: &GpuOptions,
        arithmetic: Arithmetic,
    ) -> Result<Self, DeviceFault> {
        let context = Context::open(adapter, options.memory_bytes, options.imports)?;
        let pipelines = Pipelines::new(&context, options, arithmetic)?;
        Ok(Self {
            context,
            pipelines,
            arithmetic,
            slots: Default::default(),
            kept: Kept::default(),
            segments: BTreeMap::new(),
            next_segment: 0,
            imported: Vec::new(),
            no_attention: None,
        })
    }

    /// Why it does not attend, although it was to and its products are the CPU's.
    pub fn no_attention(&self) -> Option<&DeviceFault> {
        self.no_attention.as_ref()
    }

    /// How sums are rounded once.
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// How the device rounds by itself, in `n` cases; with the emulated arithmetic, how that rounds.
    ///
    /// # Errors
    /// The device fails.
    pub fn roundings(
        &mut self,
        arithmetic: Arithmetic,
        n: usize,
    ) -> Result<Roundings, DeviceFault> {
        Roundings::of(&mut self.context, arithmetic, n)
    }

    /// Gives up the device at once, with all its memory. Jobs in flight and later ones end as lost.
    pub fn close(&mut self) {
        self.context.lose("it was closed");
        self.context.device.destroy();
    }

    /// Copies parts into a buffer, of which at most [`UPLOAD_BYTES`] are on their way at once.
    fn upload(&mut self, buffer: &wgpu::Buffer, parts: &[&[u8]]) -> Result<(), DeviceFault> {
        let (mut at, mut on_the_way) = (0_usize, 0);
        for part in parts {
            at = at.next_multiple_of(4);
            for piece in part.chunks(UPLOAD_BYTES) {
                if on_the_way + piece.len() > UPLOAD_BYTES {
                    self.context.finish()?;
                    on_the_way = 0;
                }
                self.put(buffer, at as u64, piece)?;
                at += piece.len();
                on_the_way += piece.len();
            }
        }
        self.context.finish()
    }

    /// Copies a part into a buffer, behind what was submitted before.
    fn put(&mut self, buffer: &wgpu::Buffer, at: u64, part: &[u8]) -> Result<(), DeviceFault> {
        let queue = &self.context.queue;
        let (words, rest) = part.as_chunks::<4>();
        self.context.guarded(part.len() as u64, |_| {
            queue.write_buffer(buffer, at, words.as_flattened());
            if !rest.is_empty() {
                let mut last = [0; 4];
                last[..rest.len()].copy_from_slice(rest);
                queue.write_buffer(buffer, at + 4 * words.len() as u64, &last);
            }
            queue.submit([]);
        })
    }

    fn keep(&mut self, piece: Piece, bytes: usize) -> SegmentId {
        let id = self.next_segment;
        self.next_segment += 1;
        self.segments.insert(id, (piece, bytes));
        SegmentId(id)
    }
}

impl DeviceDriver for GpuDriver {
    fn name(&self) -> &str {
        &self.context.name
    }

    fn capacity(&self) -> usize {
        SLOTS
    }

    fn load_parts(&mut self, parts: &[&[u8]]) -> Result<SegmentId, DeviceFault> {
        let bytes = bytes_of_parts(parts);
        let piece = self.context.piece(bytes as u64, SEGMENT)?;
        let buffer = piece.buffer.clone();
        if let Err(fault) = self.upload(&buffer, parts) {
            self.context.free(piece);
            return Err(fault);
        }
        Ok(self.keep(piece, bytes))
    }

    fn imports(&self) -> bool {
        self.context.imports()
    }

    fn import(
        &mut self,
        memory: &Arc<slab::Slot>,
        range: Range<usize>,
    ) -> Result<SegmentId, DeviceFault> {
        let bytes = range.len();
        let piece = self.context.imported(memory, range)?;
        if !self.imported.iter().any(|held| Arc::ptr_eq(held, memory)) {
            self.imported.push(Arc::clone(memory));
        }
        Ok(self.keep(piece, bytes))
    }

    fn reserve(&mut self, bytes: u64) -> Result<SegmentId, DeviceFault> {
        let piece = self.context.piece(bytes, SEGMENT)?;
        Ok(self.keep(piece, bytes as usize))
    }

    fn write(&mut self, segment: SegmentId, at: usize, bytes: &[u8]) -> Result<(), DeviceFault> {
        let held = self.segments.get(&segment.0);
        let fits = |len: usize| at.is_multiple_of(4) && at <= len && bytes.len() <= len - at;
        let Some((piece, _)) = held.filter(|(_, len)| fits(*len)) else {
            let problem = format!("no room for {} bytes from byte {at} on", bytes.len());
            return Err(DeviceFault::BadJob(problem));
        };
        let buffer = piece.buffer.clone();
        self.put(&buffer, at as u64, bytes)
    }

    fn unload(&mut self, segment: SegmentId) {
        if let Some((piece, _)) = self.segments.remove(&segment.0) {
            self.kept.unload(&mut self.context, segment.0);
            self.context.free(piece);
            self.context.release();
        }
    }

    fn shares_memory(&self) -> bool {
        // Unless the driver says that it has its own.
        self.context.kind != DeviceKind::Discrete
    }

    fn memory_bytes(&self) -> u64 {
        self.context.used()
    }

    fn submit(&mut self, job: DeviceJob, now_ns: u64) -> Result<(), DeviceJob> {
        let mut slots = self.slots.iter_mut().enumerate();
        let Some((number, slot)) = slots.find(|(_, slot)| slot.is_free()) else {
            return Err(job);
        };
        let segment = self.segments.get(&job.segment.0);
        let segment = segment.map(|(piece, bytes)| (&piece.buffer, *bytes));
        let shared = Shared {
            context: &mut self.context,
            pipelines: &self.pipelines,
            kept: &mut self.kept,
            slot: number,
        };
        slot.start(shared, segment, job, now_ns);
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<DeviceDone>) -> usize {
        // A device that is gone says so by its callback.
        let _ = self.context.device.poll(wgpu::PollType::Poll);
        let before = out.len();
        for slot in &mut self.slots {
            out.extend(slot.finish(&mut self.context, now_ns));
        }
        out.len() - before
    }

    fn in_flight(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.is_free()).count()
    }
}
