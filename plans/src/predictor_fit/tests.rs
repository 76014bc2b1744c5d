//! The fit on layers whose answer is known.

use super::random::Random;
use super::*;

/// A layer with a gate of low rank, and samples of it.
struct Planted {
    d_model: usize,
    d_ff: usize,
    gate: Vec<f32>,
    norm: Vec<f32>,
    cut: f32,
    samples: LayerSamples,
}

impl Planted {
    /// `n` samples of a gate of rank `rank`. `common`: length of the part that all inputs have in common,
    /// against a varying part of length 1.
    fn new(n: usize, rank: usize, common: f32, cut: f32) -> Self {
        let (d_model, d_ff) = (48, 100);
        let mut random = Random::new(7);
        let mut normals = |n: usize| (0..n).map(|_| random.normal()).collect::<Vec<f32>>();
        let left = normals(d_ff * rank);
        let right = normals(rank * d_model);
        let mut gate = vec![0.0; d_ff * d_model];
        for (row, left) in gate.chunks_exact_mut(d_model).zip(left.chunks_exact(rank)) {
            for (l, right) in left.iter().zip(right.chunks_exact(d_model)) {
                let scale = l / (rank as f32).sqrt() / (d_model as f32).sqrt();
                row.iter_mut().zip(right).for_each(|(w, r)| *w += scale * r);
            }
        }
        let norm: Vec<f32> = normals(d_model).iter().map(|v| 1.0 + 0.2 * v).collect();
        let shared = normals(d_model);
        let mut inputs = normals(n * d_model);
        for (t, row) in inputs.chunks_exact_mut(d_model).enumerate() {
            // Lengths of residual streams differ by far.
            let length = [0.1, 1.0, 30.0][t % 3];
            for (v, s) in row.iter_mut().zip(&shared) {
                *v = length * (*v + common * s);
            }
        }
        let mut planted = Self {
            d_model,
            d_ff,
            gate,
            norm,
            cut,
            samples: LayerSamples {
                d_model,
                d_ff,
                inputs,
                ffn_inputs: Vec::new(),
                live: Vec::new(),
            },
        };
        planted.samples.live = planted.live(&planted.samples.inputs);
        planted
    }

    /// Draws new inputs: each is of one of `n` kinds, with something of its own. As among the tokens of a text, what is
    /// live then depends on the input in more ways than a linear map of low rank has.
    fn draw_from_kinds(&mut self, n: usize) {
        let mut random = Random::new(9);
        let kinds: Vec<f32> = (0..n * self.d_model).map(|_| random.normal()).collect();
        for x in self.samples.inputs.chunks_exact_mut(self.d_model) {
            let kind = &kinds[random.below(n) * self.d_model..][..self.d_model];
            for (v, k) in x.iter_mut().zip(kind) {
                *v = 1.0 + k + 0.3 * random.normal();
            }
        }
        self.samples.live = self.live(&self.samples.inputs);
    }

    fn weights(&self) -> LayerWeights<'_> {
        LayerWeights {
            gate: &self.gate,
            norm: &self.norm,
            rms_eps: 0.0,
            cut: self.cut,
        }
    }

    /// The layer itself, in f64: `[n, d_ff.div_ceil(64)]`.
    fn live(&self, inputs: &[f32]) -> Vec<u64> {
        let words = self.d_ff.div_ceil(64);
        let mut live = vec![0u64; inputs.len() / self.d_model * words];
        for (x, live) in inputs
            .chunks_exact(self.d_model)
            .zip(live.chunks_exact_mut(words))
        {
            let square: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
            let rms = (square / self.d_model as f64).sqrt();
            for (i, row) in self.gate.chunks_exact(self.d_model).enumerate() {
                let inputs = x.iter().zip(&self.norm).zip(row);
                let sum: f64 = inputs
                    .map(|((&x, &n), &g)| f64::from(x) / rms * f64::from(n * g))
                    .sum();
                live[i / 64] |= u64::from(sum > f64::from(self.cut)) << (i % 64);
            }
        }
        live
    }

    fn fit(&self, rank: usize, train_steps: usize) -> FittedLayer {
        let fitted = fit_layer(
            &self.weights(),
            &self.samples,
            &options(rank, train_steps),
            &mut |_| (),
        );
        fitted.expect("a fit")
    }
}

