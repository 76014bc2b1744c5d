//! Nobody outside `models/src/arch` asks which architecture a model has: there, one file each; elsewhere, what the
//! model's description says. Tokenizers have names of their own, which may be the same.

use std::path::Path;

/// Where a name of an architecture is allowed.
const ALLOWED: [&str; 2] = ["models/src/arch/", "models/src/tokenizer/"];

/// The words in quotes that each file of `models/src/arch` registers as names of an architecture.
fn names(arch: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let entries = std::fs::read_dir(arch).expect("models/src/arch");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    for path in paths.filter(|path| path.is_file()) {
        let text = std::fs::read_to_string(path).expect("UTF-8");
        let registered = text.lines().filter(|line| {
            let line = line.trim_start();
            line.starts_with("gguf: &[\"") || line.contains("Hf::new(\"")
        });
        names.extend(registered.flat_map(quoted));
    }
    names.sort();
    names.dedup();
    names
}

/// What a line has between quotes.
fn quoted(line: &str) -> impl Iterator<Item = String> + '_ {
    line.split('"').skip(1).step_by(2).map(str::to_owned)
}

fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let is_source = path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs");
        let is_tests = path.ends_with("tests");
        match path.is_dir() {
            true if !is_tests => sources(&path, found),
            false if is_source => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn no_other_file_names_an_architecture() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = names(&root.join("models/src/arch"));
    assert!(names.len() >= 9, "few names: {names:?}");
    let mut files = Vec::new();
    for folder in [
        "src",
        "actors/src",
        "stages",
        "plans/src",
        "queues/src",
        "traces/src",
        "models",
    ] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 200, "{} files", files.len());
    for path in files {
        let inside = path.strip_prefix(root).expect("below the root");
        if ALLOWED.iter().any(|allowed| inside.starts_with(allowed)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("UTF-8");
        // Unit tests at the end of a file write files of an architecture.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let mut words = quoted(line).filter(|_| !line.contains("tokenizer."));
            let named = words.find(|word| names.contains(word));
            assert!(
                named.is_none(),
                "{}:{}: {named:?}",
                inside.display(),
                number + 1
            );
        }
    }
}
