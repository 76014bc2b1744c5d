//! What every core does before it works on clusters: it keeps up the residual stream, and makes each phase's input from
//! it. Of few tokens, every core has a copy of all, and waits for nobody. Of many, that would be too much work and too
//! many bytes of other cores' results: a core keeps up its part of the tokens, and publishes their rows of the input.

mod input;

use std::ops::Range;

use forebay_models::network::{Content, Network};
use forebay_models::tensor::TensorId;
use forebay_plans::program::{Board, GatedInputs, Join, NormAt, Phase, Prepare, Work};
use forebay_queues::pages::give_back;
use forebay_stages::frame::Observer;
use forebay_stages::kernels::{Activations, Form};
use forebay_stages::router::{self, Preference, Routes};
use forebay_stages::udc::add_to_residual;

use super::surroundings::Surroundings;
use input::Published;

/// The residual stream of one core, and the inputs made from it.
#[derive(Debug)]
pub(super) struct Residual {
    /// `[max_batch, d_model]`
    x: Vec<f32>,
    /// Normalised or gathered rows, `[max_batch, widest input]`
    rows: Vec<f32>,
    /// One token's row before or after a norm, `[d_model]` or as wide as a compressed query.
    normed: Vec<f32>,
    /// One token's row in laned order, `[d_model]`.
    lanes: Vec<f32>,
    /// Sum of all cores' FFN shares of one token, `[d_model]` in fixed point.
    sum: Vec<i64>,
    /// One core's share, likewise.
    share: Vec<i64>,
    /// One token's projected inputs, the same with all added, and its row of their table, `[3, width]`.
    token: Vec<f32>,
    /// Input of the phase.
    pub input: Activations,
    /// The same in panels for hot neurons, if the phase has any.
    pub hot_input: Activations,
    /// The predictor's hidden values of the tokens, `relu(fc1 · x)`, `[n_tokens, rank]`.
    pub hidden: Activations,
    /// What is on the boards of rows and blocks, if the stream is as it was.
    published: Option<Published>,
    /// The same, if it is the phase's input, whatever has become of the stream.
    awaited: Option<Published>,
    /// Which experts the tokens use.
    pub routes: Routes,
    /// For choosing experts in memory, if they are preferred.
    pub preference: Option<Preference>,
}

impl Residual {
    /// Room for `batch` tokens of `widest` columns, and predictors of at most `rank`, without a preference.
    pub fn new(network: &Network, batch: usize, widest: usize, rank: usize) -> Self {
        let d_model = network.d_model;
        Self {
            token: vec![0.0; 3 * network.input_width()],
            x: vec![0.0; batch * d_model],
            rows: vec![0.0; batch * widest],
            normed: vec![0.0; normed_width(network)],
            lanes: vec![0.0; d_model],
            sum: vec![0; d_model],
            share: vec![0; d_model],
            input: Activations::new(batch, widest),
            hot_input: Activations::new(of_hot(network, batch), d_model),
            published: None,
            awaited: None,
            hidden: Activations::new(batch, rank),
            routes: Routes::new(network, batch),
            preference: None,
        }
    }

    /// Bytes of what [`Self::new`] allocates and [`Self::give_back`] keeps, for memory budgets.
    pub fn bytes_kept(network: &Network, batch: usize) -> usize {
        let d_model = network.d_model;
        (d_model + normed_width(network) + 3 * network.input_width()) * 4
            + 2 * d_model * 8
            + router::bytes_for(network, batch)
            + Preference::bytes_for((network.n_layers(), network.widest_router()))
    }

    /// Bytes of what it gives back.
    pub fn bytes_of_steps(network: &Network, batch: usize, widest: usize, rank: usize) -> usize {
        let hidden = match rank {
            0 => 0,
            _ => Activations::bytes_for(batch, rank),
        };
        let hot = match of_hot(network, batch) {
            0 => 0,
            tokens => Activations::bytes_for(tokens, network.d_model),
        };
        let input = Activations::bytes_for(batch, widest);
        batch * (network.d_model + widest) * 4 + input + hot + hidden
    }

