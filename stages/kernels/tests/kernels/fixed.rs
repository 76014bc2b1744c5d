//! Fixed-point sums: equal on every instruction set, exact, in any order.

use proptest::prelude::*;

use super::{Random, on_all, tables};

/// `round(p * 2^32)`, ties to even, from the bits of `p`: no floating-point arithmetic.
fn units(p: f32) -> i64 {
    let bits = p.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32;
    let fraction = u128::from(bits & 0x7f_ffff) | u128::from(exponent != 0) << 23;
    // p = fraction * 2^(exponent - 150), so in units of 2^-32 the shift is exponent - 118.
    let shift = exponent.max(1) - 118;
    let magnitude = if shift >= 0 {
        fraction << shift
    } else if shift < -100 {
        0
    } else {
        let (whole, rest) = (fraction >> -shift, fraction & ((1 << -shift) - 1));
        let half = 1_u128 << (-shift - 1);
        whole + u128::from(rest > half || rest == half && whole % 2 == 1)
    };
    let magnitude = i64::try_from(magnitude).expect("within the limit");
    if p < 0.0 { -magnitude } else { magnitude }
}

proptest! {
    #[test]
    fn folding_rounds_to_the_nearest_unit(
        values in prop::collection::vec(
            prop_oneof![
                -4.0_f32..4.0,
                -1.07e9_f32..1.07e9,
                (-1000_i32..1000).prop_map(|i| i as f32 / 2.0_f32.powi(34)),
                (-70_000_i32..70_000).prop_map(|i| i as f32 * 8.0),
                Just(-0.0_f32), Just(f32::MIN_POSITIVE), Just(1e-42_f32),
                Just(1_073_741_824.0), Just(-1_073_741_824.0), Just(262_144.0), Just(524_288.03),
            ],
            0..70,
        ),
    ) {
        for table in tables() {
            let mut acc: Vec<i64> = (0..values.len() as i64).map(|i| i - 5).collect();
            prop_assert!(table.fold_fixed(&values, &mut acc));
            for (i, (&v, &sum)) in values.iter().zip(&acc).enumerate() {
                prop_assert_eq!(sum, i as i64 - 5 + units(v), "{} of {}", v, table.isa());
            }
        }
    }
}

#[test]
fn order_of_arrival_does_not_change_the_sum() {
    let partials: Vec<Vec<f32>> = (0..50).map(|i| Random(i).units(100)).collect();
    let sum = |order: &mut dyn Iterator<Item = &Vec<f32>>| {
        let order: Vec<_> = order.collect();
        on_all(|table| {
            let mut acc = vec![0; 100];
            for p in &order {
                assert!(table.fold_fixed(p, &mut acc));
            }
            let mut x = vec![0.125; 100];
            table.unfold_fixed(&acc, &mut x);
            x
        })
    };
    let forward = sum(&mut partials.iter());
    assert_eq!(forward, sum(&mut partials.iter().rev()));
    for (i, &got) in forward.iter().enumerate() {
        let want: f64 = partials.iter().map(|p| f64::from(p[i])).sum::<f64>() + 0.125;
        assert!((f64::from(got) - want).abs() < 2e-6, "{got} for {want}");
    }
}

#[test]
fn values_out_of_range_are_reported_and_clamped() {
    let faults = [
        (f32::NAN, 0),
        (f32::INFINITY, 1_i64 << 62),
        (f32::NEG_INFINITY, -1 << 62),
        (1.1e9, 1 << 62),
        (-1.1e9, -1 << 62),
    ];
    for table in tables() {
        for n in [1, 16, 19, 33] {
            for (fault, want) in faults {
                for i in 0..n {
                    let mut values = vec![1.0; n];
                    values[i] = fault;
                    let mut acc = vec![0; n];
                    assert!(!table.fold_fixed(&values, &mut acc), "{fault} at {i}");
                    assert_eq!(acc[i], want);
                    let others = (0..n).filter(|&j| j != i);
                    assert!(others.into_iter().all(|j| acc[j] == 1 << 32));
                }
            }
        }
    }
}

#[test]
fn unfolding_adds_the_rounded_sum() {
    let mut random = Random(4);
    for n in [1, 15, 16, 17, 64, 100] {
        let sums: Vec<i64> = (0..n).map(|i| random.next() as i64 >> (i % 60)).collect();
        let x = random.units(n);
        let out = on_all(|table| {
            let mut out = x.clone();
            table.unfold_fixed(&sums, &mut out);
            out
        });
        for i in 0..n {
            assert_eq!(out[i], x[i] + (sums[i] as f64 / 4_294_967_296.0) as f32);
        }
    }
}
