//! What a conversion that gives its source back must know to go on after it was interrupted.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{PackOptions, StoredContents};
use crate::bundle::SourceIdentity;
use crate::bundle::format::{
    DirectoryEntry, FORMAT_VERSION, checksum, decode_directory, encode_directory,
};
use crate::bundle::reader::NeuronSums;
use crate::bundle::writer::BundleWriter;
use crate::error::{ModelError, Result};
use crate::files::{beside, read_regular, write_whole};

/// More than the largest models need.
const MAX_BYTES: u64 = 1 << 32;

/// How far a conversion is, as it is on the disk.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    path: PathBuf,
    head: Head,
    entries: Vec<DirectoryEntry>,
    neuron_sums: Vec<NeuronSums>,
}

/// Its first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Head {
    /// Of the packed file.
    version: u32,
    out: PathBuf,
    options: String,
    /// As it was before anything was given back.
    source: SourceIdentity,
    stored: StoredContents,
    /// Where the packed file ends.
    offset: u64,
    /// Bytes of the directory after the line; the rest is checksums of neurons.
    directory: usize,
    /// Checksum of all after the line.
    sum: u64,
}

impl Journal {
    /// Of a conversion that begins.
    pub fn new(
        source: &Path,
        identity: SourceIdentity,
        stored: StoredContents,
        (out, options): (&Path, &PackOptions),
    ) -> Result<Self> {
        let out = absolute(out)?;
        if out.to_str().is_none() {
            return Err(ModelError::Format {
                path: out,
                field: "output".into(),
                problem: "the path is not UTF-8, and the journal of the conversion is".into(),
                remedy: "give another one with -o, or pack without --consume".into(),
            });
        }
        Ok(Self {
            path: Self::path_of(source),
            head: Head {
                version: FORMAT_VERSION,
                out,
                options: described(options),
                source: identity,
                stored,
                offset: 0,
                directory: 0,
                sum: 0,
            },
            entries: Vec::new(),
            neuron_sums: Vec::new(),
        })
    }

    fn path_of(source: &Path) -> PathBuf {
        beside(source, ".packing")
    }

    /// The journal of `source`, if it has one.
    ///
    /// # Errors
    /// A journal that cannot be read, is damaged or of another version.
    pub fn of(source: &Path) -> Result<Option<Self>> {
        let path = Self::path_of(source);
        let bytes = match read_regular(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(ModelError::io(path, "read how far it was packed", e)),
        };
        let damaged =
            |problem: String| ModelError::damaged(&path, "journal of a conversion", problem);
        let line = bytes
            .iter()
            .position(|&b| b == b'\n')
            .unwrap_or(bytes.len());
        let (line, rest) = bytes.split_at(line);
        let head: Head = serde_json::from_slice(line).map_err(|e| damaged(e.to_string()))?;
        if head.version != FORMAT_VERSION {
            let problem = format!("version {} of packed files", head.version);
            let remedy = "go on with the version of forebay that began it";
            return Err(ModelError::unsupported(path, "version", problem, remedy));
        }
        let rest = rest.get(1..).unwrap_or_default();
        let parts = rest.split_at_checked(head.directory);
        let parts = parts.filter(|_| checksum(rest) == head.sum);
        let entries = parts.and_then(|(directory, _)| decode_directory(directory));
        let (Some((_, sums)), Some(entries)) = (parts, entries) else {
            return Err(damaged("its checksum does not match".into()));
        };
        let neuron_sums = NeuronSums::decode(sums);
        Ok(Some(Self {
            path,
            head,
            entries,
            neuron_sums,
        }))
    }

    /// Refuses to go on in another way than before.
    pub fn check(&self, out: &Path, options: &PackOptions) -> Result<()> {
        let differs = |field: &str, before: String| ModelError::Format {
            path: self.path.clone(),
            field: field.into(),
            problem: format!("the conversion was begun with {before}"),
            remedy: "go on with the same: what has been packed is not in the source any more"
                .into(),
        };
        if absolute(out)? != self.head.out {
            return Err(differs("output", format!("-o {}", self.head.out.display())));
        }
        match described(options) == self.head.options {
            true => Ok(()),
            false => Err(differs("options", self.head.options.clone())),
        }
    }

    /// The source as it was in the beginning.
    pub fn source(&self) -> &SourceIdentity {
        &self.head.source
    }

    /// The packed file that it is about.
    pub fn out(&self) -> &Path {
        &self.head.out
    }

    pub fn stored(&self) -> &StoredContents {
        &self.head.stored
    }

    /// Goes on with the packed file.
    pub fn writer(&self, least: u64) -> Result<BundleWriter> {
        let written = (
            self.head.offset,
            self.entries.clone(),
            self.neuron_sums.clone(),
        );
        BundleWriter::lasting(&self.head.out, least, written)
    }

    /// Records what has been written, once it is on the disk.
    pub fn advance(&mut self, writer: &BundleWriter, stored: &StoredContents) -> Result<()> {
        self.head.offset = writer.sync()?;
        self.head.stored = stored.clone();
        let (entries, sums) = writer.written();
        self.save(entries, sums)
    }

    fn save(&mut self, entries: &[DirectoryEntry], sums: &[NeuronSums]) -> Result<()> {
        let mut rest = encode_directory(entries);
        self.head.directory = rest.len();
        rest.extend(NeuronSums::encode(sums));
        self.head.sum = checksum(&rest);
        let action = "record how far it is packed (free some space; then the same command goes on)";
        let io = |e| ModelError::io(&self.path, action, e);
        let mut bytes = serde_json::to_vec(&self.head).map_err(|e| io(e.into()))?;
        bytes.push(b'\n');
        bytes.extend(rest);
        write_whole(&self.path, &bytes).map_err(io)
    }

    /// The conversion is done.
    pub fn remove(self) -> Result<()> {
        let removed = std::fs::remove_file(&self.path);
        removed.map_err(|e| ModelError::io(self.path, "remove the journal of the conversion", e))
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| ModelError::io(path, "find the folder", e))
}

/// What of the options decides what is written.
fn described(options: &PackOptions) -> String {
    let PackOptions {
        quant,
        neurons,
        importance,
    } = options;
    let importance = importance.as_ref().map(|i| i.checksum());
    format!("quant {quant:?}, importance {importance:x?}, by neuron {neurons}")
}
