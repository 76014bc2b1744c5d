//! How fast a device is: its bounds, and what a job costs at least.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::fault::DeviceFault;
use crate::shaders::{F32, F32_PER_ROUND, INT8, INT8_PER_ROUND, READ};

use super::adapters::Adapter;
use super::context::{Context, Piece};
use super::passes::{bind, dispatch};
use super::pipelines::{Binding, compile, layout};

/// Lanes of a workgroup of either shader, and workgroups: many times what the largest devices run at once.
const GROUP: usize = 256;
const GROUPS: usize = 1024;
const LANES: usize = GROUP * GROUPS;

/// Dispatches between two waits, so that waiting is a small part of the time.
const DISPATCHES: usize = 4;

/// Bytes that a round trip brings back: the results of a few thousand rows.
const RETURNED: u64 = 16 << 10;

/// Times of the smallest possible jobs: submitting one, waiting for it, and reading its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    /// Half of them took at most this.
    pub median: Duration,
    /// 99 of 100 took at most this.
    pub p99: Duration,
}

impl RoundTrips {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |share: usize| {
            let i = (times.len() * share / 100).min(times.len().saturating_sub(1));
            times.get(i).copied().unwrap_or_default()
        };
        Self {
            median: at(50),
            p99: at(99),
        }
    }
}

/// A shader and its buffers.
#[derive(Debug)]
struct Load {
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
}

/// An open device that is measured.
#[derive(Debug)]
pub struct Meter {
    context: Context,
    read: Load,
    int8: Load,
    f32: Load,
    params: [Piece; 3],
    results: Piece,
    readback: Piece,
    /// Of the memory that is read.
    bytes: u64,
}

impl Meter {
    /// Opens a device with `bytes` bytes of memory to read: more than its caches hold. Less if the driver allows less
    /// in one piece.
    ///
    /// # Errors
    /// It cannot be opened, or has no memory.
    pub fn open(adapter: &Adapter, bytes: u64) -> Result<Self, DeviceFault> {
        use wgpu::BufferUsages as Usage;
        let mut context = Context::open(adapter, u64::MAX, false)?;
        let bytes = bytes.min(adapter.limits().segment_bytes) / 16 * 16;
        let words = context.piece(bytes, Usage::COPY_DST | Usage::STORAGE)?;
        let results = context.piece(4 * LANES as u64, Usage::COPY_SRC | Usage::STORAGE)?;
        let readback = context.piece(4 * LANES as u64, Usage::COPY_DST | Usage::MAP_READ)?;
        let uniform = Usage::COPY_DST | Usage::UNIFORM;
        let mut params = || context.piece(16, uniform);
        let params = [params()?, params()?, params()?];
        let bindings = [Binding::Input, Binding::Output, Binding::Params];
        let layout = layout(&context, &bindings);
        let [read, int8, f32] = [("read", READ), ("int8", INT8), ("f32", F32)]
            .map(|(label, text)| compile(&context, label, text.to_owned(), &layout));
        let load = |pipeline, params: &Piece| {
            let buffers = [&words.buffer, &results.buffer, &params.buffer];
            Load {
                pipeline,
                group: bind(
                    &context.device,
                    &layout,
                    buffers.map(wgpu::Buffer::as_entire_binding),
                ),
            }
        };
        Ok(Self {
            read: load(read?, &params[0]),
            int8: load(int8?, &params[1]),
            f32: load(f32?, &params[2]),
            context,
            params,
            results,
            readback,
            bytes,
        })
    }

    /// Bytes per second that the device reads from its memory, for about `time`.
    ///
    /// # Errors
    /// The device fails.
    pub fn read_rate(&mut self, time: Duration) -> Result<f64, DeviceFault> {
        let n = (self.bytes / 16) as u32;
        self.set(0, [n, LANES as u32]);
        let passes = self.repeat(&self.read, GROUPS, time)?;
        Ok(passes * self.bytes as f64)
    }

    /// Additions and multiplications of bytes per second, for about `time`.
    ///
    /// # Errors
    /// The device fails.
    pub fn int8_rate(&mut self, time: Duration) -> Result<f64, DeviceFault> {
        self.rate((&self.int8, 1, 0x0103_0507), INT8_PER_ROUND, time)
    }

    /// Additions and multiplications of 32-bit numbers per second, for about `time`.
    ///
    /// # Errors
    /// The device fails.
    pub fn f32_rate(&mut self, time: Duration) -> Result<f64, DeviceFault> {
        self.rate((&self.f32, 2, 0.5_f32.to_bits()), F32_PER_ROUND, time)
    }

