//! SplitMix64: 64 bits of state, passes BigCrush, and is defined in five lines, so a seed gives the same numbers on
//! every platform and in every version of this crate.
//!
//! Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants as in
//! S. Vigna's `splitmix64.c`.

/// By how much the state grows with each number.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The next 64 random bits of a stream whose `state` is at first its seed.
#[inline]
pub fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(GOLDEN);
    mix(*state)
}

/// The bits that a state gives.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_stream() {
        // First outputs of the reference implementation for seed 1234567.
        let mut state = 1_234_567;
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(expected.map(|_| split_mix(&mut state)), expected);
    }
}
