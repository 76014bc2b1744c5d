//! Panels against their definition and back.

use super::*;
use proptest::prelude::*;

/// Every bit of a block has exactly one place in the tile: the parts add up to the block.
#[test]
fn layouts_cover_their_blocks() {
    for block in BlockType::ALL {
        let layout = layout(block);
        let heads: usize = layout.heads.iter().map(|h| h.size * h.count).sum();
        let bits: usize = layout.planes.iter().map(|p| p.width).sum();
        let bytes = heads + bits * block.block_len() / 8;
        assert_eq!(bytes, block.block_bytes(), "{block}");
    }
}

#[test]
fn four_elements_of_a_row_are_neighbours() {
    let block = BlockType::Q8_0;
    let rows: Vec<u8> = (0..2 * 34).collect();
    let mut panel = Vec::new();
    pack_panels(block, &rows, 34, &mut panel);
    assert_eq!(panel.len(), 16 * 34);
    assert_eq!(panel[..4], [0, 1, 34, 35], "scales of the two rows");
    assert_eq!(panel[32..40], [2, 3, 4, 5, 36, 37, 38, 39]);
    assert_eq!(panel[32 + 64..][..4], [6, 7, 8, 9]);
    assert!(panel[40..96].iter().all(|&b| b == 0), "missing rows");
}

/// The panel of up to 16 rows bit by bit, as the head of this file says.
fn by_definition(block: BlockType, rows: &[u8], row_bytes: usize) -> Vec<u8> {
    let (layout, size) = (layout(block), block.block_bytes());
    let mut panel = vec![0; PANEL_ROWS * row_bytes];
    for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
        for (from, tile) in bytes
            .chunks_exact(size)
            .zip(panel.chunks_exact_mut(PANEL_ROWS * size))
        {
            let mut base = 0;
            for (i, h) in layout
                .heads
                .iter()
                .flat_map(|h| (0..h.count).map(move |i| (i, h)))
            {
                let (at, to) = (h.at + i * h.size, base + row * h.size);
                tile[to..to + h.size].copy_from_slice(&from[at..at + h.size]);
                base += PANEL_ROWS * h.size;
            }
            for first in (0..block.block_len()).step_by(PLANE_LEN) {
                for plane in layout.planes {
                    let w = plane.width;
                    for k in 0..PLANE_LEN {
                        let (byte, bit) = plane.in_block(first + k);
                        let code = u32::from(from[byte]) >> bit & ((1 << w) - 1);
                        let g = k / 4;
                        let place = base + VECTOR * (g % w) + 4 * row + k % 4;
                        tile[place] |= (code << (w * (g / w))) as u8;
                    }
                    base += VECTOR * w;
                }
            }
        }
    }
    panel
}

proptest! {
    /// Nothing is lost, whatever the bytes, the format and the number of rows.
    #[test]
    fn panels_can_be_taken_apart(
        which in 0..BlockType::ALL.len(), n_rows in 1usize..35, blocks in 1usize..67, seed in any::<u64>(),
    ) {
        let block = BlockType::ALL[which];
        let row_bytes = blocks * block.block_bytes();
        let mut state = seed | 1;
        let rows: Vec<u8> = (0..n_rows * row_bytes)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let mut panels = Vec::new();
        pack_panels(block, &rows, row_bytes, &mut panels);
        let cols = blocks * block.block_len();
        prop_assert_eq!(Some(panels.len()), panels_bytes(block, n_rows, cols));
        let defined = rows
            .chunks(PANEL_ROWS * row_bytes)
            .flat_map(|rows| by_definition(block, rows, row_bytes));
        prop_assert_eq!(&panels, &defined.collect::<Vec<u8>>());
        let mut back = vec![0; row_bytes];
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            let panel = panels.chunks_exact(16 * row_bytes).nth(r / 16).expect("a panel");
            extract_row(block, panel, r % 16, &mut back);
            prop_assert_eq!(&back[..], row);
        }
    }
}
