//! What every refusal of the program has in common.

use std::path::Path;

use crate::program::{answer, forebay};
use crate::scratch::{found_in, names_in};

/// Runs the program and expects it to refuse: a failing exit status, one message that holds all of
/// `mentions`, and nothing half-written in `folder`, which is also the folder for packed models.
///
/// Returns the message.
pub fn refused(folder: &Path, what: &str, arguments: &[&str], mentions: &[&str]) -> String {
    let answer = answer(forebay(folder, arguments));
    let said = format!(
        "{what}: {arguments:?} said\n{}{}",
        answer.stdout, answer.stderr
    );
    // 1 is the program's, 2 is clap's; a panic gives 101, a signal none.
    assert!(
        matches!(answer.status.code(), Some(1 | 2)),
        "{:?}: {said}",
        answer.status
    );
    assert!(!answer.stderr.contains("panicked"), "{said}");
    let is_message =
        |line: &&str| line.starts_with("forebay: error: ") || line.starts_with("error: ");
    let messages = answer.stderr.lines().filter(is_message).count();
    assert_eq!(messages, 1, "one message: {said}");
    for mention in mentions {
        assert!(
            answer.stderr.contains(mention),
            "no word of {mention:?}: {said}"
        );
    }
    assert!(
        found_in(folder, ".partial-").is_empty(),
        "{:?}: {said}",
        names_in(folder)
    );
    answer.stderr
}

/// As [`refused`], for a command that would write `output`.
pub fn refused_to_write(
    folder: &Path,
    what: &str,
    arguments: &[&str],
    mentions: &[&str],
    output: &Path,
) {
    refused(folder, what, arguments, mentions);
    assert!(!output.exists(), "{what}: {} was written", output.display());
}

/// `path` as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in Unicode")
}
