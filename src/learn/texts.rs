//! Running texts through a model that has an observer.

use forebay_models::bundle::Bundle;
use forebay_plans::predictor_fit::LayerSamples;
use forebay_plans::residency::Sparsity;

use super::{Activity, Gather};
use crate::engine::{Engine, EngineBuilder};
use crate::error::Error;

/// Makes builders for the same model: the model is opened several times, with different observers.
pub(super) type Make<'a> = &'a dyn Fn() -> Result<EngineBuilder, Error>;

/// Runs `tokens` in texts of `ctx` tokens, each from an empty context; `begin` receives the number of a text's first
/// token before it runs. A rest that does not fill a text is omitted.
pub(super) fn feed(
    engine: &Engine,
    tokens: &[u32],
    ctx: usize,
    mut begin: impl FnMut(usize),
) -> Result<(), Error> {
    for (i, text) in tokens.chunks_exact(ctx).enumerate() {
        begin(i * ctx);
        let text = engine.tokenizer().piece(text);
        engine.logits(&text, ctx - 1, |_, _| {})?;
    }
    Ok(())
}

/// Number of tokens in whole texts of `ctx`.
pub(super) fn whole_texts(tokens: usize, ctx: usize) -> Result<usize, Error> {
    if ctx == 0 {
        let problem = "a piece of 0 tokens has no text; give at least 3";
        return Err(Error::parameter("ctx", problem));
    }
    match tokens / ctx * ctx {
        0 => Err(Error::TooFewTokens { tokens, piece: ctx }),
        n => Ok(n),
    }
}

/// The same without `tests` texts at the end.
pub(super) fn texts_beside(tests: usize, tokens: usize, ctx: usize) -> Result<usize, Error> {
    let left = tokens.saturating_sub(tests.saturating_mul(ctx));
    whole_texts(left, ctx).map_err(|e| match e {
        Error::TooFewTokens { piece, .. } if tests > 0 => Error::TooFewForTests {
            tokens,
            tests,
            piece,
        },
        e => e,
    })
}

/// Opens the packed model that an engine ran.
pub(super) fn bundle_of(engine: &Engine) -> Result<Bundle, Error> {
    Ok(Bundle::open(engine.bundle_path())?)
}

/// Activity by layer over the first `tokens` of a text, computed exactly; with the predictors' recall, if the model has
/// any.
///
/// # Errors
/// Too little text, or an error in running the model.
pub fn measure_activity(
    make: Make<'_>,
    tokens: &[u32],
    ctx: usize,
) -> Result<Vec<Activity>, Error> {
    let n = whole_texts(tokens.len(), ctx)?;
    let gathered = |sparsity: Sparsity| {
        let network = make()?.sparsity(sparsity).read_model()?.network;
        let gather = Gather::new(&network, 0..network.n_layers(), n, false);
        let engine = make()?
            .sparsity(sparsity)
            .observer(gather.clone())
            .build()?;
        feed(&engine, tokens, ctx, |base| gather.begin(base))?;
        let predicts = bundle_of(&engine)?.meta.predictors.is_some();
        Ok::<_, Error>((gather, network.n_layers(), predicts))
    };
    let (exact, n_layers, predicts) = gathered(Sparsity::Exact)?;
    let predicted = predicts
        .then(|| gathered(Sparsity::Predicted))
        .transpose()?;
    let layers = (0..n_layers).map(|l| {
        let alive = exact.take(l);
        let found = predicted.as_ref().map(|(gather, ..)| gather.take(l));
        Activity::of(&alive).with_recall(found.map(|found| recall(&alive, &found)))
    });
    Ok(layers.collect())
}

/// Part of the neurons `alive` that were also `found` alive when only predicted ones were computed.
fn recall(alive: &LayerSamples, found: &LayerSamples) -> f64 {
    let ones =
        |words: &mut dyn Iterator<Item = u64>| words.map(|w| u64::from(w.count_ones())).sum();
    let both: u64 = ones(&mut alive.live.iter().zip(&found.live).map(|(a, b)| a & b));
    let all: u64 = ones(&mut alive.live.iter().copied());
    both as f64 / all.max(1) as f64
}

/// Perplexity of whole pieces of text; NaN if there are none.
pub(super) fn perplexity(engine: &Engine, tokens: &[u32], ctx: usize) -> Result<f64, Error> {
    if tokens.len() < ctx {
        return Ok(f64::NAN);
    }
    Ok(engine
        .perplexity(tokens, ctx, None, |_, _, _| {})?
        .perplexity)
}