    /// Gives the memory of rows and inputs back to the system until a step needs it.
    pub fn give_back(&mut self) {
        give_back(&mut self.x);
        give_back(&mut self.rows);
        self.input.give_back();
        self.hot_input.give_back();
        self.hidden.give_back();
    }

    /// The residual stream of `n` tokens, `[n, d_model]`.
    pub fn stream(&self, n: usize, d_model: usize) -> &[f32] {
        &self.x[..n * d_model]
    }

    /// Shows the rows from which the input of `phase` has just been made, `[n_tokens, columns]`, for each of its
    /// matrices.
    pub fn show_input(&self, phase: &Phase, network: &Network, observer: &dyn Observer) {
        let (n, columns) = (self.input.n_tokens(), self.input.cols());
        let rows = &self.rows[..n * columns];
        if let Work::Rows(work) = &phase.work {
            let tensors = work.matrices.iter().map(|m| m.tensor);
            // The next layer's router has this input only as a guess.
            let tensors =
                tensors.filter(|t| !matches!(t, TensorId::Layer(l, _) if *l != phase.layer));
            return tensors.for_each(|tensor| observer.input(tensor, None, rows));
        }
        let layer = phase.layer;
        let matrices = |content| {
            let (matrices, _) = network.neuron_matrices(content);
            matrices.iter().map(|&t| TensorId::Layer(layer, t))
        };
        for tensor in matrices(Content::Neurons(layer)) {
            observer.input(tensor, None, rows);
        }
        let experts = network.experts(layer).map_or(0, |e| e.count);
        // Their number fits, as that of clusters' experts does.
        for expert in 0..experts as u16 {
            for &place in self.routes.of(expert).0 {
                let row = &rows[place as usize * columns..][..columns];
                matrices(Content::Experts(layer))
                    .for_each(|tensor| observer.input(tensor, Some(expert), row));
            }
        }
    }

    /// Prepares a phase. True if this core has published rows of the input, and takes those of all cores next.
    pub fn prepare(&mut self, around: &Surroundings<'_>, prepare: &Prepare) -> bool {
        let own = around.own_values();
        match prepare {
            Prepare::TakeEmbeddings => {
                around.boards.input.read(own.start, &mut self.x[own]);
                self.published = None;
            }
            Prepare::JoinOutput(join) => {
                let board = around.boards.board(Board::Output);
                board.read(own.start, &mut self.rows[..own.len()]);
                self.join(around, join);
                self.published = None;
            }
            Prepare::JoinShares {
                layer,
                bias,
                expert_biases,
                join,
            } => {
                let values = around.bundle.vectors.values();
                let biases = (&values[bias.clone()], &values[expert_biases.clone()]);
                self.join_shares(around, *layer, biases, join);
                self.published = None;
            }
            Prepare::Route { biases, next } => self.route(around, biases, next),
            Prepare::TakeHidden => self.take_hidden(around),
            Prepare::TakeInputs(gated) => self.take_inputs(around, gated),
            Prepare::Norm { norm, only_wanted } => {
                return self.norm(around, norm.as_ref(), *only_wanted);
            }
            Prepare::TakeHeads => return self.take_heads(around),
            Prepare::TakeQueries {
                columns,
                all_columns,
                norm,
            } => self.take_queries(around, columns, *all_columns, norm),
            // The core shows it: it knows the observer.
            Prepare::ShowResidual { .. } => {}
        }
        false
    }

    /// The compressed queries of all tokens, normalised, as input of Q.
    fn take_queries(
        &mut self,
        around: &Surroundings<'_>,
        columns: &Range<usize>,
        all_columns: usize,
        norm: &NormAt,
    ) {
        let (n, width) = (around.n_tokens, columns.len());
        let rows = &mut self.rows[..n * width];
        let before = &mut self.normed[..width];
        for (t, row) in rows.chunks_exact_mut(width).enumerate() {
            let board = around.boards.board(Board::Qkv);
            board.read(t * all_columns + columns.start, before);
            around.normalise(norm, before, row);
        }
        self.input
            .load(around.kernels, Form::Panels, n, width, rows);
    }

