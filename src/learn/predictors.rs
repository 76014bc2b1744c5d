//! Fitting activation predictors to a model: its activity on a text is gathered in the exact mode, a network is fitted
//! to each layer, and the result is stored with the packed model.

use forebay_models::bundle::{Amendment, Bundle, PackedPredictor};
use forebay_models::network::{Activation, Network, Norm, NormKind};
use forebay_models::tensor::{LayerTensor, TensorId};
use forebay_plans::budget::Budget;
use forebay_plans::predictor_fit::{
    FitOptions, LayerSamples, LayerWeights, fit_layer, fitting_floats,
};
use forebay_plans::process::rss_now;
use forebay_plans::residency::Sparsity;
use serde::Serialize;

use super::Gather;
use super::texts::{Make, bundle_of, feed, perplexity, texts_beside};
use crate::error::Error;
use crate::packed;

/// A request to [`fit_predictors`].
#[derive(Clone, Debug)]
pub struct FitRequest {
    /// Rank of the predictors and how they are fitted.
    pub options: FitOptions,
    /// Tokens per piece of text; each piece starts from an empty context.
    pub ctx: usize,
    /// Pieces at the end of the text that are used only to measure perplexity.
    pub test_pieces: usize,
    /// Most memory for samples, bytes, within the engine's budget: one run over the text gathers as many layers as fit.
    pub sample_bytes: u64,
    /// Whether predictors see the residual stream before their layer instead of that before the FFN: then missing
    /// neurons are read while attention is computed.
    pub before_attention: bool,
}

/// Progress of a fit.
#[derive(Clone, Copy, Debug)]
pub enum FitStep {
    /// Running the text for the layers up to this one.
    Gathering(usize),
    /// Fitting this layer, and the share of it done.
    Fitting(usize, f32),
    /// Measuring perplexity.
    Measuring,
    /// Writing the packed model.
    Writing,
}

/// Results of [`fit_predictors`].
#[derive(Clone, Debug, Serialize)]
pub struct FitReport {
    /// Tokens fitted to.
    pub tokens: usize,
    /// Results by layer, on held-out samples.
    pub layers: Vec<forebay_plans::predictor_fit::FitReport>,
    /// Means over layers.
    pub recall: f64,
    /// The same with each neuron counted by its activation.
    pub activation_recall: f64,
    /// Part of the neurons that is predicted.
    pub predicted_density: f64,
    /// Part of the neurons that is live.
    pub density: f64,
    /// Bytes of the predictors in memory.
    pub bytes: usize,
    /// Perplexity of the exact model on text that was not fitted to.
    pub exact_perplexity: f64,
    /// Perplexity when only predicted neurons are computed.
    pub predicted_perplexity: f64,
}

/// Fits predictors to the model that `make` opens and stores them with its packed form.
///
/// # Errors
/// A model without true zeros in its FFN, too little text, or an error in running the model or in writing the packed
/// model.
pub fn fit_predictors(
    make: Make<'_>,
    tokens: &[u32],
    request: &FitRequest,
    progress: &mut dyn FnMut(FitStep),
) -> Result<FitReport, Error> {
    let ctx = request.ctx;
    let test = request.test_pieces.saturating_mul(ctx);
    let n = texts_beside(request.test_pieces, tokens.len(), ctx)?;
    let (text, test) = tokens.split_at(tokens.len() - test);
    let exact = || Ok::<_, Error>(make()?.sparsity(Sparsity::Exact));
    let engine = exact()?.build()?;
    let network = engine.network().clone();
    if !network.is_sparse() {
        return Err(Error::NotSparse {
            model: engine.model().into(),
        });
    }
    let is_rms = |norm: Norm| norm.kind == NormKind::Rms && !norm.bias;
    let mut ffns = network.layers.iter().map(|l| &l.ffn);
    if !ffns.all(|ffn| ffn.pre_norm.is_some_and(is_rms) && !ffn.body.bias) {
        // A predictor decides the same for a multiple of its input; what follows another norm or has a bias does not.
        let problem = "they are fitted to FFNs behind an RMSNorm and without biases, which this model's are not";
        return Err(Error::parameter("predictors", problem));
    }
    progress(FitStep::Measuring);
    let exact_perplexity = perplexity(&engine, test, ctx)?;
    let bundle = bundle_of(&engine)?;
    let (total, least) = (engine.budget().total_bytes(), engine.least_budget());
    drop(engine);
    let before = request.before_attention;
    let at_once = layers_at_once(&network, request, n, (total, least, rss_now()?))?;
    let (mut predictors, mut layers) = (Vec::new(), Vec::new());
    for first in (0..network.n_layers()).step_by(at_once) {
        let last = (first + at_once).min(network.n_layers());
        progress(FitStep::Gathering(last));
        let gather = Gather::new(&network, first..last, n, before);
        let engine = exact()?.observer(gather.clone()).build()?;
        feed(&engine, text, ctx, |base| gather.begin(base))?;
        drop(engine);
        for l in first..last {
            let mut told = |share| progress(FitStep::Fitting(l, share));
            let (packed, report) = fit(&bundle, l, &gather.take(l), request, &mut told)?;
            predictors.push(packed);
            layers.push(report);
        }
    }
    progress(FitStep::Writing);
    let bytes = predictors.iter().map(PackedPredictor::bytes).sum();
    let amendment = Amendment {
        predictors: Some(predictors),
        ..Amendment::default()
    };
    packed::add(bundle.path(), &amendment)?;
    progress(FitStep::Measuring);
    let engine = make()?.sparsity(Sparsity::Predicted).build()?;
    let predicted_perplexity = perplexity(&engine, test, ctx)?;
    let of = |f: fn(&forebay_plans::predictor_fit::Measure) -> f64| {
        layers.iter().map(|r| f(&r.result)).sum::<f64>() / layers.len() as f64
    };
    Ok(FitReport {
        tokens: n,
        recall: of(|m| m.recall),
        activation_recall: of(|m| m.activation_recall),
        predicted_density: of(|m| m.predicted_density),
        density: of(|m| m.density),
        bytes,
        exact_perplexity,
        predicted_perplexity,
        layers,
    })
}

