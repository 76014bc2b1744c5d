//! The buffers of a job, which are kept for the next ones.

use std::num::NonZeroU64;

use crate::fault::DeviceFault;

use super::context::{Context, Piece};

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// All that a job brings, in one copy: the numbers of its passes, `[PASSES, PARAMS_BYTES]`, the tokens' words, and
    /// what is behind them ([`Given`](super::given::Given)).
    Given,
    /// Results of Gate and Up; of each batch, `[n_tokens, 2, neurons]`.
    GateUps,
    /// Input of Down.
    Hidden,
    /// Results of parts of the clusters; of each part, `[n_tokens, d_model]`.
    Partials,
    /// What comes back, in one copy: whether a number was out of range, and from `RESULTS_AT` on the results.
    Results,
    /// The same where the CPU can read it.
    Readback,
}

/// Passes of a job at most.
pub(super) const PASSES: usize = 5;
/// Bytes from one pass's numbers to the next's: no device wants more between two bindings.
pub(super) const PARAMS_BYTES: usize = 256;
/// Where the tokens' words begin in what is given.
pub(super) const TOKENS_AT: usize = PASSES * PARAMS_BYTES;
/// Bytes of the mark.
pub(super) const MARK_BYTES: usize = 4;
/// Where the results begin behind the mark.
pub(super) const RESULTS_AT: usize = 256;

impl Use {
    const COUNT: usize = Self::Readback as usize + 1;

    fn usage(self) -> wgpu::BufferUsages {
        use wgpu::BufferUsages as Usage;
        match self {
            Self::Given => Usage::COPY_DST | Usage::STORAGE | Usage::UNIFORM,
            Self::GateUps | Self::Hidden | Self::Partials => Usage::STORAGE,
            Self::Results => Usage::COPY_DST | Usage::COPY_SRC | Usage::STORAGE,
            Self::Readback => Usage::COPY_DST | Usage::MAP_READ,
        }
    }

    /// The least bytes that can be bound.
    fn least(self) -> u64 {
        let before = match self {
            Self::Given => TOKENS_AT,
            Self::Results => RESULTS_AT,
            _ => 0,
        };
        before as u64 + 16
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Buffers {
    pieces: [Option<Piece>; Use::COUNT],
}

impl Buffers {
    /// Makes buffers large enough for so many bytes. What was in those that are too small is lost: `forget` drops all
    /// else that keeps them, so that their memory is free before more is asked for.
    pub(super) fn reserve(
        &mut self,
        context: &mut Context,
        wanted: &[(Use, u64)],
        forget: impl FnOnce(),
    ) -> Result<(), DeviceFault> {
        let least = wanted
            .iter()
            .map(|&(what, bytes)| (what, bytes.max(what.least())));
        let is_small = |&(what, bytes): &(Use, u64)| {
            let held = self.pieces[what as usize].as_ref();
            held.is_none_or(|held| held.bytes() < bytes)
        };
        let small: Vec<(Use, u64)> = least.filter(is_small).collect();
        if small.is_empty() {
            return Ok(());
        }
        forget();
        for (what, _) in &small {
            if let Some(piece) = self.pieces[*what as usize].take() {
                context.free(piece);
            }
        }
        context.release();
        for (what, bytes) in small {
            self.pieces[what as usize] = Some(context.piece(bytes, what.usage())?);
        }
        Ok(())
    }

    /// A buffer that was reserved.
    pub(super) fn of(&self, what: Use) -> Result<&wgpu::Buffer, DeviceFault> {
        let piece = self.pieces[what as usize].as_ref();
        let missing = || DeviceFault::BadJob(format!("there is no buffer for {what:?}"));
        piece.map(|piece| &piece.buffer).ok_or_else(missing)
    }

    /// Gives all of them up: after a fault nobody knows what the driver still does with them.
    pub(super) fn discard(&mut self, context: &mut Context) {
        for piece in self.pieces.iter_mut().filter_map(Option::take) {
            context.free(piece);
        }
    }

    /// The numbers of a pass.
    pub(super) fn numbers(&self, pass: usize) -> Result<wgpu::BindingResource<'_>, DeviceFault> {
        Ok(wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: self.of(Use::Given)?,
            offset: (pass * PARAMS_BYTES) as u64,
            size: NonZeroU64::new(PARAMS_BYTES as u64),
        }))
    }

    /// The tokens' words and what is behind them.
    pub(super) fn tokens(&self) -> Result<wgpu::BindingResource<'_>, DeviceFault> {
        Ok(from(self.of(Use::Given)?, TOKENS_AT))
    }

    /// The results without the mark.
    pub(super) fn results(&self) -> Result<wgpu::BindingResource<'_>, DeviceFault> {
        Ok(from(self.of(Use::Results)?, RESULTS_AT))
    }

    /// The mark.
    pub(super) fn mark(&self) -> Result<wgpu::BindingResource<'_>, DeviceFault> {
        Ok(wgpu::BindingResource::Buffer(wgpu::BufferBinding {
            buffer: self.of(Use::Results)?,
            offset: 0,
            size: NonZeroU64::new(MARK_BYTES as u64),
        }))
    }

    /// A whole buffer.
    pub(super) fn whole(&self, what: Use) -> Result<wgpu::BindingResource<'_>, DeviceFault> {
        Ok(self.of(what)?.as_entire_binding())
    }
}

/// A buffer from a byte on.
fn from(buffer: &wgpu::Buffer, at: usize) -> wgpu::BindingResource<'_> {
    wgpu::BindingResource::Buffer(wgpu::BufferBinding {
        buffer,
        offset: at as u64,
        size: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::adapters::adapters;
    use super::*;

    #[test]
    fn what_keeps_small_buffers_is_gone_before_larger_ones_are_asked_for() {
        let Some(adapter) = adapters().into_iter().next() else {
            eprintln!("SKIPPED: no Vulkan device");
            return;
        };
        let mut context = Context::open(&adapter, u64::MAX, false).unwrap();
        let device = context.device.clone();
        let allocated = || {
            let report = device.generate_allocator_report().expect("a report");
            report.total_allocated_bytes
        };
        let mut buffers = Buffers::default();
        let wanted = |bytes| [(Use::Given, bytes), (Use::Hidden, bytes)];
        buffers
            .reserve(&mut context, &wanted(1 << 20), || {})
            .unwrap();
        let (before, reserved) = (allocated(), context.used());
        assert!(before >= 2 << 20);
        // As bindings do.
        let mut kept = Some(buffers.of(Use::Given).unwrap().clone());
        buffers
            .reserve(&mut context, &wanted(1 << 19), || kept = None)
            .unwrap();
        assert!(kept.is_some(), "they are large enough");
        let mut then = 0;
        buffers
            .reserve(&mut context, &wanted(3 << 20), || {
                then = allocated();
                kept = None;
            })
            .unwrap();
        assert!(kept.is_none());
        assert_eq!(then, before, "nothing was asked for");
        assert_eq!(context.used() - reserved, 4 << 20);
        assert_eq!(allocated() - before, 4 << 20, "the small ones are gone");
    }
}
