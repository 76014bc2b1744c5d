//! Attention with numbers at the borders of the range in which devices have the CPU's bits.

use forebay_devices::gpu::Arithmetic;
use forebay_devices::{AttentionWork, DeviceDriver, DeviceFault};

use super::attention::{CASES, Case, SHAPES, attend, case, on_cpu, open};
use super::past::Past;
use super::{Random, bits};

#[test]
fn numbers_out_of_range_are_left_to_the_cpu() {
    let shape = SHAPES[0];
    let Some(mut driver) = open(&[shape], Arithmetic::Emulated) else {
        return;
    };
    let case = CASES[1];
    let past = case.past(shape);
    let segment = driver.load(&past.bytes).unwrap();
    let changes: [fn(&mut AttentionWork); 5] = [
        |work| work.queries[5] = 1e-30,
        |work| work.queries[5] = f32::NAN,
        |work| work.sinks[1] = f32::NEG_INFINITY,
        |work| work.scale = 1e-20,
        |work| work.scale = f32::INFINITY,
    ];
    for change in changes {
        let mut work = case.work(&past, shape);
        change(&mut work);
        let found = attend(&mut driver, segment, work);
        assert_eq!(found, Err(DeviceFault::OutOfRange));
    }
    // Infinity and NaN, as a word of the segment with the same number beside it.
    let wrong = [past.key_at(0, 70, 3), past.value_at(0, 101, 40)].map(|at| at / 4 * 4);
    for (at, half) in wrong
        .into_iter()
        .flat_map(|at| [(at, 0xfc00_u16), (at, 0x7c01)])
    {
        let number = [half.to_le_bytes(); 2];
        driver.write(segment, at, number.as_flattened()).unwrap();
        let found = attend(&mut driver, segment, case.work(&past, shape));
        assert_eq!(found, Err(DeviceFault::OutOfRange), "{at} {half:x}");
        driver.write(segment, at, &past.bytes[at..][..4]).unwrap();
    }
    assert!(attend(&mut driver, segment, case.work(&past, shape)).is_ok());
}

#[test]
fn far_apart_scores_have_the_cpus_bits_or_are_left_to_it() {
    let shape = [32, 32, 3];
    let Some(mut driver) = open(&[shape], Arithmetic::Emulated) else {
        return;
    };
    let (mut random, mut exact, mut refused) = (Random(1), 0, 0);
    for case in CASES.iter().cycle().take(60) {
        let mut past = case.past(shape);
        // Halves with few bits: zeros of both signs, subnormals, the largest.
        for pair in past.bytes.as_chunks_mut::<2>().0 {
            if random.next().is_multiple_of(3) && *pair != [0x00, 0x7e] {
                let half = [0x0000, 0x8000, 0x0001, 0x8001, 0x7bff, 0xfbff, 0x3c00]
                    [random.next() as usize % 7];
                *pair = u16::to_le_bytes(half);
            }
        }
        let seed = random.next();
        let work = || {
            let (mut work, mut random) = (case.work(&past, shape), Random(seed));
            let range = random.next() % 90;
            for query in &mut work.queries {
                let exponent = (random.next() % (range + 1)) as i32 - 60;
                *query = match random.next() % 4 {
                    0 => 0.0,
                    _ => 2.0_f32.powi(exponent) * (1.0 + random.unit().abs()),
                };
            }
            work.scale = 2.0_f32.powi((random.next() % 80) as i32 - 50);
            work
        };
        let segment = driver.load(&past.bytes).unwrap();
        match attend(&mut driver, segment, work()) {
            Ok(found) => {
                let expected = on_cpu(&past, work());
                assert_eq!(bits(&found), bits(&expected), "{case:?}, seed {seed}");
                exact += 1;
            }
            Err(fault) => {
                assert_eq!(fault, DeviceFault::OutOfRange);
                refused += 1;
            }
        }
        driver.unload(segment);
    }
    eprintln!("{exact} exact, {refused} out of range");
    assert!(exact > 20, "{exact} exact, {refused} out of range");
}

/// f16 numbers.
const ZERO: u16 = 0;
const NEGATIVE_ZERO: u16 = 0x8000;
const LEAST: u16 = 0x0001;
const NEGATIVE_LEAST: u16 = 0x8001;
const ONE: u16 = 0x3c00;