fn options(rank: usize, train_steps: usize) -> FitOptions {
    FitOptions {
        rank,
        target_recall: 0.95,
        train_steps,
        seed: 3,
        holdout: 0.15,
    }
}

/// The mask of `fitted` for `x`, `[d_ff]`, by the definition.
fn mask(fitted: &FittedLayer, x: &[f32], rank: usize) -> Vec<bool> {
    let times = |m: &[f32], v: &[f32]| -> Vec<f32> {
        m.chunks_exact(v.len())
            .map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum())
            .collect()
    };
    let hidden: Vec<f32> = times(&fitted.fc1, x).iter().map(|h| h.max(0.0)).collect();
    assert_eq!(hidden.len(), rank);
    times(&fitted.fc2, &hidden)
        .iter()
        .map(|&s| s >= 0.0)
        .collect()
}

#[test]
fn a_gate_of_low_rank_is_found_exactly() {
    // Rank 6 and no common part: 12 units in pairs say everything but where 0 lies, which is 0.
    let report = Planted::new(1500, 6, 0.0, 0.0).fit(12, 0).report;
    assert_eq!(report.method, Method::Pairs);
    let m = report.result;
    assert!((m.density - 0.5).abs() < 0.05, "{m:?}");
    assert!((m.recall - 0.95).abs() < 0.02, "{m:?}");
    // As few are predicted as the recall needs: next to none that is not live.
    assert!(m.predicted_density < 1.03 * 0.95 * m.density, "{m:?}");
    assert!(m.activation_recall > m.recall, "{m:?}");
}

#[test]
fn a_common_part_of_the_inputs_saves_half_the_units() {
    // Rank 6 with FatReLU's cut: 6 units and one for what is constant.
    let planted = Planted::new(3000, 6, 2.0, 0.3);
    let report = planted.fit(8, 0).report;
    assert_eq!(report.method, Method::Shifted);
    let m = report.result;
    assert!((m.recall - 0.95).abs() < 0.03, "{m:?}");
    assert!(m.predicted_density < 1.35 * m.density, "{m:?}");
}

#[test]
fn training_predicts_fewer_neurons_where_the_rank_is_too_low() {
    let mut planted = Planted::new(3000, 40, 1.0, 0.5);
    planted.draw_from_kinds(20);
    let report = planted.fit(10, 300).report;
    assert_eq!(report.method, Method::Trained);
    let (trained, untrained) = (report.result, report.untrained);
    assert!((trained.recall - 0.95).abs() < 0.03, "{trained:?}");
    assert!(
        trained.predicted_density < 0.9 * untrained.predicted_density,
        "{trained:?} {untrained:?}"
    );
}

#[test]
fn the_mask_does_not_depend_on_the_length_of_the_input_and_the_report_is_true() {
    let planted = Planted::new(1500, 8, 1.5, 0.2);
    let fitted = planted.fit(12, 60);
    let fresh = Planted::new(1600, 8, 1.5, 0.2).samples; // continues where the other ends
    let fresh = &fresh.inputs[1500 * 48..];
    let live = planted.live(fresh);
    let (mut all, mut caught) = (0, 0);
    for (t, x) in fresh.chunks_exact(48).enumerate() {
        let mask_here = mask(&fitted, x, 12);
        for scale in [0.125, 4096.0] {
            let scaled: Vec<f32> = x.iter().map(|v| v * scale).collect();
            assert_eq!(mask(&fitted, &scaled, 12), mask_here);
        }
        for (i, &predicted) in mask_here.iter().enumerate() {
            let is_live = live[2 * t + i / 64] >> (i % 64) & 1 == 1;
            all += usize::from(is_live);
            caught += usize::from(is_live && predicted);
        }
    }
    let recall = caught as f64 / all as f64;
    assert!(
        (recall - fitted.report.result.recall).abs() < 0.03,
        "{recall} {:?}",
        fitted.report
    );
    assert_eq!(fitted.report.parameters, 12 * (48 + 100));
}

#[test]
fn a_seed_means_the_same_predictor() {
    let planted = Planted::new(400, 5, 1.0, 0.1);
    let fitted = planted.fit(8, 20);
    assert_eq!(fitted, planted.fit(8, 20));
    let other = FitOptions {
        seed: 4,
        ..options(8, 20)
    };
    let other =
        fit_layer(&planted.weights(), &planted.samples, &other, &mut |_| ()).expect("a fit");
    assert_ne!(fitted.fc1, other.fc1);
}

