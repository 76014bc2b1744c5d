//! The shaders' text: each idea is one file of WGSL; what a format adds is data.

use std::fmt::Write;

use forebay_numbers::block::{BlockType, MXFP4_VALUES};
use forebay_numbers::panel::{PANEL_ROWS, PLANE_LEN};

use crate::job::Activated;

/// How `a * b + c` with one rounding is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// By the device's own instruction, which WGSL allows to round twice.
    Native,
    /// By integers, which are exact everywhere.
    Emulated,
}

impl Arithmetic {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Emulated => "emulated",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Native => include_str!("fused_native.wgsl"),
            Self::Emulated => include_str!("fused_emulated.wgsl"),
        }
    }
}

/// Where scales are; see [`forebay_numbers::panel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scales {
    /// An f16 per 32 elements.
    PerTile,
    /// A power of two per 32 elements.
    Exponents,
    /// Six bits of scale and minimum per 32 elements, f16 factors per 256.
    SixBits,
    /// A signed byte per 16 elements, an f16 factor per 256.
    SignedBytes,
}

/// What the product's text needs to know of a format.
struct Format {
    block: BlockType,
    scales: Scales,
    /// Bits per code of each plane, the lowest bits first.
    planes: &'static [usize],
    /// Binary logarithm of the codes' bias, or 0.
    bias_bits: u32,
    /// What a code stands for, if it is a place in a table.
    table: Option<&'static [i8; 16]>,
}

/// The format of one of [`crate::FORMATS`].
fn format(block: BlockType) -> Option<Format> {
    let (scales, planes, bias_bits): (Scales, &[usize], u32) = match block {
        BlockType::Q4_0 => (Scales::PerTile, &[4], 3),
        BlockType::Q8_0 => (Scales::PerTile, &[8], 0),
        BlockType::Q4_K => (Scales::SixBits, &[4], 0),
        BlockType::Q5_K => (Scales::SixBits, &[4, 1], 0),
        BlockType::Q6_K => (Scales::SignedBytes, &[4, 2], 5),
        BlockType::MXFP4 => (Scales::Exponents, &[4], 0),
        _ => return None,
    };
    Some(Format {
        block,
        scales,
        planes,
        bias_bits,
        table: (block == BlockType::MXFP4).then_some(&MXFP4_VALUES),
    })
}

/// Words of a vector of a plane: one per row.
const VECTOR_WORDS: usize = PANEL_ROWS;
/// Groups of four codes in a block of 32.
const GROUPS: usize = PLANE_LEN / 4;

impl Format {
    /// Bits per code.
    fn bits(&self) -> usize {
        self.planes.iter().sum()
    }

    /// The constants of the product's text.
    fn constants(&self, tokens: usize) -> String {
        let blocks = self.block.block_len() / PLANE_LEN;
        let tile_words = PANEL_ROWS * self.block.block_bytes() / 4;
        let plane_words = self.bits() * VECTOR_WORDS;
        format!(
            "const BLOCKS = {blocks}u;\nconst TILE_WORDS = {tile_words}u;\nconst PLANES_AT = {}u;\n\
             const PLANE_WORDS = {plane_words}u;\nconst BIAS_BITS = {}u;\nconst MINIMA = {};\nconst HALVES = {};\n\
             const ZEROS_ARE_ZERO = {};\nconst TOKENS = {tokens}u;\n",
            tile_words - blocks * plane_words,
            self.bias_bits,
            self.scales == Scales::SixBits,
            self.scales == Scales::SignedBytes,
            self.table.is_some(),
        )
    }

