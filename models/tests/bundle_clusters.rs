//! A packed file's clusters hold the source's rows, bit for bit: every kind, whole and short clusters,
//! every way in which weights are stored.

mod gguf_writer;

use forebay_models::block::BlockType::{
    self, BF16, F16, F32, IQ4_NL, Q2_K, Q4_0, Q4_K, Q5_0, Q5_1, Q6_K, Q8_0,
};
use forebay_models::block::{dequantize, quantize};
use forebay_models::bundle::{
    Bundle, DirectoryEntry, FfnGeometry, FfnLayout, NeuronSums, PackOptions, outline, pack,
};
use forebay_models::lanes::extract_row as extract_laned;
use forebay_models::network::Content;
use forebay_models::panel::{PANEL_ROWS, extract_row, panels_bytes};
use forebay_models::source;
use forebay_models::tensor::{LayerTensor, TensorId, TensorSource};
use gguf_writer::{GgufWriter, Model, Random};
use tempfile::TempDir;

/// A source and what was made of it.
struct Packed {
    source: Box<dyn TensorSource>,
    bundle: Bundle,
    _folder: TempDir,
}

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

fn packed(w: &GgufWriter) -> Packed {
    packed_with(w, &PackOptions::default())
}

fn packed_with(w: &GgufWriter, options: &PackOptions) -> Packed {
    let folder = TempDir::new().expect("a folder");
    let source = source::open(&w.write(folder.path(), "model.gguf")).expect("a sound source");
    let target = folder.path().join("model.fbay");
    pack(source.as_ref(), &target, options, &mut |_| {}).expect("packed");
    let bundle = Bundle::open(&target).expect("a sound bundle");
    check_outline(source.as_ref(), &bundle, options);
    Packed {
        source,
        bundle,
        _folder: folder,
    }
}

/// The outline of a source is its packed file, but for the weights and their checksums; it leaves no file.
fn check_outline(source: &dyn TensorSource, packed: &Bundle, options: &PackOptions) {
    let folder = TempDir::new().expect("a folder");
    let outlined = outline(source, &folder.path().join("out.fbay"), options).expect("outlined");
    let without_sums = |bundle: &Bundle| -> Vec<DirectoryEntry> {
        let entries = bundle.clusters.iter();
        entries.map(|e| DirectoryEntry { sum: 0, ..*e }).collect()
    };
    assert_eq!(without_sums(&outlined), without_sums(packed));
    assert_eq!(outlined.meta, packed.meta);
    assert_eq!(outlined.vectors.values(), packed.vectors.values());
    let left = std::fs::read_dir(folder.path()).expect("readable").count();
    assert_eq!(left, 0, "files stay");
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
        let target = folder.path().join("model.fbay");
        let options = PackOptions::default();
        pack(source.as_ref(), &target, &options, &mut |_| {}).expect("packed");
        let bundle = Bundle::open(&target).expect("a sound bundle");
        check_outline(source.as_ref(), &bundle, &options);
        n += 1;
    }
    assert!(n > 100, "{n} models");
}

impl Packed {
    /// Bytes of row `row` of a source matrix, from column `first` on, `n` columns.
    fn part(&self, id: TensorId, row: usize, (first, n): (usize, usize)) -> Vec<u8> {
        let meta = self.source.meta(id).expect("a tensor");
        let bytes = |cols| meta.block.row_bytes(cols).expect("whole blocks");
        let mut out = vec![0; bytes(n)];
        let at = row * meta.row_bytes() + bytes(first);
        self.source
            .read(id, at, &mut out)
            .expect("within the tensor");
        out
    }

    fn row(&self, id: TensorId, row: usize) -> Vec<u8> {
        self.part(id, row, (0, self.source.meta(id).expect("a tensor").cols))
    }

    /// Checks every cluster; returns what they hold.
    fn check(&self) -> Vec<Content> {
        let mut contents = Vec::new();
        for entry in &self.bundle.clusters {
            let mut bytes = Vec::new();
            self.bundle
                .read_cluster(entry, &mut bytes)
                .expect("a sound cluster");
            self.check_cluster(entry, &bytes);
            contents.push(entry.content);
        }
        contents.dedup();
        contents
    }

    fn check_cluster(&self, e: &DirectoryEntry, bytes: &[u8]) {
        let id = match e.content {
            Content::Rows(id) => id,
            Content::Table(id) => id,
            content @ (Content::Neurons(_) | Content::Experts(_)) => {
                let g = self.bundle.meta.geometry(content).expect("neurons");
                return match g.layout {
                    FfnLayout::Cluster => self.check_panels_of_ffn(g, e, bytes),
                    FfnLayout::Neuron | FfnLayout::GateFirst => self.check_neurons(g, e, bytes),
                };
            }
        };
        let (first, count) = (e.first as usize, e.count as usize);
        if matches!(e.content, Content::Table(_)) {
            let rows = (first..first + count).flat_map(|r| self.row(id, r));
            assert!(bytes.iter().copied().eq(rows), "{e:?}");
        } else {
            let rows = (first..first + count).map(|r| self.row(id, r));
            let block = self.source.meta(id).expect("a tensor").block;
            check_panels(block, bytes, rows, &format!("{e:?}"));
        }
    }

