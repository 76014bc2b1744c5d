//! Experts: FFNs of which a router chooses a few for each token.

use serde::{Deserialize, Serialize};

/// Routed experts of a layer, all with the activation of its [`Ffn`](super::Ffn). Expert `e` has neurons
/// `e * d_ff .. (e + 1) * d_ff`. The results of a token's experts are multiplied by their weights and added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a token uses.
    pub used: usize,
    /// Neurons of one.
    pub d_ff: usize,
    /// Whether Gate, Up and Down of each have biases.
    pub bias: bool,
    /// What chooses them.
    pub router: Router,
    /// Whether the result of the neurons that every token uses is multiplied by the sigmoid of a gate.
    pub shared_gate: bool,
}

/// How experts are chosen and weighted.
///
/// A token's scores follow from its logits, `router · x`. The experts with the highest scores are chosen, those with
/// lower numbers first among equals, and their scores become their weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Router {
    /// Whether `x` is the residual stream before the layer instead of the FFN's input.
    pub before_layer: bool,
    /// How logits become scores.
    pub scores: Scores,
    /// Whether biases are added to the logits.
    pub bias: bool,
    /// Whether biases are added to the scores for the choice only.
    pub selection_bias: bool,
    /// Groups of experts that are chosen first.
    pub groups: Option<Groups>,
    /// Whether weights are divided by their sum.
    pub normalised: bool,
    /// Factor of the weights, last.
    pub scale: f32,
}

/// How a router's logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// The logits themselves choose; weights are the softmax over the chosen ones.
    SoftmaxOfChosen,
}

/// Consecutive experts in groups of equal size: only those of the best groups are chosen. A group is as good as the
/// sum of its highest scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// How many there are.
    pub count: usize,
    /// From how many of them a token's experts come.
    pub used: usize,
    /// How many of a group's highest scores count: one, or two as far as it has them.
    pub counted: usize,
}

impl Router {
    /// Weights are divided by no less than this: the smallest normal number of f16.
    pub const LEAST_SUM: f32 = 6.103_515_6e-5;
}

impl Experts {
    /// Neurons of all of them.
    pub fn n_neurons(&self) -> usize {
        self.count * self.d_ff
    }

    /// Columns of the router's result: logits of the experts, and of the gate of the neurons that every token uses.
    pub fn router_width(&self) -> usize {
        self.count + usize::from(self.shared_gate)
    }
}
