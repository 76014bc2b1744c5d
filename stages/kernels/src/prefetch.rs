//! How far ahead of their use weights in panels are prefetched. No result depends on it.

use forebay_numbers::block::BlockType;

use super::isa::Isa;

/// Distance ahead of the current block, bytes. On Zen 5, the hardware's own prefetching reaches half of the memory's
/// speed; 4 KiB ahead gave 29 (Q4_K) to 44 (Q4_1) GB/s, 9 KiB 43 to 50, 14 KiB no more.
pub(super) const DISTANCE: usize = 10 << 10;

/// The same with AVX2 for formats with scales of six bits. On Zen 3, a core takes 14 GB/s of Q4_K with 4 to 12 KiB, as
/// without any prefetching, and 18 to 21 with 15 to 20 KiB; Q5_K 16 and 19. Other formats differ by less than the
/// noise, and small clusters lose what is not prefetched at their beginning.
#[cfg(target_arch = "x86_64")]
pub(super) const FAR: usize = 16 << 10;

/// Bytes of weights in one product up to which the CPU's own prefetching has hardly begun when they end: clusters of
/// SmolLM2 have 90 KiB, and with requests a core of Zen 4 decodes 199 tokens per second instead of 181.
const SHORT: usize = 96 << 10;

/// Who fetches weights before they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefetching {
    /// The kernels, always.
    Kernels,
    /// The CPU, for long products with formats to which requests by the kernels are an obstacle; otherwise the kernels.
    ///
    /// Zen 4, one core, GB/s with such requests and without, beside 31 for a pass that only reads: Q8_0 20 and 32, F32
    /// 20 and 31, Q4_0 22 and 32, Q4_1 22 and 32, Q5_0 23 and 32, Q5_1 23 and 31, Q4_K 24 and 32, Q5_K 26 and 31,
    /// IQ4_NL 28 and 32, BF16 21 and 29, F16 21 and 27. IQ4_XS loses (28 and 24), and so does Q6_K when the memory is
    /// less busy (34 and 25); Q2_K, Q3_K and MXFP4 change by less than 5%. Distances from 2 to 20 KiB and requests for
    /// other caches were no better.
    Cpu,
}

impl Prefetching {
    /// What is best with the kernels of `isa` on this CPU.
    pub(super) fn of(isa: Isa) -> Self {
        match isa == Isa::Avx512 && is_zen4() {
            true => Self::Cpu,
            false => Self::Kernels,
        }
    }

    /// Whether the kernels prefetch `bytes` of panels in the format `block`, [`DISTANCE`] ahead.
    pub(super) fn is_by_kernels(self, block: BlockType, bytes: usize) -> bool {
        let keeps_requests = matches!(
            block,
            BlockType::Q2_K
                | BlockType::Q3_K
                | BlockType::Q6_K
                | BlockType::IQ4_XS
                | BlockType::MXFP4
        );
        self == Self::Kernels || keeps_requests || bytes <= SHORT
    }
}

/// AMD's first CPUs with AVX-512, whose successors also have AVX-VNNI.
#[cfg(target_arch = "x86_64")]
fn is_zen4() -> bool {
    is_x86_feature_detected!("sse4a")
        && is_x86_feature_detected!("avx512bf16")
        && !is_x86_feature_detected!("avxvnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn is_zen4() -> bool {
    false
}
