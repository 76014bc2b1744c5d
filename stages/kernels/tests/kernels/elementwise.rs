//! Norm, rotation and activation against f64.

use forebay_numbers::{activation::Activation, rope_pairing::RopePairing};

use super::{Random, bits, on_all, tables};

/// GELU by its tanh formula, as far as powers of e are numbers in f32.
fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    x / (1.0 + (-2.0 * inner).min(88.0).exp())
}

/// GELU by its definition. The tail of the normal distribution is `1 - erf` where that has enough digits, with the
/// series of positive terms, and else a continued fraction (Abramowitz and Stegun 7.1.6 and 7.1.14).
fn gelu_erf(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let gauss = (-z * z).exp() / std::f64::consts::PI.sqrt();
    let erfc = if z < 2.0 {
        let terms = (1..80).scan(2.0 * z, |term, n| {
            let this = *term;
            *term *= 2.0 * z * z / f64::from(2 * n + 1);
            Some(this)
        });
        1.0 - gauss * terms.sum::<f64>()
    } else {
        let below = (1..80).rev();
        gauss / below.fold(z, |tail, k| z + f64::from(k) / 2.0 / tail)
    };
    x * if x > 0.0 {
        1.0 - erfc / 2.0
    } else {
        erfc / 2.0
    }
}

fn close(got: f32, want: f64, relative: f64) {
    let error = (f64::from(got) - want).abs();
    assert!(error <= relative * want.abs() + 1e-37, "{got} for {want}");
}

#[test]
fn rmsnorm_divides_by_the_root_mean_square() {
    for n in (1..70).chain([576, 1536, 8961]) {
        let mut random = Random(n as u64);
        let (x, w) = (random.units(n), random.units(n));
        let out = on_all(|table| {
            let mut out = vec![0.0; n];
            table.rmsnorm(&x, &w, 1e-5, &mut out);
            out
        });
        let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n as f64;
        for i in 0..n {
            let want = f64::from(x[i]) / (mean + f64::from(1e-5_f32)).sqrt() * f64::from(w[i]);
            close(out[i], want, 1e-6);
        }
    }
}

#[test]
fn layernorm_centres_first() {
    for n in (1..70).chain([576, 1536, 8961]) {
        let mut random = Random(n as u64);
        let (mut x, w) = (random.units(n), random.units(n));
        x.iter_mut().for_each(|v| *v += 0.75);
        let out = on_all(|table| {
            let mut out = vec![f32::NAN; n];
            table.layernorm(&x, &w, 1e-2, &mut out);
            out
        });
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n as f64;
        let squares = x.iter().map(|&v| (f64::from(v) - mean).powi(2));
        let deviation = (squares.sum::<f64>() / n as f64 + f64::from(1e-2_f32)).sqrt();
        for i in 0..n {
            let want = (f64::from(x[i]) - mean) / deviation * f64::from(w[i]);
            let error = (f64::from(out[i]) - want).abs();
            assert!(error < 2e-6, "{} for {want}", out[i]);
        }
    }
}

#[test]
fn rope_rotates_the_pairs_of_either_layout_and_no_more() {
    for pairing in [RopePairing::Interleaved, RopePairing::HalfSplit] {
        for half in [0, 1, 3, 8, 16, 31, 64] {
            let mut random = Random(half as u64);
            let x = random.units(2 * half + 5);
            let angles: Vec<f32> = random.units(half);
            let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
            let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
            let out = on_all(|table| {
                let mut out = x.clone();
                table.rope(&mut out, &cos, &sin, pairing);
                out
            });
            for i in 0..half {
                let (a, b) = match pairing {
                    RopePairing::Interleaved => (2 * i, 2 * i + 1),
                    RopePairing::HalfSplit => (i, i + half),
                };
                assert_eq!(out[a], x[a] * cos[i] - x[b] * sin[i]);
                assert_eq!(out[b], x[a] * sin[i] + x[b] * cos[i]);
            }
            assert_eq!(bits(&out[2 * half..]), bits(&x[2 * half..]));
        }
    }
}

