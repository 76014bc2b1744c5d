//! Tensors: missing, misshapen or too many; and their bytes.

use forebay_models::block::{BlockType, dequantize};
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};

use crate::gguf_writer::{GgufWriter, Model};
use crate::{open, opened, powerinfer, refused};

#[test]
fn a_missing_tensor_is_named() {
    let model = powerinfer("llama");
    for name in model.writer().tensors.iter().map(|t| t.name.clone()) {
        // Without output.weight the head is tied, which is a sound model; a layer without its
        // transposed down projection is told the usual name.
        let shown = match name.as_str() {
            "output.weight" => continue,
            n if n.contains("ffn_down_t") => n.replace("_t", ""),
            n => n.to_owned(),
        };
        refused(&model, |w| _ = w.remove(&name), &[&shown, "missing"]);
    }
}

#[test]
fn a_vocabulary_alone_is_no_model() {
    refused(
        &Model::default(),
        |w| w.tensors.clear(),
        &["a vocabulary but no weights"],
    );
}

#[test]
fn a_misshapen_tensor_is_named() {
    let model = powerinfer("llama");
    for t in &model.writer().tensors {
        // Half the elements: still inside the file.
        let halve = |w: &mut GgufWriter| w.tensor_mut(&t.name).dims[0] /= 2;
        let problem = if t.name.contains("fc2") {
            "the predictor's rank is 4 here and 8"
        } else {
            "the configuration asks for"
        };
        refused(&model, halve, &[&t.name, problem]);
    }
}

#[test]
fn tensors_that_would_be_ignored_are_refused() {
    let llama = Model::default();
    let extra = |name: &str, part: &str| {
        refused(
            &llama,
            |w| _ = w.tensor(name, 64, None, BlockType::F32, &[0.0; 64]),
            &[name, part],
        );
    };
    extra("blk.0.attn_output.bias", "not supported");
    extra("blk.0.ffn_up.bias", "not supported");
    extra("blk.0.attn_q_norm.weight", "not supported");
    extra("blk.00.ffn_norm.weight", "not supported");
    extra("output_norm.bias", "not supported");
    extra("blk.2.ffn_norm.weight", "only 2 layers");
    extra(
        "blk.1.attn_q.bias",
        "a bias where the model has none elsewhere",
    );

    let twice = |w: &mut GgufWriter| {
        w.tensor(
            "blk.1.ffn_down_t.weight",
            64,
            Some(96),
            BlockType::F32,
            &[0.0; 64 * 96],
        );
    };
    refused(&llama, twice, &["blk.1.ffn_down_t.weight", "there twice"]);
    // Rotary angles of old converters follow from the configuration.
    opened(|w| {
        _ = w.tensor(
            "blk.0.attn_rot_embd.weight",
            8,
            None,
            BlockType::F32,
            &[0.0; 8],
        )
    });
}

#[test]
fn norms_may_be_half_precision_but_not_quantised() {
    let replace = |block| {
        move |w: &mut GgufWriter| {
            w.remove("output_norm.weight");
            w.tensor("output_norm.weight", 64, None, block, &[1.0; 64]);
        }
    };
    opened(replace(BlockType::F16));
    refused(
        &Model::default(),
        replace(BlockType::Q8_0),
        &["output_norm.weight", "a Q8_0 vector is not supported"],
    );
}

#[test]
fn more_dimensions_are_fine_if_they_are_one() {
    let flat = opened(|w| w.tensor_mut("blk.0.ffn_up.weight").dims.extend([1, 1]));
    let up = flat.meta(TensorId::Layer(0, LayerTensor::Up)).unwrap();
    assert_eq!((up.rows, up.cols), (96, 64));
    let deep = |w: &mut GgufWriter| w.tensor_mut("blk.0.ffn_up.weight").dims = vec![64, 48, 2];
    refused(
        &Model::default(),
        deep,
        &["blk.0.ffn_up.weight", "[64, 48, 2]", "not supported"],
    );
}

