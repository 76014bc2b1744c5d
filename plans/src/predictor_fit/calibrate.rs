//! Where each neuron's score is cut: to reach the requested recall with the fewest predicted neurons.
//!
//! A neuron's possible cuts give pairs (caught, predicted); the concave hull of these is all that an optimum can use.
//! For a price in predicted neurons per live neuron caught, each neuron's best cut is independent of the others; the
//! price at which the layer as a whole reaches its recall is found by bisection.

use super::matmul::Product;
use super::network::Network;
use super::samples::Part;

/// Offsets are set this many times: the combination of hidden units that represents 1 is not quite
/// constant, so the first offsets are slightly off.
const PASSES: usize = 2;

/// Distance from the cut, in log-odds, of a neuron that is best never (or always) predicted.
const NEVER: f32 = 4.0;

/// A possible cut of a neuron's scores.
#[derive(Clone, Copy)]
struct Cut {
    score: f32,
    caught: f32,
    predicted: f32,
}

/// The possible cuts of all neurons.
struct Cuts {
    cuts: Vec<Cut>,
    starts: Vec<usize>, // [d_ff + 1], in `cuts`
    live: f64,
}

/// Cuts of all neurons, and the price at which they were chosen.
struct Choice {
    /// `[d_ff]`.
    scores: Vec<f32>,
    /// How many predicted neurons one more caught live neuron is worth.
    price: f64,
}

impl Cuts {
    /// `hidden`: the hidden values of `net` for `part`, `[n, rank]`.
    fn new(net: &Network, hidden: &[f32], part: &Part<'_>, product: &mut Product) -> Self {
        let mut all = Self {
            cuts: Vec::new(),
            starts: vec![0],
            live: 0.0,
        };
        let mut samples: Vec<(f32, f32)> = Vec::with_capacity(part.n); // score, weight if live
        net.for_each_neuron(hidden, product, |neuron, scores| {
            samples.clear();
            let weight = |i| f32::from(u8::from(part.live(i, neuron)));
            samples.extend(scores.iter().enumerate().map(|(i, &s)| (s, weight(i))));
            samples.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
            all.live += samples.iter().map(|s| f64::from(s.1)).sum::<f64>();
            all.push_hull(&samples);
        });
        all
    }

    /// Adds the hull of a neuron's cuts. `samples`: by descending score.
    fn push_hull(&mut self, samples: &[(f32, f32)]) {
        let start = self.cuts.len();
        let (highest, lowest) = (samples[0].0, samples[samples.len() - 1].0);
        self.cuts.push(Cut {
            score: highest + NEVER,
            caught: 0.0,
            predicted: 0.0,
        });
        let (mut caught, mut caught_before) = (0.0, 0.0);
        for (i, &(score, weight)) in samples.iter().enumerate() {
            caught += weight;
            let next = samples.get(i + 1).map_or(lowest - 2.0 * NEVER, |s| s.0);
            if caught == caught_before || next == score {
                continue;
            }
            caught_before = caught;
            let cut = Cut {
                score: (score + next) / 2.0,
                caught,
                predicted: (i + 1) as f32,
            };
            while self.cuts.len() > start + 1 {
                let (a, b) = (
                    self.cuts[self.cuts.len() - 2],
                    self.cuts[self.cuts.len() - 1],
                );
                let concave = (b.caught - a.caught) * (cut.predicted - b.predicted)
                    > (cut.caught - b.caught) * (b.predicted - a.predicted);
                if concave {
                    break;
                }
                self.cuts.pop();
            }
            self.cuts.push(cut);
        }
        self.starts.push(self.cuts.len());
    }

    fn neurons(&self) -> impl Iterator<Item = &[Cut]> {
        self.starts.windows(2).map(|w| &self.cuts[w[0]..w[1]])
    }

    /// The best cut of a neuron at `price`.
    fn best(cuts: &[Cut], price: f64) -> Cut {
        let worth = |a: &Cut, b: &Cut| {
            price * f64::from(b.caught - a.caught) >= f64::from(b.predicted - a.predicted)
        };
        let last = cuts.windows(2).take_while(|w| worth(&w[0], &w[1])).count();
        cuts[last]
    }

