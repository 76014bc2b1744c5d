//! What can be wrong with a model: every message names the file, the field and a remedy.

use std::fmt::{self, Display, Formatter, Write};
use std::path::{Path, PathBuf};

/// Result of everything that reads or writes a model.
pub type Result<T> = std::result::Result<T, ModelError>;

/// A model file, folder, tokenizer or prompt that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The operating system refused to read or write.
    #[error("{}: cannot {}: {source}", path_of(path), sentence(action))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was attempted, as a verb phrase ("read tensor data").
        action: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The bytes contradict the format.
    #[error(
        "{}: {}: {}; {}",
        path_of(path),
        name(field),
        sentence(problem),
        sentence(remedy)
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Field, tensor or section that is wrong.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What the user can do.
        remedy: String,
    },
    /// The file is sound but asks for something this engine does not do.
    #[error(
        "{}: {}: {} is not supported; {}",
        path_of(path),
        name(field),
        sentence(problem),
        sentence(remedy)
    )]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The field that requires it.
        field: String,
        /// What is required.
        problem: String,
        /// What is supported instead.
        remedy: String,
    },
    /// A parameter given by the caller is out of its range.
    #[error("{}: {}; {}", name(field), sentence(problem), sentence(remedy))]
    Parameter {
        /// Name of the parameter.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// Which values are accepted.
        remedy: String,
    },
}

impl ModelError {
    /// A [`ModelError::Io`] for `path`.
    pub fn io(path: impl Into<PathBuf>, action: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            path: path.into(),
            action: action.into(),
            source,
        }
    }

    /// A [`ModelError::Io`] for a file that could not be written, with what helps.
    pub(crate) fn not_written(path: &Path, source: std::io::Error) -> Self {
        let action = match source.kind() {
            std::io::ErrorKind::StorageFull => "write it (free some space or give another path)",
            _ => "write it",
        };
        Self::io(path, action, source)
    }

    /// A [`ModelError::Format`] with the usual remedy: the file is damaged, fetch it again, or pack it again if it is a
    /// packed one.
    pub fn damaged(
        path: impl Into<PathBuf>,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        let path = path.into();
        let again = match path.extension().is_some_and(|e| e == "fbay") {
            true => {
                "delete it (`forebay cache rm` if it is in the cache folder) and pack the model again"
            }
            false => "download or convert it again",
        };
        Self::Format {
            path,
            field: field.into(),
            problem: problem.into(),
            remedy: format!("the file is truncated or damaged: {again}"),
        }
    }

    /// A [`ModelError::Unsupported`].
    pub fn unsupported(
        path: impl Into<PathBuf>,
        field: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Unsupported {
            path: path.into(),
            field: field.into(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// The same about `path`, which is where the text came from that was named without it.
    #[must_use]
    pub(crate) fn about(mut self, whole: &Path) -> Self {
        if let Self::Format { path, .. } | Self::Unsupported { path, .. } = &mut self {
            *path = whole.to_path_buf();
        }
        self
    }

    /// The same about `path`, for a problem that was found in text taken out of that file: what named the
    /// text now stands before the field.
    #[must_use]
    pub fn within(self, path: impl Into<PathBuf>) -> Self {
        let named = |text: PathBuf, field: String| format!("{}: {field}", text.display());
        match self {
            Self::Format {
                path: text,
                field,
                problem,
                remedy,
            } => Self::Format {
                path: path.into(),
                field: named(text, field),
                problem,
                remedy,
            },
            Self::Unsupported {
                path: text,
                field,
                problem,
                remedy,
            } => Self::Unsupported {
                path: path.into(),
                field: named(text, field),
                problem,
                remedy,
            },
            other => other,
        }
    }
}

/// Text that others wrote, for people to read: what would steer a terminal or reorder a line is escaped, and the
/// middle of a long text is left out.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    text: &'a str,
    /// Characters.
    most: usize,
}

impl<'a> Shown<'a> {
    /// A name: of a tensor, a key or a token.
    pub fn name(text: &'a str) -> Self {
        Self { text, most: 120 }
    }

    /// A text with names in it: a message, or a part of one.
    pub fn message(text: &'a str) -> Self {
        Self { text, most: 2000 }
    }
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut show = |c: char| match steers(c) {
            true => write!(f, "{}", c.escape_unicode()),
            false => f.write_char(c),
        };
        let length = self.text.chars().count();
        if length <= self.most {
            return self.text.chars().try_for_each(show);
        }
        // The end of a path or of a tensor's name says more than its middle.
        let tail = self.most / 3;
        let head = self.text.chars().take(self.most - tail);
        let shortened = head
            .chain(['…'])
            .chain(self.text.chars().skip(length - tail));
        shortened.into_iter().try_for_each(&mut show)
    }
}

/// Whether a terminal or the layout of a text obeys this character: control characters, and invisible ones that
/// change directions, join, break lines or tag.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{e0000}'..='\u{e007f}')
}

fn name(text: &str) -> Shown<'_> {
    Shown::name(text)
}

fn sentence(text: &str) -> Shown<'_> {
    Shown { text, most: 1000 }
}

fn path_of(path: &Path) -> String {
    let text = path.to_string_lossy();
    let most = 400;
    Shown { text: &text, most }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        let shown = |text| Shown::name(text).to_string();
        assert_eq!(
            shown("blk.0.\u{1b}[2Jé\n你好"),
            r"blk.0.\u{1b}[2Jé\u{a}你好"
        );
        assert_eq!(shown("\u{9b}31m\u{202e}x"), r"\u{9b}31m\u{202e}x");
    }

    #[test]
    fn long_texts_lose_their_middle() {
        let text = format!("begin{}end", "é".repeat(1000));
        let shown = Shown::name(&text).to_string();
        assert_eq!(shown.chars().count(), 121);
        assert!(shown.starts_with("beginé") && shown.contains("é…é") && shown.ends_with("éend"));
        let fits = "é".repeat(120);
        assert_eq!(Shown::name(&fits).to_string(), fits);
    }

    #[test]
    fn every_part_of_a_message_is_shown_safely() {
        let bad = format!("\u{1b}]0;{}\u{7}", "x".repeat(20 << 20));
        for error in [
            ModelError::damaged("m.gguf", &bad, &bad),
            ModelError::damaged(&bad, &bad, &bad),
            ModelError::unsupported("m.gguf", &bad, &bad, &bad),
            ModelError::io("m.gguf", &bad, std::io::ErrorKind::NotFound.into()),
        ] {
            let message = error.to_string();
            assert!(message.len() < 5000, "{} bytes", message.len());
            assert!(!message.contains(['\u{1b}', '\u{7}']));
        }
    }
}
