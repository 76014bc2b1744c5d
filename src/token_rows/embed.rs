//! Rows of tables, one per token: embeddings and token inputs. They come from the pinned head if it is tied to the
//! embedding, else they are read from flash as they are needed (mnn-llm's disk embedding: the table is a sixth of a
//! small model and one row of it is used per token). A head holds its rows in panels; a separate table holds them one
//! after the other.

use forebay_actors::fault::Fault;
use forebay_actors::io_link::RowLink;
use forebay_actors::shared::Shared;
use forebay_models::block::{BlockType, dequantize};
use forebay_models::bundle::{ALIGN, DirectoryEntry, FileStamp};
use forebay_models::network::Content;
use forebay_models::panel::{PANEL_ROWS, extract_row};
use forebay_models::tensor::TensorId;
use forebay_plans::residency::Residency;
use forebay_queues::slab::Slot;

use crate::error::Error;

/// How often rows are read again because the file has changed meanwhile.
const ATTEMPTS: usize = 3;

/// Looks tokens up in a table.
#[derive(Debug)]
pub(super) struct Embedder {
    /// Elements of a row.
    width: usize,
    /// Block format of the table's rows.
    block: BlockType,
    /// Factor that rows are multiplied by.
    scale: f32,
    /// Directory index of the table's first cluster.
    first_cluster: usize,
    rows_per_cluster: usize,
    /// Rows that are read together: a panel of a tied head, or one row.
    unit_rows: usize,
    unit_bytes: usize,
    /// A row taken out of its panel.
    row: Vec<u8>,
    /// Read buffers, fewer than a long prompt's batch has tokens.
    buffers: Vec<Slot>,
    /// Whether a cluster of the table has been checked since the file last changed, by cluster of the table.
    verified: Vec<bool>,
    /// The file when that began.
    stamp: Option<FileStamp>,
    scratch: Vec<u8>,
}

