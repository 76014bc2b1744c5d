//! Opening a model by its path: the format is recognised by the first bytes, and every other kind
//! of file by a message that says what to do with it.

mod gguf_writer;

use forebay_models::source;
use gguf_writer::Model;
use tempfile::TempDir;

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
    let part = error("big-00001-of-00003.gguf", &w.bytes());
    assert!(
        part.contains("split into 3 files") && part.contains("--merge"),
        "{part}"
    );
    let mut first = w.clone();
    first.set("split.count", 2);
    assert!(error("renamed-part.gguf", &first.bytes()).contains("split into 2 files"));

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