    /// Text of the function that reads a block's 32 codes of one row, four per word.
    fn codes(&self) -> String {
        let mut text = "fn codes(at: u32, row: u32) -> array<vec4<u32>, 2> {\n".to_owned();
        for v in 0..self.bits() {
            let _ = writeln!(
                text,
                "    let v{v} = weights[at + {}u + row];",
                v * VECTOR_WORDS
            );
        }
        let groups: Vec<String> = (0..GROUPS).map(|g| self.group(g)).collect();
        let (low, high) = groups.split_at(GROUPS / 2);
        let (low, high) = (low.join(", "), high.join(", "));
        let _ = writeln!(text, "    return array(vec4({low}), vec4({high}));\n}}");
        text
    }

    /// Text of the codes of group `g`: of a plane with `w` bits per code they are in vector `g % w` at bit
    /// `w * (g / w)`.
    fn group(&self, g: usize) -> String {
        let (mut first, mut to, mut parts) = (0, 0, Vec::new());
        for &width in self.planes {
            let (vector, bit) = (first + g % width, width * (g / width));
            let mask = u32::from_le_bytes([(0xff_u16 >> (8 - width)) as u8; 4]);
            parts.push(format!("(((v{vector} >> {bit}u) & {mask}u) << {to}u)"));
            first += width;
            to += width;
        }
        let code = parts.join(" | ");
        match self.table {
            Some(_) => format!("looked_up({code})"),
            None => code,
        }
    }

    /// Text of the function that turns four places in the table into its values.
    fn table(&self) -> String {
        let Some(values) = self.table else {
            return String::new();
        };
        let words = values.as_chunks::<4>().0.iter();
        let words: Vec<String> = words
            .map(|four| format!("{}u", u32::from_le_bytes(four.map(|v| v as u8))))
            .collect();
        include_str!("looked_up.wgsl").replace("VALUES", &words.join(", "))
    }

    fn scales(&self) -> [&'static str; 2] {
        let none = include_str!("no_minimum.wgsl");
        match self.scales {
            Scales::PerTile => [include_str!("scale_per_tile.wgsl"), none],
            Scales::Exponents => [include_str!("scale_exponents.wgsl"), none],
            Scales::SixBits => [include_str!("scale_six_bits.wgsl"), ""],
            Scales::SignedBytes => [include_str!("scale_signed_bytes.wgsl"), none],
        }
    }
}

/// What is done with the products of panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sink {
    /// They are stored.
    Rows,
    /// They are added in fixed point.
    Down,
}

/// How a product is divided among workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Tokens of a workgroup.
    pub(crate) tokens: usize,
    /// Panels of a workgroup: one in `chain.wgsl`, several in `tile.wgsl`.
    pub(crate) panels: usize,
    /// Tokens of the smallest batch for which it is taken.
    pub(crate) least: usize,
}

/// Panels of a workgroup of `tile.wgsl`.
pub(crate) const TILE_PANELS: usize = 4;

impl Sink {
    /// The shapes, those for the largest batches first.
    pub(crate) fn shapes(self) -> [Shape; 3] {
        let shape = |tokens, panels, least| Shape {
            tokens,
            panels,
            least,
        };
        let tokens = match self {
            Self::Rows => 64,
            Self::Down => 32,
        };
        [
            shape(tokens, TILE_PANELS, 17),
            shape(8, 1, 5),
            shape(1, 1, 0),
        ]
    }
}

/// The product of panels in the format `block`; `None` if the format is not one of [`crate::FORMATS`].
pub(crate) fn product(
    block: BlockType,
    shape: Shape,
    sink: Sink,
    arithmetic: Arithmetic,
) -> Option<String> {
    let format = format(block)?;
    let [scales, minimum] = format.scales();
    let walk = match shape.panels {
        1 => include_str!("chain.wgsl"),
        _ => include_str!("tile.wgsl"),
    };
    let stored = match (sink, shape.panels) {
        (Sink::Rows, 1) => include_str!("rows.wgsl"),
        (Sink::Rows, _) => include_str!("tiled_rows.wgsl"),
        (Sink::Down, 1) => include_str!("down.wgsl"),
        (Sink::Down, _) => include_str!("tiled_down.wgsl"),
    };
    let fixed = match sink {
        Sink::Rows => "",
        Sink::Down => include_str!("fixed.wgsl"),
    };
    Some(
        [
            &format.constants(shape.tokens),
            arithmetic.text(),
            include_str!("product.wgsl"),
            include_str!("given.wgsl"),
            include_str!("numbers.wgsl"),
            scales,
            minimum,
            &format.table(),
            &format.codes(),
            include_str!("panel.wgsl"),
            walk,
            fixed,
            stored,
        ]
        .join("\n"),
    )
}

