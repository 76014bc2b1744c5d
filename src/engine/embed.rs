//! Embedding rows: out of the pinned head where it is tied, else read from flash as they are needed
//! (mnn-llm's disk embedding: the table is a sixth of a small model and one row of it is used per token).
//! A head holds its rows in panels; a table of its own holds them one behind the other.

use forebay_actors::decode::Shared;
use forebay_actors::fault::Fault;
use forebay_actors::io_link::{IoLink, ReadTag};
use forebay_models::block::dequantize;
use forebay_models::bundle::{ALIGN, ClusterKind, DirectoryEntry};
use forebay_models::panel::{PANEL_ROWS, extract_row};
use forebay_plans::residency::Residency;
use forebay_queues::slab::Slot;

use crate::error::Error;

/// Looks tokens up.
#[derive(Debug)]
pub(super) struct Embedder {
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
    /// Whether a cluster of the table has been checked in this process, by cluster of the table.
    verified: Vec<bool>,
    scratch: Vec<u8>,
}

impl Embedder {
    pub fn new(shared: &Shared, buffers: Vec<Slot>) -> Self {
        let (meta, c) = (&shared.bundle.meta, &shared.bundle.meta.config);
        let kind = if c.tied_head {
            ClusterKind::Head
        } else {
            ClusterKind::Embedding
        };
        let clusters = &shared.bundle.clusters;
        let first_cluster = clusters.iter().position(|e| e.kind == kind).unwrap_or(0);
        let count = clusters.iter().filter(|e| e.kind == kind).count();
        let unit_rows = if kind.is_panels() { PANEL_ROWS } else { 1 };
        let row_bytes = meta.embedding.row_bytes(c.d_model).unwrap_or(0);
        Self {
            first_cluster,
            rows_per_cluster: meta.embedding_rows.max(1),
            unit_rows,
            unit_bytes: unit_rows * row_bytes,
            row: vec![0; row_bytes],
            buffers,
            verified: vec![false; count],
            scratch: Vec::new(),
        }
    }

    /// Writes the embeddings of `tokens` to `out`, `[n_tokens, d_model]`.
    ///
    /// # Errors
    /// A failing read or a checksum that does not match.
    pub fn embed(
        &mut self,
        shared: &Shared,
        link: &mut IoLink,
        tokens: &[u32],
        out: &mut [f32],
    ) -> Result<(), Error> {
        let d = shared.bundle.meta.config.d_model;
        // Before any read is under way: an error in between would leave completions behind for the next
        // step to stumble over.
        for &token in tokens {
            let (cluster, entry) = self.cluster_of(shared, token);
            if shared.plan.residency[cluster] != Residency::Pinned {
                self.verify(shared, cluster, entry)?;
            }
        }
        // As many at a time as there are buffers.
        let wave = self.buffers.len().max(1);
        for (tokens, out) in tokens.chunks(wave).zip(out.chunks_mut(wave * d)) {
            self.embed_wave(shared, link, tokens, out)?;
        }
        Ok(())
    }

    fn embed_wave(
        &mut self,
        shared: &Shared,
        link: &mut IoLink,
        tokens: &[u32],
        out: &mut [f32],
    ) -> Result<(), Error> {
        let d = shared.bundle.meta.config.d_model;
        let mut pending = 0;
        for (i, &token) in tokens.iter().enumerate() {
            let (cluster, entry) = self.cluster_of(shared, token);
            let at = self.unit_of(token, entry);
            if shared.plan.residency[cluster] == Residency::Pinned {
                let unit = &shared.resident.bytes(cluster)[at..at + self.unit_bytes];
                self.decode(shared, token, entry, unit, &mut out[i * d..(i + 1) * d]);
                continue;
            }
            let Some(slot) = self.buffers.pop() else {
                return Err(Error::Stopped);
            };
            let start = entry.offset + at as u64;
            let aligned = start / ALIGN as u64 * ALIGN as u64;
            let len = ((start - aligned) as usize + self.unit_bytes).next_multiple_of(ALIGN);
            link.urgent(ReadTag::Neurons { id: i }, aligned, len, slot);
            pending += 1;
        }
        link.flush();
        for _ in 0..pending {
            let Some(done) = link.wait_done() else {
                return Err(shared
                    .faults
                    .take()
                    .map_or(Error::Stopped, |f| fault_of(shared, f)));
            };
            let ReadTag::Neurons { id } = ReadTag::decode(done.tag) else {
                continue;
            };
            let (_, entry) = self.cluster_of(shared, tokens[id]);
            let start = entry.offset + self.unit_of(tokens[id], entry) as u64;
            let at = (start - done.offset) as usize;
            let unit = &done.slot[at..at + self.unit_bytes];
            self.decode(
                shared,
                tokens[id],
                entry,
                unit,
                &mut out[id * d..(id + 1) * d],
            );
            let (result, offset) = (done.result, done.offset);
            self.buffers.push(done.slot);
            if let Err(fault) = result {
                let what = "an embedding row".to_string();
                shared.faults.report(Fault::Read {
                    what,
                    offset,
                    fault,
                });
            }
        }
        match shared.faults.take() {
            Some(fault) => Err(fault_of(shared, fault)),
            None => Ok(()),
        }
    }

    /// Where the rows that are read together with the token's begin in its cluster.
    fn unit_of(&self, token: u32, entry: &DirectoryEntry) -> usize {
        (token - entry.first) as usize / self.unit_rows * self.unit_bytes
    }

    /// The token's row out of the rows that were read with it, as f32, `[d_model]`.
    fn decode(
        &mut self,
        shared: &Shared,
        token: u32,
        entry: &DirectoryEntry,
        unit: &[u8],
        out: &mut [f32],
    ) {
        let block = shared.bundle.meta.embedding;
        if self.unit_rows == 1 {
            return dequantize(block, unit, out);
        }
        let row = (token - entry.first) as usize % self.unit_rows;
        extract_row(block, unit, row, &mut self.row);
        dequantize(block, &self.row, out);
    }

    /// Has every cluster checked again at its next use: the file is not what it was.
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
        let known = &mut self.verified[cluster - self.first_cluster];
        if !*known {
            shared.bundle.read_cluster(entry, &mut self.scratch)?;
            *known = true;
        }
        Ok(())
    }
}

/// A fault with the file's name.
pub(super) fn fault_of(shared: &Shared, fault: Fault) -> Error {
    Error::Fault {
        path: shared.bundle.path().display().to_string(),
        fault,
    }
}