    /// `x += scale * norm(rows)` of this core's tokens, and what may follow.
    fn join(&mut self, around: &Surroundings<'_>, join: &Join) {
        let (d, own) = (around.d_model(), around.own_values());
        let (rows, x) = (&self.rows[..own.len()], &mut self.x[own]);
        match &join.norm {
            None => add(x, rows, join.scale),
            Some(norm) => {
                for (x, row) in x.chunks_exact_mut(d).zip(rows.chunks_exact(d)) {
                    around.normalise(norm, row, &mut self.normed[..d]);
                    add(x, &self.normed[..d], join.scale);
                }
            }
        }
        scale_stream(around, join, x);
    }

    /// Chooses the tokens' experts, and guesses those of the `next` layers, of which several tokens need only one.
    fn route(&mut self, around: &Surroundings<'_>, biases: &Range<usize>, next: &[Range<usize>]) {
        let (layer, network) = (around.phase.layer, &around.bundle.meta.network);
        let Some(experts) = network.experts(layer) else {
            return;
        };
        let next = || {
            (1..).zip(next).filter_map(|(later, biases)| {
                Some((later, network.guessed_at(layer, later)?, biases))
            })
        };
        let own = experts.router_width();
        let width = own + next().map(|(_, next, _)| next.count).sum::<usize>();
        let logits = &mut self.rows[..around.n_tokens * width];
        around.boards.board(Board::Router).read(0, logits);
        let values = around.bundle.vectors.values();
        let biases = &values[biases.clone()];
        let mut bonus: &[f32] = &[];
        if let Some(preference) = &mut self.preference {
            preference.learn(layer, experts, (logits, width));
            if let (true, Some(geometry)) = (around.decodes, &around.bundle.meta.experts[layer]) {
                let held = (&around.boards.held, around.boards.shares.len());
                let clusters = experts.d_ff.div_ceil(geometry.neurons);
                bonus = preference.bonus((layer, experts), held, clusters);
            }
        }
        self.routes.route(experts, (biases, bonus), (logits, width));
        let mut column = own;
        let layers = if around.n_tokens == 1 { usize::MAX } else { 1 };
        for (later, next, biases) in next().take(layers) {
            let rows = logits
                .chunks_exact(width)
                .map(|row| &row[column..column + next.count]);
            self.routes
                .guess((later, next), &values[biases.clone()], rows);
            column += next.count;
        }
    }

    /// Adds all cores' FFN shares to this core's tokens: integers, so in any order. The biases are Down's, `[d_model]`,
    /// and those of the experts' Down, `[n_experts, d_model]`; they may be empty.
    fn join_shares(
        &mut self,
        around: &Surroundings<'_>,
        layer: usize,
        (bias, of_experts): (&[f32], &[f32]),
        join: &Join,
    ) {
        let (d, own) = (around.d_model(), around.own_values());
        let meta = &around.bundle.meta;
        // Where a layer has both, they are stored alike.
        let Some(geometry) = meta.ffns[layer].as_ref().or(meta.experts[layer].as_ref()) else {
            return;
        };
        let at_once = join.norm.is_none() && join.scale == 1.0;
        let rows = match at_once {
            true => &mut self.x[own],
            false => {
                self.rows[..own.len()].fill(0.0);
                &mut self.rows[..own.len()]
            }
        };
        // Token by token: the sums of one stay in the first-level cache.
        for (t, row) in around.own.clone().zip(rows.chunks_exact_mut(d)) {
            self.sum.fill(0);
            for board in &around.boards.shares {
                board.read(t * d, &mut self.share);
                for (s, v) in self.sum.iter_mut().zip(&self.share) {
                    *s = s.wrapping_add(*v);
                }
            }
            add_to_residual(around.kernels, geometry, &self.sum, &mut self.lanes, row);
        }
        add_bias(rows, bias);
        add_expert_biases((rows, around.own.start), of_experts, &self.routes, d);
        match at_once {
            true => scale_stream(around, join, rows),
            false => self.join(around, join),
        }
    }

