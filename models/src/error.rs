//! What can be wrong with a model: every message names the file, the field and a remedy.

use std::path::PathBuf;

/// Result of everything that reads or writes a model.
pub type Result<T> = std::result::Result<T, ModelError>;

/// A model file, folder, tokenizer or prompt that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The operating system refused to read or write.
    #[error("{path}: cannot {action}: {source}")]
    Io {
        /// File or folder concerned.
        path: PathBuf,
        /// What was attempted, as a verb phrase ("read tensor data").
        action: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The bytes contradict the format.
    #[error("{path}: {field}: {problem}; {remedy}")]
    Format {
        /// File concerned.
        path: PathBuf,
        /// Field, tensor or section that is wrong.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What the user can do.
        remedy: String,
    },
    /// The file is sound but asks for something this engine does not do.
    #[error("{path}: {field}: {problem} is not supported; {remedy}")]
    Unsupported {
        /// File concerned.
        path: PathBuf,
        /// Field that holds the request.
        field: String,
        /// What was asked for.
        problem: String,
        /// What is supported instead.
        remedy: String,
    },
    /// A parameter given by the caller is out of its range.
    #[error("{field}: {problem}; {remedy}")]
    Parameter {
        /// Name of the parameter.
        field: String,
        /// What is wrong with it.
        problem: String,
        /// What would be accepted.
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

    /// A [`ModelError::Format`] with the usual remedy: the file is damaged, fetch it again.
    pub fn damaged(
        path: impl Into<PathBuf>,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Format {
            path: path.into(),
            field: field.into(),
            problem: problem.into(),
            remedy: "the file is truncated or damaged: download or convert it again".into(),
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
