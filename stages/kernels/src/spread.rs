//! Spreading a head's elements over each other before they become bytes: a few channels of the keys of some models are
//! many times larger than the others, and the step of a row's codes follows its largest element.

/// Multiplies parts of a head, `[head_dim]`, by a normalised Hadamard matrix: the largest whose size is a power of two
/// that divides the head. It is symmetric and its own inverse, so products of queries with keys stay what they are if
/// both are spread. The order of additions is fixed.
pub(crate) fn spread(head: &mut [f32]) {
    let n = 1 << head.len().trailing_zeros();
    let scale = (n as f32).sqrt().recip();
    for part in head.chunks_exact_mut(n) {
        let mut half = 1;
        while half < n {
            for both in part.chunks_exact_mut(2 * half) {
                let (low, high) = both.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        for v in part {
            *v *= scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
        products.sum()
    }

    #[test]
    fn products_stay_and_a_large_element_is_shared_out() {
        for n in [64, 80, 96, 128, 256] {
            let element = |i: usize, step: usize| ((i * step % 101) as f32 - 50.0) / 50.0;
            let mut q: Vec<f32> = (0..n).map(|i| element(i, 37)).collect();
            let mut k: Vec<f32> = (0..n).map(|i| element(i, 53)).collect();
            k[5] = 100.0;
            let (before, original) = (dot(&q, &k), k.clone());
            spread(&mut q);
            spread(&mut k);
            assert!((dot(&q, &k) - before).abs() < 1e-3 * before.abs().max(1.0));
            let largest = k.iter().fold(0f32, |max, v| max.max(v.abs()));
            assert!(largest < 40.0, "{largest} of {n}");
            spread(&mut k);
            let error = k.iter().zip(&original).map(|(a, b)| (a - b).abs());
            assert!(error.fold(0.0, f32::max) < 1e-4);
        }
    }
}