/// How many layers' samples of `tokens` tokens are gathered in one run over the text: within what is asked for, with
/// half of what an engine under the budget `total` can spare above the `least`, and so that there is room to fit a
/// layer beside them in a process of `process` bytes.
fn layers_at_once(
    network: &Network,
    request: &FitRequest,
    tokens: usize,
    (total, least, process): (u64, u64, u64),
) -> Result<usize, Error> {
    let (d_model, d_ff) = (network.d_model, network.widest_ffn());
    let before = request.before_attention;
    let samples = (tokens * Gather::bytes_per_token(network, before)).max(1) as u64;
    let predictor = (request.options.rank * (d_model + d_ff)) as u64;
    let numbers = fitting_floats((d_model, d_ff), request.options.rank, (tokens, before));
    let floats = |n: u64| n * size_of::<f32>() as u64;
    let mut budget = Budget::new(total);
    budget.claim("process", process, "as measured");
    // Two bytes a number at most, in the model's file.
    let predictors = network.n_layers() as u64 * predictor * 2;
    budget.claim("predictors", predictors, "of all layers");
    let gate = (d_model * d_ff) as u64;
    budget.claim("gate", floats(gate), "of a layer");
    budget.claim("fitting", floats(numbers), "fitting one predictor");
    budget.claim("samples", samples, format!("of {tokens} tokens in a layer"));
    budget.check()?;
    let most = [
        request.sample_bytes / samples,
        total.saturating_sub(least) / 2 / samples,
        1 + budget.remaining() / samples,
    ];
    let most = most.into_iter().min().unwrap_or(0);
    Ok((most as usize).clamp(1, network.n_layers().max(1)))
}

fn fit(
    bundle: &Bundle,
    layer: usize,
    samples: &LayerSamples,
    request: &FitRequest,
    told: &mut dyn FnMut(f32),
) -> Result<(PackedPredictor, forebay_plans::predictor_fit::FitReport), Error> {
    let gate = bundle.read_gate(layer)?;
    let block = &bundle.meta.network.layers[layer].ffn;
    let weights = LayerWeights {
        gate: &gate,
        norm: bundle
            .vectors
            .get(TensorId::Layer(layer, LayerTensor::FfnNorm)),
        rms_eps: block.pre_norm.map_or(0.0, |norm| norm.eps),
        cut: match block.body.activation {
            Activation::FatRelu { threshold } => threshold,
            _ => 0.0,
        },
    };
    let fitted = fit_layer(&weights, samples, &request.options, told)
        .map_err(|e| Error::parameter("predictors", format!("layer {layer}: {e}")))?;
    let rank = request.options.rank;
    let mut packed = PackedPredictor::new(rank, &fitted.fc1, &fitted.fc2, 0.0);
    packed.before_layer = request.before_attention;
    Ok((packed, fitted.report))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The demo would fit into memory whole; a budget has room for fewer layers, down to one.
    #[test]
    fn samples_are_within_the_budget() {
        let network = crate::learn::tests::sizes().network();
        let (tokens, least, process) = (1 << 20, 40 << 20, 10 << 20);
        let samples = (tokens * Gather::bytes_per_token(&network, false)) as u64;
        let request = FitRequest {
            options: FitOptions {
                rank: 4,
                target_recall: 0.95,
                train_steps: 0,
                seed: 1,
                holdout: 0.1,
            },
            ctx: 64,
            test_pieces: 0,
            sample_bytes: 1 << 30,
            before_attention: false,
        };
        let at_once = |total| layers_at_once(&network, &request, tokens, (total, least, process));
        assert_eq!(at_once(1 << 30).expect("room"), 2);
        assert_eq!(at_once(least + 3 * samples).expect("room"), 1);
        // The samples are copied while a predictor is fitted to them.
        let too_small = at_once(process + samples);
        assert!(matches!(too_small, Err(Error::Budget(_))));
    }
}
