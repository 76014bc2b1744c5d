//! The measures of the machine do what they count.

use super::tables;

#[test]
fn every_byte_is_read() {
    for table in tables() {
        for len in [0, 1, 63, 64, 65, 511, 512, 513, 1024, 2500] {
            let mut bytes = vec![0; len + 1];
            // Behind the end: must not be read.
            bytes[len] = 1;
            assert_eq!(table.read_pass(&bytes[..len]), 0);
            for i in 0..len {
                bytes[i] = 0x80;
                assert_eq!(table.read_pass(&bytes[..len]), -128, "byte {i} of {len}");
                bytes[i] = 0;
            }
        }
    }
}

#[test]
fn the_accumulators_count_what_was_multiplied() {
    for table in tables() {
        let isa = table.isa();
        for (of_round, count) in [
            (table.int8_peak(1), &|rounds| table.int8_peak(rounds)),
            (table.f32_peak(1), &|rounds| table.f32_peak(rounds)),
        ] as [(u64, &dyn Fn(usize) -> u64); 2]
        {
            assert!(of_round >= 4 * 16, "{isa}: {of_round}");
            assert_eq!(count(0), 0, "{isa}");
            assert_eq!(count(1000), 1000 * of_round, "{isa}");
            // More would overflow.
            assert_eq!(count(usize::MAX), 65536 * of_round, "{isa}");
        }
    }
}
