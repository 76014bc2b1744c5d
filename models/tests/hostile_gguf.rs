//! Damaged and hostile GGUF files: an error that names the place, never a panic, never memory in
//! proportion to a number in the file.

mod gguf_writer;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_models::block::BlockType;
use forebay_models::gguf::Gguf;
use forebay_models::source::GgufSource;
use gguf_writer::{GgufWriter, Meta, Model, Random};
use proptest::prelude::*;
use tempfile::TempDir;

/// A container with a little of everything, small enough to damage at every byte.
fn small() -> GgufWriter {
    let mut w = GgufWriter::default();
    w.set("general.architecture", "llama");
    w.set("numbers", Meta::I32s(vec![1, -2, 3]));
    w.set("strings", Meta::Strs(vec!["a".into(), "bc".into()]));
    w.set("flag", Meta::Bool(true));
    w.tensor("first", 4, Some(3), BlockType::F32, &[1.0; 12]);
    w.tensor("second", 32, None, BlockType::Q8_0, &[0.5; 32]);
    w
}

fn open_error(bytes: &[u8]) -> String {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("hostile.gguf");
    std::fs::write(&path, bytes).unwrap();
    let message = Gguf::open(&path)
        .expect_err("a hostile file opened")
        .to_string();
    assert!(
        message.contains("hostile.gguf"),
        "the file is not named: {message}"
    );
    message
}

/// Asserts that the damaged container is refused with a message that has all `parts`.
fn refused(damage: impl FnOnce(&mut GgufWriter), parts: &[&str]) {
    let mut w = small();
    damage(&mut w);
    let message = open_error(&w.bytes());
    for part in parts {
        assert!(message.contains(part), "{part:?} is missing in: {message}");
    }
}

fn array(element_type: u32, count: u64, items: &[u8]) -> Meta {
    let mut b = element_type.to_le_bytes().to_vec();
    b.extend(count.to_le_bytes());
    b.extend(items);
    Meta::Raw(9, b)
}

#[test]
fn the_undamaged_file_opens() {
    let folder = TempDir::new().unwrap();
    let gguf = Gguf::open(&small().write(folder.path(), "good.gguf")).unwrap();
    assert_eq!(gguf.tensors().len(), 2);
    assert_eq!(gguf.metadata().strings("strings").unwrap(), ["a", "bc"]);
    assert_eq!(gguf.metadata().i32s("numbers").unwrap(), [1, -2, 3]);
    let mut row = [0; 16];
    gguf.read(&gguf.tensors()[0], 32, &mut row).unwrap();
    assert_eq!(row, [1f32.to_le_bytes(); 4].concat()[..]);
    assert!(gguf.read(&gguf.tensors()[0], 33, &mut row).is_err());
    assert!(gguf.read(&gguf.tensors()[0], u64::MAX, &mut row).is_err());
}

#[test]
fn names_and_keys_cannot_steer_the_terminal_or_fill_it() {
    let long = format!("\u{1b}[2J{}\u{202e}", "x".repeat(1 << 20));
    let damages: [fn(&mut GgufWriter, &str); 3] = [
        |w, name| {
            w.set(name, 1u32);
            let entry = w.metadata[w.metadata.len() - 1].clone();
            w.metadata.push(entry);
        },
        |w, name| _ = w.set(name, Meta::Raw(99, vec![])),
        |w, name| {
            w.tensor(name, 4, None, BlockType::F32, &[0.0; 4]);
            w.tensors.last_mut().expect("just added").type_id = 77;
        },
    ];
    for damage in damages {
        let mut w = small();
        damage(&mut w, &long);
        let message = open_error(&w.bytes());
        assert!(message.contains("\\u{1b}[2Jxx"), "{message:.300}");
        assert!(!message.contains(['\u{1b}', '\u{202e}']));
        assert!(message.len() < 2000, "{} bytes", message.len());
    }
}

