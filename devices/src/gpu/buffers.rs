//! The buffers of a job, which are kept for the next ones.

use std::num::NonZeroU64;

use crate::fault::DeviceFault;

use super::context::{Context, Piece};

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// All that a job brings, in one copy: the numbers of its passes, `[PASSES, PARAMS_BYTES]`, the tokens' words, and what
    /// is behind them ([`Given`](super::given::Given)).
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
    /// Whether one was replaced since this was last asked.
    replaced: bool,
}

impl Buffers {
    /// Makes a buffer large enough for `bytes` bytes. What was in it may be lost.
    pub(super) fn reserve(
        &mut self,
        context: &mut Context,
        what: Use,
        bytes: u64,
    ) -> Result<(), DeviceFault> {
        let piece = &mut self.pieces[what as usize];
        let bytes = bytes.max(what.least());
        if piece.as_ref().is_none_or(|held| held.bytes() < bytes) {
            self.replaced = true;
            context.grow(piece, bytes, what.usage())?;
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
        self.replaced = true;
        for piece in self.pieces.iter_mut().filter_map(Option::take) {
            context.free(piece);
        }
    }

    /// Whether a buffer was replaced since the last time.
    pub(super) fn were_replaced(&mut self) -> bool {
        std::mem::take(&mut self.replaced)
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
