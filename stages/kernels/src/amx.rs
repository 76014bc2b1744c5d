//! Intel's AMX: eight tiles of up to 16 rows of 64 bytes, and products of two of them.
//!
//! Rust's intrinsics for it are not stable, so it is inline assembly.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::avx512::Avx512;
use super::dispatch::Products;
use super::formats::for_format;
use super::panels::PanelMatmul;
use super::probe::{Int8Peak, MAX_ROUNDS};
use super::simd::Simd;
use super::tiles::{Codes, Tile, TileUnit, Tiled, Tokens, WIDE};

/// Proof that the CPU has the instructions, and that this process may use them; only [`Amx::detect`] makes it.
#[derive(Clone, Copy)]
pub(super) struct Amx {
    vectors: &'static Avx512,
}

impl Amx {
    /// The proof, if the CPU has the instructions and the system allows them.
    pub(super) fn detect() -> Option<&'static Self> {
        static FOUND: OnceLock<Option<Amx>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let vectors = Avx512::detect()?;
            (has_tiles() && is_permitted()).then_some(Self { vectors })
        });
        found.as_ref()
    }
}

/// Whether the CPU multiplies tiles of bytes, of the size that is used here.
fn has_tiles() -> bool {
    // Leaf 7: AMX-TILE and AMX-INT8. Leaf 0x1d: bytes per row and number of tiles; rows.
    let (features, tiles) = (__cpuid_count(7, 0).edx, __cpuid_count(0x1d, 1));
    let (bytes, number) = (tiles.ebx & 0xffff, tiles.ebx >> 16);
    features >> 24 & 0b11 == 0b11 && bytes >= 64 && number >= 8 && tiles.ecx & 0xffff >= 16
}

/// Asks Linux for the use of tiles by this process, whose threads have 8 KiB more to save from then on.
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: this request takes a number and touches no memory of the process.
    unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_REQ_XCOMP_PERM,
            XFEATURE_XTILEDATA,
        ) == 0
    }
}

/// With fewer columns, vectors are as fast: what each product has besides multiplying is not worth it.
const MIN_COLS: usize = 256;

impl Products for Amx {
    fn widest(&self) -> usize {
        Avx512::WIDEST
    }

    fn panels(&self, job: PanelMatmul<'_, ()>) -> bool {
        let x = job.x;
        if x.n_tokens() < WIDE || x.cols() < MIN_COLS {
            return self.vectors.panels(job);
        }
        for_format!(job.w.block,
            quantised F => {
                let mut job = job.of::<F>();
                let in_range = self.vectors.run(Tiled(&mut job, Tiles::set_up(self)));
                match x.n_tokens() % WIDE {
                    0 => in_range,
                    narrow => self.vectors.run(job.after(x.n_tokens() - narrow)) && in_range,
                }
            },
            float _F => self.vectors.panels(job))
    }

    /// Whole tiles of ones, so that each of four accumulators has `64 * rounds` in all of its 256 elements.
    fn int8_peak(&self, job: Int8Peak) -> u64 {
        let rounds = job.rounds.min(MAX_ROUNDS);
        let _tiles = Tiles::with_shapes(self, &Shapes::whole());
        let ones = [1_i8; 1024];
        let mut sums = [0_i32; 1024];
        // SAFETY: the CPU has the instructions, and all tiles have 16 rows of 64 bytes, 64 apart, in arrays of that
        // size.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tileloadd tmm4, [{ones} + {stride}]", "tileloadd tmm5, [{ones} + {stride}]",
                "tileloadd tmm6, [{ones} + {stride}]", "tileloadd tmm7, [{ones} + {stride}]",
                "test {n}, {n}",
                "jz 3f",
                "2:",
                "tdpbssd tmm0, tmm4, tmm6", "tdpbssd tmm1, tmm4, tmm7",
                "tdpbssd tmm2, tmm5, tmm6", "tdpbssd tmm3, tmm5, tmm7",
                "dec {n}",
                "jnz 2b",
                "3:",
                "tilestored [{sums} + {stride}], tmm0", "tilestored [{sums} + {stride} + 1024], tmm1",
                "tilestored [{sums} + {stride} + 2048], tmm2", "tilestored [{sums} + {stride} + 3072], tmm3",
                ones = in(reg) ones.as_ptr(),
                sums = in(reg) sums.as_mut_ptr(),
                stride = in(reg) 64_usize,
                n = inout(reg) rounds => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
        sums.iter().map(|&sum| sum as u64).sum()
    }
}

