//! Keys and values of a sequence in a segment.

use forebay_devices::KvSpace;

/// Positions of a block.
const BLOCK: usize = 64;

/// Random keys and values; what was not written is NaN.
pub struct Past {
    pub space: KvSpace,
    /// Where the sequence is.
    pub blocks: Vec<u32>,
    pub bytes: Vec<u8>,
}

impl Past {
    /// A sequence of so many positions, with the last blocks of the segment first.
    pub fn new(space: KvSpace, positions: usize, seed: u64) -> Self {
        let blocks = (0..positions.div_ceil(BLOCK) as u32).map(|b| space.blocks as u32 - 1 - b);
        let mut past = Self {
            space,
            blocks: blocks.collect(),
            bytes: [0x00, 0x7e].repeat(space.bytes() as usize / 2),
        };
        let mut number = seed;
        for (head, position) in (0..space.heads).flat_map(|h| (0..positions).map(move |p| (h, p))) {
            let keys = (0..space.head_dim).map(|i| past.key_at(head, position, i));
            let values = (0..space.value_dim).map(|i| past.value_at(head, position, i));
            for at in keys.chain(values).collect::<Vec<_>>() {
                number = number
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(0x1405_7b7e_f767_814f);
                // Any sign, below 4 in size, from subnormal on.
                let half = ((number >> 63) << 15) as u16 | ((number >> 32) % (17 << 10)) as u16;
                past.bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
        }
        past
    }

    fn place(&self, position: usize) -> usize {
        self.blocks[position / BLOCK] as usize * BLOCK + position % BLOCK
    }

    /// Where element `i` of a key is.
    pub fn key_at(&self, head: usize, position: usize, i: usize) -> usize {
        let at = self.place(position);
        let number = (at / 16 * self.space.head_dim + i) * 16 + at % 16;
        self.space.places(head)[0].start + 2 * number
    }

    /// Where element `i` of a value is.
    pub fn value_at(&self, head: usize, position: usize, i: usize) -> usize {
        let number = self.place(position) * self.space.value_width() + i;
        self.space.places(head)[1].start + 2 * number
    }

    fn number(&self, at: usize) -> f32 {
        let half = u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]);
        let (exponent, fraction) = (half >> 10 & 31, half & 0x3ff);
        let size = match exponent {
            0 => f32::from(fraction) * 2.0_f32.powi(-24),
            31 => f32::NAN,
            e => f32::from(1024 + fraction) * 2.0_f32.powi(i32::from(e) - 25),
        };
        if half >> 15 == 1 { -size } else { size }
    }

    /// A key, `[head_dim]`.
    pub fn key(&self, head: usize, position: usize) -> Vec<f32> {
        let all = 0..self.space.head_dim;
        all.map(|i| self.number(self.key_at(head, position, i)))
            .collect()
    }

    /// A value, `[value_dim]`.
    pub fn value(&self, head: usize, position: usize) -> Vec<f32> {
        let all = 0..self.space.value_dim;
        all.map(|i| self.number(self.value_at(head, position, i)))
            .collect()
    }
}
