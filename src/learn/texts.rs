//! Running texts through a model that is being watched.

use forebay_models::bundle::{Amendment, Bundle, amend};
use forebay_plans::residency::Sparsity;

use super::{Activity, GateSizes, Gather};
use crate::engine::{Engine, EngineBuilder};
use crate::error::Error;

/// Makes builders for the same model: it is opened several times, with different observers.
pub(super) type Make<'a> = &'a dyn Fn() -> Result<EngineBuilder, Error>;

/// Runs `tokens` in texts of `ctx` tokens, each from an empty context; `begin` is told the number of a text's
/// first token before it runs. The rest that does not fill a text is left out.
pub(super) fn feed(
    engine: &Engine,
    tokens: &[u32],
    ctx: usize,
    mut begin: impl FnMut(usize),
) -> Result<(), Error> {
    for (i, text) in tokens.chunks_exact(ctx).enumerate() {
        begin(i * ctx);
        let mut text = text.to_vec();
        if let Some(bos) = engine
            .tokenizer()
            .bos()
            .filter(|_| engine.tokenizer().adds_bos())
        {
            text[0] = bos;
        }
        engine.logits(&text, ctx - 1, |_, _| {})?;
    }
    Ok(())
}

/// Tokens in whole texts of `ctx`.
pub(super) fn whole_texts(tokens: usize, ctx: usize) -> Result<usize, Error> {
    match tokens / ctx * ctx {
        0 => Err(Error::Request(format!(
            "the text has {tokens} tokens, fewer than one piece of {ctx}; give more text or a smaller --ctx"
        ))),
        n => Ok(n),
    }
}

/// Opens the packed model that an engine ran.
pub(super) fn bundle_of(engine: &Engine) -> Result<Bundle, Error> {
    Ok(Bundle::open(engine.bundle_path().as_ref())?)
}

/// Activity by layer over the first `tokens` of a text, computed exactly.
///
/// # Errors
/// Too little text, or what running the model can fail with.
pub fn measure_activity(
    make: Make<'_>,
    tokens: &[u32],
    ctx: usize,
) -> Result<Vec<Activity>, Error> {
    let n = whole_texts(tokens.len(), ctx)?;
    let config = make()?.sparsity(Sparsity::Exact).build()?.config().clone();
    let gather = Gather::new(&config, 0..config.n_layers, n);
    let engine = make()?
        .sparsity(Sparsity::Exact)
        .observer(gather.clone())
        .build()?;
    feed(&engine, tokens, ctx, |base| gather.begin(base))?;
    let layers = (0..config.n_layers).map(|l| Activity::of(&gather.take(l)));
    Ok(layers.collect())
}

/// Measures the sizes of activated gates on a text and stores them with the packed model. Returns the tokens
/// measured. `progress` is told the share of the text that is done.
///
/// # Errors
/// Too little text, what running the model can fail with, or writing the packed model.
pub fn calibrate_gates(
    make: Make<'_>,
    tokens: &[u32],
    ctx: usize,
    progress: &mut dyn FnMut(f64),
) -> Result<usize, Error> {
    let n = whole_texts(tokens.len(), ctx)?;
    // Thresholds run neuron by neuron, so that form is measured, and packed if need be.
    let by_neuron = || Ok::<_, Error>(make()?.sparsity(Sparsity::Dense).by_neuron());
    let sizes = {
        let engine = by_neuron()?.build()?;
        GateSizes::new(engine.config())
    };
    let engine = by_neuron()?.observer(sizes.clone()).build()?;
    feed(&engine, tokens, ctx, |base| {
        progress(base as f64 / n as f64)
    })?;
    let bundle = bundle_of(&engine)?;
    drop(engine);
    let amendment = Amendment {
        gates: Some(sizes.calibration(n)),
        ..Amendment::default()
    };
    amend(&bundle, bundle.path(), &amendment, &mut |_| {})?;
    Ok(n)
}