    fn check_panels_of_ffn(&self, g: &FfnGeometry, e: &DirectoryEntry, bytes: &[u8]) {
        let (layer, first, n) = (e.layer().unwrap_or(0), e.first as usize, e.count as usize);
        let (gate, rest) = bytes.split_at(g.gate_bytes(n));
        let (up, down) = rest.split_at(g.up_bytes(n));
        assert_eq!(down.len(), g.down_bytes(n));
        let network = &self.bundle.meta.network;
        let ((matrices, columns), (_, each)) = (
            network.neuron_matrices(e.content),
            network.neurons(e.content),
        );
        let up = g.up.map(|block| (matrices[1], block, up));
        let gate = Some((matrices[0], g.gate, gate));
        for (tensor, block, panels) in [gate, up].into_iter().flatten() {
            let rows = (first..first + n).map(|r| self.row(TensorId::Layer(layer, tensor), r));
            check_panels(block, panels, rows, &format!("{tensor:?} of {e:?}"));
        }
        // Down's columns are counted within an expert, whose rows follow those of the one before.
        let id = TensorId::Layer(layer, columns);
        let (expert, first) = (first / each, first % each);
        let rows = (0..g.d_model).map(|r| self.part(id, expert * g.d_model + r, (first, n)));
        check_panels(g.down, down, rows, &format!("Down of {e:?}"));
    }

    fn check_neurons(&self, g: &FfnGeometry, e: &DirectoryEntry, bytes: &[u8]) {
        let layer = e.layer().unwrap_or(0);
        let network = &self.bundle.meta.network;
        let ((matrices, columns), (_, each)) = (
            network.neuron_matrices(e.content),
            network.neurons(e.content),
        );
        let of_layer = |t| TensorId::Layer(layer, t);
        let down_t = of_layer(LayerTensor::DownT);
        let n = e.count as usize;
        assert_eq!(bytes.len(), g.cluster_bytes(n));
        for i in 0..n {
            let neuron = e.first as usize + i;
            let pair = g.pairs_offset(n) + i * g.pair_stride();
            let gate = self.row(of_layer(matrices[0]), neuron);
            let up = g.up.map(|block| {
                let row = self.row(of_layer(matrices[1]), neuron);
                (pair, row, block, g.has_laned_rows())
            });
            let down = if self.source.meta(down_t).is_some() {
                self.row(down_t, neuron)
            } else {
                // Down's columns are counted within an expert, whose rows follow those of the one before.
                let start = neuron / each * g.d_model;
                let element = |r| self.part(of_layer(columns), start + r, (neuron % each, 1));
                (0..g.d_model).flat_map(element).collect()
            };
            let gate = Some((i * g.gate_stride(), gate, g.gate, g.has_laned_rows()));
            let at = pair + g.down_offset() - g.up_offset();
            let down = Some((at, down, g.down, g.has_laned_columns()));
            for (at, row, block, is_laned) in [gate, up, down].into_iter().flatten() {
                let mut stored = bytes[at..at + row.len()].to_vec();
                if is_laned {
                    extract_laned(block, &bytes[at..at + row.len()], &mut stored);
                }
                assert!(stored == row, "neuron {neuron} of {e:?}");
            }
        }
    }
}

/// `panels` holds `rows` and fills up the last panel with zeros.
fn check_panels(block: BlockType, panels: &[u8], rows: impl Iterator<Item = Vec<u8>>, what: &str) {
    let rows: Vec<Vec<u8>> = rows.collect();
    let len = rows[0].len();
    let cols = len / block.block_bytes() * block.block_len();
    assert_eq!(
        Some(panels.len()),
        panels_bytes(block, rows.len(), cols),
        "{what}"
    );
    let missing = std::iter::repeat(vec![0; len]);
    let mut row = vec![0; len];
    for (p, panel) in panels.chunks_exact(PANEL_ROWS * len).enumerate() {
        let expected = rows
            .iter()
            .skip(p * PANEL_ROWS)
            .cloned()
            .chain(missing.clone());
        for (r, expected) in expected.take(PANEL_ROWS).enumerate() {
            extract_row(block, panel, r, &mut row);
            assert!(row == expected, "row {r} of panel {p} of {what}");
        }
    }
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
        let target = folder.path().join("model.fbay");
        let options = PackOptions::default();
        pack(source.as_ref(), &target, &options, &mut |_| {}).expect("packed");
        let packed = Packed {
            source,
            bundle: Bundle::open(&target).expect("a sound bundle"),
            _folder: folder,
        };
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