#[test]
fn the_bytes_of_every_tensor_are_those_written() {
    for block in [BlockType::F16, BlockType::Q4_0, BlockType::Q8_0] {
        let model = Model {
            block,
            ..Model::default()
        };
        let w = model.writer();
        let source = open(&w).unwrap();
        let roles = [
            (TensorId::TokenEmbedding, "token_embd.weight"),
            (TensorId::OutputNorm, "output_norm.weight"),
            (
                TensorId::Layer(1, LayerTensor::Down),
                "blk.1.ffn_down.weight",
            ),
            (TensorId::Layer(0, LayerTensor::Q), "blk.0.attn_q.weight"),
        ];
        for (id, name) in roles {
            let written = &w.tensors.iter().find(|t| t.name == name).unwrap().data;
            let meta = source.meta(id).unwrap();
            assert_eq!(meta.bytes(), written.len(), "{name}");
            let mut bytes = vec![0; written.len()];
            source.read(id, 0, &mut bytes).unwrap();
            assert_eq!(&bytes, written, "{name}");
            // The last row alone.
            let at = meta.bytes() - meta.row_bytes();
            let mut row = vec![0; meta.row_bytes()];
            source.read(id, at, &mut row).unwrap();
            assert_eq!(row, written[at..], "{name}");
            let mut values = vec![f32::NAN; meta.cols];
            dequantize(meta.block, &row, &mut values);
            assert!(values.iter().all(|v| v.is_finite()));
            let beyond = source.read(id, at + 1, &mut row).unwrap_err().to_string();
            assert!(
                beyond.contains(name) && beyond.contains("outside"),
                "{beyond}"
            );
        }
        assert_eq!(source.meta(TensorId::OutputHead), None);
        let absent = source
            .read(TensorId::OutputHead, 0, &mut [])
            .unwrap_err()
            .to_string();
        assert!(absent.contains("output.weight"), "{absent}");
    }
}

#[test]
fn several_roles_may_share_a_tensor() {
    let plain = Model::default().writer();
    let part = |name: &str| {
        let found = plain.tensors.iter().find(|t| t.name == name);
        found.unwrap().clone()
    };
    let parts = [
        "blk.1.attn_q.weight",
        "blk.1.attn_k.weight",
        "blk.1.attn_v.weight",
    ]
    .map(part);
    let mut fused = plain.clone();
    parts.iter().for_each(|t| _ = fused.remove(&t.name));
    let mut whole = parts[0].clone();
    whole.name = "blk.1.attn_qkv.weight".into();
    whole.dims[1] = parts.iter().map(|t| t.dims[1]).sum();
    whole.data = parts.iter().flat_map(|t| t.data.clone()).collect();
    fused.tensors.push(whole);
    let source = open(&fused).unwrap();
    let roles = [LayerTensor::Q, LayerTensor::K, LayerTensor::V];
    for (role, part) in roles.into_iter().zip(&parts) {
        let id = TensorId::Layer(1, role);
        let meta = source.meta(id).unwrap();
        assert_eq!(
            (meta.rows, meta.bytes()),
            (part.dims[1] as usize, part.data.len())
        );
        let mut bytes = vec![0; meta.bytes()];
        source.read(id, 0, &mut bytes).unwrap();
        assert_eq!(bytes, part.data, "{role:?}");
        assert!(source.read(id, 1, &mut bytes).is_err());
    }
    let error = |w: &GgufWriter| open(w).err().unwrap();
    fused.tensor_mut("blk.1.attn_qkv.weight").dims[1] -= 1;
    let message = error(&fused);
    assert!(
        message.contains("attn_qkv.weight") && message.contains("asks for 128 rows"),
        "{message}"
    );
    let mut twice = plain.clone();
    twice.tensors.extend(fused.tensors.pop());
    twice.tensor_mut("blk.1.attn_qkv.weight").dims[1] += 1;
    assert!(error(&twice).contains("again"));
}