    /// `relu(fc1 · x)` of all tokens, as input of the predictor's second matrix.
    fn take_hidden(&mut self, around: &Surroundings<'_>) {
        let Some(predictors) = &around.bundle.meta.predictors else {
            return;
        };
        let (layer, n) = (around.phase.layer, around.n_tokens);
        let (rank, width) = (predictors[layer].rank, around.rank);
        let board = around.boards.board(Board::Predictor);
        let hidden = &mut self.rows[..n * rank];
        for (t, row) in hidden.chunks_exact_mut(rank).enumerate() {
            board.read(t * width, row);
            row.iter_mut().for_each(|v| *v = v.max(0.0));
        }
        self.hidden
            .load(around.kernels, Form::Panels, n, rank, hidden);
    }

    /// A layer's inputs of all tokens, as far as their gate lets them through, as input of their projection.
    fn take_inputs(&mut self, around: &Surroundings<'_>, gated: &GatedInputs) {
        let (n, width) = (around.n_tokens, gated.columns.len());
        let (first, rest) = self.token.split_at_mut(width);
        let (inputs, row) = rest.split_at_mut(width);
        let rows = &mut self.rows[..n * width];
        for (t, out) in rows.chunks_exact_mut(width).enumerate() {
            let at = t * gated.all_columns + gated.columns.start;
            around.boards.board(Board::Inputs).read(at, first);
            around.normalise(&gated.norm, first, inputs);
            around.boards.input_rows.read(at, row);
            for (input, row) in inputs.iter_mut().zip(&*row) {
                *input = (*input + row) * gated.scale;
            }
            let gate = &mut *first;
            around.boards.board(Board::InputGate).read(t * width, gate);
            let kernels = around.kernels;
            kernels.gate_up(gated.activation, gate, inputs, out);
        }
        self.input
            .load(around.kernels, Form::Panels, n, width, rows);
    }
}

/// Of `batch` tokens, those whose input is also kept for hot neurons: all or none.
fn of_hot(network: &Network, batch: usize) -> usize {
    match network.has_hot_neurons() {
        true => batch,
        false => 0,
    }
}

/// Columns of the widest row that a norm spans.
fn normed_width(network: &Network) -> usize {
    network.d_model.max(network.widest_query_rank())
}

/// Adds `bias`, if there is one, to every row of `x`, `[n_tokens, bias.len()]`.
fn add_bias(x: &mut [f32], bias: &[f32]) {
    if !bias.is_empty() {
        x.chunks_exact_mut(bias.len())
            .for_each(|x| add(x, bias, 1.0));
    }
}

/// Adds the biases of each token's experts, `[n_experts, d_model]`, if there are any, with their weights to its row of
/// `x`, `[tokens from first on, d_model]`.
fn add_expert_biases(
    (x, first): (&mut [f32], usize),
    biases: &[f32],
    routes: &Routes,
    d_model: usize,
) {
    if biases.is_empty() {
        return;
    }
    for (token, x) in (first..).zip(x.chunks_exact_mut(d_model)) {
        for &(expert, weight) in routes.chosen(token) {
            add(x, &biases[expert as usize * d_model..][..d_model], weight);
        }
    }
}

/// Multiplies the stream by the layer's factor, if it has one.
fn scale_stream(around: &Surroundings<'_>, join: &Join, x: &mut [f32]) {
    for factor in &around.bundle.vectors.values()[join.stream.clone()] {
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

/// `x += scale * row`.
fn add(x: &mut [f32], row: &[f32], scale: f32) {
    match scale == 1.0 {
        true => x.iter_mut().zip(row).for_each(|(x, o)| *x += o),
        false => x.iter_mut().zip(row).for_each(|(x, o)| *x += scale * o),
    }
}