/// One key/value head and one row, the last position of a sequence.
const ROW: [usize; 3] = [4, 4, 1];

/// A sequence whose keys and values are all the same but for a few positions: these, their keys and their values.
fn sequence(case: Case, value: u16, others: &[(usize, [u16; 4], u16)]) -> Past {
    let mut past = case.past(ROW);
    for position in 0..=case.position {
        let found = others.iter().find(|(p, ..)| *p == position);
        let (keys, value) = found.map_or(([ZERO; 4], value), |(_, keys, value)| (*keys, *value));
        for (i, key) in keys.into_iter().enumerate() {
            let places = [past.key_at(0, position, i), past.value_at(0, position, i)];
            for (at, half) in places.into_iter().zip([key, value]) {
                past.bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
        }
    }
    past
}

/// With scores that are the sums of the keys' elements, nearly.
fn plain(case: Case, past: &Past) -> AttentionWork {
    AttentionWork {
        queries: vec![1.0; 4],
        scale: std::f32::consts::LN_2,
        ..case.work(past, ROW)
    }
}

#[test]
fn results_that_devices_may_take_for_zero_are_left_to_the_cpu() {
    let Some(mut driver) = open(&[ROW], Arithmetic::Emulated) else {
        return;
    };
    let long = case(1, 1, 64, usize::MAX, false);
    let short = case(1, 1, 2, usize::MAX, false);
    // -59, -59 and a little, 50.
    let [low, lower, high] = [0xd360, 0x8040, 0x5240];
    let key = |a, b| [a, b, ZERO, ZERO];
    let sequences = [
        // The last position's score is 200 more than the others'. Its value is -0: on the CPU, so is the result.
        (
            long,
            sequence(long, 0xbc00, &[(64, [high; 4], NEGATIVE_ZERO)]),
        ),
        // A small weight of the least value, which gets smaller when a larger score comes.
        (
            long,
            sequence(
                long,
                ZERO,
                &[(1, key(low, ZERO), LEAST), (64, key(high, ZERO), ONE)],
            ),
        ),
        // Two of them with opposite signs, and nearly the same weight.
        (
            short,
            sequence(
                short,
                ZERO,
                &[
                    (0, key(low, ZERO), LEAST),
                    (1, key(low, lower), NEGATIVE_LEAST),
                ],
            ),
        ),
    ];
    let mut results = Vec::new();
    for (case, past) in sequences {
        results.push(on_cpu(&past, plain(case, &past))[0]);
        let segment = driver.load(&past.bytes).unwrap();
        let found = attend(&mut driver, segment, plain(case, &past));
        driver.unload(segment);
        assert_eq!(found, Err(DeviceFault::OutOfRange), "{results:?}");
    }
    assert_eq!(results[0].to_bits(), NEGATIVE_ZERO as u32 * 0x1_0000);
    let tiny = |n: f32| n != 0.0 && n.abs() < 2.0_f32.powi(-90);
    assert!(results[1] == 1.0 && tiny(results[2]), "{results:?}");
}

#[test]
fn scores_that_devices_may_take_for_zero_are_zero() {
    let Some(mut driver) = open(&[ROW], Arithmetic::Emulated) else {
        return;
    };
    let case = case(1, 1, 90, usize::MAX, false);
    let random = case.past(ROW);
    // Two scores whose difference is subnormal.
    let keys = [[ONE; 4], [ONE + 1, ONE, ONE, ONE]];
    let near = sequence(case, ZERO, &[(0, keys[0], ONE), (1, keys[1], 0x4321)]);
    let scales = [(-60, -60), (-60, -57), (-40, -50), (-20, -20)];
    for (past, (query, scale)) in [random, near].iter().flat_map(|p| scales.map(|s| (p, s))) {
        let work = || AttentionWork {
            queries: vec![2.0_f32.powi(query); 4],
            scale: 2.0_f32.powi(scale),
            ..case.work(past, ROW)
        };
        let segment = driver.load(&past.bytes).unwrap();
        let found = attend(&mut driver, segment, work()).unwrap();
        driver.unload(segment);
        let expected = bits(&on_cpu(past, work()));
        assert_eq!(bits(&found), expected, "{query} {scale}");
    }
}
