//! Packing while something else happens to the source or the target.

use std::path::Path;

use forebay::packed::{self, Preparation};
use forebay_models::bundle::{Bundle, PackOptions};

use crate::gguf_writer::Model;
use crate::scratch::{Scratch, names_in};

const OPTIONS: PackOptions = PackOptions {
    quant: None,
    neurons: false,
    importance: None,
};

/// Packs, and calls `meanwhile` once when the first bytes have been written.
pub fn pack_and(
    source: &Path,
    target: &Path,
    meanwhile: impl FnOnce(),
) -> Result<(), forebay::Error> {
    let mut meanwhile = Some(meanwhile);
    packed::convert(source, target, &OPTIONS, &mut |step| {
        if let (Preparation::Packing { .. }, Some(act)) = (step, meanwhile.take()) {
            act();
        }
    })
}

#[test]
fn a_source_that_changes_while_it_is_packed_is_refused() {
    let scratch = Scratch::new();
    let folder = scratch.folder("packed");
    let target = folder.join("out.fbay");
    let bytes = |seed| {
        Model {
            seed,
            ..Model::default()
        }
        .writer()
        .bytes()
    };
    let source = scratch.write("model.gguf", bytes(1));
    let changed = pack_and(&source, &target, || {
        std::fs::write(&source, bytes(2)).expect("writable")
    });
    let message = changed.expect_err("half of each model").to_string();
    assert!(
        message.contains("changed while it was being packed"),
        "{message}"
    );
    assert!(message.contains(&source.display().to_string()), "{message}");
    assert!(names_in(&folder).is_empty(), "{:?}", names_in(&folder));

    let cut = pack_and(&source, &target, || {
        let file = std::fs::File::options()
            .write(true)
            .open(&source)
            .expect("writable");
        file.set_len(1000).expect("shorter");
    });
    let message = cut.expect_err("half a model").to_string();
    assert!(message.contains(&source.display().to_string()), "{message}");
    assert!(names_in(&folder).is_empty(), "{:?}", names_in(&folder));

    scratch.write("model.gguf", bytes(1));
    pack_and(&source, &target, || {}).expect("an unchanged source");
    assert_eq!(names_in(&folder), ["out.fbay"]);
}

#[test]
fn two_packs_of_one_process_do_not_mix() {
    let scratch = Scratch::new();
    let folder = scratch.folder("packed");
    let target = folder.join("out.fbay");
    let source = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    pack_and(&source, &target, || {
        pack_and(&source, &target, || {}).expect("the inner one");
        Bundle::open(&target).expect("whole");
    })
    .expect("the outer one");
    Bundle::open(&target).expect("whole");
    assert_eq!(names_in(&folder), ["out.fbay"]);
}

#[test]
fn a_model_that_is_first_used_by_many_threads_at_once_is_right_for_all() {
    let scratch = Scratch::new();
    let folder = scratch.folder("cache");
    let source = Model::default()
        .writer()
        .write(scratch.path(), "model.gguf");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let bundle = packed::open(&source, Some(&folder), &OPTIONS, &mut |_| {});
                let bundle = bundle.expect("packed by one or the other");
                let mut bytes = Vec::new();
                for entry in &bundle.clusters {
                    bundle.read_cluster(entry, &mut bytes).expect("whole");
                }
            });
        }
    });
    assert_eq!(names_in(&folder).len(), 1, "{:?}", names_in(&folder));
}
