//! Opening a model by its path: the format is recognised by the first bytes, and every other kind
//! of file by a message that says what to do with it.

mod gguf_writer;

use std::path::{Path, PathBuf};

use forebay_models::bundle::SourceIdentity;
use forebay_models::source;
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};
use gguf_writer::{GgufWriter, Model};
use tempfile::TempDir;

/// The model in two files; `change` may spoil them.
fn in_two(change: impl FnOnce(&mut [GgufWriter; 2])) -> (TempDir, PathBuf) {
    let mut first = Model::default().writer();
    let mut second = GgufWriter {
        tensors: first.tensors.split_off(first.tensors.len() / 2),
        ..GgufWriter::default()
    };
    first.set("split.count", 2).set("split.no", 0);
    second.set("split.count", 2).set("split.no", 1);
    let mut both = [first, second];
    change(&mut both);
    let folder = TempDir::new().unwrap();
    let [first, second] = both;
    second.write(folder.path(), "big-00002-of-00002.gguf");
    let path = first.write(folder.path(), "big-00001-of-00002.gguf");
    (folder, path)
}

#[test]
fn a_model_in_two_files_is_that_in_one() {
    let (folder, path) = in_two(|_| ());
    let split = source::open(&path).unwrap();
    let whole = Model::default().writer().write(folder.path(), "whole.gguf");
    let whole = source::open(&whole).unwrap();
    assert_eq!(split.network(), whole.network());
    for l in 0..2 {
        for t in [LayerTensor::Q, LayerTensor::Down] {
            let id = TensorId::Layer(l, t);
            let read = |source: &dyn TensorSource| {
                let mut bytes = vec![0; source.meta(id).unwrap().bytes()];
                source.read(id, 0, &mut bytes).unwrap();
                bytes
            };
            assert_eq!(read(split.as_ref()), read(whole.as_ref()));
        }
    }
    let before = SourceIdentity::of(&path).unwrap();
    let second = folder.path().join("big-00002-of-00002.gguf");
    let mut bytes = std::fs::read(&second).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&second, bytes).unwrap();
    assert_ne!(SourceIdentity::of(&path).unwrap(), before);
}

#[test]
fn parts_that_do_not_belong_together_are_named() {
    let error = |change: fn(&mut [GgufWriter; 2])| {
        let (_folder, path) = in_two(change);
        source::open(&path).err().unwrap().to_string()
    };
    let other = error(|[_, second]| _ = second.set("split.no", 2));
    assert!(
        other.contains("00002-of-00002.gguf") && other.contains("split.no"),
        "{other}"
    );
    let twice = error(|[first, second]| second.tensors.push(first.tensors[0].clone()));
    assert!(twice.contains("in two files"), "{twice}");
    let (folder, path) = in_two(|_| ());
    let second = folder.path().join("big-00002-of-00002.gguf");
    let part = source::open(&second).err().unwrap().to_string();
    assert!(part.contains("give NAME-00001-of-00002.gguf"), "{part}");
    std::fs::remove_file(&second).unwrap();
    let missing = source::open(&path).err().unwrap().to_string();
    assert!(missing.contains("00002-of-00002.gguf"), "{missing}");
    let missing = SourceIdentity::of(&path).err().unwrap().to_string();
    assert!(
        missing.contains("00002-of-00002.gguf") && missing.contains("download it"),
        "{missing}"
    );
}

