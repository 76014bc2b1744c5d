//! A packed file's clusters hold the source's rows, bit for bit: every kind, whole and short clusters,
//! every way in which weights are stored.

#[path = "../gguf_writer/mod.rs"]
mod gguf_writer;
mod hot;
mod packed;

use forebay_models::block::BlockType::{
    self, BF16, F16, F32, IQ4_NL, Q2_K, Q4_0, Q4_K, Q5_0, Q5_1, Q6_K, Q8_0,
};
use forebay_models::block::{dequantize, quantize};
use forebay_models::bundle::{FfnLayout, NeuronSums, PackOptions};
use forebay_models::lanes::extract_row as extract_laned;
use forebay_models::network::Content;
use forebay_models::panel::{PANEL_ROWS, extract_row};
use forebay_models::source;
use forebay_models::tensor::{LayerTensor, TensorId};
use gguf_writer::{GgufWriter, Model, Random};
use packed::{packed, packed_in, packed_with};
use tempfile::TempDir;

/// Gives the matrices whose names end in one of `names` the format `block`, with arbitrary bits.
fn reformat(w: &mut GgufWriter, names: &[&str], block: BlockType) {
    let mut random = Random(7);
    let matrices = w.tensors.iter_mut().filter(|t| t.dims.len() == 2);
    for t in matrices.filter(|t| names.iter().any(|n| t.name.ends_with(n))) {
        let bytes = block.row_bytes(t.dims[0] as usize).expect("whole blocks") * t.dims[1] as usize;
        t.type_id = block.ggml_id();
        t.data = (0..bytes).map(|_| random.bits() as u8).collect();
    }
}

#[test]
fn every_architecture_has_an_outline() {
    let tiny = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny");
    let mut n = 0;
    for entry in std::fs::read_dir(tiny).expect("readable") {
        let path = entry.expect("readable").path();
        let gguf = path.join("model.gguf");
        let path = if gguf.exists() { gguf } else { path };
        let Ok(source) = source::open(&path) else {
            continue;
        };
        let folder = TempDir::new().expect("a folder");
        packed_in(folder, source, &PackOptions::default());
        n += 1;
    }
    assert!(n > 100, "{n} models");
}

/// A model with short last clusters: 5003 tokens are no whole panels, 1056 neurons no whole clusters.
fn ragged(block: BlockType) -> Model {
    Model {
        d_ff: 1056,
        vocab: 5003,
        block,
        ..Model::default()
    }
}

#[test]
fn tied_heads_and_ffns_in_panels() {
    for block in [Q4_0, Q5_1, Q8_0] {
        let packed = packed(&ragged(block).writer());
        let head = Content::Rows(TensorId::TokenEmbedding);
        let layer = |l| {
            let attention = [
                LayerTensor::Q,
                LayerTensor::K,
                LayerTensor::V,
                LayerTensor::O,
            ];
            let rows = attention.map(|t| Content::Rows(TensorId::Layer(l, t)));
            rows.into_iter().chain([Content::Neurons(l)])
        };
        let expected: Vec<Content> = layer(0).chain(layer(1)).chain([head]).collect();
        assert_eq!(packed.check(), expected);
        let heads = packed.bundle.clusters.iter().filter(|e| e.content == head);
        assert!(heads.count() > 1, "rows are found by division");
        let g = packed.bundle.meta.ffns[0].expect("neurons");
        let neurons: Vec<u32> = packed
            .bundle
            .clusters
            .iter()
            .filter(|e| e.content == Content::Neurons(0))
            .map(|e| e.count)
            .collect();
        assert_eq!((g.layout, g.neurons), (FfnLayout::Cluster, 64));
        assert_eq!(neurons.last(), Some(&32), "the last cluster is short");
    }
}

#[test]
fn separate_embeddings_are_rows() {
    for block in [Q4_0, F16] {
        let model = Model {
            tied_head: false,
            ..ragged(block)
        };
        let packed = packed(&model.writer());
        let kinds = packed.check();
        assert_eq!(
            kinds[kinds.len() - 2..],
            [
                Content::Rows(TensorId::OutputHead),
                Content::Table(TensorId::TokenEmbedding)
            ]
        );
    }
}

#[test]
fn ffns_by_neuron_stay_rows() {
    let powerinfer = Model {
        powerinfer: true,
        ..ragged(Q4_0)
    };
    // 36 columns and rows: no whole panels anywhere.
    let odd = |block| Model {
        d_model: 36,
        n_heads: 3,
        n_kv_heads: 1,
        head_dim: 12,
        d_ff: 100,
        ..ragged(block)
    };
    for model in [powerinfer, odd(F16), odd(F32)] {
        let packed = packed(&model.writer());
        packed.check();
        assert!(
            packed
                .bundle
                .meta
                .geometries()
                .all(|g| g.layout == FfnLayout::Neuron)
        );
    }
}

