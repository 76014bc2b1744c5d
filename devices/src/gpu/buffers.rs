//! The buffers of a job, which are kept for the next ones.

use crate::fault::DeviceFault;

use super::context::{Context, Piece};

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// The tokens' words.
    Tokens,
    /// Where panels of rows, or of Gate, are.
    Panels,
    /// Where panels of Up are.
    UpPanels,
    /// Where panels of Down are.
    DownPanels,
    /// Numbers of all passes.
    Params,
    /// Results of Gate and Up, `[n_tokens, neurons]`.
    Gates,
    Ups,
    /// Biases and weights.
    Extras,
    /// Input of Down.
    Hidden,
    /// Results of parts of the clusters, `[n_parts, n_tokens, d_model]`.
    Partials,
    /// What comes back.
    Results,
    /// Whether a number was out of range.
    Mark,
    /// Results and mark where the CPU can read them.
    Readback,
}

impl Use {
    const COUNT: usize = Self::Readback as usize + 1;

    fn usage(self) -> wgpu::BufferUsages {
        use wgpu::BufferUsages as Usage;
        match self {
            Self::Tokens | Self::Panels | Self::UpPanels | Self::DownPanels | Self::Extras => {
                Usage::COPY_DST | Usage::STORAGE
            }
            Self::Params => Usage::COPY_DST | Usage::UNIFORM,
            Self::Gates | Self::Ups | Self::Hidden | Self::Partials => Usage::STORAGE,
            Self::Results | Self::Mark => Usage::COPY_DST | Usage::COPY_SRC | Usage::STORAGE,
            Self::Readback => Usage::COPY_DST | Usage::MAP_READ,
        }
    }
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Buffers([Option<Piece>; Use::COUNT]);

impl Buffers {
    /// A buffer of at least `bytes` bytes. What was in it may be lost.
    pub(super) fn get(
        &mut self,
        context: &mut Context,
        what: Use,
        bytes: u64,
    ) -> Result<wgpu::Buffer, DeviceFault> {
        context.grow(&mut self.0[what as usize], bytes, what.usage())
    }

    /// A buffer of at least as many bytes with these first.
    pub(super) fn filled(
        &mut self,
        context: &mut Context,
        what: Use,
        bytes: &[u8],
    ) -> Result<wgpu::Buffer, DeviceFault> {
        let buffer = self.get(context, what, bytes.len() as u64)?;
        context.guarded(0, |_| context.queue.write_buffer(&buffer, 0, bytes))?;
        Ok(buffer)
    }

    /// Gives all of them up: after a fault nobody knows what the driver still does with them.
    pub(super) fn discard(&mut self, context: &mut Context) {
        for piece in self.0.iter_mut().filter_map(Option::take) {
            context.free(piece);
        }
    }

    /// The buffer that the CPU reads.
    pub(super) fn readback(&self) -> Option<&wgpu::Buffer> {
        let piece = self.0[Use::Readback as usize].as_ref();
        piece.map(|piece| &piece.buffer)
    }
}
