//! The folders of a crate depend on each other in one direction: whoever reads one need not know who uses it. Nobody
//! has to scroll sideways to read a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Crates whose folders are checked, by where their sources are. Files of `stages/kernels` are left out: formats and
/// instruction sets are traits that are written in terms of each other.
const CRATES: [&str; 9] = [
    "src",
    "actors/src",
    "devices/src",
    "models/numbers/src",
    "models/src",
    "plans/src",
    "queues/src",
    "stages/src",
    "traces/src",
];

/// Which folders of a crate each one uses, with a file that does; a file beside the crate's root counts as a folder.
type Uses = BTreeMap<String, BTreeMap<String, PathBuf>>;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let is_source = path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs");
        match path.is_dir() {
            true if !path.ends_with("tests") => sources(&path, found),
            false if is_source => found.push(path),
            _ => {}
        }
    }
}

/// The code of a file: no comments, and nothing behind the first line that is for tests only and begins a module.
fn code(text: &str) -> String {
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..tests].lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

/// The names that follow `path::` in `code`, one by one or in braces.
fn names_after(code: &str, path: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    for (at, _) in code.match_indices(path) {
        if code[..at].ends_with(|c| is_name(c) || c == ':') {
            continue;
        }
        let rest = &code[at + path.len()..];
        let first = |text: &str| text.chars().take_while(|&c| is_name(c)).collect::<String>();
        match rest.strip_prefix('{') {
            Some(inside) => {
                let inside = inside.split('}').next().unwrap_or_default();
                names.extend(inside.split(',').map(|name| first(name.trim())));
            }
            None => {
                names.insert(first(rest));
            }
        }
    }
    names
}

fn uses(root: &Path) -> Uses {
    let mut files = Vec::new();
    sources(root, &mut files);
    let folder = |file: &Path| {
        let first = file.strip_prefix(root).expect("below").components().next();
        let name = first.expect("a name").as_os_str().to_string_lossy();
        name.trim_end_matches(".rs").to_owned()
    };
    let folders: BTreeSet<String> = files.iter().map(|file| folder(file)).collect();
    let mut uses = Uses::new();
    for file in &files {
        let own = folder(file);
        if own == "lib" || own == "main" {
            continue;
        }
        let code = code(&std::fs::read_to_string(file).expect("UTF-8"));
        let mut named = names_after(&code, "crate::");
        let depth = file.strip_prefix(root).expect("below").components().count();
        if depth == 1 || depth == 2 && file.ends_with("mod.rs") {
            named.extend(names_after(&code, "super::"));
        }
        let others = named
            .into_iter()
            .filter(|name| *name != own && folders.contains(name));
        let of_folder = uses.entry(own.clone()).or_default();
        of_folder.extend(others.map(|name| (name, file.clone())));
    }
    uses
}

/// Looks for a way from `folder` back to itself, and returns it with the files that lead from one to the next.
fn circle(uses: &Uses, folder: &str) -> Option<Vec<String>> {
    let mut ways = vec![(folder.to_owned(), Vec::new())];
    let mut seen = BTreeSet::new();
    while let Some((at, way)) = ways.pop() {
        for (next, file) in uses.get(&at).into_iter().flatten() {
            let mut way = way.clone();
            way.push(format!("{at} uses {next} in {}", file.display()));
            if next == folder {
                return Some(way);
            }
            if seen.insert(next.clone()) {
                ways.push((next.clone(), way));
            }
        }
    }
    None
}

#[test]
fn folders_depend_on_each_other_in_one_direction() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut arrows = 0;
    for name in CRATES {
        let uses = uses(&root.join(name));
        arrows += uses.values().map(BTreeMap::len).sum::<usize>();
        for folder in uses.keys() {
            let circle = circle(&uses, folder);
            assert!(
                circle.is_none(),
                "{name}: {:#?}",
                circle.unwrap_or_default()
            );
        }
    }
    assert!(arrows > 100, "only {arrows} uses were found");
}

/// Columns of a line: rustfmt wraps code before, but neither comments nor what is inside macros.
const COLUMNS: usize = 120;

/// Whether a line should have been wrapped. Texts need not be: whoever looks for one wants to find it whole.
fn is_too_long(line: &str) -> bool {
    let is_text = line.contains('"') && !line.trim_start().starts_with("//");
    line.chars().count() > COLUMNS && !is_text
}

/// All of the project's Rust files below `folder`, tests as well.
fn all_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        let is_built = name == "target" || name.starts_with('.');
        match path.is_dir() {
            true if !is_built => all_files(&path, found),
            false if name.ends_with(".rs") => found.push(path),
            _ => {}
        }
    }
}

#[test]
fn lines_are_not_too_long() {
    let mut files = Vec::new();
    all_files(Path::new(env!("CARGO_MANIFEST_DIR")), &mut files);
    assert!(files.len() > 500, "only {} files were found", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("UTF-8");
        let long = text.lines().position(is_too_long);
        let at = long.map(|line| format!("{}:{}", file.display(), line + 1));
        assert_eq!(at, None, "over {COLUMNS} columns");
    }
    let long = "a ".repeat(61);
    for (line, too_long) in [
        (format!("// {long}"), true),
        (format!("/// \"{long}\""), true),
        (format!("let {long};"), true),
        (format!("let text = \"{long}\";"), false),
        ("a ".repeat(60), false),
    ] {
        assert_eq!(is_too_long(&line), too_long, "{line}");
    }
}

#[test]
fn a_circle_is_found() {
    let arrow = |to: &str| BTreeMap::from([(to.to_owned(), PathBuf::from("a file"))]);
    let pairs = [("a", "b"), ("b", "c"), ("c", "b")];
    let uses: Uses = pairs.map(|(from, to)| (from.to_owned(), arrow(to))).into();
    assert!(circle(&uses, "a").is_none());
    assert_eq!(circle(&uses, "b").map(|way| way.len()), Some(2));
    let names = names_after("use crate::{a::B, c};\nmycrate::d; crate::e::F", "crate::");
    let expected = ["a", "c", "e"].map(str::to_owned);
    assert_eq!(names, BTreeSet::from(expected));
}
