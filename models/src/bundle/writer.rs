//! Writing a bundle file so that a half-written one can never be mistaken for a whole one:
//! everything goes to a partial file beside the target, which is synced and then renamed.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::format::{
    ALIGN, DirectoryEntry, ENTRY_BYTES, Header, SECTIONS, Section, SectionId, checksum,
};
use super::meta::BundleMeta;
use super::reader::NeuronSums;
use super::room;
use super::vectors::Vectors;
use crate::error::{ModelError, Result};
use crate::network::Content;
use crate::tokenizer::TokenizerSpec;

/// Suffix of files still being written, followed by the writer's process id and its number there.
const PARTIAL: &str = ".partial-";
/// Numbers the writers of this process: two engines may pack the same model at the same time.
static WRITERS: AtomicU64 = AtomicU64::new(0);

/// Removes partial bundle files in the folder of `target` whose writers are gone (a pack that was
/// killed).
pub fn remove_stale_partials(target: &Path) {
    for entry in std::fs::read_dir(folder_of(target))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = entry.file_name();
        let Some((stem, writer)) = name.to_str().and_then(|n| n.rsplit_once(PARTIAL)) else {
            continue;
        };
        let pid = writer.split('-').next().unwrap_or(writer);
        let ours = stem.ends_with(".fbay") && pid.parse::<u32>().is_ok();
        if ours && !Path::new("/proc").join(pid).exists() {
            // Best effort: a file that cannot be removed is never used either.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The folder that `target` lies in: `.` for a bare file name.
pub(super) fn folder_of(target: &Path) -> &Path {
    target
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// An open partial bundle file; removed on drop unless finished.
pub(super) struct BundleWriter {
    file: Option<File>,
    partial: PathBuf,
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
        let mut name = target.file_name().unwrap_or_default().to_os_string();
        let number = WRITERS.fetch_add(1, Ordering::Relaxed);
        name.push(format!("{PARTIAL}{}-{number}", std::process::id()));
        let partial = target.with_file_name(name);
        let file = File::create(&partial).map_err(|e| {
            let action = "create it here (give another folder with -o or FOREBAY_CACHE)";
            ModelError::io(target, action, e)
        })?;
        let writer = Self {
            file: Some(file),
            partial,
            target: target.to_path_buf(),
            offset: 0,
            least,
            entries: Vec::new(),
            neuron_sums: Vec::new(),
        };
        Ok(writer)
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
        if let Some(mut file) = self.file.as_ref() {
            file.write_all(bytes)
                .map_err(|e| self.io("write the packed model", e))?;
        }
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn io(&self, action: &str, source: std::io::Error) -> ModelError {
        let action = room::action(action, source.kind(), (self.offset, self.least));
        ModelError::io(&self.partial, action, source)
    }

    /// Appends one cluster of rows or neurons `first..first + count`.
    pub fn cluster(
        &mut self,
        content: Content,
        (first, count): (usize, usize),
        bytes: &[u8],
    ) -> Result<()> {
        let too_large = || ModelError::Format {
            path: self.target.clone(),
            field: format!("cluster of {content:?}"),
            problem: "does not fit the bundle format's 32-bit sizes".into(),
            remedy: "this model is too large for this version of the format".into(),
        };
        let narrow = |x: usize| u32::try_from(x).map_err(|_| too_large());
        let entry = DirectoryEntry {
            content,
            first: narrow(first)?,
            count: narrow(count)?,
            len: narrow(bytes.len())?,
            offset: self.offset.max(ALIGN as u64),
            sum: checksum(bytes),
        };
        self.append(bytes)?;
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
        tokenizer: &TokenizerSpec,
        vectors: &Vectors,
    ) -> Result<()> {
        let json = |e: serde_json::Error| self.io("encode the metadata", e.into());
        let meta = serde_json::to_vec(meta).map_err(json)?;
        let tokenizer = serde_json::to_vec(tokenizer).map_err(json)?;
        let mut directory = Vec::with_capacity(self.entries.len() * ENTRY_BYTES);
        self.entries.iter().for_each(|e| e.encode(&mut directory));
        let sums = self
            .neuron_sums
            .iter()
            .flat_map(|s| [s.gate.to_le_bytes(), s.up_down.to_le_bytes()].concat())
            .collect();
        let mut header = Header {
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
        self.publish(&header)
    }

    fn publish(&mut self, header: &Header) -> Result<()> {
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        let done = file
            .write_all_at(&header.encode(), 0)
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&self.partial, &self.target))
            .and_then(|()| File::open(folder_of(&self.target))?.sync_all());
        if done.is_err() {
            let _ = std::fs::remove_file(&self.partial);
        }
        done.map_err(|e| self.io("finish the packed model", e))
    }
}

impl Drop for BundleWriter {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}