#[test]
fn experts_are_in_clusters_of_their_own() {
    const EXPERTS: usize = 3;
    // 80 neurons are two blocks of 32 and a half.
    for (block, d_ff) in [(Q4_0, 96), (Q8_0, 64), (F16, 80)] {
        let model = Model {
            d_ff,
            block,
            ..Model::default()
        };
        let mut w = model.writer();
        w.set("llama.expert_count", EXPERTS as u32);
        w.set("llama.expert_used_count", 2);
        let mut random = Random(7);
        for layer in 0..model.n_layers {
            let d = model.d_model;
            let mut tensor = |name: &str, cols: usize, rows: usize| {
                let name = format!("blk.{layer}.{name}.weight");
                let mut of = |n: usize| -> Vec<f32> {
                    (0..n)
                        .map(|_| random.bits() as u8 as f32 / 64.0 - 2.0)
                        .collect()
                };
                let x = of(cols * rows);
                w.tensor(&name, cols, Some(rows), block, &x);
                w.tensor_mut(&name).dims =
                    vec![cols as u64, (rows / EXPERTS) as u64, EXPERTS as u64];
            };
            tensor("ffn_gate_exps", d, EXPERTS * d_ff);
            tensor("ffn_up_exps", d, EXPERTS * d_ff);
            tensor("ffn_down_exps", d_ff, EXPERTS * d);
            let router = vec![0.5; EXPERTS * d];
            let name = format!("blk.{layer}.ffn_gate_inp.weight");
            w.tensor(&name, d, Some(EXPERTS), BlockType::F32, &router);
            for dense in ["gate", "up", "down"] {
                w.remove(&format!("blk.{layer}.ffn_{dense}.weight"));
            }
        }
        let packed = packed(&w);
        let contents = packed.check();
        let meta = &packed.bundle.meta;
        for layer in 0..model.n_layers {
            assert!(contents.contains(&Content::Experts(layer)) && meta.ffns[layer].is_none());
            let g = meta.experts[layer].expect("experts");
            assert_eq!(g.layout, FfnLayout::Cluster);
            assert_eq!(g.neurons, d_ff.next_multiple_of(32));
            let clusters = packed.bundle.clusters.iter();
            let of_layer = clusters.filter(|e| e.content == Content::Experts(layer));
            assert_eq!(of_layer.count(), EXPERTS);
        }
    }
}

#[test]
fn experts_of_single_neurons_have_their_gates_first() {
    let tiny = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny");
    for name in [
        "smallthinker_bf16_gguf/model.gguf",
        "turbosparse_mixtral_bf16",
    ] {
        let source = source::open(&tiny.join(name)).expect("a sound source");
        let folder = TempDir::new().expect("a folder");
        let packed = packed_in(folder, source, &PackOptions::default());
        packed.check();
        let clusters = packed.bundle.clusters.iter().enumerate();
        let mut experts = clusters.filter(|(_, e)| matches!(e.content, Content::Experts(_)));
        let first = experts.next().expect("experts");
        let g = packed.bundle.meta.geometry(first.1.content);
        let g = g.expect("their storage");
        assert_eq!(g.layout, FfnLayout::GateFirst, "{name}");
        // Every neuron has checksums of its own, as read in its two parts.
        let (mut bytes, n) = (Vec::new(), first.1.count as usize);
        let read = packed.bundle.read_cluster(first.1, &mut bytes);
        read.expect("a sound cluster");
        for i in 0..n {
            let gate = &bytes[i * g.gate_stride()..][..g.gate_row()];
            let pair = &bytes[g.pairs_offset(n) + i * g.pair_stride()..][..g.up_down_bytes()];
            let sums = packed.bundle.neuron_sums(first.0, i);
            assert_eq!(sums, Some(NeuronSums::of(gate, pair)), "{name}: {i}");
        }
    }
}

#[test]
fn what_chooses_experts_is_never_quantised() {
    let tiny = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tiny");
    // Routers are F32 in the one, BF16 in the other.
    for name in ["qwen2_moe_bf16_gguf/model.gguf", "qwen2_moe_bf16"] {
        let source = source::open(&tiny.join(name)).expect("a sound source");
        let options = PackOptions {
            quant: Some(Q8_0),
            ..PackOptions::default()
        };
        let packed = packed_in(TempDir::new().expect("a folder"), source, &options);
        let mut kept = 0;
        for m in &packed.bundle.meta.matrices {
            let chooses = matches!(
                m.tensor,
                TensorId::Layer(_, LayerTensor::Router | LayerTensor::SharedGate)
            );
            let own = packed.source.meta(m.tensor).map(|meta| meta.block);
            let expected = if chooses { own } else { Some(Q8_0) };
            assert_eq!(Some(m.block), expected, "{name}: {:?}", m.tensor);
            kept += usize::from(chooses);
        }
        assert_eq!(kept, 2 * packed.source.network().n_layers(), "{name}");
    }
}

