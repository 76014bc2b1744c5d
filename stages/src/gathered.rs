//! Rows of single neurons, gathered from anywhere in memory, times activations.

use forebay_models::block::BlockType;
use forebay_models::bundle::MAX_BUNDLES;

use crate::kernels::{Activations, Gather, KernelTable};
use crate::live_mask::LiveMask;

/// Rows of the first `live` neurons, as many as a call prefetches.
pub fn first_rows<'a>(
    live: &LiveMask,
    row: impl Fn(usize) -> &'a [u8],
) -> ([&'a [u8]; Gather::NEXT], usize) {
    let mut rows = [&[][..]; Gather::NEXT];
    let mut n = 0;
    for (to, i) in rows.iter_mut().zip(live.iter()) {
        *to = row(i);
        n += 1;
    }
    (rows, n)
}

/// Room for the products of one cluster's neurons.
#[derive(Debug)]
pub struct Gathered {
    /// `[n_tokens, live neurons]`
    products: Vec<f32>,
}

impl Gathered {
    /// Room for `max_tokens` tokens.
    pub fn new(max_tokens: usize) -> Self {
        Self {
            products: vec![0.0; max_tokens * MAX_BUNDLES],
        }
    }

    /// Dot products of the rows of the `live` ones of `n` neurons with all tokens into `out`,
    /// `[n_tokens, n]`; 0 for the others. `next` is what is needed next of each neuron.
    pub fn dot<'a>(
        &mut self,
        kernels: &KernelTable,
        block: BlockType,
        (row, next): (impl Fn(usize) -> &'a [u8], impl Fn(usize) -> &'a [u8]),
        (n, live): (usize, &LiveMask),
        x: &Activations,
        out: &mut [f32],
    ) {
        let mut rows = [&[][..]; MAX_BUNDLES];
        let mut k = 0;
        for i in live.iter() {
            rows[k] = row(i);
            k += 1;
        }
        let out = &mut out[..x.n_tokens() * n];
        out.fill(0.0);
        if k == 0 {
            return;
        }
        let products = &mut self.products[..x.n_tokens() * k];
        let (later, m) = first_rows(live, next);
        let gather = Gather::new(&rows[..k]).then(&later[..m]);
        kernels.dot_gathered(block, gather, x, products);
        for (products, out) in products.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
            for (i, &product) in live.iter().zip(products) {
                out[i] = product;
            }
        }
    }

    /// The same if each token has its own neurons, `live`, `[n_tokens]`: products of the others are 0. Returns how many
    /// were computed.
    pub fn dot_by_token<'a>(
        &mut self,
        kernels: &KernelTable,
        block: BlockType,
        row: impl Fn(usize) -> &'a [u8],
        (n, live): (usize, &[LiveMask]),
        x: &Activations,
        out: &mut [f32],
    ) -> usize {
        let mut pairs = 0;
        let mut rows = [&[][..]; MAX_BUNDLES];
        for (t, (live, out)) in live.iter().zip(out.chunks_exact_mut(n)).enumerate() {
            out.fill(0.0);
            let mut k = 0;
            for i in live.iter() {
                rows[k] = row(i);
                k += 1;
            }
            let products = &mut self.products[..k];
            kernels.dot_gathered_of(block, &rows[..k], x, t, products);
            for (i, &product) in live.iter().zip(&*products) {
                out[i] = product;
            }
            pairs += k;
        }
        pairs
    }

    /// Whether each token wants so few of all wanted neurons that it is better to compute each token's own: computed
    /// together, tokens share the unpacking of rows, which compensates for a quarter of the products.
    pub fn is_by_token(live: &[LiveMask], union: usize) -> bool {
        let pairs: usize = live.iter().map(LiveMask::count).sum();
        live.len() > 1 && 4 * pairs < 3 * union * live.len()
    }
}
