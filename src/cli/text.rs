//! Texts that commands learn from or measure on.

use std::path::Path;

use anyhow::Context;

/// Reads a file of UTF-8 text.
pub fn read_text(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read the text from {} (-f takes a file of UTF-8 text)",
            file.display()
        )
    })
}