    /// Additions and multiplications per second of a load with this number and factor.
    fn rate(
        &self,
        (load, number, factor): (&Load, usize, u32),
        per_round: u64,
        time: Duration,
    ) -> Result<f64, DeviceFault> {
        let mut rounds = 16;
        loop {
            self.set(number, [rounds, factor]);
            let start = Instant::now();
            let passes = self.repeat(load, GROUPS, time / 4)?;
            // Long enough for the clock to rise and for the wait not to matter, and short of any driver's patience.
            if passes < 200.0 || rounds > 1 << 16 || start.elapsed() > 4 * time {
                let products = u64::from(rounds) * per_round * LANES as u64;
                return Ok(2.0 * passes * products as f64);
            }
            rounds *= 4;
        }
    }

    /// Times of `n` jobs that do next to nothing.
    ///
    /// # Errors
    /// The device fails.
    pub fn round_trips(&mut self, n: usize) -> Result<RoundTrips, DeviceFault> {
        self.set(0, [0, LANES as u32]);
        let mut times = Vec::with_capacity(n);
        for _ in 0..n {
            let start = Instant::now();
            self.bring_back(1, RETURNED)?;
            times.push(start.elapsed());
        }
        Ok(RoundTrips::of(times))
    }

    /// Bytes per second at which the CPU reads results that the device has written.
    ///
    /// # Errors
    /// The device fails.
    pub fn readback_rate(&mut self) -> Result<f64, DeviceFault> {
        self.set(0, [0, LANES as u32]);
        let bytes = 4 * LANES as u64;
        let mut best = Duration::MAX;
        for _ in 0..5 {
            best = best.min(self.bring_back(GROUPS, bytes)?);
        }
        Ok(bytes as f64 / best.as_secs_f64())
    }

    /// Lets some workgroups write results, and returns how long reading them took.
    fn bring_back(&self, groups: usize, bytes: u64) -> Result<Duration, DeviceFault> {
        let readback = &self.readback.buffer;
        self.context.guarded(0, |device| {
            let mut encoder = device.create_command_encoder(&Default::default());
            let Load { pipeline, group } = &self.read;
            let mut pass = encoder.begin_compute_pass(&Default::default());
            dispatch(&mut pass, pipeline, group, [groups, 1, 1]);
            drop(pass);
            encoder.copy_buffer_to_buffer(&self.results.buffer, 0, readback, 0, bytes);
            self.context.queue.submit([encoder.finish()]);
            readback
                .slice(..bytes)
                .map_async(wgpu::MapMode::Read, |_| {});
        })?;
        self.context.finish()?;
        let view = readback.slice(..bytes).get_mapped_range();
        let view = view.map_err(|error| DeviceFault::Lost {
            reason: error.to_string(),
        })?;
        let start = Instant::now();
        black_box(view.to_vec());
        let took = start.elapsed();
        drop(view);
        readback.unmap();
        Ok(took)
    }

    fn set(&self, which: usize, numbers: [u32; 2]) {
        let bytes = numbers.map(u32::to_le_bytes);
        let buffer = &self.params[which].buffer;
        self.context
            .queue
            .write_buffer(buffer, 0, bytes.as_flattened());
    }

    /// Passes per second, for about `time` after one that is not measured.
    fn repeat(&self, load: &Load, groups: usize, time: Duration) -> Result<f64, DeviceFault> {
        let submit = |n: usize| {
            self.context.guarded(0, |device| {
                let mut encoder = device.create_command_encoder(&Default::default());
                for _ in 0..n {
                    let mut pass = encoder.begin_compute_pass(&Default::default());
                    dispatch(&mut pass, &load.pipeline, &load.group, [groups, 1, 1]);
                }
                self.context.queue.submit([encoder.finish()]);
            })?;
            self.context.finish()
        };
        submit(1)?;
        let (start, mut passes) = (Instant::now(), 0);
        while start.elapsed() < time {
            submit(DISPATCHES)?;
            passes += DISPATCHES;
        }
        Ok(passes as f64 / start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_sorted_into_their_ranks() {
        let times = (1..=200).rev().map(Duration::from_micros).collect();
        let trips = RoundTrips::of(times);
        assert_eq!(trips.median, Duration::from_micros(101));
        assert_eq!(trips.p99, Duration::from_micros(199));
        assert_eq!(RoundTrips::of(Vec::new()).p99, Duration::ZERO);
    }
}
