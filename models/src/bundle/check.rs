//! Checks the metadata section: its checksum proves that it was written this way, not that it makes sense. Everything
//! computed from it later may rely on these bounds.

use std::path::Path;

use super::geometry::{FfnGeometry, FfnLayout, MAX_BUNDLES, MAX_NEURONS};
use super::meta::{BundleMeta, StoredMatrix};
use crate::error::{ModelError, Result};
use crate::limits::MAX_DIMENSION;
use crate::network::Content;
use crate::tensor::{LayerTensor, TensorId};

/// Checks that sizes are within bounds and that the fields agree with each other.
///
/// # Errors
/// The first wrong field.
pub(super) fn check_meta(path: &Path, meta: &BundleMeta) -> Result<()> {
    let network = &meta.network;
    network.check(path)?;
    let wrong = |field: String, problem: &str| Err(ModelError::damaged(path, field, problem));
    let mut lengths = [meta.ffns.len(), meta.experts.len()].into_iter();
    let is_right = |len| len == network.n_layers();
    if !lengths.all(is_right) || !(meta.hot.is_empty() || is_right(meta.hot.len())) {
        return wrong("ffns".into(), "there is not one per layer");
    }
    for l in 0..network.n_layers() {
        let ffn = network.ffn(l);
        let all = [&meta.hot, &meta.ffns, &meta.experts];
        let there = all.map(|all| all.get(l).is_some_and(Option::is_some));
        if there != [ffn.hot > 0, ffn.d_ff > 0, ffn.experts.is_some()] {
            return wrong(
                format!("FFN of layer {l}"),
                "its parts are not the network's",
            );
        }
    }
    check_storage(path, meta)?;
    if let Some(predictors) = &meta.predictors {
        let sane = |rank: usize| (1..=MAX_DIMENSION as usize).contains(&rank);
        if predictors.len() != network.n_layers()
            || !predictors
                .iter()
                .all(|p| sane(p.rank) && p.threshold.is_finite())
        {
            return wrong("predictors".into(), "there is not a sensible one per layer");
        }
    }
    let before = |l: &usize| network.ffn(*l).predictor_before_layer;
    if let (None, Some(l)) = (&meta.predictors, (0..network.n_layers()).find(before)) {
        let field = format!("predictor of layer {l}");
        return wrong(
            field,
            "its input is that of the layer, but there are no predictors",
        );
    }
    if let Some(gates) = &meta.gates {
        let ascending =
            |q: &Vec<f32>| q.len() >= 2 && q.is_sorted() && q.iter().all(|v| v.is_finite());
        if gates.quantiles.len() != network.n_layers() || !gates.quantiles.iter().all(ascending) {
            return wrong(
                "gates".into(),
                "there are no ascending sizes for each layer",
            );
        }
    }
    check_matrices(path, meta)
}

/// Neurons are stored in ways that are possible for them.
fn check_storage(path: &Path, meta: &BundleMeta) -> Result<()> {
    let network = &meta.network;
    let wrong = |field: String, problem: &str| Err(ModelError::damaged(path, field, problem));
    let of_layers =
        |all: &[Option<FfnGeometry>]| all.iter().copied().enumerate().collect::<Vec<_>>();
    let all = [
        (of_layers(&meta.hot), FfnLayout::GateFirst),
        (of_layers(&meta.ffns), FfnLayout::GateFirst),
        (of_layers(&meta.experts), FfnLayout::Neuron),
    ];
    let all = all.into_iter().flat_map(|(all, of_others)| {
        let stored = all.into_iter().filter_map(|(l, g)| Some((l, g?)));
        stored.map(move |(l, g)| (l, g, of_others))
    });
    for (l, hot) in of_layers(&meta.hot) {
        let others = meta.ffns[l].is_some_and(|g| g.layout == FfnLayout::Neuron);
        if hot.is_some_and(|g| g.layout != FfnLayout::Cluster || !others) {
            let field = format!("FFN of layer {l}");
            return wrong(
                field,
                "some neurons are hot, but others are not stored one by one",
            );
        }
    }
    for (l, g, of_others) in all {
        let field = format!("FFN of layer {l}");
        if g.layout == of_others {
            return wrong(field, "its layout is not one for these neurons");
        }
        if g.d_model != network.d_model {
            return wrong(field, "its width is not the model's");
        }
        if g.up.is_some() != network.ffn(l).gated {
            return wrong(field, "its matrices are not the network's");
        }
        let most = match g.layout {
            FfnLayout::Neuron | FfnLayout::GateFirst => MAX_BUNDLES,
            FfnLayout::Cluster => MAX_NEURONS,
        };
        if g.neurons == 0 || g.neurons > most {
            return wrong(field, "its clusters have an impossible number of neurons");
        }
    }
    Ok(())
}

/// The matrices are those of the network, in its order.
fn check_matrices(path: &Path, meta: &BundleMeta) -> Result<()> {
    let wrong = |field: String, problem: &str| Err(ModelError::damaged(path, field, problem));
    let contents = meta.network.contents(meta.predictors.is_some());
    let mut expected = contents.into_iter().filter_map(Content::matrix);
    for m in &meta.matrices {
        if expected.next() != Some(m.tensor) {
            return wrong("matrices".into(), "they are not those of the network");
        }
        let field = format!("matrix {:?}", m.tensor);
        if shape(meta, m.tensor) != Some((m.rows, m.cols)) {
            return wrong(field, "its shape is not what the network asks for");
        }
        if m.rows_per_cluster == 0 || m.block.row_bytes(m.cols).is_none() {
            return wrong(field, "its rows or clusters are impossible");
        }
        if !is_cut_well(m) {
            return wrong(field, "is in several clusters");
        }
    }
    match expected.next() {
        None => Ok(()),
        Some(missing) => wrong(format!("matrix {missing:?}"), "is missing"),
    }
}

/// Rows and columns that the network and the predictors require.
fn shape(meta: &BundleMeta, tensor: TensorId) -> Option<(usize, usize)> {
    let shape = meta.network.shape(tensor)?;
    let rank = match tensor {
        TensorId::Layer(l, t) if t.is_predictor() => Some(meta.predictors.as_ref()?.get(l)?.rank),
        _ => None,
    };
    Some((shape.rows.or(rank)?, shape.cols.or(rank)?))
}

/// A neuron's row of a predictor is found by its index, so all are in one cluster.
fn is_cut_well(m: &StoredMatrix) -> bool {
    !matches!(m.tensor, TensorId::Layer(_, LayerTensor::PredictorFc2))
        || m.rows_per_cluster >= m.rows
}
