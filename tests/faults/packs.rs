//! Packed files that are cut off, damaged or something else altogether, through the command line.

use std::path::Path;

use forebay_models::bundle::{FORMAT_VERSION, HOT_VERSION};

use crate::anatomy::{NAMES, section};
use crate::gguf_writer::Model;
use crate::program::{answer, forebay};
use crate::refusal::{refused, text};
use crate::scratch::Scratch;

/// A small packed model with separate head and embedding, in the neuron layout.
pub fn small_pack() -> Vec<u8> {
    let scratch = Scratch::new();
    let model = Model {
        tied_head: false,
        powerinfer: true,
        ..Model::default()
    };
    let source = model.writer().write(scratch.path(), "model.gguf");
    let target = scratch.join("model.fbay");
    let pack = forebay(
        scratch.path(),
        ["pack", "-q", text(&source), "-o", text(&target)],
    );
    assert!(answer(pack).status.success());
    std::fs::read(target).expect("packed")
}

fn run_refused(scratch: &Scratch, what: &str, bytes: &[u8], mentions: &[&str]) -> String {
    let path = scratch.write("model.fbay", bytes);
    let mut mentions = mentions.to_vec();
    mentions.push(text(&path));
    refused(
        scratch.path(),
        what,
        &["run", text(&path), "-p", "the other", "-n", "4", "-q"],
        &mentions,
    )
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    let (scratch, whole) = (Scratch::new(), small_pack());
    let mut lengths = vec![
        0,
        1,
        7,
        8,
        100,
        151,
        4095,
        4096,
        4097,
        whole.len() - 1,
        whole.len() - 4096,
    ];
    lengths.extend((0..5).flat_map(|i| {
        let (offset, len) = section(&whole, i);
        [offset, offset + len / 2]
    }));
    // In the middle of clusters, too.
    lengths.extend((1..8).map(|i| section(&whole, 0).0 * i / 8 + 1000));
    for len in lengths {
        run_refused(
            &scratch,
            &format!("cut off at {len}"),
            &whole[..len],
            &["pack the model again"],
        );
    }
    let mut longer = whole.clone();
    longer.extend([0; 4096]);
    run_refused(
        &scratch,
        "a page too long",
        &longer,
        &["file length", "again"],
    );
}

#[test]
fn a_flipped_bit_anywhere_is_refused() {
    let (scratch, whole) = (Scratch::new(), small_pack());
    let flipped = |at: usize, bit: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << bit;
        bytes
    };
    for (at, mention) in [
        (0, "this is not a packed file"),
        (8, "version"),
        (13, "header: its checksum"),
        (17, "header: its checksum"),
        (24, "header: its checksum"),
        (40, "header: its checksum"),
        (150, "header: its checksum"),
    ] {
        run_refused(
            &scratch,
            &format!("bit of header byte {at}"),
            &flipped(at, 5),
            &[mention],
        );
    }
    for (i, name) in NAMES.iter().enumerate() {
        let (offset, len) = section(&whole, i);
        for at in [offset, offset + len / 2, offset + len - 1] {
            run_refused(
                &scratch,
                &format!("{name} at {at}"),
                &flipped(at, 0),
                &[name, "checksum", "again"],
            );
        }
    }
    // Clusters are checked when they are loaded: all of them here, except the embedding, of which only what the prompt
    // needs is read. This small one is a single cluster.
    for entry in whole[section(&whole, 3).0..][..section(&whole, 3).1].chunks_exact(32) {
        let len = u32::from_le_bytes(entry[12..16].try_into().expect("4 bytes")) as usize;
        let offset = u64::from_le_bytes(entry[16..24].try_into().expect("8 bytes")) as usize;
        let what = format!("cluster of kind {} of layer {:?}", entry[0], &entry[2..4]);
        run_refused(
            &scratch,
            &what,
            &flipped(offset + len / 2, 3),
            &["cluster", "checksum", "again"],
        );
    }
}

#[test]
fn what_is_no_packed_file_is_refused() {
    let (scratch, whole) = (Scratch::new(), small_pack());
    let version = |version: u32| {
        let mut bytes = whole.clone();
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes
    };
    let others = [FORMAT_VERSION - 1, HOT_VERSION + 1];
    let [before, next] = others.map(version);
    let gguf = Model::default().writer().bytes();
    let zeros = vec![0; whole.len()];
    let refusals = others.map(|version| format!("version {version} is not supported"));
    let cases: [(&str, &[u8], &str); 6] = [
        ("empty", b"", "shorter than a page"),
        ("text", b"once upon a time", "shorter than a page"),
        ("a GGUF file by another name", &gguf, "not a packed file"),
        ("zeros", &zeros, "not a packed file"),
        ("the version before", &before, &refusals[0]),
        ("the next version", &next, &refusals[1]),
    ];
    for (what, bytes, mention) in cases {
        run_refused(&scratch, what, bytes, &[mention]);
    }
    let folder = scratch.folder("folder.fbay");
    let missing = scratch.join("missing.fbay");
    let under_a_file = scratch.write("file", "").join("model.fbay");
    let cases: [(&str, &Path, &str); 4] = [
        ("a folder", &folder, "not a regular file"),
        ("nothing", &missing, "No such file"),
        ("a path through a file", &under_a_file, "Not a directory"),
        (
            "a device",
            Path::new("/dev/null"),
            "neither a file nor a folder",
        ),
    ];
    for (what, path, mention) in cases {
        refused(
            scratch.path(),
            what,
            &["run", text(path), "-p", "x"],
            &[text(path), mention],
        );
        refused(
            scratch.path(),
            what,
            &["inspect", text(path)],
            &[text(path)],
        );
    }
    // A packed file is no source of a conversion.
    let (packed, out) = (
        scratch.write("whole.fbay", &whole),
        scratch.join("out.fbay"),
    );
    let arguments = ["pack", text(&packed), "-o", text(&out)];
    crate::refusal::refused_to_write(
        scratch.path(),
        "fbay to fbay",
        &arguments,
        &["packed model"],
        &out,
    );
}
