//! A packed file beside its source: every row of every cluster.

use std::path::Path;

use forebay_models::block::{BlockType, dequantize};
use forebay_models::bundle::{
    Bundle, DirectoryEntry, FfnGeometry, FfnLayout, PackOptions, outline, pack,
};
use forebay_models::lanes::{extract_row as extract_laned, lane_order};
use forebay_models::network::Content;
use forebay_models::panel::{PANEL_ROWS, extract_row, panels_bytes};
use forebay_models::source;
use forebay_models::source::TensorSource;
use forebay_models::tensor::{LayerTensor, TensorId};
use tempfile::TempDir;

use crate::gguf_writer::GgufWriter;

/// A source and what was made of it.
pub struct Packed {
    pub source: Box<dyn TensorSource>,
    pub bundle: Bundle,
    _folder: TempDir,
}

pub fn packed(w: &GgufWriter) -> Packed {
    packed_with(w, &PackOptions::default())
}

pub fn packed_with(w: &GgufWriter, options: &PackOptions) -> Packed {
    let folder = TempDir::new().expect("a folder");
    let source = source::open(&w.write(folder.path(), "model.gguf")).expect("a sound source");
    packed_in(folder, source, options)
}

/// A source that has been packed in `folder`.
pub fn packed_in(folder: TempDir, source: Box<dyn TensorSource>, options: &PackOptions) -> Packed {
    let target = folder.path().join("model.fbay");
    pack(source.as_ref(), &target, options, &mut |_| {}).expect("packed");
    let bundle = Bundle::open(&target).expect("a sound bundle");
    check_outline(source.as_ref(), &bundle, options);
    Packed {
        source,
        bundle,
        _folder: folder,
    }
}

/// The outline of a source is its packed file, but for the weights and their checksums; it leaves no file.
fn check_outline(source: &dyn TensorSource, packed: &Bundle, options: &PackOptions) {
    // There is no such folder: nothing is written.
    let outlined = outline(source, Path::new("none/out.fbay"), options).expect("outlined");
    let without_sums = |bundle: &Bundle| -> Vec<DirectoryEntry> {
        let entries = bundle.clusters.iter();
        entries.map(|e| DirectoryEntry { sum: 0, ..*e }).collect()
    };
    assert_eq!(without_sums(&outlined), without_sums(packed));
    assert_eq!(outlined.meta, packed.meta);
    assert_eq!(outlined.vectors.values(), packed.vectors.values());
}

impl Packed {
    /// Bytes of row `row` of a source matrix, from column `first` on, `n` columns.
    pub fn part(&self, id: TensorId, row: usize, (first, n): (usize, usize)) -> Vec<u8> {
        let meta = self.source.meta(id).expect("a tensor");
        let bytes = |cols| meta.block.row_bytes(cols).expect("whole blocks");
        let mut out = vec![0; bytes(n)];
        let at = row * meta.row_bytes() + bytes(first);
        self.source
            .read(id, at, &mut out)
            .expect("within the tensor");
        out
    }

    pub fn row(&self, id: TensorId, row: usize) -> Vec<u8> {
        self.part(id, row, (0, self.source.meta(id).expect("a tensor").cols))
    }

    /// Checks every cluster; returns what they hold.
    pub fn check(&self) -> Vec<Content> {
        let mut contents = Vec::new();
        for entry in &self.bundle.clusters {
            let mut bytes = Vec::new();
            self.bundle
                .read_cluster(entry, &mut bytes)
                .expect("a sound cluster");
            self.check_cluster(entry, &bytes);
            contents.push(entry.content);
        }
        contents.dedup();
        contents
    }

    fn check_cluster(&self, e: &DirectoryEntry, bytes: &[u8]) {
        let id = match e.content {
            Content::Rows(id) => id,
            Content::Table(id) => id,
            content @ (Content::HotNeurons(_) | Content::Neurons(_) | Content::Experts(_)) => {
                let g = self.bundle.meta.geometry(content).expect("neurons");
                return match g.layout {
                    FfnLayout::Cluster => self.check_panels_of_ffn(g, e, bytes),
                    FfnLayout::Neuron | FfnLayout::GateFirst => self.check_neurons(g, e, bytes),
                };
            }
        };
        let (first, count) = (e.first as usize, e.count as usize);
        if matches!(e.content, Content::Table(_)) {
            let rows = (first..first + count).flat_map(|r| self.row(id, r));
            assert!(bytes.iter().copied().eq(rows), "{e:?}");
        } else {
            let rows = (first..first + count).map(|r| self.row(id, r));
            let block = self.source.meta(id).expect("a tensor").block;
            check_panels(block, bytes, rows, &format!("{e:?}"));
        }
    }

    fn check_panels_of_ffn(&self, g: &FfnGeometry, e: &DirectoryEntry, bytes: &[u8]) {
        let (layer, first, n) = (e.layer().unwrap_or(0), e.first as usize, e.count as usize);
        let (gate, rest) = bytes.split_at(g.gate_bytes(n));
        let (up, down) = rest.split_at(g.up_bytes(n));
        assert_eq!(down.len(), g.down_bytes(n));
        let network = &self.bundle.meta.network;
        let ((matrices, columns), (_, each)) = (
            network.neuron_matrices(e.content),
            network.neurons(e.content),
        );
        let up = g.up.map(|block| (matrices[1], block, up));
        let gate = Some((matrices[0], g.gate, gate));
        for (tensor, block, panels) in [gate, up].into_iter().flatten() {
            let rows = (first..first + n).map(|r| self.row(TensorId::Layer(layer, tensor), r));
            check_panels(block, panels, rows, &format!("{tensor:?} of {e:?}"));
        }
        if let Content::HotNeurons(_) = e.content {
            return self.check_hot_down(g, (layer, first, n), down);
        }
        // Down's columns are counted within an expert, whose rows follow those of the one before.
        let id = TensorId::Layer(layer, columns);
        let (expert, first) = (first / each, first % each);
        let rows = (0..g.d_model).map(|r| self.part(id, expert * g.d_model + r, (first, n)));
        check_panels(g.down, down, rows, &format!("Down of {e:?}"));
    }