/// Found by a test that left tensors out: without its head, a model ran with its embedding instead.
#[test]
fn all_tensors_of_all_parts_have_to_be_there() {
    let said = |tensors: usize, change: fn(&mut [GgufWriter; 2])| {
        let (folder, path) = in_two(|both| {
            both[0].set("split.tensors.count", tensors as u32);
            change(both);
        });
        let opened = source::open(&path).map(drop).map_err(|e| e.to_string());
        drop(folder);
        opened
    };
    let n = Model::default().writer().tensors.len();
    assert_eq!(said(n, |_| ()), Ok(()));
    for (tensors, change) in [
        (n + 1, (|_| ()) as fn(&mut [GgufWriter; 2])),
        (n, |[_, second]| {
            second.tensors.pop();
        }),
    ] {
        let message = said(tensors, change).unwrap_err();
        assert!(
            message.contains("00001-of-00002.gguf: split.tensors.count"),
            "{message}"
        );
    }
    let (_folder, path) = in_two(|[first, _]| {
        first.set("split.count", 3);
    });
    let message = source::open(&path).map(drop).unwrap_err().to_string();
    assert!(message.contains("number 0 of 3"), "{message}");
}

#[test]
fn the_kind_of_a_model_is_told_by_its_first_bytes() {
    let folder = TempDir::new().unwrap();
    let w = Model::default().writer();
    let source = source::open(&w.write(folder.path(), "no-extension")).unwrap();
    assert_eq!(source.network().d_model, 64);

    let error = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let message = source::open(&path).err().unwrap().to_string();
        assert!(message.contains(name), "{message}");
        message
    };
    assert!(error("empty.gguf", b"").contains("it is empty"));
    assert!(error("pytorch_model.bin", b"PK\x03\x04....").contains("PyTorch checkpoint"));
    assert!(error("renamed", b"\x80\x02}q").contains("PyTorch checkpoint"));
    assert!(error("model.safetensors", b"\x08\0\0\0\0\0\0\0{}      ").contains("give the folder"));
    assert!(error("config.json", b"{}   ").contains("a JSON file"));
    assert!(error("old.bin2", b"tjgg....").contains("before GGUF"));
    assert!(error("text.txt", b"hello world").contains("\"hell\" instead of \"GGUF\""));
    let mut first = w.clone();
    first.set("split.count", 2).set("split.no", 0);
    let part = error("renamed-part.gguf", &first.bytes());
    assert!(
        part.contains("one of 2 files") && part.contains("-00001-of-00002.gguf"),
        "{part}"
    );

    let missing = source::open(&folder.path().join("absent"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        missing.contains("absent") && missing.contains("cannot open"),
        "{missing}"
    );
    let empty_folder = TempDir::new().unwrap();
    let bare = source::open(empty_folder.path()).err().unwrap().to_string();
    assert!(
        bare.contains("config.json") && bare.contains(".gguf file"),
        "{bare}"
    );
}

/// As everything else that a packed file is made from.
#[test]
fn templates_are_part_of_a_folders_identity() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let identity = || SourceIdentity::of(folder.path()).unwrap();
    write("config.json", "{}");
    for name in [
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    ] {
        let without = identity();
        write(name, "old");
        let old = identity();
        write(name, "new");
        assert!(without != old && old != identity(), "{name}");
    }
    let before = identity();
    write("README.md", "nothing");
    assert_eq!(identity(), before);
}

/// As downloads are cached: the path in the identity leads to the same state.
#[test]
fn a_model_in_several_files_is_found_again_behind_links() {
    let (folder, path) = in_two(|_| ());
    let snapshot = folder.path().join("snapshot");
    std::fs::create_dir(&snapshot).unwrap();
    let link = |number: u32| {
        let name = format!("big-0000{number}-of-00002.gguf");
        let blob = folder.path().join(format!("blob{number}"));
        std::fs::rename(path.with_file_name(&name), &blob).unwrap();
        std::os::unix::fs::symlink(blob, snapshot.join(&name)).unwrap();
        name
    };
    let [first, _] = [1, 2].map(link);
    let identity = SourceIdentity::of(&snapshot.join(&first)).unwrap();
    let again = SourceIdentity::of(Path::new(&identity.path));
    assert_eq!(again.unwrap(), identity);
    // Whatever leads to their folder.
    let current = folder.path().join("current");
    std::os::unix::fs::symlink(&snapshot, &current).unwrap();
    assert_eq!(SourceIdentity::of(&current.join(&first)).unwrap(), identity);
}
