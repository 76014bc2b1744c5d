//! Operators of the placement, from the programs of packed models.

mod scratch;
mod support;

use forebay::packed::convert;
use forebay::{Bundle, PackOptions, Sparsity};
use forebay_models::network::Content;
use forebay_plans::placement::{Operator, Placement, PlacementMachine};
use forebay_plans::program::{Options, compile};
use forebay_plans::residency::{Pipeline, ResidencyRequest, STREAM_WINDOW, decide};

/// The bundle of a tiny model, and its operators with that many cores.
fn operators(name: &str, threads: usize) -> (Bundle, Vec<Operator>) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let packed = folder.path().join("model.fbay");
    convert(
        &support::tiny(name),
        &packed,
        &PackOptions::default(),
        &mut |_| {},
    )
    .expect("packed");
    let bundle = Bundle::open(&packed).expect("a sound file");
    let request = ResidencyRequest {
        weight_bytes: u64::MAX,
        threads,
        sparsity: Sparsity::Dense,
        pipeline: Pipeline::Cluster,
        stream_window: STREAM_WINDOW,
        neuron_cache: 0,
    };
    let plan = decide(&bundle, &request).expect("enough memory");
    let program = |rank| compile(&bundle, &plan, rank, Options::default());
    let programs: Vec<_> = (0..threads).map(program).collect();
    let operators = (0..programs[0].phases.len())
        .filter_map(|n| Operator::of_phase(&bundle, &programs, n))
        .collect::<Vec<_>>();
    (bundle, operators)
}

#[test]
fn operators_have_all_weights_once_however_many_cores_share_them() {
    for name in ["llama_k", "qwen2_mxfp4", "mixtral_f16"] {
        let (bundle, alone) = operators(name, 1);
        let (_, shared) = operators(name, 2);
        assert_eq!(alone, shared, "{name}");
        let computed =
            |e: &&forebay_models::bundle::DirectoryEntry| !matches!(e.content, Content::Table(_));
        let expected: f64 = bundle
            .clusters
            .iter()
            .filter(computed)
            .map(|e| f64::from(e.len))
            .sum();
        let bytes: f64 = alone.iter().map(|o| o.bytes).sum();
        // Clusters of neurons end with padding.
        assert!(
            bytes <= expected && bytes > 0.9 * expected,
            "{name}: {bytes} of {expected}"
        );
        let ffns = alone.iter().filter(|o| o.name.ends_with("ffn")).count();
        assert_eq!(ffns, bundle.meta.network.n_layers(), "{name}");
        assert!(
            alone
                .iter()
                .all(|o| o.operations > 0.0 && o.input_bytes > 0.0 && o.output_bytes > 0.0)
        );
    }
}

#[test]
fn a_token_uses_some_experts_and_a_large_batch_all() {
    let (bundle, operators) = operators("mixtral_f16", 1);
    let ffn = operators
        .iter()
        .find(|o| o.name.ends_with("ffn"))
        .expect("an FFN");
    let experts = bundle.meta.network.experts(0).expect("experts");
    let share = experts.used as f64 / experts.count as f64;
    assert!((ffn.used - share).abs() < 1e-9, "{} {share}", ffn.used);
    assert!(ffn.bytes_of(1000) > 0.99 * ffn.bytes);
    // Nothing of an f16 model is multiplied on a device.
    let machines = include_str!("../plans/src/placement/machines.json");
    let machines: Vec<PlacementMachine> = serde_json::from_str(machines).expect("sound data");
    for machine in machines {
        let plan = Placement::plan(&machine, &operators, 512);
        assert!(
            plan.choices.iter().all(|c| c.share == 0),
            "{}",
            machine.name
        );
    }
}