/// Rows and bytes per row of the eight tiles, as the instruction takes them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    const fn of(shapes: [(u8, u16); 8]) -> Self {
        let (mut bytes, mut rows) = ([0; 16], [0; 16]);
        let mut i = 0;
        while i < 8 {
            (rows[i], bytes[i]) = shapes[i];
            i += 1;
        }
        Self {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes,
            rows,
        }
    }

    const fn whole() -> Self {
        Self::of([(16, 64); 8])
    }

    /// Sums; tokens and codes of a block; tokens and codes of half a block.
    const fn blocks() -> Self {
        let whole = (16, 64);
        Self::of([
            whole,
            (16, 32),
            (8, 64),
            (16, 16),
            (4, 64),
            whole,
            whole,
            whole,
        ])
    }
}

/// Tiles that are set up in this thread, until it is dropped.
struct Tiles {
    /// Another thread has tiles of its own.
    of_thread: PhantomData<*const ()>,
}

impl Tiles {
    fn set_up(amx: &Amx) -> Self {
        const BLOCKS: Shapes = Shapes::blocks();
        Self::with_shapes(amx, &BLOCKS)
    }

    fn with_shapes(_proof: &Amx, shapes: &Shapes) -> Self {
        // SAFETY: the CPU has the instruction, and the shapes are 64 bytes in the order that it wants.
        unsafe { asm!("ldtilecfg [{}]", in(reg) shapes, options(nostack, readonly)) };
        Self {
            of_thread: PhantomData,
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: only made with the proof that the CPU has the instruction.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// One product: tokens and codes in the named tiles, sums in tile 0.
macro_rules! product {
    ($x:tt, $codes:tt, $from:expr, $by:expr, $to:expr) => {
        asm!(
            "tilezero tmm0",
            concat!("tileloadd ", $x, ", [{x} + {token}]"),
            concat!("tileloadd ", $codes, ", [{codes} + {line}]"),
            concat!("tdpbssd tmm0, ", $x, ", ", $codes),
            "tilestored [{out} + {line}], tmm0",
            x = in(reg) $from,
            codes = in(reg) $by,
            out = in(reg) $to,
            token = in(reg) 32_usize,
            line = in(reg) 64_usize,
            out("tmm0") _, out($x) _, out($codes) _,
            options(nostack),
        )
    };
}

impl TileUnit for Tiles {
    #[inline(always)]
    fn multiply(&self, x: &Tokens, codes: &Codes, out: &mut Tile) {
        let (x, codes, out) = (x.as_ptr(), codes.as_ptr(), out.as_mut_ptr());
        // SAFETY: `self` is made where the CPU has the instructions, after the tiles were set up: tile 0 is the 16 x 64
        // bytes of `out`, tile 1 the 16 x 32 of `x`, tile 2 the 8 x 64 of `codes`.
        unsafe { product!("tmm1", "tmm2", x, codes, out) };
    }

    #[inline(always)]
    fn multiply_halves(&self, x: &Tokens, codes: &Codes, [low, high]: [&mut Tile; 2]) {
        let (x, codes) = (x.as_flattened(), codes.split_at(4));
        let (first, second) = (x.as_ptr(), x[16..].as_ptr());
        let (low, high) = (low.as_mut_ptr(), high.as_mut_ptr());
        // SAFETY: as above; tile 3 is 16 rows of 16 bytes, 32 apart, which end with `x`, and tile 4 the 4 x 64 bytes of
        // half the codes.
        unsafe {
            product!("tmm3", "tmm4", first, codes.0.as_ptr(), low);
            product!("tmm3", "tmm4", second, codes.1.as_ptr(), high);
        }
    }
}
