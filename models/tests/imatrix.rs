//! Importance matrices: llama.cpp's files in both directions, bad files, and what packing does with them.

mod gguf_writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_models::block::BlockType::{self, F16, F32, IQ4_NL, Q4_0, Q5_0};
use forebay_models::block::{dequantize, quantize, quantize_weighed};
use forebay_models::bundle::{Bundle, PackOptions, Weighing, pack};
use forebay_models::importance::{Importance, InputSquares};
use forebay_models::importance::{read_imatrix, write_imatrix};
use forebay_models::network::Content;
use forebay_models::panel::{PANEL_ROWS, extract_row};
use forebay_models::source;
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};
use gguf_writer::{GgufWriter, Model, Random};
use tempfile::TempDir;

/// What `data/make_imatrix.py` writes with the Python package `gguf`.
const GOLDEN: &[u8] = include_bytes!("data/imatrix.gguf");

fn golden() -> Importance {
    let squares = |sums: &[f32], tokens: &[f32]| InputSquares {
        sums: sums.to_vec(),
        tokens: tokens.to_vec(),
    };
    let q = squares(&[1536.0, 0.0, 768.0, 384.0], &[1536.0]);
    let down = squares(&[8.0, 2.0, 0.0, 0.0, 0.5, 4.0], &[2.0, 0.0, 5.0]);
    let inputs = [
        ("blk.0.attn_q.weight", q),
        ("blk.0.ffn_down_exps.weight", down),
    ];
    Importance {
        datasets: vec!["wiki.train.raw".into(), "code.txt".into()],
        chunks: 3,
        chunk_tokens: 512,
        inputs: inputs.map(|(name, i)| (name.to_owned(), i)).into(),
        ..Importance::default()
    }
}

#[test]
fn files_are_those_of_llama_cpp() {
    let folder = TempDir::new().expect("a folder");
    let (theirs, ours) = (folder.path().join("theirs"), folder.path().join("ours"));
    std::fs::write(&theirs, GOLDEN).expect("written");
    let read = read_imatrix(&theirs).expect("their file");
    let path = theirs.clone();
    assert_eq!(read, Importance { path, ..golden() });
    write_imatrix(&read, &ours).expect("written");
    assert_eq!(std::fs::read(&ours).expect("readable"), GOLDEN);
}

#[test]
fn means_are_by_expert_and_at_most_1() {
    let golden = golden();
    let means = |name: &str| golden.inputs[name].means();
    assert_eq!(means("blk.0.attn_q.weight"), [1.0, 0.0, 0.5, 0.25]);
    let of_experts = means("blk.0.ffn_down_exps.weight");
    assert_eq!(of_experts, [1.0, 0.25, 0.0, 0.0, 0.125, 1.0]);
    assert_eq!(golden.inputs["blk.0.ffn_down_exps.weight"].unseen(), 1);
    let mut other = golden.clone();
    other
        .inputs
        .get_mut("blk.0.attn_q.weight")
        .expect("one")
        .sums[1] = 1.0;
    assert_ne!(other.checksum(), golden.checksum());
}