#[test]
fn foreign_files_are_told_apart() {
    assert!(open_error(b"").contains("magic"));
    assert!(open_error(b"GGU").contains("magic"));
    refused(|w| w.magic = *b"PK\x03\x04", &["magic", "PK\\x03\\x04"]);
    for old in [b"lmgg", b"tjgg"] {
        refused(|w| w.magic = *old, &["before GGUF", "convert_hf_to_gguf"]);
    }
    refused(|w| w.version = 1, &["version 1", "not supported"]);
    refused(|w| w.version = 4, &["version 4", "not supported"]);
    refused(|w| w.version = 0, &["version 0", "not supported"]);
    refused(
        |w| w.version = 3u32.swap_bytes(),
        &["big-endian", "gguf-convert-endian"],
    );
}

#[test]
fn paths_that_are_no_files_are_errors() {
    let folder = TempDir::new().unwrap();
    let missing = Gguf::open(&folder.path().join("absent.gguf"))
        .unwrap_err()
        .to_string();
    assert!(
        missing.contains("absent.gguf") && missing.contains("cannot open"),
        "{missing}"
    );
    let not_file = Gguf::open(folder.path()).unwrap_err().to_string();
    assert!(not_file.contains("not a regular file"), "{not_file}");
}

/// 26 million tokens took 1.6 GB, and as many keys or tensors would take more.
#[test]
fn counts_beyond_any_model_are_errors() {
    let zeros = |n: usize| vec![0; n];
    let tokens = array(8, 26_000_000 / 8, &zeros(26_000_000));
    let key = "tokenizer.ggml.tokens";
    refused(
        |w| _ = w.set(key, tokens),
        &[key, "3250000 strings", "convert"],
    );
    // In several arrays.
    let many = || array(8, 1 << 20, &zeros(8 << 20));
    let arrays = |w: &mut GgufWriter| {
        for key in ["a", "b", "c"] {
            w.set(key, many());
        }
    };
    refused(arrays, &["b: 1048576 strings exceed the 1048574 accepted"]);
    for (counts, field) in [
        ((100_000, 5), "tensor count"),
        ((2, 100_000), "metadata count"),
    ] {
        let damage = |w: &mut GgufWriter| {
            w.tensor("large", 1 << 20, None, BlockType::F32, &vec![0.0; 1 << 20]);
            w.forced_counts = Some(counts);
        };
        refused(damage, &[field, "100000", "65536 accepted"]);
    }
}

#[test]
fn counts_beyond_the_file_are_errors() {
    for huge in [u64::MAX, 1 << 61, 1 << 40, 1 << 20] {
        refused(
            |w| w.forced_counts = Some((huge, 4)),
            &["tensor count", "bytes left"],
        );
        refused(
            |w| w.forced_counts = Some((2, huge)),
            &["metadata count", "bytes left"],
        );
        for element_type in 0..=12 {
            if element_type != 9 {
                let value = array(element_type, huge, b"");
                refused(|w| _ = w.set("flag", value), &["flag", "bytes left"]);
            }
        }
        let string = Meta::Raw(8, huge.to_le_bytes().to_vec());
        refused(|w| _ = w.set("flag", string), &["flag", "bytes left"]);
    }
    refused(|w| w.forced_counts = Some((2, 5)), &["hostile.gguf"]);
    refused(|w| w.forced_counts = Some((3, 4)), &["hostile.gguf"]);
}

#[test]
fn hostile_counts_claim_no_memory() {
    let peak = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|l| l.starts_with("VmPeak:")).unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            << 10
    };
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("sparse.gguf");
    let before = peak();
    // A sparse file makes huge counts plausible: 64 GiB of zeros follow the header.
    for (element_type, count) in [(0, 1u64 << 35), (12, 1 << 32), (8, 1 << 32)] {
        let mut w = small();
        w.set("flag", array(element_type, count, b""));
        std::fs::write(&path, w.header()).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(64 << 30)
            .unwrap();
        let message = Gguf::open(&path).unwrap_err().to_string();
        assert!(message.contains("largest header accepted"), "{message}");
    }
    // Address space grows by 32 GiB if a count is believed; other tests account for some.
    assert!(peak() - before < 4 << 30, "{} bytes", peak() - before);
}