impl Embedder {
    /// For `table`, with these read buffers.
    pub fn new(shared: &Shared, table: TensorId, buffers: Vec<Slot>) -> Self {
        let network = shared.network();
        let (content, unit_rows) = match network.head_tensor() == table {
            true => (Content::Rows(table), PANEL_ROWS),
            false => (Content::Table(table), 1),
        };
        let scale = match (table, network.token_inputs) {
            (TensorId::TokenInputs, Some(inputs)) => inputs.table_scale,
            _ => network.embedding_scale,
        };
        let clusters = &shared.bundle.clusters;
        let of_table = |e: &DirectoryEntry| e.content == content;
        let first_cluster = clusters.iter().position(of_table).unwrap_or(0);
        let count = clusters.iter().filter(|e| of_table(e)).count();
        let table = shared.bundle.meta.matrix(table);
        let (block, width, rows_per_cluster) = table.map_or((BlockType::F32, 0, 1), |t| {
            (t.block, t.cols, t.rows_per_cluster)
        });
        let row_bytes = block.row_bytes(width).unwrap_or(0);
        Self {
            width,
            block,
            scale,
            first_cluster,
            rows_per_cluster: rows_per_cluster.max(1),
            unit_rows,
            unit_bytes: unit_rows * row_bytes,
            row: vec![0; row_bytes],
            buffers,
            verified: vec![false; count],
            stamp: None,
            scratch: Vec::new(),
        }
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// How many rows are read at the same time.
    pub fn wave(&self) -> usize {
        self.buffers.len().max(1)
    }

    /// Writes the scaled rows of `tokens` to `out`, `[n_tokens, width]`.
    ///
    /// # Errors
    /// A failed read, a checksum that does not match, or [`Error::Stopped`] if the I/O actor has ended.
    pub fn embed(
        &mut self,
        shared: &Shared,
        link: &mut RowLink,
        tokens: &[u32],
        out: &mut [f32],
    ) -> Result<(), Error> {
        // Rows carry no checksum of their own, but those of a file that does not change stay what they were.
        for _ in 0..ATTEMPTS {
            let reads = self.verify_all(shared, tokens)?;
            self.embed_all(shared, link, tokens, out)?;
            if !reads || self.is_unchanged(shared)? {
                return Ok(());
            }
        }
        Err(Error::Model(shared.bundle.changing()))
    }

    /// Has the clusters of `tokens` checked that are on flash and have not been; true if there are any on flash.
    /// Before any row is read: an error in between would leave completions for the next step to stumble over.
    fn verify_all(&mut self, shared: &Shared, tokens: &[u32]) -> Result<bool, Error> {
        let mut reads = false;
        for &token in tokens {
            let (cluster, entry) = self.cluster_of(shared, token);
            if shared.plan.residency[cluster] != Residency::Pinned {
                self.verify(shared, cluster, entry)?;
                reads = true;
            }
        }
        Ok(reads)
    }

    /// Whether the file is what it was when the first cluster was checked. If not, all are checked again.
    fn is_unchanged(&mut self, shared: &Shared) -> Result<bool, Error> {
        let now = Some(shared.bundle.stamp()?);
        let unchanged = now == self.stamp;
        if !unchanged {
            self.verified.fill(false);
            self.stamp = now;
        }
        Ok(unchanged)
    }

    /// As many at a time as there are buffers.
    fn embed_all(
        &mut self,
        shared: &Shared,
        link: &mut RowLink,
        tokens: &[u32],
        out: &mut [f32],
    ) -> Result<(), Error> {
        let (d, wave) = (self.width, self.wave());
        for (tokens, out) in tokens.chunks(wave).zip(out.chunks_mut(wave * d)) {
            self.embed_wave(shared, link, tokens, out)?;
        }
        Ok(())
    }

    fn embed_wave(
        &mut self,
        shared: &Shared,
        link: &mut RowLink,
        tokens: &[u32],
        out: &mut [f32],
    ) -> Result<(), Error> {
        let d = self.width;
        let mut pending = 0;
        for (i, &token) in tokens.iter().enumerate() {
            let (cluster, entry) = self.cluster_of(shared, token);
            let at = self.unit_of(token, entry);
            if shared.plan.residency[cluster] == Residency::Pinned {
                let unit = &shared.resident.bytes(cluster)[at..at + self.unit_bytes];
                self.decode(token, entry, unit, &mut out[i * d..(i + 1) * d]);
                continue;
            }
            let Some(slot) = self.buffers.pop() else {
                return Err(Error::Stopped);
            };
            let start = entry.offset + at as u64;
            let aligned = start / ALIGN as u64 * ALIGN as u64;
            let len = ((start - aligned) as usize + self.unit_bytes).next_multiple_of(ALIGN);
            link.read(i, aligned, len, slot);
            pending += 1;
        }
        link.flush();
        let mut failed = None;
        for _ in 0..pending {
            let Some((token_index, done)) = link.wait_done() else {
                return Err(Error::Stopped);
            };
            let token = tokens[token_index];
            let (_, entry) = self.cluster_of(shared, token);
            let start = entry.offset + self.unit_of(token, entry) as u64;
            let at = (start - done.offset) as usize;
            let unit = &done.slot[at..at + self.unit_bytes];
            self.decode(
                token,
                entry,
                unit,
                &mut out[token_index * d..(token_index + 1) * d],
            );
            let (result, offset) = (done.result, done.offset);
            self.buffers.push(done.slot);
            if let Err(fault) = result {
                let what = "an embedding row".to_string();
                failed.get_or_insert(Fault::Read {
                    what,
                    offset,
                    fault,
                });
            }
        }
        match failed {
            Some(fault) => Err(fault_of(shared, fault)),
            None => Ok(()),
        }
    }

    /// Where, in the token's cluster, the rows begin that are read together with its own.
    fn unit_of(&self, token: u32, entry: &DirectoryEntry) -> usize {
        (token - entry.first) as usize / self.unit_rows * self.unit_bytes
    }

    /// The token's row out of the rows that were read with it, as f32, `[width]`.
    fn decode(&mut self, token: u32, entry: &DirectoryEntry, unit: &[u8], out: &mut [f32]) {
        match self.unit_rows {
            1 => dequantize(self.block, unit, out),
            _ => {
                let row = (token - entry.first) as usize % self.unit_rows;
                extract_row(self.block, unit, row, &mut self.row);
                dequantize(self.block, &self.row, out);
            }
        }
        if self.scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= self.scale);
        }
    }

    /// Every cluster is checked again at its next use: the file may have changed.
    pub fn distrust(&mut self) {
        self.verified.fill(false);
    }

    fn cluster_of<'a>(&self, shared: &'a Shared, token: u32) -> (usize, &'a DirectoryEntry) {
        let cluster = self.first_cluster + token as usize / self.rows_per_cluster;
        (cluster, &shared.bundle.clusters[cluster])
    }

    /// Rows carry no checksum of their own: the first row of a cluster has the whole cluster checked.
    fn verify(
        &mut self,
        shared: &Shared,
        cluster: usize,
        entry: &DirectoryEntry,
    ) -> Result<(), Error> {
        if self.stamp.is_none() {
            self.stamp = Some(shared.bundle.stamp()?);
        }
        let known = &mut self.verified[cluster - self.first_cluster];
        if !*known {
            shared.bundle.read_cluster(entry, &mut self.scratch)?;
            *known = true;
        }
        Ok(())
    }
}

/// A fault with the file's name.
pub(crate) fn fault_of(shared: &Shared, fault: Fault) -> Error {
    Error::Fault {
        path: shared.bundle.path().to_path_buf(),
        fault,
    }
}
