//! Where the panels of a job are, as the shaders read it: four words per entry.

use std::ops::Range;

use forebay_numbers::panel::{PANEL_ROWS, PLANE_LEN};

use crate::job::{FfnCluster, PanelRange};
use crate::shaders::TILE_PANELS;

use super::given::Vector;

fn entry(words: [usize; 4]) -> Vector {
    words.map(|word| word as u32)
}

/// Words of a panel.
fn panel_words(range: &PanelRange) -> usize {
    let bytes = range.block.row_bytes(range.cols).unwrap_or_default();
    PANEL_ROWS * bytes / 4
}

/// Panels of some ranges.
pub(super) fn n_panels<'a>(ranges: impl Iterator<Item = &'a PanelRange>) -> usize {
    ranges.map(|range| range.n_rows.div_ceil(PANEL_ROWS)).sum()
}

/// All panels of some ranges, whose rows are columns of the results from `column` on; see `rows.wgsl` and
/// `tiled_rows.wgsl`.
pub(super) fn of_rows<'a>(
    ranges: impl Iterator<Item = &'a PanelRange>,
    mut column: usize,
) -> Vec<Vector> {
    let mut entries = Vec::new();
    for range in ranges {
        let panel = panel_words(range);
        for (i, first) in (0..range.n_rows).step_by(PANEL_ROWS).enumerate() {
            let rows = PANEL_ROWS.min(range.n_rows - first);
            entries.push(entry([range.at / 4 + i * panel, column + first, rows, 0]));
        }
        column += range.n_rows;
    }
    if let Some(&[panel, ..]) = entries.last() {
        let whole = entries.len().next_multiple_of(TILE_PANELS);
        entries.resize(whole, [panel, 0, 0, 0]);
    }
    entries
}

/// Gate and Up, in one table if they have the same format: then they are one dispatch, which fills a device better.
pub(super) fn of_gate_up(clusters: &[FfnCluster]) -> Vec<Vec<Vector>> {
    let gates = clusters.iter().map(|cluster| &cluster.gate);
    let ups = clusters.iter().map(|cluster| &cluster.up);
    match are_alike(clusters) {
        true => vec![of_rows(gates.chain(ups), 0)],
        false => vec![of_rows(gates, 0), of_rows(ups, neurons(clusters))],
    }
}

/// How many tables Gate and Up have.
pub(super) fn of_gate_up_number(clusters: &[FfnCluster]) -> usize {
    2 - usize::from(are_alike(clusters))
}

/// Whether Gate and Up have the same format.
pub(super) fn are_alike(clusters: &[FfnCluster]) -> bool {
    clusters.iter().all(|c| c.gate.block == c.up.block)
}

/// Neurons of all clusters.
pub(super) fn neurons(clusters: &[FfnCluster]) -> usize {
    clusters.iter().map(|cluster| cluster.gate.n_rows).sum()
}

/// All blocks of Down; see `fixed.wgsl`.
pub(super) fn of_down(clusters: &[FfnCluster]) -> Vec<Vector> {
    let blocks = clusters.iter().flat_map(|FfnCluster { down, .. }| {
        let n = down.cols / PLANE_LEN;
        let per_tile = down.block.block_len() / PLANE_LEN;
        let tile_words = PANEL_ROWS * down.block.block_bytes() / 4;
        (0..n).map(move |i| {
            let tile = down.at / 4 + i / per_tile * tile_words;
            let ends_cluster = usize::from(i + 1 == n);
            entry([tile, panel_words(down), i % per_tile, ends_cluster])
        })
    });
    blocks.collect()
}

/// The first block of each of `n_parts` parts of the clusters, and the one behind its last.
pub(super) fn parts_of_down(clusters: &[FfnCluster], n_parts: usize) -> Vec<Range<usize>> {
    let first_of = |part: usize| {
        let before = &clusters[..part * clusters.len() / n_parts];
        before.iter().map(|c| c.down.cols / PLANE_LEN).sum()
    };
    let parts = (0..n_parts).map(|part| first_of(part)..first_of(part + 1));
    parts.collect()
}

/// Workgroups of Down that keep a large device busy, as estimated for 132 processors with eight each. If panels and
/// tokens give fewer, the clusters are divided.
const BUSY: usize = 1000;

/// Bytes that results of parts may take. Estimated, not measured: each is written and read once more.
const PARTIAL_BYTES: usize = 8 << 20;

/// Into how many parts Down's clusters are divided, if each takes so many workgroups and its results so many bytes.
pub(super) fn n_parts(groups: usize, n_clusters: usize, bytes: usize) -> usize {
    let room = PARTIAL_BYTES / bytes.max(1);
    let wanted = BUSY / groups.max(1);
    wanted.min(room).min(n_clusters).max(1)
}

#[cfg(test)]
mod tests {
    use forebay_numbers::block::BlockType;

    use super::*;

    fn cluster(at: usize, neurons: usize) -> FfnCluster {
        let range = |n_rows, cols| PanelRange {
            block: BlockType::Q8_0,
            at,
            n_rows,
            cols,
        };
        FfnCluster {
            gate: range(neurons, 64),
            up: range(neurons, 64),
            down: range(64, neurons),
        }
    }

    #[test]
    fn blocks_of_down_follow_each_other_and_parts_begin_with_clusters() {
        let clusters = [cluster(0, 64), cluster(4000, 32), cluster(8000, 32)];
        let table = of_down(&clusters);
        // A tile of Q8_0 is 16 rows of 34 bytes.
        let expected = [
            [0, 272, 0, 0],
            [136, 272, 0, 1],
            [1000, 136, 0, 1],
            [2000, 136, 0, 1],
        ];
        assert_eq!(table, expected);
        assert_eq!(parts_of_down(&clusters, 2), [0..2, 2..4]);
        assert_eq!(parts_of_down(&clusters, 3), [0..2, 2..3, 3..4]);
    }

    #[test]
    fn rows_are_padded_to_whole_workgroups_with_panels_of_no_rows() {
        let range = cluster(400, 40).gate;
        let table = of_rows([range].iter(), 0);
        let [first, second, third] = [100, 372, 644];
        let expected = [[first, 0, 16, 0], [second, 16, 16, 0], [third, 32, 8, 0]];
        assert_eq!(table[..3], expected);
        assert_eq!(table[3..], [[third, 0, 0, 0]]);
    }

    #[test]
    fn parts_are_at_most_clusters_and_their_results_have_a_limit() {
        assert_eq!(n_parts(96, 35, 12288), 10);
        assert_eq!(n_parts(96, 4, 12288), 4);
        assert_eq!(n_parts(96, 35, 1536 * 128 * 8), 5);
        assert_eq!(n_parts(2000, 35, 12288), 1);
        assert_eq!(n_parts(0, 0, 0), 1);
    }
}
