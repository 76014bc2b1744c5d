//! Models made for speed work: their bytes are reproducible, and what is planted in them is what the real
//! computation finds.

mod synth_forward;

use forebay_models::block::BlockType;
use forebay_models::bundle::{Bundle, PackOptions, pack};
use forebay_models::gguf::{GgufSource, write_gguf};
use forebay_models::oracle::Oracle;
use forebay_models::synth::{FORMATS, Form, Planting, Shape, SynthOptions, SynthSource};
use forebay_models::tensor::{LayerTensor, TensorId, TensorSource};
use forebay_models::tokenizer::{EncodeOptions, Tokenizer};
use proptest::prelude::*;
use synth_forward::{Summary, observe};
use tempfile::TempDir;

fn tiny() -> SynthOptions {
    SynthOptions::new(Shape::named("tiny-sparse").unwrap())
}

fn source(options: &SynthOptions) -> SynthSource {
    SynthSource::new(options).unwrap()
}

fn whole(source: &dyn TensorSource, id: TensorId) -> Vec<u8> {
    let mut bytes = vec![0; source.meta(id).unwrap().bytes()];
    source.read(id, 0, &mut bytes).unwrap();
    bytes
}

/// Every kind of tensor of the first and the last layer, and those of no layer.
fn tensors(source: &dyn TensorSource) -> Vec<TensorId> {
    use LayerTensor as T;
    let layer = [
        T::AttnNorm, T::Q, T::K, T::V, T::O, T::FfnNorm, T::Gate, T::Up, T::Down, T::DownT,
        T::PredictorFc1, T::PredictorFc2,
    ];
    let last = source.config().n_layers - 1;
    let all = [TensorId::TokenEmbedding, TensorId::OutputNorm, TensorId::OutputHead];
    let layers = [0, last].into_iter().flat_map(|l| layer.map(|t| TensorId::Layer(l, t)));
    all.into_iter().chain(layers).filter(|&id| source.meta(id).is_some()).collect()
}

/// Ids of words, the same in every run.
fn random_tokens(source: &dyn TensorSource, n: u64) -> Vec<u32> {
    let first = 3 + 256;
    let words = source.config().vocab_size as u64 - first;
    let hash = |i: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    (0..n).map(|i| (first + hash(i * i + i) % words) as u32).collect()
}

proptest! {
    #[test]
    fn any_range_is_what_a_whole_read_has(
        which in any::<proptest::sample::Index>(),
        format in 0..FORMATS.len(),
        form in prop_oneof![Just(Form::Sparse), Just(Form::Plain)],
        at in any::<proptest::sample::Index>(),
        len in 0..3000usize,
    ) {
        let options = SynthOptions { format: FORMATS[format], form, ..tiny() };
        let source = source(&options);
        let ids = tensors(&source);
        let id = ids[which.index(ids.len())];
        let all = whole(&source, id);
        let start = at.index(all.len());
        let mut part = vec![0xa5; len.min(all.len() - start)];
        source.read(id, start, &mut part).unwrap();
        prop_assert_eq!(&part, &all[start..start + part.len()]);
    }
}

#[test]
fn a_seed_is_a_model() {
    let of = |seed| source(&SynthOptions { seed, ..tiny() });
    let (a, b, other) = (of(7), of(7), of(8));
    for id in tensors(&a) {
        assert_eq!(whole(&a, id), whole(&b, id), "{id:?}");
        let planted = a.meta(id).unwrap().rows > 1;
        assert_eq!(whole(&a, id) != whole(&other, id), planted, "{id:?}");
    }
    let gate = |l| TensorId::Layer(l, LayerTensor::Gate);
    assert_ne!(whole(&a, gate(0)), whole(&a, gate(1)));
}

#[test]
fn values_do_not_depend_on_the_format() {
    let of = |format| source(&SynthOptions { format, ..tiny() });
    let decoded = |source: &SynthSource, id| {
        let meta = source.meta(id).unwrap();
        let mut out = vec![0.0; meta.rows * meta.cols];
        forebay_models::block::dequantize(meta.block, &whole(source, id), &mut out);
        out
    };
    let [q4, q8, f16] = FORMATS.map(of);
    for id in tensors(&q4) {
        let x = decoded(&q4, id);
        assert_eq!(x, decoded(&q8, id), "{id:?}");
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= a.abs() / 1024.0 + 6e-8;
        assert!(x.iter().zip(&decoded(&f16, id)).all(near), "{id:?}");
    }
}

#[test]
fn what_is_planted_is_found() {
    let source = source(&tiny());
    let tokens = random_tokens(&source, 300);
    let activity = observe(&source, &tokens);
    for (l, layer) in activity.iter().enumerate() {
        let found = Summary::of(layer, 100);
        println!("layer {l}: {found:.3?}, FFN share {:.3}", layer.ffn_share);
    }
}

/// The same for a few layers of a real shape; takes minutes. `FOREBAY_SYNTH_SHAPE` names it.
#[test]
#[ignore = "a measurement of the large shapes, for whoever changes what is planted"]
fn statistics_of_a_large_shape() {
    let name = std::env::var("FOREBAY_SYNTH_SHAPE").unwrap_or("turbosparse-mistral-7b".into());
    let options = SynthOptions { layers: Some(2), ..SynthOptions::new(Shape::named(&name).unwrap()) };
    let source = source(&options);
    let tokens = random_tokens(&source, 400);
    for (l, layer) in observe(&source, &tokens).iter().enumerate() {
        let found = Summary::of(layer, 200);
        println!("layer {l}: {found:.3?}, FFN share {:.3}", layer.ffn_share);
    }
}