#[test]
fn activations_are_as_the_model_defines_them() {
    let all = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Relu,
        Activation::ReluSquared,
        Activation::FatRelu { threshold: 0.25 },
        Activation::DoubleRelu,
        Activation::ClampedSwiglu {
            alpha: 1.702,
            limit: 0.75,
        },
    ];
    for activation in all {
        for n in (1..40).chain([4096]) {
            let mut random = Random(n as u64);
            let gate: Vec<f32> = random.units(n).iter().map(|v| v * 20.0).collect();
            let up = random.units(n);
            let out = on_all(|table| {
                let mut out = vec![f32::NAN; n];
                table.gate_up(activation, &gate, &up, &mut out);
                out
            });
            let alone = on_all(|table| {
                let mut out = vec![f32::NAN; n];
                table.activate(activation, &gate, &mut out);
                out
            });
            for i in 0..n {
                let act = match activation {
                    Activation::Silu => f64::from(gate[i]) / (1.0 + f64::from(-gate[i]).exp()),
                    Activation::GeluTanh => gelu(gate[i].into()),
                    Activation::GeluErf => gelu_erf(gate[i].into()),
                    Activation::ClampedSwiglu { alpha, limit } => {
                        let x = f64::from(gate[i].min(limit));
                        x / (1.0 + (-f64::from(alpha) * x).exp())
                    }
                    other => f64::from(other.gate(gate[i])),
                };
                let relative = match activation {
                    Activation::GeluTanh | Activation::GeluErf => 3e-5,
                    // The product with alpha is rounded before the power is taken.
                    Activation::ClampedSwiglu { .. } => 4e-6,
                    _ => 5e-7,
                };
                close(out[i], act * f64::from(activation.up(up[i])), relative);
                close(alone[i], act, relative);
            }
        }
    }
}

/// Between -13.2 and 13.2; below, one definition underflows and the other does not.
#[test]
fn gelu_by_erf_is_accurate_over_the_whole_range_and_keeps_nan() {
    let gate: Vec<f32> = (-132_000..132_000).map(|i| i as f32 * 1e-4).collect();
    let out = on_all(|table| {
        let mut out = vec![0.0; gate.len()];
        table.activate(Activation::GeluErf, &gate, &mut out);
        out
    });
    for (&x, &y) in gate.iter().zip(&out) {
        let want = gelu_erf(x.into());
        close(y, want, if x > -4.0 { 2e-6 } else { 3e-5 });
        let plain = f64::from(Activation::GeluErf.gate(x));
        assert!(
            (plain - want).abs() < 3e-7 * (1.0 + want.abs()),
            "{plain} for {want}"
        );
    }
    for table in tables() {
        let mut out = [0.0; 3];
        table.activate(
            Activation::GeluErf,
            &[f32::NAN, f32::INFINITY, 0.0],
            &mut out,
        );
        assert!(out[0].is_nan() && out[1] == f32::INFINITY && out[2] == 0.0);
    }
}

#[test]
fn silu_is_accurate_over_the_whole_range_and_keeps_nan() {
    let gate: Vec<f32> = (-120_000..120_000).map(|i| i as f32 * 1e-3).collect();
    let ones = vec![1.0; gate.len()];
    let out = on_all(|table| {
        let mut out = vec![0.0; gate.len()];
        table.gate_up(Activation::Silu, &gate, &ones, &mut out);
        out
    });
    for (&x, &y) in gate.iter().zip(&out) {
        let want = f64::from(x) / (1.0 + (-f64::from(x)).exp());
        if x > -87.0 {
            close(y, want, 5e-7);
        } else {
            assert!(y <= 0.0 && y > -1e-35, "{y} at {x}");
        }
    }
    for table in tables() {
        let mut out = [0.0; 3];
        let gate = [f32::NAN, f32::INFINITY, 1.0];
        table.gate_up(Activation::Silu, &gate, &[1.0; 3], &mut out);
        assert!(out[0].is_nan() && out[1] == f32::INFINITY && out[2] < 1.0);
    }
}
