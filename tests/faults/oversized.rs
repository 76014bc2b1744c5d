//! Huge files beside a model and in it: they are refused or ignored before they are read, whatever the budget is.

use std::path::Path;

use forebay_models::bundle::{checksum, hot_set_path};
use serde_json::Value;

use crate::anatomy::{NAMES, section};
use crate::packs::small_pack;
use crate::program::{answer, forebay};
use crate::refusal::{refused, text};
use crate::scratch::Scratch;

const GIB: u64 = 1 << 30;
/// Far more than a run of these models takes.
const MUCH: u64 = 200 << 20;

fn sparse(path: &Path, len: u64) {
    let file = std::fs::File::create(path).expect("writable");
    file.set_len(len).expect("a sparse file");
}

/// The most memory that a run took.
fn peak(scratch: &Scratch, model: &Path) -> u64 {
    let stats = scratch.join("stats.json");
    let mut run = forebay(scratch.path(), ["run", "-q", "-p", "the", "-n", "2"]);
    run.args([text(model), "--ctx", "64", "--stats", text(&stats)]);
    let said = answer(run);
    assert!(said.status.success(), "{}", said.stderr);
    let read = std::fs::read(&stats).expect("written");
    let statistics: Value = serde_json::from_slice(&read).expect("JSON");
    let peak = statistics.pointer("/memory/peak_rss_bytes");
    peak.and_then(Value::as_u64).expect("a number")
}

#[test]
fn huge_files_beside_a_model_are_not_read() {
    let scratch = Scratch::new();
    let model = scratch.write("model.fbay", small_pack());
    let profile = scratch.join("model.fbay.profile");
    let machine = scratch.join("machine.json");
    for path in [hot_set_path(&model), profile.clone(), machine] {
        sparse(&path, GIB);
        let peak = peak(&scratch, &model);
        assert!(peak < MUCH, "{}: {peak}", path.display());
        let _ = std::fs::remove_file(path);
    }
    let plan = scratch.join("plan.json");
    sparse(&plan, GIB);
    let planned = ["run", text(&model), "-p", "the", "--plan", text(&plan)];
    refused(scratch.path(), "plan", &planned, &[text(&plan), "at most"]);
    sparse(&profile, GIB);
    let out = scratch.join("out.fbay");
    let tiny = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/golden/tiny/llama_relu_f16"
    );
    let sorted = ["pack", tiny, "-o", text(&out), "--profile", text(&profile)];
    let mentions = [text(&profile), "at most"];
    refused(scratch.path(), "profile", &sorted, &mentions);
}

/// The sections' checksums are right: only their lengths are not what the model has.
#[test]
fn sections_longer_than_the_model_has_use_for_are_refused_before_they_are_read() {
    let (scratch, whole) = (Scratch::new(), small_pack());
    let zeros = checksum(&vec![0; GIB as usize]);
    for (i, name) in NAMES.iter().enumerate() {
        let mut file = whole.clone();
        let (at, end) = (24 + i * 24, whole.len() as u64);
        assert!(section(&whole, i).1 > 0);
        for (j, value) in [end, GIB, zeros].iter().enumerate() {
            file[at + j * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        file[16..24].copy_from_slice(&(end + GIB).to_le_bytes());
        let sums = 24 + 5 * 24;
        let sum = checksum(&file[..sums]);
        file[sums..sums + 8].copy_from_slice(&sum.to_le_bytes());
        let path = scratch.write("forged.fbay", file);
        let opened = std::fs::File::options().write(true).open(&path);
        opened
            .and_then(|file| file.set_len(end + GIB))
            .expect("a sparse file");
        let run = ["run", text(&path), "-p", "the"];
        let mentions = [*name, "at most", text(&path)];
        refused(scratch.path(), name, &run, &mentions);
    }
}