#[test]
fn ffns_without_a_gate_have_two_matrices() {
    for (block, layout) in [(Q4_0, FfnLayout::Cluster), (F16, FfnLayout::Neuron)] {
        let model = Model {
            arch: "arcee",
            ..ragged(block)
        };
        let mut w = model.writer();
        w.tensors.retain(|t| !t.name.ends_with("ffn_gate.weight"));
        let packed = packed(&w);
        packed.check();
        let g = packed.bundle.meta.ffns[1].expect("neurons");
        assert_eq!(
            (g.layout, g.gate, g.up, g.down),
            (layout, block, None, block)
        );
    }
}

#[test]
fn mixed_k_quants_with_a_short_last_cluster() {
    let model = Model {
        n_layers: 1,
        d_model: 256,
        d_ff: 8448,
        n_heads: 4,
        head_dim: 64,
        ..ragged(F16)
    };
    let mut w = model.writer();
    reformat(
        &mut w,
        &["attn_q.weight", "attn_k.weight", "attn_output.weight"],
        Q4_K,
    );
    reformat(&mut w, &["ffn_gate.weight", "ffn_up.weight"], Q4_K);
    reformat(
        &mut w,
        &["attn_v.weight", "ffn_down.weight", "token_embd.weight"],
        Q6_K,
    );
    let packed = packed(&w);
    packed.check();
    let meta = &packed.bundle.meta;
    let block = |id| meta.matrix(id).expect("a matrix").block;
    let of_layer = |t| block(TensorId::Layer(0, t));
    assert_eq!(of_layer(LayerTensor::Q), Q4_K);
    assert_eq!(of_layer(LayerTensor::V), Q6_K);
    assert_eq!(block(TensorId::TokenEmbedding), Q6_K);
    let last = packed
        .bundle
        .clusters
        .iter()
        .rfind(|e| e.content == Content::Neurons(0));
    assert!(meta.ffns[0].expect("neurons").neurons > 256 && last.expect("one").count == 256);
}

/// The numbers of a row.
fn decoded(block: BlockType, row: &[u8]) -> Vec<f32> {
    let mut x = vec![f32::NAN; row.len() / block.block_bytes() * block.block_len()];
    dequantize(block, row, &mut x);
    x
}

fn encoded(block: BlockType, x: &[f32]) -> Vec<u8> {
    let mut row = vec![0; block.row_bytes(x.len()).expect("whole blocks")];
    quantize(block, x, &mut row);
    row
}

#[test]
fn numbers_are_quantised_by_rows_and_down_by_columns() {
    // Rows of 192 are no whole blocks of 256.
    for (source, quant, d_model, stored) in [
        (F16, Q4_K, 256, Q4_K),
        (BF16, Q6_K, 256, Q6_K),
        (F32, Q2_K, 256, Q2_K),
        (F16, Q4_K, 192, Q5_0),
        (F16, Q6_K, 192, Q8_0),
        (F16, Q2_K, 192, IQ4_NL),
    ] {
        let model = Model {
            n_layers: 1,
            d_model,
            n_heads: d_model / 64,
            n_kv_heads: 1,
            head_dim: 64,
            d_ff: 512,
            vocab: 300,
            ..ragged(source)
        };
        let options = PackOptions {
            quant: Some(quant),
            ..PackOptions::default()
        };
        let packed = packed_with(&model.writer(), &options);
        let meta = &packed.bundle.meta;
        let g = meta.ffns[0].expect("neurons");
        assert_eq!(
            (g.layout, g.gate, g.up, g.down),
            (FfnLayout::Neuron, stored, Some(stored), stored)
        );
        assert!(meta.matrices.iter().all(|m| m.block == stored), "{quant}");
        let cluster = |content| {
            let entries = &packed.bundle.clusters;
            let entry = entries.iter().find(|e| e.content == content).expect("one");
            let mut bytes = Vec::new();
            let read = packed.bundle.read_cluster(entry, &mut bytes);
            read.expect("a sound cluster");
            bytes
        };
        let q = TensorId::Layer(0, LayerTensor::Q);
        let expected = encoded(stored, &decoded(source, &packed.row(q, 3)));
        let mut row = vec![0; expected.len()];
        let panel = &cluster(Content::Rows(q))[..PANEL_ROWS * row.len()];
        extract_row(stored, panel, 3, &mut row);
        assert!(row == expected, "row of {quant} from {source}");

        let down = TensorId::Layer(0, LayerTensor::Down);
        let column: Vec<u8> = (0..d_model)
            .flat_map(|r| packed.part(down, r, (5, 1)))
            .collect();
        let expected = encoded(stored, &decoded(source, &column));
        let bundle = &cluster(Content::Neurons(0))[5 * g.bundle_stride()..];
        let held = &bundle[g.down_offset()..][..g.down_column()];
        let mut row = held.to_vec();
        if g.has_laned_columns() {
            extract_laned(stored, held, &mut row);
        }
        assert!(row == expected, "column of {quant} from {source}");
    }
}
