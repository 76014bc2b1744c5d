//! Products with gathered rows, against products with the same rows of a matrix.

use forebay_numbers::block::BlockType;

use super::definition::random_row;
use super::{Random, bits, on_all, tables};
use forebay_kernels::{Activations, Form, Gather, KernelTable, WeightRows};

fn column_counts(block: BlockType) -> Vec<usize> {
    match block.block_len() {
        1 => vec![1, 31, 32, 33, 64, 65, 300],
        32 => [1, 2, 3, 7, 8, 9, 17].map(|n| 32 * n).to_vec(),
        _ => [1, 2, 5].map(|n| 256 * n).to_vec(),
    }
}

#[test]
fn gathered_products_have_the_bits_of_a_matrix_product() {
    for (b, block) in BlockType::ALL.into_iter().enumerate() {
        for (i, cols) in column_counts(block).into_iter().enumerate() {
            let (k, n_tokens) = ([1, 3, 4, 5, 8, 9, 15][(b + i) % 7], [1, 1, 4, 7][i % 4]);
            let mut random = Random((b * 100 + i) as u64);
            let matrix: Vec<u8> = (0..k)
                .flat_map(|_| random_row(block, cols, &mut random))
                .collect();
            let stride = matrix.len() / k;
            // Each row in a buffer of its own, at an odd address.
            let apart: Vec<Vec<u8>> = matrix
                .chunks(stride)
                .map(|row| [&[0xff], row].concat())
                .collect();
            let rows: Vec<&[u8]> = apart.iter().map(|row| &row[1..]).collect();
            let x = random.units(n_tokens * cols);
            let product = |table: &KernelTable, gathered: bool| {
                let mut activations = Activations::new(n_tokens, cols);
                activations.load(table, Form::Rows, n_tokens, cols, &x);
                let mut out = vec![f32::NAN; n_tokens * k];
                if gathered {
                    table.dot_gathered(block, Gather::new(&rows), &activations, &mut out);
                    for (t, together) in out.chunks_exact(k).enumerate() {
                        let mut alone = vec![f32::NAN; k];
                        table.dot_gathered_of(block, &rows, &activations, t, &mut alone);
                        assert_eq!(bits(&alone), bits(together), "token {t} of {n_tokens}");
                    }
                } else {
                    let w = WeightRows {
                        block,
                        bytes: &matrix,
                        stride,
                        n_rows: k,
                    };
                    table.matmul(w, &activations, &mut out, k);
                }
                out
            };
            let out = on_all(|table| product(table, true));
            for table in tables() {
                let matrix = product(&table, false);
                assert_eq!(bits(&out), bits(&matrix), "{block} {cols} x {k}");
            }
        }
    }
}

#[test]
fn no_rows_give_nothing() {
    let table = KernelTable::best();
    let mut x = Activations::new(2, 32);
    x.load(&table, Form::Rows, 2, 32, &[1.0; 64]);
    table.dot_gathered(BlockType::Q4_0, Gather::new(&[]), &x, &mut []);
    table.dot_gathered_of(BlockType::Q4_0, &[], &x, 1, &mut []);
}

#[test]
#[should_panic(expected = "token 2 of 2")]
fn a_token_that_is_not_there_is_refused() {
    let table = KernelTable::best();
    let mut x = Activations::new(2, 32);
    x.load(&table, Form::Rows, 2, 32, &[1.0; 64]);
    table.dot_gathered_of(BlockType::Q4_0, &[&[0; 18]], &x, 2, &mut [0.0]);
}

#[test]
#[should_panic(expected = "row of another length")]
fn rows_of_another_length_are_refused() {
    let table = KernelTable::best();
    let mut x = Activations::new(1, 32);
    x.load(&table, Form::Rows, 1, 32, &[1.0; 32]);
    let rows: [&[u8]; 2] = [&[0; 18], &[0; 36]];
    table.dot_gathered(BlockType::Q4_0, Gather::new(&rows), &x, &mut [0.0; 2]);
}
