//! Norms, rotation, temperature, windows and heads against their definitions in f64.

use super::*;

/// `x / sqrt(mean(x²) + eps) * weights`, of what is left of `x` without its mean if it is a LayerNorm.
fn norm(x: &mut [f64], weights: &[f32], (kind, eps): (NormKind, f32)) {
    if kind == NormKind::Layer {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        x.iter_mut().for_each(|v| *v -= mean);
    }
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    for (v, &w) in x.iter_mut().zip(weights) {
        *v *= f64::from(w) / (mean + f64::from(eps)).sqrt();
    }
}

fn rotate(head: &mut [f64], rope: &Rope, position: usize) {
    let half = rope.rotary_dim / 2;
    for i in 0..half {
        let angle = position as f64
            * f64::from(rope.theta).powf(-((2 * i) as f64) / rope.rotary_dim as f64);
        let (a, b) = match rope.pairing {
            RopePairing::Interleaved => (2 * i, 2 * i + 1),
            RopePairing::HalfSplit => (i, i + half),
        };
        let (x, y) = (head[a], head[b]);
        let magnitude = f64::from(rope.magnitude);
        head[a] = magnitude * (x * angle.cos() - y * angle.sin());
        head[b] = magnitude * (x * angle.sin() + y * angle.cos());
    }
}

/// Queries, keys and values of the token at `position`, ready to be multiplied.
fn prepared(network: &Network, layer: usize, position: usize, token: u64) -> [Vec<f64>; 3] {
    let a = network.attention(layer).expect("attention");
    let row: Vec<f64> = input(network, layer, token)
        .iter()
        .map(|&v| v.into())
        .collect();
    if let Some(latent) = &a.latent {
        return prepared_latent(network, (layer, a, latent), position, &row);
    }
    let (q, kv) = row.split_at(a.q_rows());
    let (k, v) = kv.split_at(a.k_rows());
    let v = if a.kv == KvOrigin::KeysAlone { k } else { v };
    let heads = q.chunks(q.len() / a.n_heads);
    let mut q: Vec<f64> = heads
        .flat_map(|head| &head[..a.head_dim])
        .copied()
        .collect();
    let (mut k, mut v) = (k.to_vec(), v.to_vec());
    if let Some(eps) = a.v_norm {
        let ones = vec![1.0; a.head_dim];
        v.chunks_mut(a.head_dim)
            .for_each(|v| norm(v, &ones, (NormKind::Rms, eps)));
    }
    let weights = weights(network, layer);
    for (x, weights) in [(&mut q, &weights.0), (&mut k, &weights.1)] {
        let normalise = |x: &mut [f64], after_rope: bool| {
            let Some(n) = a.qk_norm.filter(|n| n.after_rope == after_rope) else {
                return;
            };
            let span = match n.span {
                // A layer without keys of its own has none to norm.
                NormSpan::Row => x.len().max(1),
                NormSpan::Head | NormSpan::OwnHead => a.head_dim,
            };
            // Those with their own weights come one after the other, others have the same.
            let weights = weights.chunks(span).cycle();
            for (x, weights) in x.chunks_mut(span).zip(weights) {
                norm(x, weights, (n.kind, n.eps));
            }
        };
        normalise(x, false);
        if let Some(rope) = a.rope {
            let heads = x.chunks_mut(a.head_dim);
            heads.for_each(|head| rotate(head, &network.ropes[rope], position));
        }
        normalise(x, true);
    }
    if let Some(t) = a.temperature {
        let times = (position / t.original_context) as f64;
        let factor = 1.0 + f64::from(t.beta) * (1.0 + times).ln();
        q.iter_mut().for_each(|v| *v *= factor);
    }
    [q, k, v]
}

