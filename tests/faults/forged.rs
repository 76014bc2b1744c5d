//! Packed files that were made by hand: every checksum is right, what it covers is not. The engine refuses them or runs
//! them, but it neither panics nor hangs nor dies.

use std::time::Duration;

use forebay::{Engine, Error, Request};
use serde_json::{Value, json};

use crate::anatomy::{Anatomy, NAMES};
use crate::packs::small_pack;
use crate::panics::without_panic;
use crate::scratch::Scratch;
use crate::watchdog::within;

fn generate(scratch: &Scratch, file: &Anatomy) -> Result<String, Error> {
    let path = scratch.write("forged.fbay", file.bytes());
    let engine = Engine::builder()
        .model(path)
        .threads(1)
        .context(32)
        .memory(1 << 30)
        .build()?;
    Ok(engine
        .session()
        .generate(Request::text("the other").max_tokens(2))?
        .finish()?
        .0)
}

/// Runs a forged file; it must not panic. Returns the message of a refusal.
fn run(scratch: &Scratch, what: &str, file: &Anatomy) -> Option<String> {
    without_panic(what, || generate(scratch, file))
        .err()
        .map(|e| e.to_string())
}

/// What every leaf of a JSON section is replaced with.
fn strange_values() -> [Value; 9] {
    [
        Value::Null,
        json!(0),
        json!(-1),
        json!(7),
        json!(1_u64 << 40),
        json!(u64::MAX),
        json!(1e300),
        json!("Q8_0"),
        json!([]),
    ]
}

/// Pointers to all leaves, and to the first elements of lists only: their elements are alike.
fn leaves(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields
                .iter()
                .for_each(|(name, v)| leaves(v, &format!("{at}/{name}"), found));
        }
        Value::Array(items) if !items.is_empty() => leaves(&items[0], &format!("{at}/0"), found),
        _ => found.push(at.to_string()),
    }
}

#[test]
fn strange_metadata_and_tokenizers_are_refused_or_run() {
    within(Duration::from_secs(60), || {
        let (scratch, sound) = (Scratch::new(), Anatomy::of(&small_pack()));
        assert_eq!(run(&scratch, "taken apart and put together", &sound), None);
        let (mut tried, mut refused) = (0, 0);
        for section in [0, 1] {
            let original = sound.json(section);
            let mut pointers = Vec::new();
            leaves(&original, "", &mut pointers);
            assert!(pointers.len() > 5, "{pointers:?}");
            for (pointer, strange) in pointers
                .iter()
                .flat_map(|p| strange_values().map(|v| (p, v)))
            {
                let (mut file, mut object) = (sound.clone(), original.clone());
                let what = format!("{} {pointer} = {strange}", NAMES[section]);
                *object.pointer_mut(pointer).expect("a leaf") = strange;
                file.set_json(section, &object);
                tried += 1;
                refused += usize::from(run(&scratch, &what, &file).is_some());
            }
        }
        eprintln!("{refused} of {tried} forgeries refused");
        assert!(refused > tried / 2, "{refused} of {tried}");
    });
}

#[test]
fn a_directory_that_points_elsewhere_is_refused() {
    let (scratch, sound) = (Scratch::new(), Anatomy::of(&small_pack()));
    let entries = sound.sections[3].len() / 32;
    // Kind, layer, first, count, length, offset.
    for (field, size) in [(0, 1), (2, 2), (4, 4), (8, 4), (12, 4), (16, 8)] {
        for entry in [0, entries / 2, entries - 1] {
            for value in [0_u64, 1, 100, 4097, 1 << 30, u64::MAX] {
                let mut file = sound.clone();
                let at = entry * 32 + field;
                let bytes = value.to_le_bytes();
                if file.sections[3][at..at + size] == bytes[..size] {
                    continue;
                }
                file.sections[3][at..at + size].copy_from_slice(&bytes[..size]);
                let what = format!("entry {entry}, byte {field} = {value}");
                let message = run(&scratch, &what, &file).unwrap_or_else(|| panic!("{what} runs"));
                assert!(message.contains("forged.fbay"), "{what}: {message}");
            }
        }
    }
    let mut swapped = sound.clone();
    let (first, second) = swapped.sections[3].split_at_mut(32);
    first.swap_with_slice(&mut second[..32]);
    assert!(run(&scratch, "swapped entries", &swapped).is_some());
}

#[test]
fn sections_of_another_length_are_refused() {
    let (scratch, sound) = (Scratch::new(), Anatomy::of(&small_pack()));
    for (section, name) in NAMES.iter().enumerate() {
        for len in [
            0,
            1,
            sound.sections[section].len() / 2,
            sound.sections[section].len() + 32,
        ] {
            let mut file = sound.clone();
            file.sections[section].resize(len, b'x');
            let what = format!("{name} of {len} bytes");
            let message = run(&scratch, &what, &file).unwrap_or_else(|| panic!("{what} runs"));
            assert!(message.contains("forged.fbay"), "{what}: {message}");
        }
    }
}

#[test]
fn weights_that_are_no_numbers_are_an_error_while_tokens_flow() {
    within(Duration::from_secs(30), || {
        let (scratch, sound) = (Scratch::new(), Anatomy::of(&small_pack()));
        for byte in [0xff, 0x7f, 0x7c] {
            let mut file = sound.clone();
            file.fill_clusters(byte);
            // The sums of neurons cover the same bytes; only streamed neurons are checked by them.
            let message = run(&scratch, &format!("weights of {byte:#x}"), &file);
            assert!(message.is_some(), "tokens out of weights of {byte:#x}");
        }
        let mut file = sound.clone();
        file.sections[2]
            .chunks_exact_mut(4)
            .for_each(|v| v.copy_from_slice(&f32::NAN.to_le_bytes()));
        assert!(run(&scratch, "norms of NaN", &file).is_some());
    });
}
