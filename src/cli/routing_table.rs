//! What `synth` prints about a model with experts, beside what was published of models of that shape.

use forebay::learn::{ExpertMisses, Routing};

/// Sizes of the caches, as parts of all experts.
pub const SIZES: [f64; 5] = [0.0625, 0.125, 0.25, 0.375, 0.5];

/// Published traces of one model: one prompt, 128 generated tokens.
struct Published {
    shape: &'static str,
    what: &'static str,
    again: &'static [(usize, f64)],
    top_share: &'static [(usize, f64)],
    distinct: &'static [(usize, f64)],
    weights: &'static [f64],
    foreseen: Option<f64>,
    /// Hits of LRU, LFU and Belady by part of the experts.
    hits: &'static [(f64, [f64; 3])],
}

const PUBLISHED: [Published; 3] = [
    Published {
        shape: "qwen3-30b-a3b",
        what: "Qwen3-30B, 6 of 128",
        again: &[(1, 0.38), (2, 0.29), (4, 0.28), (8, 0.27), (16, 0.28)],
        top_share: &[(4, 0.29), (8, 0.44), (16, 0.64), (32, 0.86)],
        distinct: &[(2, 10.0), (4, 16.0), (8, 24.0), (16, 33.0), (32, 43.0)],
        weights: &[0.27, 0.20, 0.17, 0.14, 0.12, 0.11],
        foreseen: Some(0.89),
        hits: &[
            (0.0625, [0.38, 0.40, 0.63]),
            (0.125, [0.57, 0.59, 0.79]),
            (0.25, [0.80, 0.81, 0.93]),
            (0.375, [0.92, 0.92, 0.97]),
            (0.5, [0.96, 0.96, 0.97]),
        ],
    },
    Published {
        shape: "gpt-oss-20b",
        what: "gpt-oss-120b, 2 of 128",
        again: &[(1, 0.18), (2, 0.21), (4, 0.13), (8, 0.13), (16, 0.10)],
        top_share: &[(4, 0.41), (8, 0.59), (16, 0.80), (32, 0.96)],
        distinct: &[(2, 4.0), (4, 6.0), (8, 10.0), (16, 16.0), (32, 24.0)],
        weights: &[0.58, 0.42],
        foreseen: None,
        hits: &[],
    },
    Published {
        shape: "olmoe-1b-7b",
        what: "OLMoE",
        again: &[(1, 0.435)],
        top_share: &[],
        distinct: &[],
        weights: &[],
        foreseen: None,
        hits: &[],
    },
];

/// A row: what it is, measured, published.
type Row = (String, String, Option<String>);

/// The text for a model of `shape` after `tokens` random tokens.
pub fn table(shape: &str, tokens: usize, routing: &Routing) -> String {
    let published = PUBLISHED.iter().find(|p| p.shape == shape);
    let e = &routing.experts;
    let layers = e.counts.iter().filter(|counts| !counts.is_empty()).count();
    let mut rows = Vec::new();
    for (lag, again) in &e.again {
        let what = format!("experts shared with the token {lag} before");
        let known = published.and_then(|p| at(p.again, *lag));
        rows.push((what, percent(*again), known.map(percent)));
    }
    for (top, share) in &e.top_share {
        let what = format!("uses of a layer's top {top} experts");
        let known = published.and_then(|p| at(p.top_share, *top));
        rows.push((what, percent(*share), known.map(percent)));
    }
    for (n, distinct) in &e.distinct {
        let what = format!("different experts over {n} tokens");
        let known = published.and_then(|p| at(p.distinct, *n));
        rows.push((what, format!("{distinct:.1}"), known.map(|d| d.to_string())));
    }
    let weights = published.map(|p| p.weights).filter(|w| !w.is_empty());
    let mean = "mean weights, the best first".into();
    rows.push((mean, numbers(&e.weights), weights.map(numbers)));
    rows.push(by_depth("shared with the token before", &e.again_by_layer));
    rows.extend(foreseen(routing, published));
    for misses in &e.misses {
        rows.push(hits(misses, published));
    }
    let beside = published.map_or(String::new(), |p| {
        format!("; published (one prompt, 128 tokens): {}", p.what)
    });
    let mut text = format!(
        "measured over {tokens} random tokens, means of {layers} layers, {} cores{beside}\n",
        e.threads
    );
    for (what, measured, known) in rows {
        let known = known.map_or(String::new(), |known| format!("  published {known}"));
        text += &format!("  {what:42} {measured}{known}\n");
    }
    text
}

/// How often the next layer's router, asked a layer ahead, names what is used.
fn foreseen(routing: &Routing, published: Option<&Published>) -> Vec<Row> {
    let known: Vec<f64> = routing.foreseen.iter().flatten().copied().collect();
    if known.is_empty() {
        return Vec::new();
    }
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    let at = published.and_then(|p| p.foreseen).map(percent);
    let what = "foreseen by the next layer's router".into();
    vec![
        (what, percent(mean), at),
        by_depth("foreseen, from the second layer", &known),
    ]
}

/// Hits with a cache of one size.
fn hits(misses: &ExpertMisses, published: Option<&Published>) -> Row {
    let shown = |[lru, lfu, belady]: [f64; 3]| {
        let [lru, lfu, belady] = [lru, lfu, belady].map(percent);
        format!("{lru} / {lfu} / {belady}")
    };
    let known = published.and_then(|p| p.hits.iter().find(|(cached, _)| *cached == misses.cached));
    (
        format!(
            "LRU / LFU / Belady hits, {:.1} % cached",
            misses.cached * 100.0
        ),
        shown([misses.lru, misses.miss_rate, misses.belady].map(|rate| 1.0 - rate)),
        known.map(|(_, hits)| shown(*hits)),
    )
}

/// The first three layers, the middle and the last.
fn by_depth(what: &str, layers: &[f64]) -> Row {
    let n = layers.len();
    let mut chosen: Vec<usize> = [0, 1, 2, n / 2, n.saturating_sub(1)].into();
    chosen.retain(|&l| l < n);
    chosen.sort_unstable();
    chosen.dedup();
    let shown: Vec<String> = chosen.iter().map(|&l| percent(layers[l])).collect();
    let what = format!("{what}, first to last");
    (what, shown.join(", "), None)
}

fn at(pairs: &[(usize, f64)], n: usize) -> Option<f64> {
    pairs.iter().find(|(at, _)| *at == n).map(|(_, v)| *v)
}

fn percent(v: f64) -> String {
    format!("{:.1} %", v * 100.0)
}

fn numbers(values: &[f64]) -> String {
    let shown: Vec<String> = values.iter().map(|v| format!("{v:.2}")).collect();
    shown.join(" ")
}