    /// The cuts that reach `recall` with the fewest predicted neurons.
    fn choose(&self, recall: f64) -> Choice {
        let caught = |price: f64| -> f64 {
            self.neurons()
                .map(|c| f64::from(Self::best(c, price).caught))
                .sum()
        };
        let (mut low, mut high) = (1.0f64, 1e7f64);
        for _ in 0..60 {
            let middle = (low * high).sqrt();
            match caught(middle) >= recall * self.live {
                true => high = middle,
                false => low = middle,
            }
        }
        Choice {
            scores: self.neurons().map(|c| Self::best(c, high).score).collect(),
            price: high,
        }
    }
}

/// Gives each neuron the offset that reaches `recall` on `part` with the fewest predicted neurons,
/// and returns the price: how many predicted neurons one more caught live neuron is worth.
pub(super) fn offset_each(
    net: &mut Network,
    part: &Part<'_>,
    recall: f64,
    product: &mut Product,
) -> f64 {
    let hidden = net.hidden(part.matrix(), product);
    let mut price = 1.0;
    for _ in 0..PASSES {
        let choice = Cuts::new(net, &hidden, part, product).choose(recall);
        price = choice.price;
        let constant = net.constant(&hidden, product);
        net.lower(&constant, &choice.scores);
    }
    price
}

/// Gives all neurons one more common offset, with which `recall` is reached on `part`; none if no
/// neuron is live. One number for the whole layer does not overfit single samples.
pub(super) fn offset_all(net: &mut Network, part: &Part<'_>, recall: f64, product: &mut Product) {
    let hidden = net.hidden(part.matrix(), product);
    for _ in 0..PASSES {
        let mut live = Vec::new();
        net.for_each_neuron(&hidden, product, |neuron, scores| {
            let of_live = scores
                .iter()
                .enumerate()
                .filter(|&(i, _)| part.live(i, neuron));
            live.extend(of_live.map(|(_, &score)| score));
        });
        if live.is_empty() {
            return;
        }
        let caught = ((live.len() as f64 * recall).ceil() as usize).clamp(1, live.len());
        let (_, &mut cut, _) = live.select_nth_unstable_by(caught - 1, |a, b| b.total_cmp(a));
        // Folding an offset into the weights rounds; the last live neuron must not be lost by that.
        let slack = 1e-5 * live.iter().fold(0.0f32, |max, v| max.max(v.abs()));
        let constant = net.constant(&hidden, product);
        net.lower(&constant, &vec![cut - slack; net.d_ff()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer of neurons with samples by descending score, live or not.
    fn cuts(neurons: &[&[(f32, bool)]]) -> Cuts {
        let mut all = Cuts {
            cuts: Vec::new(),
            starts: vec![0],
            live: 0.0,
        };
        for samples in neurons {
            let samples: Vec<_> = samples
                .iter()
                .map(|&(s, l)| (s, f32::from(u8::from(l))))
                .collect();
            all.live += samples.iter().map(|s| f64::from(s.1)).sum::<f64>();
            all.push_hull(&samples);
        }
        all
    }

    #[test]
    fn a_neuron_that_is_cheap_to_catch_gets_the_lower_cut() {
        // All of the first neuron's live samples come first; the second's last one comes after three others.
        let cheap = [
            (5.0, true),
            (4.0, true),
            (3.0, true),
            (2.0, false),
            (1.0, false),
        ];
        let dear = [
            (5.0, true),
            (4.0, false),
            (3.0, false),
            (2.0, false),
            (1.0, true),
        ];
        let cuts = cuts(&[&cheap, &dear]);
        assert_eq!(cuts.choose(0.8).scores, [2.5, 4.5]);
        assert_eq!(cuts.choose(0.8).price, 1.0);
        let all = cuts.choose(1.0);
        assert!(all.scores[1] < 1.0);
        assert!((all.price - 4.0).abs() < 1e-6, "{}", all.price);
    }

    #[test]
    fn equal_scores_stay_together() {
        let tied = [
            (3.0, true),
            (2.0, true),
            (2.0, false),
            (2.0, false),
            (1.0, false),
        ];
        assert_eq!(cuts(&[&tied]).choose(1.0).scores, [1.5]);
    }

    #[test]
    fn a_dead_neuron_is_kept_far_from_its_cut() {
        let dead = [(-1.0, false), (-2.0, false)];
        assert_eq!(cuts(&[&dead]).choose(0.9).scores, [NEVER - 1.0]);
    }
}