#[test]
fn values_of_unknown_shape_are_errors() {
    refused(
        |w| _ = w.set("flag", Meta::Raw(13, vec![0; 8])),
        &["flag", "unknown value type 13"],
    );
    refused(
        |w| _ = w.set("flag", Meta::Raw(u32::MAX, vec![])),
        &["flag", "unknown value type"],
    );
    refused(
        |w| _ = w.set("flag", array(13, 1, b"x")),
        &["flag", "unknown array element type 13"],
    );
    refused(
        |w| _ = w.set("flag", array(9, 1, b"")),
        &["flag", "array of arrays"],
    );
    refused(
        |w| _ = w.set("flag", Meta::Raw(7, vec![2])),
        &["flag", "2 is not a boolean"],
    );
    refused(
        |w| _ = w.set("flag", array(7, 2, &[1, 7])),
        &["flag", "7 is not a boolean"],
    );
}

#[test]
fn names_occur_once() {
    let twice = ("flag".to_owned(), Meta::Bool(false));
    refused(|w| w.metadata.push(twice), &["flag", "occurs twice"]);
    refused(
        |w| w.tensor_mut("second").name = "first".into(),
        &["first", "occurs twice"],
    );
}

#[test]
fn text_must_be_utf_8_but_tokens_need_not() {
    let bad = [&2u64.to_le_bytes()[..], b"\xff\xfe"].concat();
    refused(
        |w| _ = w.set("flag", Meta::Raw(8, bad.clone())),
        &["flag", "not UTF-8"],
    );
    refused(
        |w| _ = w.set("flag", array(8, 1, &bad)),
        &["flag", "not UTF-8"],
    );
    let mut bytes = small().bytes();
    let at = bytes.windows(4).position(|w| w == b"flag").unwrap();
    bytes[at] = 0xff;
    assert!(open_error(&bytes).contains("not UTF-8"));

    let folder = TempDir::new().unwrap();
    let mut w = small();
    w.set("tokenizer.ggml.tokens", array(8, 1, &bad));
    let gguf = Gguf::open(&w.write(folder.path(), "tokens.gguf")).unwrap();
    let tokens = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!(tokens, ["\u{fffd}\u{fffd}"]);
}

#[test]
fn impossible_tensor_shapes_are_errors() {
    for dims in [vec![], vec![1; 5]] {
        refused(
            |w| w.tensor_mut("first").dims = dims,
            &["first", "dimensions, expected 1 to 4"],
        );
    }
    refused(
        |w| w.tensor_mut("first").dims = vec![4, 0],
        &["first", "a dimension of 0"],
    );
    for dims in [
        vec![1 << 62],
        vec![1 << 32, 1 << 32],
        vec![1 << 16; 4],
        vec![4, 1 << 60],
    ] {
        refused(
            |w| w.tensor_mut("first").dims = dims,
            &["first", "overflows"],
        );
    }
    refused(
        |w| w.tensor_mut("first").dims = vec![4, 1 << 50],
        &["first", "end beyond the file"],
    );
    refused(
        |w| w.tensor_mut("second").dims = vec![31],
        &["second", "not whole Q8_0 blocks"],
    );
    refused(
        |w| w.tensor_mut("second").dims = vec![64],
        &["second", "end beyond the file"],
    );
}

#[test]
fn unknown_tensor_types_are_named() {
    for (id, name) in [
        (18, "IQ3_XXS"),
        (40, "NVFP4"),
        (4, "removed"),
        (1000, "unknown"),
    ] {
        let id_text = format!("tensor type {id}");
        refused(
            |w| w.tensor_mut("first").type_id = id,
            &["first", &id_text, name, "Q4_K", "IQ4_XS"],
        );
    }
}