#[test]
fn progress_rises_to_one() {
    let planted = Planted::new(300, 5, 1.0, 0.1);
    for steps in [0, 7] {
        let mut told = Vec::new();
        fit_layer(
            &planted.weights(),
            &planted.samples,
            &options(6, steps),
            &mut |p| told.push(p),
        )
        .expect("a fit");
        assert!(told.is_sorted(), "{told:?}");
        assert!((told.last().expect("told") - 1.0).abs() < 1e-6, "{told:?}");
    }
}

#[test]
fn a_dead_layer_predicts_nothing_and_a_live_one_what_is_asked_for() {
    for (live, steps) in [(0, 0), (0, 30), (u64::MAX, 0), (u64::MAX, 30)] {
        let mut planted = Planted::new(600, 6, 1.0, 0.0);
        planted.samples.live.fill(live);
        let m = planted.fit(8, steps).report.result;
        if live == 0 {
            assert_eq!((m.recall, m.density), (1.0, 0.0));
            assert!(m.predicted_density < 0.001, "{m:?}");
        } else {
            assert_eq!(m.density, 1.0);
            assert!(m.recall > 0.92, "{m:?}");
        }
    }
}

#[test]
fn neurons_that_are_padding_are_never_predicted() {
    let mut planted = Planted::new(900, 6, 1.0, 0.0);
    planted.gate[80 * 48..].fill(0.0);
    planted.samples.live = planted.live(&planted.samples.inputs);
    for steps in [0, 50] {
        let fitted = planted.fit(10, steps);
        for x in planted.samples.inputs.chunks_exact(48).take(100) {
            assert!(!mask(&fitted, x, 10)[80..].contains(&true));
        }
    }
}

#[test]
fn fewer_samples_than_units_do_what_they_can() {
    let planted = Planted::new(30, 20, 1.0, 0.0);
    for steps in [0, 20] {
        let fitted = planted.fit(40, steps);
        assert!(fitted.fc1.iter().chain(&fitted.fc2).all(|w| w.is_finite()));
        assert!(fitted.report.result.recall > 0.5, "{:?}", fitted.report);
    }
}

#[test]
fn inputs_that_are_all_zero_give_finite_weights() {
    let mut planted = Planted::new(60, 4, 1.0, 0.0);
    planted.samples.inputs.fill(0.0);
    planted.samples.live.fill(0);
    let fitted = planted.fit(6, 5);
    assert!(fitted.fc1.iter().chain(&fitted.fc2).all(|w| w.is_finite()));
}

#[test]
fn bad_input_is_named() {
    let planted = Planted::new(60, 4, 1.0, 0.0);
    let fit = |weights: &LayerWeights<'_>, samples: &LayerSamples, options: &FitOptions| {
        fit_layer(weights, samples, options, &mut |_| ())
            .expect_err("an error")
            .to_string()
    };
    let (weights, samples, good) = (planted.weights(), &planted.samples, options(6, 0));
    let message = |options: FitOptions| fit(&weights, samples, &options);
    assert!(
        message(FitOptions {
            rank: 1,
            ..good.clone()
        })
        .contains("rank is 1")
    );
    assert!(
        message(FitOptions {
            target_recall: 0.0,
            ..good.clone()
        })
        .contains("target_recall")
    );
    assert!(
        message(FitOptions {
            holdout: f64::NAN,
            ..good.clone()
        })
        .contains("holdout")
    );
    assert!(
        message(FitOptions {
            holdout: 0.4,
            ..good.clone()
        })
        .contains("60 samples are too few")
    );

    let short = LayerWeights {
        gate: &planted.gate[1..],
        ..weights
    };
    let message = fit(&short, samples, &good);
    assert!(message.contains("gate holds 4799 elements"), "{message}");
    assert!(message.contains("need 4800"), "{message}");
    let mut short = samples.clone();
    short.live.pop();
    assert!(fit(&weights, &short, &good).contains("live holds 119"));
    let mut damaged = samples.clone();
    damaged.inputs[5] = f32::NAN;
    assert!(fit(&weights, &damaged, &good).contains("element 5 of inputs is NaN"));
    let mut empty = samples.clone();
    empty.inputs.clear();
    empty.live.clear();
    assert!(fit(&weights, &empty, &good).contains("0 samples are too few"));
}
