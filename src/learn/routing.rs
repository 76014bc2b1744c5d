//! How regularly a model chooses its experts: what a cache of experts depends on, and how well the next layer's choice
//! could be foreseen.

use std::sync::Arc;

use forebay_models::network::Experts;
use forebay_models::source::{TensorSource, read_vector};
use forebay_models::tensor::{LayerTensor, TensorId};
use forebay_stages::cache::PolicyKind;
use forebay_stages::frame::Observer;
use forebay_stages::router::Choosing;
use parking_lot::Mutex;

use super::routes::RouteWatch;
use super::texts::{Make, bundle_of, feed, whole_texts};
use crate::error::Error;
use crate::profiles::{ExpertProfile, ExpertWants};

/// Statistics of a model's routing over a text.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Which experts were used, and what caches of the sizes that were asked for miss.
    pub experts: ExpertProfile,
    /// By layer, the part of its experts that its router names already by the residual stream before the FFN of the
    /// layer before it; `None` for the first layer and those without experts.
    pub foreseen: Vec<Option<f64>>,
}

/// A layer's router, as it would be asked ahead.
#[derive(Debug)]
struct Ahead {
    experts: Experts,
    /// `[count, d_model]`
    rows: Vec<f32>,
    /// `[count]`, or empty.
    biases: Vec<f32>,
    /// Added for the choice, `[count]`, or empty.
    selection: Vec<f32>,
    /// Weights of the norm of its input, `[d_model]`, and its epsilon; empty if it has none.
    norm: (Vec<f32>, f32),
}

impl Ahead {
    /// The router of `layer`, if it has one.
    fn of(source: &dyn TensorSource, layer: usize) -> Result<Option<Self>, Error> {
        let network = source.network();
        let Some(experts) = network.experts(layer).cloned() else {
            return Ok(None);
        };
        let id = |t| TensorId::Layer(layer, t);
        let vector = |wanted: bool, t| match wanted {
            true => read_vector(source, id(t)),
            false => Ok(Vec::new()),
        };
        let norm = network.layers[layer].ffn.pre_norm;
        let norm = norm.filter(|_| !experts.router.before_layer);
        Ok(Some(Self {
            rows: read_vector(source, id(LayerTensor::Router))?,
            biases: vector(experts.router.bias, LayerTensor::RouterBias)?,
            selection: vector(experts.router.selection_bias, LayerTensor::SelectionBias)?,
            norm: (
                vector(norm.is_some(), LayerTensor::FfnNorm)?,
                norm.map_or(0.0, |norm| norm.eps),
            ),
            experts,
        }))
    }

    /// The experts that it names for the residual stream `x`, `[d_model]`.
    fn choose(&self, x: &[f32], out: &mut Vec<u16>) {
        let (weights, eps) = &self.norm;
        let square: f32 = x.iter().map(|v| v * v).sum();
        let scale = match weights.is_empty() {
            true => 1.0,
            false => 1.0 / (square / x.len() as f32 + eps).sqrt(),
        };
        let mut input: Vec<f32> = x.iter().map(|v| v * scale).collect();
        input.iter_mut().zip(weights).for_each(|(v, w)| *v *= w);
        let dot = |row: &[f32]| row.iter().zip(&input).map(|(a, b)| a * b).sum::<f32>();
        let mut logits: Vec<f32> = self.rows.chunks_exact(x.len()).map(dot).collect();
        logits
            .iter_mut()
            .zip(&self.biases)
            .for_each(|(s, b)| *s += b);
        let mut room = (vec![0.0; logits.len()], vec![0.0; logits.len()]);
        let mut chosen = vec![(0, 0.0); self.experts.used];
        let choosing = Choosing {
            router: &self.experts.router,
            biases: &self.selection,
            bonus: &[],
        };
        choosing.choose(&logits, (&mut room.0, &mut room.1), &mut chosen);
        out.extend(chosen.iter().map(|(expert, _)| *expert as u16));
    }
}

/// Records routes, and what the next layer's router says one layer ahead.
#[derive(Debug)]
struct Watch {
    d_model: usize,
    routes: RouteWatch,
    /// By layer.
    routers: Vec<Option<Ahead>>,
    /// What they named ahead, `[n_layers][tokens][used]`.
    named: Vec<Mutex<Vec<u16>>>,
}

impl Observer for Watch {
    fn bytes(&self) -> u64 {
        // Of each token and expert used, what is named ahead takes less than its route.
        2 * self.routes.bytes()
    }

    fn residual(&self, layer: usize, position: usize, x: &[f32]) {
        let next = layer + 1;
        let Some(Some(router)) = self.routers.get(next) else {
            return;
        };
        let mut named = self.named[next].lock();
        named.truncate(self.routes.token(position) * router.experts.used);
        for x in x.chunks_exact(self.d_model) {
            router.choose(x, &mut named);
        }
    }

    fn routed(&self, layer: usize, position: usize, chosen: &[(u32, f32)]) {
        self.routes.routed(layer, position, chosen);
    }
}

/// Measures how `tokens`, in texts of `ctx` tokens, each from an empty context, are routed, and what warm caches for
/// the parts `sizes` of all experts miss. `source` is what the model was packed from.
///
/// # Errors
/// Too little text, or an error in running or reading the model.
pub fn measure_routing(
    make: Make<'_>,
    source: &dyn TensorSource,
    (tokens, ctx): (&[u32], usize),
    sizes: &[f64],
) -> Result<Routing, Error> {
    let n = whole_texts(tokens.len(), ctx)?;
    let network = source.network();
    let layers = 0..network.n_layers();
    let routers = layers.clone().map(|l| Ahead::of(source, l));
    let watch = Arc::new(Watch {
        d_model: network.d_model,
        routes: RouteWatch::new(network, n, ctx),
        routers: routers.collect::<Result<_, _>>()?,
        named: layers.map(|_| Mutex::default()).collect(),
    });
    let engine = make()?.observer(watch.clone()).build()?;
    feed(&engine, tokens, ctx, |base| watch.routes.begin(base))?;
    let (bundle, threads) = (bundle_of(&engine)?, engine.plan().threads);
    drop(engine);
    let routes = watch.routes.take();
    let wants = ExpertWants::of(&bundle, &routes, threads);
    let mut experts = routes.count(threads);
    let misses = sizes.iter().map(|&s| wants.at(s, PolicyKind::Frequency));
    experts.misses = misses.collect();
    let foreseen = watch.named.iter().zip(&routes.layers).map(|(named, used)| {
        let (named, of_token) = (named.lock(), used.used.max(1));
        let pairs = named.chunks(of_token).zip(used.ids.chunks(of_token));
        let right = pairs.map(|(a, b)| a.iter().filter(|e| b.contains(e)).count());
        (!named.is_empty()).then(|| right.sum::<usize>() as f64 / named.len() as f64)
    });
    Ok(Routing {
        foreseen: foreseen.collect(),
        experts,
    })
}