#[test]
fn tensor_data_lie_aligned_apart_and_inside_the_file() {
    let forced =
        |offset| move |w: &mut GgufWriter| w.tensor_mut("second").forced_offset = Some(offset);
    refused(
        forced(65),
        &["second", "not a multiple of the alignment 32"],
    );
    refused(forced(1 << 20), &["second", "end beyond the file"]);
    refused(forced(u64::MAX - 31), &["second", "end beyond the file"]);
    refused(forced(0), &["overlap"]);
    refused(forced(32), &["first", "overlap", "second"]);
}

#[test]
fn alignment_is_a_power_of_two() {
    for bad in [0, 3, 48] {
        refused(
            |w| _ = w.set("general.alignment", bad),
            &["general.alignment", "power of two"],
        );
    }
    refused(
        |w| _ = w.set("general.alignment", "32"),
        &["general.alignment"],
    );
    refused(
        |w| _ = w.set("general.alignment", 1 << 31),
        &["end beyond the file"],
    );
    let folder = TempDir::new().unwrap();
    let mut w = small();
    w.alignment = 128;
    w.set("general.alignment", 128);
    let gguf = Gguf::open(&w.write(folder.path(), "wide.gguf")).unwrap();
    assert!(gguf.tensors().iter().all(|t| t.start.is_multiple_of(128)));
}

/// Opens as container and as model; what counts is that both return.
fn survives(path: &Path) {
    let container = Gguf::open(path);
    let model = GgufSource::open(path);
    assert!(
        container.is_ok() || model.is_err(),
        "a model in a broken container"
    );
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    let folder = TempDir::new().unwrap();
    let w = small();
    let path = w.write(folder.path(), "cut.gguf");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let data_start = w.header().len().next_multiple_of(32);
    let end_of_data = data_start + 64 + 34;
    Gguf::open(&path).unwrap();
    for len in (0..end_of_data as u64).rev() {
        file.set_len(len).unwrap();
        assert!(Gguf::open(&path).is_err(), "opened with {len} bytes");
    }
}

#[test]
fn a_model_cut_anywhere_is_an_error() {
    let folder = TempDir::new().unwrap();
    let model = Model {
        n_layers: 1,
        ..Model::default()
    };
    let w = model.writer();
    let path = w.write(folder.path(), "cut.gguf");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    GgufSource::open(&path).unwrap();
    for len in (0..=w.header().len() as u64).rev() {
        file.set_len(len).unwrap();
        assert!(GgufSource::open(&path).is_err(), "opened with {len} bytes");
    }
}

#[test]
fn any_flipped_bit_of_a_header_is_survived() {
    let folder = TempDir::new().unwrap();
    let model = Model {
        n_layers: 1,
        powerinfer: true,
        predictor_rank: Some(8),
        ..Model::default()
    };
    for w in [small(), model.writer()] {
        let bytes = w.bytes();
        let path = w.write(folder.path(), "flip.gguf");
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for (at, &byte) in w.header().iter().enumerate() {
            // Every bit of the small file; of the large one a bit per byte, for time's sake.
            let bits = if bytes.len() < 1 << 10 {
                0..8
            } else {
                at % 8..at % 8 + 1
            };
            for bit in bits {
                file.write_all_at(&[byte ^ (1 << bit)], at as u64).unwrap();
                survives(&path);
            }
            file.write_all_at(&[byte], at as u64).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn several_random_bytes_in_a_header_are_survived(seed in any::<u64>(), count in 1..16usize) {
        let folder = TempDir::new().unwrap();
        let w = small();
        let mut bytes = w.bytes();
        let mut random = Random(seed);
        for _ in 0..count {
            let at = 4 + random.bits() as usize % (w.header().len() - 4);
            bytes[at] = random.bits() as u8;
        }
        let path = folder.path().join("noise.gguf");
        std::fs::write(&path, bytes).unwrap();
        survives(&path);
    }
}