#[test]
fn bad_files_are_named_with_what_is_wrong() {
    let folder = TempDir::new().expect("a folder");
    let q = "blk.0.attn_q.weight";
    let sound = || {
        let mut w = GgufWriter::default();
        w.set("general.type", "imatrix");
        w.tensor(&format!("{q}.in_sum2"), 4, Some(1), F32, &[1.0; 4]);
        w.tensor(&format!("{q}.counts"), 1, Some(1), F32, &[8.0]);
        w
    };
    let read = |w: &GgufWriter| read_imatrix(&w.write(folder.path(), "m.gguf"));
    assert!(read(&sound()).is_ok());
    let refused = |change: &dyn Fn(&mut GgufWriter), parts: &[&str]| {
        let mut w = sound();
        change(&mut w);
        let message = read(&w).expect_err("a bad file").to_string();
        for part in parts.iter().chain(&["m.gguf"]) {
            assert!(message.contains(part), "{part}: {message}");
        }
    };
    let (sums, counts) = (format!("{q}.in_sum2"), format!("{q}.counts"));
    let put = |name: &'static str, value: f32| {
        move |w: &mut GgufWriter| {
            let name = format!("blk.0.attn_q.weight.{name}");
            w.tensor_mut(&name).data[..4].copy_from_slice(&value.to_le_bytes());
        }
    };
    refused(
        &|w| _ = w.unset("general.type"),
        &["general.type", "--importance"],
    );
    refused(
        &|w| _ = w.set("general.type", "model"),
        &["\"model\" instead of \"imatrix\""],
    );
    refused(&|w| _ = w.remove(&counts), &[&sums, "no counts"]);
    refused(&|w| w.tensors.clear(), &["tensor count"]);
    refused(
        &|w| w.tensor_mut(&sums).dims = vec![2, 2],
        &[&counts, "1 counts of 2 sums"],
    );
    refused(
        &|w| w.tensor_mut(&sums).type_id = 1,
        &[&sums, "F16 instead of F32"],
    );
    refused(
        &put("in_sum2", f32::NAN),
        &[&sums, "NaN is not a sum of squares"],
    );
    refused(&put("in_sum2", f32::INFINITY), &[&sums, "inf"]);
    refused(&put("in_sum2", -1.0), &[&sums, "-1 is not"]);
    refused(&put("counts", f32::NAN), &[&counts, "NaN"]);
    refused(&|w| w.magic = *b"\x01\0\0\0", &["magic"]);
    let cut = folder.path().join("cut.gguf");
    std::fs::write(&cut, &GOLDEN[..GOLDEN.len() - 64]).expect("written");
    let message = read_imatrix(&cut).expect_err("cut off").to_string();
    assert!(message.contains("end beyond the file"), "{message}");
}

/// A source, and sums of squares for every matrix of it that has inputs of its own.
struct Weighed {
    folder: TempDir,
    source: Box<dyn TensorSource>,
    importance: Importance,
}

impl Weighed {
    fn new(w: &GgufWriter, names: &[(&str, usize, usize)]) -> Self {
        let folder = TempDir::new().expect("a folder");
        let source = source::open(&w.write(folder.path(), "model.gguf")).expect("a sound source");
        let mut random = Random(11);
        let mut inputs = BTreeMap::new();
        for &(name, columns, experts) in names {
            let sums = random.values(columns * experts, 1.0, 0.0);
            let squares = InputSquares {
                sums: sums.iter().map(|v| v.powi(4)).collect(),
                tokens: vec![100.0; experts],
            };
            inputs.insert(name.to_owned(), squares);
        }
        let importance = Importance {
            path: "m.gguf".into(),
            inputs,
            ..Importance::default()
        };
        Self {
            folder,
            source,
            importance,
        }
    }

    fn options(&self, quant: BlockType) -> PackOptions {
        PackOptions {
            quant: Some(quant),
            importance: Some(Arc::new(self.importance.clone())),
            ..PackOptions::default()
        }
    }

    fn packed(&self, quant: BlockType) -> Bundle {
        let target = self.folder.path().join("model.fbay");
        let source = self.source.as_ref();
        pack(source, &target, &self.options(quant), &mut |_| {}).expect("packed");
        Bundle::open(&target).expect("a sound bundle")
    }

    /// Numbers of a row of the source.
    fn row(&self, id: TensorId, row: usize) -> Vec<f32> {
        let meta = self.source.meta(id).expect("a tensor");
        let mut bytes = vec![0; meta.row_bytes()];
        let read = self.source.read(id, row * bytes.len(), &mut bytes);
        read.expect("readable");
        let mut x = vec![0.0; meta.cols];
        dequantize(meta.block, &bytes, &mut x);
        x
    }

