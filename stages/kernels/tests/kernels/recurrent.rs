//! Sigmoids, decays and the delta rule against f64.

use forebay_kernels::DeltaRule;

use super::{Random, bits, on_all, tables};

fn close(got: f32, want: f64, relative: f64) {
    let error = (f64::from(got) - want).abs();
    assert!(error <= relative * want.abs() + 1e-37, "{got} for {want}");
}

#[test]
fn sigmoids_are_accurate() {
    let x: Vec<f32> = (-80_000..80_000).map(|i| i as f32 * 1e-3).collect();
    let out = on_all(|table| {
        let mut out = vec![f32::NAN; x.len()];
        table.sigmoid(&x, &mut out);
        out
    });
    for (&x, &y) in x.iter().zip(&out) {
        close(y, 1.0 / (1.0 + (-f64::from(x)).exp()), 5e-7);
    }
    for table in tables() {
        let mut out = [0.0; 3];
        table.sigmoid(&[f32::NAN, 500.0, -500.0], &mut out);
        assert!(out[0].is_nan() && out[1] == 1.0 && (0.0..1e-37).contains(&out[2]));
    }
}

#[test]
fn decays_are_powers_of_one_plus_e() {
    for n in (1..40).chain([3000]) {
        let mut random = Random(n as u64);
        let x: Vec<f32> = random.units(n).iter().map(|v| v * 30.0).collect();
        let bias = random.units(n);
        let rate: Vec<f32> = random.units(n).iter().map(|v| -4.0 * v.abs()).collect();
        let out = on_all(|table| {
            let mut out = vec![f32::NAN; n];
            table.decay(&x, (&bias, &rate), &mut out);
            out
        });
        for i in 0..n {
            let step = f64::from(x[i] + bias[i]).exp().ln_1p();
            let exponent = f64::from(rate[i]) * step;
            // An exponent's last bit is worth that much of the power.
            if exponent > -80.0 {
                close(out[i], exponent.exp(), 1e-6 * (1.0 - exponent));
            }
        }
    }
    for table in tables() {
        let mut out = [0.0; 3];
        let x = [f32::NAN, 1e30, -1e30];
        table.decay(&x, (&[0.0; 3], &[-1.0; 3]), &mut out);
        assert!(out[0].is_nan() && out[1] == 0.0 && out[2] == 1.0);
    }
}

/// `state` and the result after one position, in f64.
fn defined(rule: DeltaRule<'_>, state: &[f32], width: usize) -> (Vec<f64>, Vec<f64>) {
    let value_dim = rule.v.len();
    let mut new = vec![0.0; state.len()];
    let mut out = vec![0.0; value_dim];
    for (c, out) in out.iter_mut().enumerate() {
        let at = |r: usize| r * width + c;
        let rows = 0..rule.k.len();
        let kept = |r: usize| f64::from(rule.decay) * f64::from(state[at(r)]);
        let known: f64 = rows.clone().map(|r| f64::from(rule.k[r]) * kept(r)).sum();
        let delta = f64::from(rule.beta) * (f64::from(rule.v[c]) - known);
        for r in rows {
            new[at(r)] = kept(r) + f64::from(rule.k[r]) * delta;
            *out += f64::from(rule.q[r]) * new[at(r)];
        }
    }
    (new, out)
}

#[test]
fn the_delta_rule_writes_what_the_state_does_not_know() {
    for (key_dim, value_dim) in [(1, 1), (5, 16), (16, 31), (24, 64), (33, 80), (128, 128)] {
        let width = DeltaRule::width(value_dim);
        let mut random = Random((key_dim * 1000 + value_dim) as u64);
        let (q, k) = (random.units(key_dim), random.units(key_dim));
        let v = random.units(value_dim);
        let mut state = vec![0.0; key_dim * width];
        for row in state.chunks_exact_mut(width) {
            row[..value_dim].copy_from_slice(&random.units(value_dim));
        }
        let rule = DeltaRule {
            q: &q,
            k: &k,
            v: &v,
            decay: 0.75,
            beta: 0.4,
        };
        let got = on_all(|table| {
            let (mut state, mut out) = (state.clone(), vec![f32::NAN; value_dim]);
            table.delta_rule(rule, &mut state, &mut out);
            state.extend(out);
            state
        });
        let (new, out) = defined(rule, &state, width);
        assert_eq!(got.len(), new.len() + out.len());
        for (got, want) in got.iter().zip(new.iter().chain(&out)) {
            assert!((f64::from(*got) - want).abs() < 1e-4, "{got} for {want}");
        }
        for row in got[..state.len()].chunks_exact(width) {
            assert_eq!(bits(&row[value_dim..]), vec![0; width - value_dim]);
        }
    }
}
