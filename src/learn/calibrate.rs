//! Thresholds for SwiGLU models: how large gates are, and how many neurons a perplexity needs.

use forebay_models::bundle::{Amendment, GateCalibration};
use forebay_plans::residency::Sparsity;
use serde::Serialize;

use super::GateSizes;
use super::texts::{Make, feed, perplexity, texts_beside, whole_texts};
use crate::engine::Engine;
use crate::error::Error;
use crate::packed;

/// Halvings of the interval in which the density is searched: to 1/64.
const HALVINGS: usize = 6;

/// A request to [`calibrate_gates`].
#[derive(Clone, Copy, Debug)]
pub struct CalibrateRequest {
    /// Tokens per piece of text; each piece starts from an empty context.
    pub ctx: usize,
    /// Largest rise of the perplexity over that of all neurons, 0.05 for 5 %: the minimum density that keeps it is
    /// found and stored. Without it, only sizes are measured.
    pub perplexity_rise: Option<f64>,
    /// Pieces at the end of the text to measure perplexity on; sizes are measured on the others.
    pub test_pieces: usize,
}

/// Results of [`calibrate_gates`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CalibrateReport {
    /// Tokens on which sizes were measured.
    pub tokens: usize,
    /// If a perplexity was requested.
    pub fitted: Option<FittedDensity>,
}

/// The density that a perplexity needs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FittedDensity {
    /// Part of the neurons to compute.
    pub density: f64,
    /// Perplexity with it.
    pub perplexity: f64,
    /// Perplexity with all neurons.
    pub dense_perplexity: f64,
}

/// Measures the sizes of activated gates on a text and stores them with the packed model, and the density that a
/// perplexity needs if one is requested. `progress` receives the share done.
///
/// # Errors
/// Too little text, or an error in running the model or in writing the packed model.
pub fn calibrate_gates(
    make: Make<'_>,
    tokens: &[u32],
    request: &CalibrateRequest,
    progress: &mut dyn FnMut(f64),
) -> Result<CalibrateReport, Error> {
    let ctx = request.ctx;
    let tests = match request.perplexity_rise {
        Some(_) => request.test_pieces,
        None => 0,
    };
    let pieces = whole_texts(tokens.len(), ctx)?;
    let n = texts_beside(tests, pieces, ctx)?;
    let (text, test) = tokens[..pieces].split_at(n);
    let kept = test.len();
    // Thresholds run neuron by neuron, so the model is measured in that form, and packed for it if
    // necessary.
    let by_neuron = || Ok::<_, Error>(make()?.sparsity(Sparsity::Dense).by_neuron());
    let sizes = GateSizes::new(&by_neuron()?.read_model()?.network);
    let engine = by_neuron()?.observer(sizes.clone()).build()?;
    let share = if kept > 0 { 0.4 } else { 1.0 };
    feed(&engine, text, ctx, |base| {
        progress(base as f64 / n as f64 * share)
    })?;
    let gates = sizes.calibration(n);
    store(&engine, &gates)?;
    drop(engine);
    let Some(rise) = request.perplexity_rise else {
        return Ok(CalibrateReport {
            tokens: n,
            fitted: None,
        });
    };
    let fitted = least_density(make, test, ctx, rise, &mut |part| {
        progress(share + part * (1.0 - share))
    })?;
    let gates = GateCalibration {
        density: Some(fitted.density),
        ..gates
    };
    store(&by_neuron()?.build()?, &gates)?;
    Ok(CalibrateReport {
        tokens: n,
        fitted: Some(fitted),
    })
}

fn store(engine: &Engine, gates: &GateCalibration) -> Result<(), Error> {
    let amendment = Amendment {
        gates: Some(gates.clone()),
        ..Amendment::default()
    };
    packed::add(engine.bundle_path(), &amendment)
}

/// Halves the interval of densities until the minimum that keeps the perplexity is known.
fn least_density(
    make: Make<'_>,
    test: &[u32],
    ctx: usize,
    rise: f64,
    progress: &mut dyn FnMut(f64),
) -> Result<FittedDensity, Error> {
    let at = |density: f64| {
        let builder = make()?.sparsity(Sparsity::Threshold).density(density);
        perplexity(&builder.build()?, test, ctx)
    };
    let dense_perplexity = at(1.0)?;
    let mut best = FittedDensity {
        density: 1.0,
        perplexity: dense_perplexity,
        dense_perplexity,
    };
    let mut too_low = 0.0;
    for i in 0..HALVINGS {
        progress((i + 1) as f64 / (HALVINGS + 1) as f64);
        let density = (too_low + best.density) / 2.0;
        let perplexity = at(density)?;
        if perplexity <= dense_perplexity * (1.0 + rise) {
            (best.density, best.perplexity) = (density, perplexity);
        } else {
            too_low = density;
        }
    }
    Ok(best)
}
