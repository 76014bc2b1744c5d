//! Sound models of unusual shapes: they run, or are refused, but nothing breaks.

use std::time::Duration;

use forebay::{Engine, Error, Request};
use forebay_models::block::BlockType;

use crate::gguf_writer::Model;
use crate::panics::without_panic;
use crate::scratch::Scratch;
use crate::watchdog::within;

/// Tokens of the model with a weight memory, or all the memory it wants.
fn tokens(scratch: &Scratch, weight_memory: Option<u64>) -> Result<Vec<u32>, Error> {
    let mut builder = Engine::builder()
        .model(scratch.join("model.gguf"))
        .cache_folder(scratch.path())
        .threads(crate::stage::threads())
        .context(32);
    if let Some(bytes) = weight_memory {
        builder = builder.weight_memory(bytes);
    }
    let engine = builder.build()?;
    let request = Request::text("the other").max_tokens(3);
    let request = request.ignore_eog(true);
    Ok(engine.session().generate(request)?.finish()?.1.tokens)
}

/// The message's figure of the minimum weight memory.
fn least_of(message: &str) -> u64 {
    let words: Vec<&str> = message.split(' ').collect();
    let at = words
        .iter()
        .rposition(|w| w.starts_with("bytes"))
        .expect("a number of bytes");
    words[at - 1].parse().expect("a number")
}

/// Width, heads, KV heads, head width, neurons, layers, tokens, format, PowerInfer's layout, tied head.
type Shape = (
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
    BlockType,
    bool,
    bool,
);

const SHAPES: [Shape; 11] = [
    (36, 3, 1, 12, 96, 2, 264, BlockType::F16, false, true),
    (64, 1, 1, 2, 96, 2, 264, BlockType::F16, false, true),
    (8, 8, 8, 4, 1, 2, 264, BlockType::F16, false, true),
    (64, 4, 2, 16, 65, 1, 264, BlockType::F16, false, true),
    (64, 4, 2, 16, 4097, 1, 264, BlockType::F16, false, false),
    (64, 4, 2, 16, 96, 2, 5003, BlockType::F32, false, true),
    (64, 4, 2, 16, 33, 17, 264, BlockType::F16, true, true),
    (64, 4, 2, 16, 1, 2, 264, BlockType::F16, true, false),
    // So narrow that a cluster could have thousands of neurons.
    (32, 2, 2, 16, 32_768, 1, 264, BlockType::Q4_0, false, true),
    (64, 4, 2, 16, 32, 3, 264, BlockType::Q4_0, false, false),
    (64, 4, 2, 24, 160, 2, 264, BlockType::Q4_0, true, true),
];

fn model(shape: Shape) -> Model {
    let (
        d_model,
        n_heads,
        n_kv_heads,
        head_dim,
        d_ff,
        n_layers,
        vocab,
        block,
        powerinfer,
        tied_head,
    ) = shape;
    Model {
        d_model,
        n_heads,
        n_kv_heads,
        head_dim,
        d_ff,
        n_layers,
        vocab,
        block,
        powerinfer,
        tied_head,
        ..Model::default()
    }
}

#[test]
fn odd_shapes_run_the_same_in_little_and_in_much_memory() {
    within(Duration::from_secs(60), || {
        for shape in SHAPES {
            let what = format!("{shape:?}");
            let scratch = Scratch::new();
            model(shape).writer().write(scratch.path(), "model.gguf");
            let right = without_panic(&what, || tokens(&scratch, None)).expect(&what);
            assert_eq!(right.len(), 3, "{what}");
            let refusal = without_panic(&what, || tokens(&scratch, Some(1))).expect_err(&what);
            let least = least_of(&refusal.to_string());
            for weights in [least, least * 3 / 2, least * 4] {
                let little = without_panic(&what, || tokens(&scratch, Some(weights)));
                assert_eq!(little.expect(&what), right, "{what} with {weights} bytes");
            }
        }
    });
}
