//! Random numbers of tests.

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In -2..2.
    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        let number = |_| (self.next() >> 40) as f32 / (1 << 22) as f32 - 2.0;
        (0..n).map(number).collect()
    }
}