    fn refused(&self, parts: &[&str]) {
        let weighing = Weighing::of(self.source.as_ref(), &self.options(Q4_0), &self.importance);
        let target = self.folder.path().join("none.fbay");
        let options = self.options(Q4_0);
        let packed = pack(self.source.as_ref(), &target, &options, &mut |_| {});
        for message in [weighing.map(|_| ()), packed].map(|r| r.expect_err("refused").to_string()) {
            for part in parts {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
        assert!(!target.exists());
    }
}

fn bytes_of(bundle: &Bundle, content: Content, number: usize) -> Vec<u8> {
    let mut of_content = bundle.clusters.iter().filter(|e| e.content == content);
    let entry = of_content.nth(number).expect("a cluster");
    let mut bytes = Vec::new();
    bundle.read_cluster(entry, &mut bytes).expect("sound");
    bytes
}

/// The row in panels, and how it is encoded with and without regard to importance.
fn check_row(panels: &[u8], row: usize, block: BlockType, x: &[f32], importance: &[f32]) {
    let mut expected = vec![0; block.row_bytes(x.len()).expect("whole blocks")];
    let mut plain = expected.clone();
    quantize_weighed(block, x, importance, &mut expected);
    quantize(block, x, &mut plain);
    assert_ne!(expected, plain, "importance makes a difference");
    let mut stored = expected.clone();
    let panel = &panels[row / PANEL_ROWS * PANEL_ROWS * expected.len()..];
    extract_row(
        block,
        &panel[..PANEL_ROWS * expected.len()],
        row % PANEL_ROWS,
        &mut stored,
    );
    assert!(stored == expected, "row {row} as {block}");
}

#[test]
fn rows_are_quantised_by_their_columns() {
    let model = Model {
        tied_head: true,
        ..Model::default()
    };
    let (d, q, head) = (model.d_model, "blk.1.attn_q.weight", "token_embd.weight");
    let weighed = Weighed::new(&model.writer(), &[(q, d, 1), (head, d, 1)]);
    for quant in [Q4_0, Q5_0, IQ4_NL] {
        let bundle = weighed.packed(quant);
        for (name, id, row) in [
            (q, TensorId::Layer(1, LayerTensor::Q), 37),
            (head, TensorId::TokenEmbedding, 5),
        ] {
            let x = weighed.row(id, row);
            let importance = weighed.importance.inputs[name].means();
            let panels = bytes_of(&bundle, Content::Rows(id), 0);
            check_row(&panels, row, quant, &x, &importance);
        }
    }
    // All but these two: six matrices of each layer whose rows are written, less one.
    let options = weighed.options(Q4_0);
    let weighing = Weighing::of(weighed.source.as_ref(), &options, &weighed.importance);
    let weighing = weighing.expect("of this model");
    assert_eq!((weighing.matrices, weighing.missing.len()), (13, 11));
    assert!(weighing.missing.contains(&"blk.0.attn_q.weight".to_owned()));
    assert_eq!((weighing.unseen, weighing.foreign), (0, 0));
    // Nothing is searched for in Q8_0.
    let options = weighed.options(BlockType::Q8_0);
    let weighing = Weighing::of(weighed.source.as_ref(), &options, &weighed.importance);
    assert_eq!(weighing.expect("of this model").matrices, 0);
}

const EXPERTS: usize = 3;
const D_FF: usize = 96;

/// A model whose FFNs are experts.
fn with_experts() -> GgufWriter {
    let model = Model {
        d_ff: D_FF,
        block: F16,
        ..Model::default()
    };
    let mut w = model.writer();
    w.set("llama.expert_count", EXPERTS as u32);
    w.set("llama.expert_used_count", 2);
    let mut random = Random(7);
    for layer in 0..model.n_layers {
        let d = model.d_model;
        for (name, cols, rows) in [
            ("ffn_gate_exps", d, D_FF),
            ("ffn_up_exps", d, D_FF),
            ("ffn_down_exps", D_FF, d),
        ] {
            let name = format!("blk.{layer}.{name}.weight");
            let x = random.values(cols * rows * EXPERTS, 0.5, 0.0);
            w.tensor(&name, cols, Some(rows * EXPERTS), F16, &x);
            w.tensor_mut(&name).dims = vec![cols as u64, rows as u64, EXPERTS as u64];
        }
        let router = random.values(EXPERTS * d, 0.5, 0.0);
        let name = format!("blk.{layer}.ffn_gate_inp.weight");
        w.tensor(&name, d, Some(EXPERTS), F32, &router);
        for dense in ["gate", "up", "down"] {
            w.remove(&format!("blk.{layer}.ffn_{dense}.weight"));
        }
    }
    w
}

#[test]
fn every_expert_is_quantised_by_its_own_columns() {
    let (gate, down) = ("blk.1.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight");
    let d = Model::default().d_model;
    let names = [(gate, d, EXPERTS), (down, D_FF, EXPERTS)];
    let mut weighed = Weighed::new(&with_experts(), &names);
    let unseen = weighed.importance.inputs.get_mut(gate).expect("Gate");
    unseen.tokens[0] = 0.0;
    unseen.sums[..d].fill(0.0);
    let bundle = weighed.packed(Q4_0);
    let g = bundle.meta.experts[1].expect("experts");
    let id = |t| TensorId::Layer(1, t);
    for expert in 1..EXPERTS {
        let bytes = bytes_of(&bundle, Content::Experts(1), expert);
        let means = weighed.importance.inputs[gate].means();
        let x = weighed.row(id(LayerTensor::ExpertGate), expert * D_FF + 20);
        check_row(&bytes, 20, Q4_0, &x, &means[expert * d..][..d]);
        let means = weighed.importance.inputs[down].means();
        let x = weighed.row(id(LayerTensor::ExpertDown), expert * d + 33);
        let panels = &bytes[g.gate_bytes(D_FF) + g.up_bytes(D_FF)..];
        check_row(panels, 33, Q4_0, &x, &means[expert * D_FF..][..D_FF]);
    }
    // Nobody has seen the first one's inputs.
    let x = weighed.row(id(LayerTensor::ExpertGate), 20);
    let mut plain = vec![0; Q4_0.row_bytes(d).expect("whole blocks")];
    quantize(Q4_0, &x, &mut plain);
    let (bytes, mut row) = (bytes_of(&bundle, Content::Experts(1), 0), plain.clone());
    let panel = &bytes[PANEL_ROWS * plain.len()..][..PANEL_ROWS * plain.len()];
    extract_row(Q4_0, panel, 20 % PANEL_ROWS, &mut row);
    assert!(row == plain);
    let options = weighed.options(Q4_0);
    let weighing = Weighing::of(weighed.source.as_ref(), &options, &weighed.importance);
    let weighing = weighing.expect("of this model");
    assert_eq!((weighing.experts, weighing.unseen), (2 * EXPERTS, 1));
}

#[test]
fn importance_of_another_model_is_refused_or_said() {
    let (d, q) = (Model::default().d_model, "blk.0.attn_q.weight");
    let writer = Model::default().writer();
    Weighed::new(&writer, &[(q, d + 32, 1)]).refused(&["m.gguf", q, "96 columns", "1 of 64"]);
    Weighed::new(&writer, &[(q, d, 2)]).refused(&["m.gguf", q, "each of 2"]);
    Weighed::new(&writer, &[("blk.0.other.weight", d, 1)]).refused(&["none is of a matrix"]);
    let gate = "blk.0.ffn_gate_exps.weight";
    let few = Weighed::new(&with_experts(), &[(gate, d, EXPERTS - 1)]);
    few.refused(&[gate, "each of 2 matrices", "has 3 of 64"]);
    let more = Weighed::new(&writer, &[(q, d, 1), ("blk.7.attn_q.weight", d, 1)]);
    let options = more.options(Q4_0);
    let weighing = Weighing::of(more.source.as_ref(), &options, &more.importance);
    assert_eq!(weighing.expect("partly of this model").foreign, 1);
}
