//! Writing a packed file so that a half-written one can never be mistaken for a whole one:
//! everything goes to a partial file beside the target, which is synced and then renamed.

use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::format::{
    ALIGN, DirectoryEntry, FORMAT_VERSION, HOT_VERSION, Header, SECTIONS, Section, SectionId,
    checksum, encode_directory,
};
use super::meta::BundleMeta;
use super::reader::{Bundle, NeuronSums};
use super::room;
use super::texts::WrittenTexts;
use super::vectors::Vectors;
use crate::chat_templates::ChatTemplates;
use crate::error::{ModelError, Result};
use crate::files::Partial;
use crate::network::Content;
use crate::tokenizer::TokenizerSpec;

/// An open partial bundle file; removed on drop unless finished.
pub(super) struct BundleWriter {
    partial: Partial,
    target: PathBuf,
    offset: u64,
    /// Bytes that the file will have at least.
    least: u64,
    entries: Vec<DirectoryEntry>,
    neuron_sums: Vec<NeuronSums>,
}

impl BundleWriter {
    /// Begins a file that will have `least` bytes or more.
    pub fn create(target: &Path, least: u64) -> Result<Self> {
        room::check(target, least)?;
        let partial = Partial::beside(target).map_err(|e| {
            let action = "create it here (give another folder with -o or FOREBAY_CACHE)";
            ModelError::io(target, action, e)
        })?;
        Ok(Self::begin(partial, target, least))
    }

    /// Begins a file in memory, for [`Self::finish_unnamed`]; `target` is for messages.
    pub fn in_memory(target: &Path) -> Result<Self> {
        let partial = Partial::in_memory(target);
        let partial = partial.map_err(|e| ModelError::io(target, "plan it in memory", e))?;
        Ok(Self::begin(partial, target, 0))
    }

    fn begin(partial: Partial, target: &Path, least: u64) -> Self {
        Self {
            partial,
            target: target.to_path_buf(),
            offset: 0,
            least,
            entries: Vec::new(),
            neuron_sums: Vec::new(),
        }
    }

    /// Begins or goes on with a file that outlives the process, after these clusters and checksums, which end at
    /// `offset`. What it has after that is overwritten.
    pub fn lasting(
        target: &Path,
        least: u64,
        (offset, entries, neuron_sums): (u64, Vec<DirectoryEntry>, Vec<NeuronSums>),
    ) -> Result<Self> {
        let action = "open the unfinished packed model";
        let go_on = || {
            let partial = Partial::lasting(target)?;
            if partial.file().metadata()?.len() < offset {
                let problem = "it is shorter than it was, and what it had was given back by the source: remove it, the \
                               journal beside the source and what is left of the source, and download the model again";
                return Err(std::io::Error::new(ErrorKind::UnexpectedEof, problem));
            }
            partial.file().set_len(offset)?;
            partial.file().seek(SeekFrom::Start(offset))?;
            Ok(partial)
        };
        let partial =
            go_on().map_err(|e| ModelError::io(Partial::lasting_path(target), action, e))?;
        Ok(Self {
            partial,
            target: target.to_path_buf(),
            offset,
            least,
            entries,
            neuron_sums,
        })
    }

    /// Reads what was written by an earlier process, before what it was made from is given up.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written.
    pub fn check_written(&self) -> Result<()> {
        let path = self.partial.path();
        let mut bytes = Vec::new();
        for entry in &self.entries {
            let read = entry.read(self.partial.file(), &mut bytes);
            let is_sound =
                read.map_err(|e| ModelError::io(path, "read the unfinished packed model", e))?;
            if !is_sound {
                return Err(ModelError::Format {
                    path: path.to_path_buf(),
                    field: format!("{:?} at offset {}", entry.content, entry.offset),
                    problem: "its checksum does not match, and what it was made from was given back by the source".into(),
                    remedy: "remove this file, the journal beside the source and what is left of the source, and \
                             download the model again"
                        .into(),
                });
            }
        }
        Ok(())
    }

    /// Brings what has been written to the disk; returns where it ends.
    pub fn sync(&self) -> Result<u64> {
        let synced = self.partial.file().sync_data();
        synced.map_err(|e| self.io("write the packed model", e))?;
        Ok(self.offset)
    }

