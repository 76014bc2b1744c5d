//! `forebay tokenize`

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};

use clap::Args;
use forebay_models::bundle::Bundle;
use forebay_models::source;
use forebay_models::tokenizer::{EncodeOptions, Tokenizer};
use serde::{Serialize, Serializer};

use super::output::{print_with, say};
use super::text::{read_standard_input, read_text};

#[derive(Debug, Args)]
pub struct Tokenize {
    /// A .gguf or .fbay file, or a folder with tokenizer.json; weights are not needed.
    model: PathBuf,
    /// The text.
    #[arg(long, short, value_name = "TEXT", conflicts_with = "file")]
    #[arg(allow_hyphen_values = true, help_heading = "Text")]
    prompt: Option<String>,
    /// Read the text from a file; without -p and -f it is read from standard input.
    #[arg(long, short, value_name = "FILE", help_heading = "Text")]
    file: Option<PathBuf>,
    /// Add no BOS, and take the names of control tokens in the text as text.
    #[arg(long, help_heading = "Text")]
    no_special: bool,
    /// Print one JSON object.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

impl Tokenize {
    pub fn execute(self) -> anyhow::Result<()> {
        let tokenizer = open(&self.model)?;
        let text = match (&self.prompt, &self.file) {
            (Some(text), _) => text.clone(),
            (None, Some(file)) => read_text(file, "text")?,
            (None, None) => read_standard_input("text")?,
        };
        let options = EncodeOptions {
            add_bos: !self.no_special,
            parse_special: !self.no_special,
        };
        let ids = tokenizer.encode(&text, options)?;
        drop(text);
        print_with(|out| match self.json {
            true => {
                let pieces = Pieces(&tokenizer, &ids);
                serde_json::to_writer(&mut *out, &Tokens { ids: &ids, pieces })?;
                writeln!(out)
            }
            false => ids.iter().try_for_each(|&id| {
                let bytes = tokenizer.token_bytes(id).unwrap_or_default();
                writeln!(out, "{id:>7}  \"{}\"", Quoted(bytes))
            }),
        })
    }
}

/// The tokenizer of a model of any kind, complete or not.
fn open(model: &Path) -> anyhow::Result<Tokenizer> {
    let spec = match forebay::packed::is_bundle(model) {
        true => Bundle::open(model)?.read_tokenizer()?.0,
        false => source::open_tokenizer(model)?,
    };
    if let Some(doubt) = spec.doubt() {
        say(format_args!("forebay: warning: {doubt}"));
    }
    Ok(Tokenizer::from_spec(spec).map_err(|e| e.within(model))?)
}

#[derive(Serialize)]
struct Tokens<'a> {
    ids: &'a [u32],
    pieces: Pieces<'a>,
}

/// The texts of tokens, written one by one: all of them may not fit into memory beside the ids.
struct Pieces<'a>(&'a Tokenizer, &'a [u32]);

impl Serialize for Pieces<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let piece = |id: &u32| String::from_utf8_lossy(self.0.token_bytes(*id).unwrap_or_default());
        serializer.collect_seq(self.1.iter().map(piece))
    }
}

/// Bytes of a token between quotes: what is not shown, and bytes that are no whole character, are escaped.
struct Quoted<'a>(&'a [u8]);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '\'' => write!(f, "'")?,
                    c => write!(f, "{}", c.escape_debug())?,
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_quoted() {
        let cases: [(&[u8], &str); 5] = [
            (b" it's", " it's"),
            (b"\"\\\n\t", r#"\"\\\n\t"#),
            ("你é".as_bytes(), "你é"),
            (b"\xe4\xbd", r"\xe4\xbd"),
            ("\u{202e}\u{1b}[2J".as_bytes(), r"\u{202e}\u{1b}[2J"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Quoted(bytes).to_string(), expected);
        }
    }
}
