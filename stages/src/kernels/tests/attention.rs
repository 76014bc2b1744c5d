//! Attention against a softmax in f64.

use half::f16;

use super::{Random, bits, on_all, tables};

struct Case {
    q: Vec<f32>,
    k: Vec<f16>,
    v: Vec<f16>,
    d: usize,
    scale: f32,
}

impl Case {
    fn random(group: usize, n_pos: usize, d: usize, size: f32) -> Self {
        let mut random = Random((group * 1000 + n_pos) as u64);
        let q = random.units(group * d).iter().map(|v| v * size).collect();
        let mut halves = || {
            random
                .units(n_pos * d)
                .into_iter()
                .map(f16::from_f32)
                .collect()
        };
        let (k, v) = (halves(), halves());
        let scale = 1.0 / (d as f32).sqrt();
        Self { q, k, v, d, scale }
    }

    fn run(&self) -> Vec<f32> {
        on_all(|table| {
            let mut out = vec![f32::NAN; self.q.len()];
            table.attend(&self.q, &self.k, &self.v, self.d, self.scale, &mut out);
            out
        })
    }

    /// Output of one query head and the size of its terms.
    fn reference(&self, q: &[f32]) -> Vec<f64> {
        let scores: Vec<f64> = self
            .k
            .chunks(self.d)
            .map(|k| {
                let products = q.iter().zip(k).map(|(&q, k)| f64::from(q) * k.to_f64());
                products.sum::<f64>() * f64::from(self.scale)
            })
            .collect();
        let max = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; self.d];
        for (w, v) in weights.iter().zip(self.v.chunks(self.d)) {
            for (out, v) in out.iter_mut().zip(v) {
                *out += w / total * v.to_f64();
            }
        }
        out
    }
}

#[test]
fn every_shape_meets_the_softmax() {
    for d in [1, 8, 16, 20, 64, 80, 128] {
        for n_pos in [1, 2, 63, 64, 65, 128, 200] {
            for group in [1, 3, 4, 7, 8, 9] {
                // Large queries make scores far apart, so that the running maximum moves.
                let case = Case::random(group, n_pos, d, if group % 2 == 0 { 40.0 } else { 1.0 });
                let out = case.run();
                for (q, out) in case.q.chunks(d).zip(out.chunks(d)) {
                    for (got, want) in out.iter().zip(case.reference(q)) {
                        let error = (f64::from(*got) - want).abs();
                        assert!(
                            error < 2e-5,
                            "d {d} pos {n_pos} group {group}: {got} for {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn heads_do_not_depend_on_their_group() {
    let case = Case::random(11, 150, 64, 10.0);
    let all = case.run();
    for table in tables() {
        for (q, together) in case.q.chunks(64).zip(all.chunks(64)) {
            let mut alone = vec![0.0; 64];
            table.attend(q, &case.k, &case.v, 64, case.scale, &mut alone);
            assert_eq!(bits(&alone), bits(together));
        }
    }
}

#[test]
fn no_positions_give_zero_and_a_fault_shows() {
    let mut case = Case::random(2, 70, 16, 1.0);
    case.q[3] = f32::NAN;
    let out = case.run();
    assert!(out[..16].iter().all(|v| v.is_nan()));
    assert!(out[16..].iter().all(|v| v.is_finite()));
    case.k.clear();
    case.v.clear();
    assert_eq!(case.run(), vec![0.0; 32]);
}