/// The same of latent attention, from a token's `row`.
fn prepared_latent(
    network: &Network,
    (layer, a, latent): (usize, &network::Attention, &Latent),
    position: usize,
    row: &[f64],
) -> [Vec<f64>; 3] {
    let rope = &network.ropes[a.rope.expect("a rotation")];
    let (mut value, rotated) = row[a.k_column()..][..a.head_dim]
        .split_at_checked(latent.rank)
        .map(|(value, rotated)| (value.to_vec(), rotated))
        .expect("a key is longer than its latent");
    let kind = (NormKind::Rms, latent.eps);
    norm(&mut value, &weights(network, layer).1, kind);
    let turned = |part: &[f64]| {
        let mut part = part.to_vec();
        rotate(&mut part, rope, position);
        part
    };
    let key = [value.clone(), turned(rotated)].concat();
    let query = |head: usize| {
        let of_latents = &row[a.query_column() + head * a.head_dim..][..latent.rank];
        let own = &row[a.q_column() + head * a.query_dim()..][..a.query_dim()];
        [of_latents.to_vec(), turned(&own[latent.plain_dim..])].concat()
    };
    [(0..a.n_heads).flat_map(query).collect(), key, value]
}

/// Attention of the last token of a sequence.
fn defined(network: &Network, layer: usize, tokens: &[u64]) -> Vec<f64> {
    let a = network.attention(layer).expect("attention");
    let d = a.head_dim;
    let of_layer = |layer: usize| -> Vec<_> {
        let all = tokens.iter().enumerate();
        all.map(|(p, &token)| prepared(network, layer, p, token))
            .collect()
    };
    let queries = of_layer(layer);
    let all = match a.kv {
        KvOrigin::Layer(origin) => of_layer(origin),
        KvOrigin::Own | KvOrigin::KeysAlone => queries.clone(),
    };
    let seen = &all[tokens.len().saturating_sub(a.window.unwrap_or(usize::MAX))..];
    let mut out = Vec::new();
    for h in 0..a.n_heads {
        let q = &queries[tokens.len() - 1][0][h * d..][..d];
        let kv = h / (a.n_heads / a.n_kv_heads) * d;
        let score = |k: &[f64]| {
            let dot: f64 = q.iter().zip(&k[kv..][..d]).map(|(q, k)| q * k).sum();
            let score = dot * f64::from(a.scale);
            let cap = a.softcap.map(f64::from);
            cap.map_or(score, |cap| cap * (score / cap).tanh())
        };
        let scores: Vec<f64> = seen.iter().map(|[_, k, _]| score(k)).collect();
        let sink = sinks(network, layer).get(h).copied().map(f64::from);
        let all = scores.iter().copied().chain(sink);
        let max = all.clone().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
        let total: f64 = all.map(|s| (s - max).exp()).sum();
        let row = input(network, layer, tokens[tokens.len() - 1]);
        out.extend((0..a.value_dim()).map(|i| {
            let values = seen.iter().map(|[_, _, v]| v[kv + i]);
            let mixed = values.zip(&weights).map(|(v, w)| v * w).sum::<f64>() / total;
            match a.output_gate {
                true => mixed / (1.0 + (-f64::from(row[(2 * h + 1) * d + i])).exp()),
                false => mixed,
            }
        }));
    }
    out
}

#[test]
fn every_layer_computes_what_its_description_says() {
    // Keys and values of up to 2 (10 with a bias, before a norm's weights) are off by up to 2^-11 of themselves.
    compare_with_definition(KvType::F16, 8e-3);
    // Keys by half of 1/254 of the largest, values by half of 1/127.
    compare_with_definition(KvType::Q8, 4e-2);
}

fn compare_with_definition(kind: KvType, tolerance: f64) {
    let network = network();
    let mut machine = Machine::new(&network, kind, 1, 1);
    let id = machine.sequences.open();
    let tokens: Vec<u64> = (100..280).collect();
    let mut results = Vec::new();
    for part in tokens.chunks(MAX_TOKENS) {
        results.extend(machine.step(&[(id, part)]));
    }
    for last in [0, 1, 69, 70, 71, 129, 130, 179] {
        let layers = 0..network.n_layers();
        let want: Vec<f64> = layers
            .flat_map(|layer| defined(&network, layer, &tokens[..=last]))
            .collect();
        assert_eq!(results[last].len(), want.len());
        for (i, (&got, want)) in results[last].iter().zip(want).enumerate() {
            let error = (f64::from(got) - want).abs();
            assert!(error < tolerance, "{kind} {last} {i}: {got} for {want}");
        }
    }
}
