//! Packed files with hot neurons.

use forebay_models::block::BlockType::{self, F16, F32, Q4_0, Q4_K, Q8_0};
use forebay_models::bundle::{Bundle, FfnLayout, PackOptions, pack};
use forebay_models::network::Content;
use forebay_models::sorted::{SortedNeurons, hot_first};
use forebay_models::source;
use tempfile::TempDir;

use crate::gguf_writer::Model;
use crate::packed::packed_in;
use crate::ragged;

/// A model with layers that have some hot neurons each, as a source.
fn sorted(model: &Model, folder: &TempDir, hot: &[usize]) -> SortedNeurons {
    let source = model.writer().write(folder.path(), "model.gguf");
    let source = source::open(&source).expect("a sound source");
    let counts = |layer: usize| {
        (0..model.d_ff)
            .map(|i| (i * (7 + layer) % 1031) as u32)
            .collect()
    };
    let counts: Vec<Vec<u32>> = (0..model.n_layers).map(counts).collect();
    SortedNeurons::new(source, hot_first(&counts, hot), hot).expect("an order")
}

#[test]
fn hot_neurons_are_in_panels_beside_single_ones() {
    let powerinfer = |block| Model {
        powerinfer: true,
        ..ragged(block)
    };
    let plain = |block| ragged(block);
    let cases = [
        (powerinfer(Q4_0), None, Q8_0),
        (powerinfer(F16), None, F16),
        (plain(F32), None, F32),
        (plain(F16), Some(Q8_0), Q8_0),
        // No whole blocks of 256 in clusters of 32 neurons.
        (plain(F16), Some(Q4_K), BlockType::Q5_0),
    ];
    for (model, quant, down) in cases {
        let folder = TempDir::new().expect("a folder");
        let source = Box::new(sorted(&model, &folder, &[96, 0]));
        let options = PackOptions {
            quant,
            ..PackOptions::default()
        };
        let requantised = quant.is_some();
        let packed = match requantised {
            false => packed_in(folder, source, &options),
            true => {
                // Its rows are not the source's: only that it is stored, and how.
                let target = folder.path().join("model.fbay");
                pack(source.as_ref(), &target, &options, &mut |_| {}).expect("packed");
                let bundle = Bundle::open(&target).expect("a sound bundle");
                let hot = bundle.meta.hot[0].expect("hot neurons");
                assert_eq!((hot.layout, hot.down), (FfnLayout::Cluster, down));
                continue;
            }
        };
        let contents = packed.check();
        assert!(
            contents.contains(&Content::HotNeurons(0)) && contents.contains(&Content::Neurons(0))
        );
        assert!(!contents.contains(&Content::HotNeurons(1)));
        let hot = packed.bundle.meta.hot[0].expect("hot neurons");
        assert_eq!((hot.layout, hot.down), (FfnLayout::Cluster, down));
        let clusters = packed.bundle.clusters.iter();
        let first = |content| {
            clusters
                .clone()
                .find(|e| e.content == content)
                .map(|e| e.first)
        };
        assert_eq!(first(Content::HotNeurons(0)), Some(0));
        assert_eq!(first(Content::Neurons(0)), Some(96));
        assert_eq!(first(Content::Neurons(1)), Some(0));
    }
}

#[test]
fn gates_of_hot_neurons_are_read_with_the_others() {
    let folder = TempDir::new().expect("a folder");
    let model = ragged(F32);
    let target = folder.path().join("hot.fbay");
    let source = sorted(&model, &folder, &[64, 128]);
    pack(&source, &target, &PackOptions::default(), &mut |_| {}).expect("packed");
    let hot = Bundle::open(&target).expect("a sound bundle");
    let source = sorted(&model, &folder, &[0, 0]);
    pack(&source, &target, &PackOptions::default(), &mut |_| {}).expect("packed");
    let plain = Bundle::open(&target).expect("a sound bundle");
    let sums = |gate: Vec<f32>| {
        let rows = gate.chunks_exact(model.d_model);
        let mut sums: Vec<u32> = rows.map(|row| row.iter().sum::<f32>().to_bits()).collect();
        sums.sort_unstable();
        sums
    };
    for layer in 0..model.n_layers {
        let [hot, plain] = [&hot, &plain].map(|bundle| bundle.read_gate(layer).expect("readable"));
        assert_eq!(sums(hot), sums(plain));
    }
}
