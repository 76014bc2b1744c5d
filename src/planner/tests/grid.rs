//! The plan is as good as any: another grid than the planner's, between its points, finds nothing that is worth more.

use forebay_plans::plan::Choices;
use forebay_plans::residency::{Loading, STREAM_WINDOW, Sparsity};

use super::request;
use super::shapes::{
    BOARD, QWEN, QWEN_HALF, SERVER, SPARSE_7B, Shape, Speeds, machine_for, profile, shaped,
};
use crate::memory::MemoryRequest;
use crate::planner::choose::{MEMORY_PRECISION, NEARLY, WORTHWHILE};
use crate::planner::{Fixed, Outlook, Wish, fastest, least_memory};

/// Models and budgets in MiB, as in the README's table.
const CASES: [(&Shape, [u64; 4]); 3] = [
    (&QWEN_HALF, [2048, 340, 250, 160]),
    (&QWEN, [2048, 780, 550, 315]),
    (&SPARSE_7B, [5120, 3500, 2380, 1250]),
];

/// Calls `test` with each model on `speeds`.
fn each_model(speeds: &Speeds, mut test: impl FnMut(&Shape, &[u64; 4], &Outlook<'_>)) {
    for (shape, budgets) in CASES {
        let bundle = shaped(shape);
        let sparsity = match shape.rank {
            Some(_) => Sparsity::Predicted,
            None => Sparsity::Dense,
        };
        let (machine, disk) = machine_for(&bundle, sparsity, speeds);
        let profile = shape.rank.map(|_| profile(shape));
        let request = MemoryRequest {
            process: 24 << 20,
            context: Some(256),
            ..request(budgets[0] << 20, speeds.cores, sparsity)
        };
        let outlook = Outlook::new(&bundle, (&machine, &disk), profile.as_ref(), request);
        test(shape, &budgets, &outlook);
    }
}

/// The least cost on a grid whose batches and caches lie between the planner's, with larger caches and wider windows,
/// too.
fn least_cost(outlook: &Outlook<'_>, chosen: &Choices) -> f64 {
    let request = &outlook.request;
    let (loadings, caches) = match request.sparsity {
        Sparsity::Dense => (vec![Loading::Bundle], 1),
        _ => (vec![Loading::Bundle, Loading::Split], 9),
    };
    let mut least = f64::INFINITY;
    let batches = [8, 12, 20, 28, 36, 44, 56, 80, 128];
    for (threads, max_batch) in (1..=request.threads).flat_map(|n| batches.map(|b| (n, b))) {
        for (mib, cache) in [3, 6, 12, 24, 36, 72]
            .into_iter()
            .flat_map(|w| (0..caches).map(move |c| (w, c)))
        {
            let choices = Choices {
                threads,
                max_batch,
                stream_window_bytes: mib << 20,
                neuron_cache_bytes: request.total / caches * cache,
                ..*chosen
            };
            let Ok(memory) = outlook.layout(&choices) else {
                continue;
            };
            for &loading in &loadings {
                let seen = outlook.predict(Choices { loading, ..choices }, &memory);
                least = least.min(seen.cost());
            }
        }
    }
    least
}

#[test]
fn no_other_grid_beats_the_plan() {
    for (first, speeds) in [SERVER, BOARD].into_iter().enumerate() {
        each_model(&speeds, |shape, budgets, outlook| {
            for mib in budgets.iter().skip(first).step_by(2) {
                let outlook = outlook.within(mib << 20);
                let seen = fastest(&outlook, Fixed::default()).unwrap().seen;
                let (cost, least) = (seen.cost(), least_cost(&outlook, &seen.choices));
                println!("{:.2}%", (cost / least - 1.0) * 100.0);
                assert!(
                    cost * (1.0 - WORTHWHILE) <= least,
                    "{} wide on {} cores, {mib} MiB: {cost} and {least}",
                    shape.d_model,
                    speeds.cores
                );
            }
        });
    }
}

/// Where a little less than everything fits, the window takes room from what has to be streamed because of it.
#[test]
fn a_narrow_window_streams_little() {
    let (bundle, speeds) = (shaped(&QWEN_HALF), BOARD);
    let (machine, disk) = machine_for(&bundle, Sparsity::Dense, &speeds);
    let request = MemoryRequest {
        process: 24 << 20,
        context: Some(256),
        max_batch: Some(64),
        ..request(2 << 30, speeds.cores, Sparsity::Dense)
    };
    let fixed = Fixed {
        threads: Some(speeds.cores),
        max_batch: Some(64),
        ..Fixed::default()
    };
    let outlook = Outlook::new(&bundle, (&machine, &disk), None, request);
    let whole = fastest(&outlook, fixed).unwrap().seen.choices;
    let weights: u64 = bundle.clusters.iter().map(|e| e.padded_len() as u64).sum();
    // The least with which nothing is streamed, to a MiB.
    let all = |mib: &u64| {
        let memory = outlook.within(mib << 20).layout(&whole);
        memory.is_ok_and(|memory| memory.residency.stream_slots == 0)
    };
    let mib = (weights >> 20..2048).find(all).unwrap();
    let outlook = outlook.within((mib - 1) << 20);
    let seen = fastest(&outlook, fixed).unwrap().seen;
    let usual = outlook.see(Choices {
        stream_window_bytes: STREAM_WINDOW,
        ..seen.choices
    });
    let (narrow, usual) = (
        seen.expected.bytes_per_token,
        usual.unwrap().expected.bytes_per_token,
    );
    assert!(seen.choices.stream_window_bytes < STREAM_WINDOW / 2);
    assert!(narrow < usual / 2.0, "{narrow} and {usual}");
}

/// The context is free here, so that more memory also gives longer ones: a smaller budget might be faster.
#[test]
fn no_smaller_budget_grants_the_wish() {
    each_model(&SERVER, |shape, budgets, outlook| {
        let mut outlook = outlook.within(budgets[0] << 20);
        outlook.request.context = None;
        let best = fastest(&outlook, Fixed::default()).unwrap().seen;
        let steps = if shape.rank.is_some() { 4 } else { 20 };
        for part in [0.3, 0.6, 0.97] {
            let speed = best.expected.decode_tokens_per_second * part;
            let found = least_memory(&outlook, Fixed::default(), Wish::Speed(speed)).unwrap();
            assert!(found.seen.expected.decode_tokens_per_second >= speed * NEARLY);
            let items: u64 = found.seen.expected.memory_items.values().sum();
            assert!(items <= found.memory_bytes);
            // From as little less as the search can tell, and on in steps of four times that.
            let unit = found.memory_bytes.div_ceil(MEMORY_PRECISION);
            for total in (0..steps).map(|n| found.memory_bytes - (4 * n + 1) * unit) {
                let fast = fastest(&outlook.within(total), Fixed::default());
                let fast = fast.map_or(0.0, |d| d.seen.expected.decode_tokens_per_second);
                assert!(
                    fast < speed * NEARLY,
                    "{} wide: {speed} tokens per second take {} bytes, but {total} give {fast}",
                    shape.d_model,
                    found.memory_bytes
                );
            }
        }
    });
}
