//! An open device, its health and the memory that was asked of it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_queues::slab;

use crate::fault::DeviceFault;
use crate::probe::PATIENCE;

use super::adapters::{Adapter, DeviceKind};
use super::import::{self, Importer};
use super::ready::ready;

/// Why the device is gone, once it is.
#[derive(Clone, Debug, Default)]
struct Loss(Arc<Mutex<Option<String>>>);

impl Loss {
    /// Keeps the first reason.
    fn report(&self, reason: String) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert(reason);
    }

    fn reason(&self) -> Option<String> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.clone()
    }
}

/// A piece of the device's memory.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) buffer: wgpu::Buffer,
    bytes: u64,
}

impl Piece {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// See the [module](self).
pub(super) struct Context {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) name: String,
    pub(super) kind: DeviceKind,
    pub(super) limits: wgpu::Limits,
    /// If its memory is the CPU's and can be imported.
    importer: Option<Importer>,
    loss: Loss,
    /// Bytes that may be asked for.
    share: u64,
    used: u64,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name)
            .field("used", &self.used)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Opens a device, of whose memory at most `share` bytes may be used; with `imports`, it can use the CPU's as well
    /// if its driver knows how. It needs no optional features.
    pub(super) fn open(adapter: &Adapter, share: u64, imports: bool) -> Result<Self, DeviceFault> {
        let limits = adapter.adapter.limits();
        let wanted = wgpu::DeviceDescriptor {
            label: Some("forebay"),
            required_limits: limits.clone(),
            // Large pieces are allocated on their own, and small ones in small blocks.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..Default::default()
        };
        let opened = match imports && adapter.imports() {
            true => import::open(&adapter.adapter, &wanted),
            false => None,
        };
        let importer = opened.as_ref().and_then(|(d, _)| Importer::new(d));
        let opened = opened.map_or_else(|| ready(adapter.adapter.request_device(&wanted)), Ok);
        let (device, queue) = opened.map_err(|error| DeviceFault::NotOpened {
            adapter: adapter.name().to_owned(),
            reason: error.to_string(),
        })?;
        let loss = Loss::default();
        let (lost, failed) = (loss.clone(), loss.clone());
        device.set_device_lost_callback(move |reason, message| {
            lost.report(format!("{reason:?} {message}").trim().to_owned());
        });
        // Errors that no scope catches: what the device computes after one is unknown.
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            failed.report(error.to_string());
        }));
        Ok(Self {
            device,
            queue,
            name: adapter.name().to_owned(),
            kind: adapter.kind(),
            limits,
            importer,
            loss,
            share,
            used: 0,
        })
    }

    /// The fault of a device that is gone.
    pub(super) fn loss(&self) -> Option<DeviceFault> {
        self.loss
            .reason()
            .map(|reason| DeviceFault::Lost { reason })
    }

    /// Uses the device no more.
    pub(super) fn lose(&self, reason: &str) {
        self.loss.report(reason.to_owned());
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    fn left(&self) -> u64 {
        self.share.saturating_sub(self.used)
    }

    /// Does something with the device, and turns its errors into faults; `bytes` is how much memory it asks for.
    pub(super) fn guarded<T>(
        &self,
        bytes: u64,
        action: impl FnOnce(&wgpu::Device) -> T,
    ) -> Result<T, DeviceFault> {
        if let Some(lost) = self.loss() {
            return Err(lost);
        }
        let scopes = [
            wgpu::ErrorFilter::OutOfMemory,
            wgpu::ErrorFilter::Validation,
            wgpu::ErrorFilter::Internal,
        ]
        .map(|filter| self.device.push_error_scope(filter));
        let value = action(&self.device);
        let errors = scopes.into_iter().rev().map(|scope| ready(scope.pop()));
        let error = errors.flatten().reduce(|first, _| first);
        match (error, self.loss()) {
            (_, Some(lost)) => Err(lost),
            (None, None) => Ok(value),
            (Some(wgpu::Error::OutOfMemory { .. }), None) => {
                Err(DeviceFault::OutOfMemory { bytes, left: None })
            }
            (Some(error), None) => Err(DeviceFault::BadJob(error.to_string())),
        }
    }

    /// Whether it imports memory.
    pub(super) fn imports(&self) -> bool {
        self.importer.is_some()
    }

    /// From now on it does not.
    pub(super) fn stop_importing(&mut self) {
        self.importer = None;
    }

    /// `range` of the CPU's `memory` as a piece that takes nothing of the device's. The caller keeps `memory` as long
    /// as the device is open.
    pub(super) fn imported(
        &self,
        memory: &Arc<slab::Slot>,
        range: Range<usize>,
    ) -> Result<Piece, DeviceFault> {
        let (bytes, limit) = (range.len() as u64, self.segment_limit());
        if bytes > limit {
            return Err(DeviceFault::TooLarge { bytes, limit });
        }
        let none = || DeviceFault::BadJob("the device does not import memory".to_owned());
        let importer = self.importer.as_ref().ok_or_else(none)?;
        let import = |device: &wgpu::Device| importer.import(device, memory, range);
        let buffer = self.guarded(0, import)??;
        Ok(Piece { buffer, bytes: 0 })
    }

    /// Most bytes of a piece that shaders read.
    fn segment_limit(&self) -> u64 {
        let limits = &self.limits;
        limits
            .max_buffer_size
            .min(limits.max_storage_buffer_binding_size)
    }

    /// A piece of memory for `bytes` bytes, padded to whole words.
    pub(super) fn piece(
        &mut self,
        bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<Piece, DeviceFault> {
        let bytes = bytes.next_multiple_of(4).max(16);
        let limit = self.segment_limit();
        if bytes > limit {
            return Err(DeviceFault::TooLarge { bytes, limit });
        }
        if bytes > self.left() {
            let left = Some(self.left());
            return Err(DeviceFault::OutOfMemory { bytes, left });
        }
        let buffer = self.guarded(bytes, |device| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes,
                usage,
                mapped_at_creation: false,
            })
        })?;
        self.used += bytes;
        Ok(Piece { buffer, bytes })
    }

    /// Gives a piece back; its memory is free when the device has finished what uses it.
    pub(super) fn free(&mut self, piece: Piece) {
        self.used -= piece.bytes;
    }

    /// A piece for shaders to read, with these bytes.
    pub(super) fn filled(&mut self, bytes: &[u8]) -> Result<Piece, DeviceFault> {
        let usage = wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::STORAGE;
        let piece = self.piece(bytes.len() as u64, usage)?;
        let written = self.guarded(0, |_| self.queue.write_buffer(&piece.buffer, 0, bytes));
        match written {
            Ok(()) => Ok(piece),
            Err(fault) => {
                self.free(piece);
                Err(fault)
            }
        }
    }

    /// Frees the memory of what was given back and is not in use any more: that is done when the device is next asked
    /// whether it has finished.
    pub(super) fn release(&self) {
        let _ = self.device.poll(wgpu::PollType::Poll);
    }

    /// Waits until everything that was submitted is done.
    pub(super) fn finish(&self) -> Result<(), DeviceFault> {
        let waited = self.device.poll(wgpu::PollType::Wait {
            submission_index: None,
            timeout: Some(PATIENCE),
        });
        match (self.loss(), waited) {
            (Some(lost), _) => Err(lost),
            (None, Ok(_)) => Ok(()),
            (None, Err(_)) => Err(DeviceFault::Stuck {
                seconds: PATIENCE.as_secs(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::adapters::adapters;
    use super::*;

    #[test]
    fn a_device_that_goes_away_is_noticed() {
        let Some(adapter) = adapters().into_iter().next() else {
            eprintln!("SKIPPED: no Vulkan device");
            return;
        };
        let context = Context::open(&adapter, u64::MAX, false).unwrap();
        assert_eq!((context.loss(), context.finish()), (None, Ok(())));
        context.device.destroy();
        let lost = (0..1000).find_map(|_| {
            let _ = context.device.poll(wgpu::PollType::Poll);
            context.loss()
        });
        assert!(matches!(lost, Some(DeviceFault::Lost { .. })), "{lost:?}");
        let refused = context.guarded(0, |_| ());
        assert!(
            matches!(refused, Err(DeviceFault::Lost { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn errors_of_the_driver_are_values() {
        let Some(adapter) = adapters().into_iter().next() else {
            eprintln!("SKIPPED: no Vulkan device");
            return;
        };
        let context = Context::open(&adapter, u64::MAX, false).unwrap();
        let wrong = context.guarded(0, |device| {
            device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: None,
                source: wgpu::ShaderSource::Wgsl("fn main( {".into()),
            })
        });
        assert!(matches!(wrong, Err(DeviceFault::BadJob(_))), "{wrong:?}");
        // Nor is the device lost by it.
        assert_eq!(context.loss(), None);
    }
}
