//! Clusters of experts that are asked for as soon as the router has chosen, phases before they are computed.

use forebay_plans::program::{Item, Program};
use forebay_stages::expert_store::Request;
use forebay_stages::router::Routes;

use super::Core;
use crate::shared::Shared;
use crate::step::Step;

/// A step of a prompt uses most experts of a layer if its tokens use this many times as many as there are: of those
/// that are used equally often, one in twenty remains unused.
const USES: usize = 3;

impl Core {
    /// The tokens' experts are known in phase `number`: asks for their clusters, and for those that the next layer may
    /// use.
    pub(super) fn ask_for_experts(&mut self, number: usize) {
        self.want_experts(number);
        match self.step.tokens.places.len() {
            1 => self.guess_experts(number),
            _ => self.preload_experts(number),
        }
    }

    /// Holds cells for clusters that will be computed. Not if there are more than flights, since then some would be
    /// held that nobody takes.
    fn want_experts(&mut self, number: usize) {
        let program = self.prompts.program().unwrap_or(&self.program);
        let (layer, items) = routed(program, number, 0);
        let routes = &self.residual.routes;
        let share = drop_cold(&self.shared, &self.step);
        let wanted = used(items, routes);
        if wanted.clone().count() <= self.stages.pred.flights() {
            let is_minor = |e: u16| share > 0.0 && routes.is_minor(e, share);
            let (bundle, whole) = (&self.shared.bundle, self.reads_whole());
            let requests = wanted.filter_map(|item| {
                let request = Request::of(bundle, layer, item, whole)?;
                Some((request, item.expert.is_some_and(is_minor)))
            });
            self.weights.experts.want_ahead(requests);
        }
    }

    /// For several tokens: names all clusters of this layer that they use, and those of the next layer that they will
    /// probably use.
    fn preload_experts(&mut self, number: usize) {
        let program = self.prompts.program().unwrap_or(&self.program);
        let (layer, items) = routed(program, number, 0);
        let (next_layer, next_items) = routed(program, number, 1);
        let routes = &self.residual.routes;
        let uses_most = self.uses_most_experts(next_layer);
        let is_likely = |expert: u16| match &routes.guessed()[0][..] {
            [] => uses_most,
            guessed => {
                let found = guessed.binary_search_by_key(&u32::from(expert), |g| g.0);
                found.is_ok()
            }
        };
        let next = next_items.iter();
        let next = next.filter(|item| item.expert.is_some_and(is_likely));
        let (bundle, whole) = (&self.shared.bundle, self.reads_whole());
        let now = used(items, routes).filter_map(|item| Request::of(bundle, layer, item, whole));
        let next = next.filter_map(|item| Request::of(bundle, next_layer, item, whole));
        self.weights.experts.preload(now.chain(next));
    }

    /// For a generated token: names clusters of the next layers' likeliest experts, layer by layer.
    fn guess_experts(&mut self, number: usize) {
        let program = self.prompts.program().unwrap_or(&self.program);
        let (bundle, whole) = (&self.shared.bundle, self.reads_whole());
        let reach = self.weights.experts.reach();
        let layers = (1..=reach).zip(self.residual.routes.guessed());
        let layers = layers.filter(|(_, guessed)| !guessed.is_empty());
        let requests = layers.flat_map(|(later, guessed)| {
            let (layer, items) = routed(program, number, later);
            guessed.iter().flat_map(move |&(expert, _)| {
                let expert = Some(expert as u16);
                let first = items.partition_point(|item| item.expert < expert);
                let own = items[first..].iter();
                let own = own.take_while(move |item| item.expert == expert);
                own.filter_map(move |item| Request::of(bundle, layer, item, whole))
            })
        });
        self.weights.experts.guess(requests);
    }

    /// Whether clusters are read as a whole, and not their Gates first.
    fn reads_whole(&self) -> bool {
        self.prompts.is_active() || !self.weights.experts.gates_first
    }

    /// Whether the step has so many tokens that few experts of the layer remain unused.
    fn uses_most_experts(&self, layer: usize) -> bool {
        let network = self.shared.network();
        let experts = match layer < network.n_layers() {
            true => network.experts(layer),
            false => None,
        };
        experts.is_some_and(|e| self.step.tokens.places.len() * e.used >= USES * e.count)
    }
}

/// The layer that is so many after that of phase `number`, and the clusters of its FFN if that has experts and comes
/// later.
fn routed(program: &Program, number: usize, later: usize) -> (usize, &[Item]) {
    let layer = program.phases[number].layer + later;
    let phase = program.routed_after(number, layer);
    (layer, phase.map_or(&[][..], |phase| phase.neurons()))
}

/// Those of a layer's clusters whose expert a token uses.
fn used<'a>(items: &'a [Item], routes: &'a Routes) -> impl Iterator<Item = &'a Item> + Clone {
    let is_used = |item: &&Item| item.expert.is_some_and(|e| !routes.of(e).0.is_empty());
    items.iter().filter(is_used)
}

/// [`Frame::drop_cold`](forebay_stages::frame::Frame::drop_cold) of a step.
pub(super) fn drop_cold(shared: &Shared, step: &Step) -> f32 {
    match step.decodes {
        true => shared.fewer.drop_cold,
        false => 0.0,
    }
}
