//! What a device is asked in a phase.

use forebay_devices::{DeviceJob, FfnCluster, Group, Routing, SegmentId, Work as Asked};
use forebay_plans::program::Item;
use forebay_stages::frame::Frame;

use super::parts::PhasePart;

/// The job of a phase's clusters `given`, which are in the device's memory for good.
pub(super) fn fill(job: &mut DeviceJob, frame: &Frame<'_>, part: &PhasePart, given: &[Item]) {
    let place = |item: &Item| item.source.place().unwrap_or_default();
    let segment = part.segment().unwrap_or(SegmentId::NONE);
    if let Asked::Rows { panels, out } = &mut job.work {
        job.segment = segment;
        job.tokens.copy_blocks(frame.input);
        panels.clear();
        panels.extend(given.iter().map(|item| part.rows[place(item)]));
        let width: usize = panels.iter().map(|range| range.n_rows).sum();
        out.resize(frame.input.n_tokens() * width, 0.0);
    } else {
        let at = given.iter().map(|item| part.clusters[place(item)]);
        fill_share(job, frame, (segment, at), given);
    }
}

/// The job of a share: of the neuron clusters `given`, which are in `segment` where `at` says.
pub(super) fn fill_share(
    job: &mut DeviceJob,
    frame: &Frame<'_>,
    (segment, at): (SegmentId, impl Iterator<Item = FfnCluster>),
    given: &[Item],
) {
    job.segment = segment;
    // A phase's clusters for a device are all hot, or none is.
    let input = given
        .first()
        .map_or(frame.input, |item| frame.input_of(item));
    job.tokens.copy_blocks(input);
    let Asked::Share {
        clusters,
        activation,
        biases,
        routing,
        out,
    } = &mut job.work
    else {
        return;
    };
    clusters.clear();
    clusters.extend(at);
    *activation = frame.rule.activation();
    fill_biases(biases, frame, given);
    routing.clear();
    if frame.phase.is_routed() {
        route(routing, frame, given);
    }
    let d_model = frame.bundle.meta.network.d_model;
    out.resize(frame.input.n_tokens() * d_model, 0);
}

/// The clusters' biases of Gate and Up one after the other; none if no cluster has any.
fn fill_biases(biases: &mut [Vec<f32>; 2], frame: &Frame<'_>, given: &[Item]) {
    biases.iter_mut().for_each(Vec::clear);
    let has_any = |item: &Item| frame.biases(item).iter().any(|bias| !bias.is_empty());
    if !given.iter().any(has_any) {
        return;
    }
    for item in given {
        let n = frame.entry(item.cluster).count as usize;
        for (all, own) in biases.iter_mut().zip(frame.biases(item)) {
            all.extend_from_slice(own);
            all.resize(all.len() + n - own.len(), 0.0);
        }
    }
}

/// Which tokens use the clusters `given`, and with what weight: those of an expert follow each other.
fn route(routing: &mut Routing, frame: &Frame<'_>, given: &[Item]) {
    for clusters in given.chunk_by(|a, b| a.expert == b.expert) {
        let tokens = frame.tokens_of(&clusters[0]);
        let weight = |i: usize| tokens.weights.get(i).copied().unwrap_or(1.0);
        match tokens.places {
            [] => routing.tokens.extend(0..tokens.n as u32),
            places => routing.tokens.extend_from_slice(places),
        }
        routing.weights.extend((0..tokens.n).map(weight));
        routing.groups.push(Group {
            clusters: clusters.len(),
            tokens: tokens.n,
        });
    }
}