    /// Down of hot neurons has been quantised again, in rows in another order.
    fn check_hot_down(
        &self,
        g: &FfnGeometry,
        (layer, first, n): (usize, usize, usize),
        down: &[u8],
    ) {
        let d_model = g.d_model;
        let others = self.bundle.meta.ffns[layer].expect("others");
        let outputs: Vec<usize> = match others.has_laned_columns() {
            true => lane_order(d_model).collect(),
            false => (0..d_model).collect(),
        };
        let columns: Vec<Vec<f32>> = (first..first + n).map(|i| self.column(layer, i)).collect();
        let panel_bytes = PANEL_ROWS * g.down.row_bytes(n).expect("whole blocks");
        let (mut row, mut found) = (vec![0; panel_bytes / PANEL_ROWS], vec![0.0; n]);
        for (r, &output) in outputs.iter().enumerate() {
            let panel = &down[r / PANEL_ROWS * panel_bytes..][..panel_bytes];
            extract_row(g.down, panel, r % PANEL_ROWS, &mut row);
            dequantize(g.down, &row, &mut found);
            for (block, columns) in found.chunks(32).zip(columns.chunks(32)) {
                let expected: Vec<f32> = columns.iter().map(|c| c[output]).collect();
                let most = expected.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                // Half a step of 127, and the scale is an f16.
                let error = if g.down == BlockType::Q8_0 {
                    most / 230.0
                } else {
                    0.0
                };
                for (found, expected) in block.iter().zip(expected) {
                    assert!(
                        (found - expected).abs() <= error,
                        "row {r}: {found}, {expected}"
                    );
                }
            }
        }
    }

    /// A neuron's column of Down.
    fn column(&self, layer: usize, neuron: usize) -> Vec<f32> {
        let down_t = TensorId::Layer(layer, LayerTensor::DownT);
        let down = TensorId::Layer(layer, LayerTensor::Down);
        let d_model = self.bundle.meta.network.d_model;
        let (id, bytes) = match self.source.meta(down_t) {
            Some(_) => (down_t, self.row(down_t, neuron)),
            None => {
                let elements = (0..d_model).flat_map(|r| self.part(down, r, (neuron, 1)));
                (down, elements.collect())
            }
        };
        let mut column = vec![0.0; d_model];
        dequantize(
            self.source.meta(id).expect("Down").block,
            &bytes,
            &mut column,
        );
        column
    }

    fn check_neurons(&self, g: &FfnGeometry, e: &DirectoryEntry, bytes: &[u8]) {
        let layer = e.layer().unwrap_or(0);
        let network = &self.bundle.meta.network;
        let ((matrices, columns), (_, each)) = (
            network.neuron_matrices(e.content),
            network.neurons(e.content),
        );
        let of_layer = |t| TensorId::Layer(layer, t);
        let down_t = of_layer(LayerTensor::DownT);
        let n = e.count as usize;
        assert_eq!(bytes.len(), g.cluster_bytes(n));
        for i in 0..n {
            let neuron = e.first as usize + i;
            let pair = g.pairs_offset(n) + i * g.pair_stride();
            let gate = self.row(of_layer(matrices[0]), neuron);
            let up = g.up.map(|block| {
                let row = self.row(of_layer(matrices[1]), neuron);
                (pair, row, block, g.has_laned_rows())
            });
            let down = if self.source.meta(down_t).is_some() {
                self.row(down_t, neuron)
            } else {
                // Down's columns are counted within an expert, whose rows follow those of the one before.
                let (expert, column) = match e.content {
                    Content::Experts(_) => (neuron / each, neuron % each),
                    _ => (0, neuron),
                };
                let start = expert * g.d_model;
                let element = |r| self.part(of_layer(columns), start + r, (column, 1));
                (0..g.d_model).flat_map(element).collect()
            };
            let gate = Some((i * g.gate_stride(), gate, g.gate, g.has_laned_rows()));
            let at = pair + g.down_offset() - g.up_offset();
            let down = Some((at, down, g.down, g.has_laned_columns()));
            for (at, row, block, is_laned) in [gate, up, down].into_iter().flatten() {
                let mut stored = bytes[at..at + row.len()].to_vec();
                if is_laned {
                    extract_laned(block, &bytes[at..at + row.len()], &mut stored);
                }
                assert!(stored == row, "neuron {neuron} of {e:?}");
            }
        }
    }
}

/// `panels` holds `rows` and fills up the last panel with zeros.
fn check_panels(block: BlockType, panels: &[u8], rows: impl Iterator<Item = Vec<u8>>, what: &str) {
    let rows: Vec<Vec<u8>> = rows.collect();
    let len = rows[0].len();
    let cols = len / block.block_bytes() * block.block_len();
    assert_eq!(
        Some(panels.len()),
        panels_bytes(block, rows.len(), cols),
        "{what}"
    );
    let missing = std::iter::repeat(vec![0; len]);
    let mut row = vec![0; len];
    for (p, panel) in panels.chunks_exact(PANEL_ROWS * len).enumerate() {
        let expected = rows
            .iter()
            .skip(p * PANEL_ROWS)
            .cloned()
            .chain(missing.clone());
        for (r, expected) in expected.take(PANEL_ROWS).enumerate() {
            extract_row(block, panel, r, &mut row);
            assert!(row == expected, "row {r} of panel {p} of {what}");
        }
    }
}