    /// The clusters that have been written, and the checksums of their neurons.
    pub fn written(&self) -> (&[DirectoryEntry], &[NeuronSums]) {
        (&self.entries, &self.neuron_sums)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.offset == 0 {
            // The header page is written last; until then it is zeros and no reader accepts it.
            self.write_all(&[0; ALIGN])?;
        }
        self.write_all(bytes)?;
        let pad = bytes.len().next_multiple_of(ALIGN) - bytes.len();
        self.write_all(&[0; ALIGN][..pad])
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let mut file = self.partial.file();
        file.write_all(bytes)
            .map_err(|e| self.io("write the packed model", e))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn io(&self, action: &str, source: std::io::Error) -> ModelError {
        failed(&self.target, action, (self.offset, self.least), source)
    }

    /// Appends one cluster of rows or neurons `first..first + count`.
    pub fn cluster(
        &mut self,
        content: Content,
        (first, count): (usize, usize),
        bytes: &[u8],
    ) -> Result<()> {
        let entry = self.entry(content, (first, count), bytes.len(), checksum(bytes))?;
        self.append(bytes)?;
        self.entries.push(entry);
        Ok(())
    }

    fn entry(
        &self,
        content: Content,
        (first, count): (usize, usize),
        len: usize,
        sum: u64,
    ) -> Result<DirectoryEntry> {
        let too_large = || ModelError::Format {
            path: self.target.clone(),
            field: format!("cluster of {content:?}"),
            problem: "does not fit the bundle format's 32-bit sizes".into(),
            remedy: "this model is too large for this version of the format".into(),
        };
        let narrow = |x: usize| u32::try_from(x).map_err(|_| too_large());
        Ok(DirectoryEntry {
            content,
            first: narrow(first)?,
            count: narrow(count)?,
            len: narrow(len)?,
            offset: self.offset.max(ALIGN as u64),
            sum,
        })
    }

    /// Goes over the place of a cluster of `len` bytes without writing it.
    pub fn hole(
        &mut self,
        content: Content,
        (first, count): (usize, usize),
        len: usize,
    ) -> Result<()> {
        self.offset = self.offset.max(ALIGN as u64);
        let entry = self.entry(content, (first, count), len, 0)?;
        self.offset += entry.padded_len() as u64;
        self.entries.push(entry);
        Ok(())
    }

    /// Records the checksums of one neuron's Gate row and of its Up and Down part, in directory order.
    pub fn neuron_sums(&mut self, gate: &[u8], up_down: &[u8]) {
        self.neuron_sums.push(NeuronSums::of(gate, up_down));
    }

    /// Takes over the checksums of a neuron that is copied as it is.
    pub fn copy_neuron_sums(&mut self, sums: NeuronSums) {
        self.neuron_sums.push(sums);
    }

    /// Writes the sections and the header, syncs, and renames the file into place.
    pub fn finish(
        mut self,
        meta: &BundleMeta,
        texts: (&TokenizerSpec, &ChatTemplates),
        vectors: &Vectors,
    ) -> Result<()> {
        let header = self.sections(meta, texts, vectors)?;
        self.publish(&header)
    }

    /// Opens what has been written under the name that it has for now, which is gone afterwards.
    pub fn finish_unnamed(
        mut self,
        meta: &BundleMeta,
        texts: (&TokenizerSpec, &ChatTemplates),
        vectors: &Vectors,
    ) -> Result<Bundle> {
        let mut file = self.partial.file();
        let placed = file.seek(SeekFrom::Start(self.offset));
        placed.map_err(|e| self.io("write the packed model", e))?;
        let header = self.sections(meta, texts, vectors)?;
        let written = self.partial.file().write_all_at(&header.encode(), 0);
        written.map_err(|e| self.io("write the packed model", e))?;
        Bundle::open(self.partial.path())
    }

    fn sections(
        &mut self,
        meta: &BundleMeta,
        (tokenizer, templates): (&TokenizerSpec, &ChatTemplates),
        vectors: &Vectors,
    ) -> Result<Header> {
        let version = match meta.network.has_hot_neurons() {
            true => HOT_VERSION,
            false => FORMAT_VERSION,
        };
        let json = |e: serde_json::Error| self.io("encode the metadata", e.into());
        let meta = serde_json::to_vec(meta).map_err(json)?;
        let tokenizer =
            serde_json::to_vec(&WrittenTexts::of(tokenizer, templates)).map_err(json)?;
        let directory = encode_directory(&self.entries);
        let sums = NeuronSums::encode(&self.neuron_sums);
        let mut header = Header {
            version,
            file_len: 0,
            sections: [Section::default(); SECTIONS],
        };
        for (id, bytes) in [
            (SectionId::Meta, meta),
            (SectionId::Tokenizer, tokenizer),
            (SectionId::Vectors, vectors.encode()),
            (SectionId::Directory, directory),
            (SectionId::NeuronSums, sums),
        ] {
            let offset = self.offset;
            let section = Section {
                offset,
                len: bytes.len() as u64,
                sum: checksum(&bytes),
            };
            header.sections[id as usize] = section;
            self.append(&bytes)?;
        }
        header.file_len = self.offset;
        Ok(header)
    }

    fn publish(self, header: &Header) -> Result<()> {
        let written = (self.offset, self.least);
        self.partial
            .file()
            .write_all_at(&header.encode(), 0)
            .and_then(|()| self.partial.publish())
            .map_err(|e| failed(&self.target, "finish the packed model", written, e))
    }
}

/// What could not be done when `written` bytes were, of so many at least.
fn failed(target: &Path, action: &str, written: (u64, u64), source: std::io::Error) -> ModelError {
    let action = room::action(action, source.kind(), written);
    ModelError::io(target, action, source)
}