/// Bits of the shaders' `extras`.
pub(crate) const BIASES: u32 = 1;
pub(crate) const WEIGHTS: u32 = 2;

/// From gates and ups to the input of Down. Parameters of the activation are numbers of the job.
pub(crate) fn hidden(activation: Activated, arithmetic: Arithmetic) -> String {
    let gelu = include_str!("gelu_tanh.wgsl");
    let factor = -2.0 * (2.0 / std::f32::consts::PI).sqrt();
    let activated = match activation {
        Activated::Silu => include_str!("silu.wgsl").to_owned(),
        Activated::Relu => include_str!("relu.wgsl").to_owned(),
        Activated::GeluTanh => gelu.replace("FACTOR", &factor.to_bits().to_string()),
        Activated::ClampedSwiglu => include_str!("clamped_swiglu.wgsl").to_owned(),
    };
    [
        &format!("const BIASES = {BIASES}u;\nconst WEIGHTS = {WEIGHTS}u;\n"),
        arithmetic.text(),
        include_str!("product.wgsl"),
        include_str!("given.wgsl"),
        include_str!("quotient.wgsl"),
        include_str!("exponential.wgsl"),
        &activated,
        include_str!("hidden.wgsl"),
    ]
    .join("\n")
}

/// Query rows of a workgroup of `attention.wgsl`.
pub(crate) const ATTENTION_ROWS: usize = 32;
/// Elements of a value of which a lane of `attention.wgsl` has four.
const QUAD_ELEMENTS: usize = 64;

/// Groups of four elements of a value that a lane of `attention.wgsl` has: 1, 2 or 4.
pub(crate) fn quads(value_dim: usize) -> usize {
    value_dim.div_ceil(QUAD_ELEMENTS).next_power_of_two()
}

/// Attention with values for which a lane needs so many [`quads`].
pub(crate) fn attention(quads: usize, arithmetic: Arithmetic) -> String {
    [
        &format!("const QUADS = {quads}u;\n"),
        arithmetic.text(),
        include_str!("product.wgsl"),
        include_str!("given.wgsl"),
        include_str!("quotient.wgsl"),
        include_str!("power.wgsl"),
        include_str!("attention.wgsl"),
        include_str!("scores.wgsl"),
        include_str!("soften.wgsl"),
        include_str!("gather.wgsl"),
    ]
    .join("\n")
}

/// The sum of Down's parts.
pub(crate) fn parts() -> String {
    [
        include_str!("product.wgsl"),
        include_str!("given.wgsl"),
        include_str!("parts.wgsl"),
    ]
    .join("\n")
}

/// Roundings of products and of `fused`.
pub(crate) fn triples(arithmetic: Arithmetic) -> String {
    [arithmetic.text(), include_str!("triples.wgsl")].join("\n")
}

/// Reads words.
pub(crate) const READ: &str = include_str!("read.wgsl");

/// Multiplies bytes.
pub(crate) const INT8: &str = include_str!("int8.wgsl");

/// Products of bytes per round and lane of [`INT8`].
pub(crate) const INT8_PER_ROUND: u64 = 4 * 32;

/// Multiplies and adds 32-bit numbers.
pub(crate) const F32: &str = include_str!("f32.wgsl");

/// Fused sums per round and lane of [`F32`].
pub(crate) const F32_PER_ROUND: u64 = 32;
