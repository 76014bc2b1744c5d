//! Small dense problems in f64: positive definite systems, symmetric eigenvalues.

/// Solves `a x = b` for a symmetric positive definite `a`, `[n, n]`, which is overwritten with its
/// Cholesky factor. A pivot that rounding made 0 or negative counts as infinite: its unknown is 0.
pub(super) fn cholesky_solve(a: &mut [f64], b: &[f64]) -> Vec<f64> {
    let n = b.len();
    for j in 0..n {
        for i in j..n {
            let (row, pivot) = (&a[i * n..][..j], &a[j * n..][..j]);
            let sum: f64 = row.iter().zip(pivot).map(|(x, y)| x * y).sum();
            let value = a[i * n + j] - sum;
            a[i * n + j] = match i == j {
                true if value > 0.0 => value.sqrt(),
                true => f64::INFINITY,
                false => value / a[j * n + j],
            };
        }
    }
    let mut x = b.to_vec();
    for i in 0..n {
        let sum: f64 = (0..i).map(|k| a[i * n + k] * x[k]).sum();
        x[i] = (x[i] - sum) / a[i * n + i];
    }
    for i in (0..n).rev() {
        let sum: f64 = (i + 1..n).map(|k| a[k * n + i] * x[k]).sum();
        x[i] = (x[i] - sum) / a[i * n + i];
    }
    x
}

/// Eigenvalues of the symmetric `a`, `[n, n]`, in descending order, and its eigenvectors as rows,
/// `[n, n]` (cyclic Jacobi rotations).
pub(super) fn eigen(mut a: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    const SWEEPS: usize = 30;
    let mut vectors = vec![0.0; n * n];
    for i in 0..n {
        vectors[i * n + i] = 1.0;
    }
    let norm: f64 = a.iter().map(|v| v * v).sum();
    for _ in 0..SWEEPS {
        let mut off = 0.0;
        for p in 0..n {
            for q in p + 1..n {
                off += a[p * n + q] * a[p * n + q];
                rotate(&mut a, &mut vectors, n, p, q);
            }
        }
        if off <= 1e-18 * norm {
            break;
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[j * n + j].total_cmp(&a[i * n + i]));
    let values = order.iter().map(|&i| a[i * n + i]).collect();
    let rows = order.iter().flat_map(|&i| &vectors[i * n..][..n]);
    (values, rows.copied().collect())
}

/// Rotates axes `p` and `q` so that `a[p][q]` becomes 0.
fn rotate(a: &mut [f64], vectors: &mut [f64], n: usize, p: usize, q: usize) {
    let (pp, qq, pq) = (a[p * n + p], a[q * n + q], a[p * n + q]);
    if pq.abs() <= 1e-15 * (pp.abs() * qq.abs()).sqrt() {
        return;
    }
    let theta = (qq - pp) / (2.0 * pq);
    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let c = 1.0 / (t * t + 1.0).sqrt();
    let s = t * c;
    for k in 0..n {
        let (x, y) = (a[k * n + p], a[k * n + q]);
        (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
    }
    rotate_rows(a, n, p, q, c, s);
    rotate_rows(vectors, n, p, q, c, s);
}

fn rotate_rows(m: &mut [f64], n: usize, p: usize, q: usize, c: f64, s: f64) {
    let (head, tail) = m.split_at_mut(q * n);
    for (x, y) in head[p * n..][..n].iter_mut().zip(&mut tail[..n]) {
        (*x, *y) = (c * *x - s * *y, s * *x + c * *y);
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    /// `b · bᵀ` of a random `b`, `[n, n]`.
    fn positive(n: usize) -> Vec<f64> {
        let mut random = Random::new(5);
        let b: Vec<f64> = (0..n * n).map(|_| f64::from(random.normal())).collect();
        let row = |i: usize| &b[i * n..][..n];
        let product = |i, j| row(i).iter().zip(row(j)).map(|(x, y)| x * y).sum();
        (0..n * n).map(|at| product(at / n, at % n)).collect()
    }

    fn times(a: &[f64], x: &[f64]) -> Vec<f64> {
        let rows = a.chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(a, x)| a * x).sum())
            .collect()
    }

    #[test]
    fn a_system_is_solved() {
        let a = positive(12);
        let b: Vec<f64> = (0..12).map(f64::from).collect();
        let x = cholesky_solve(&mut a.clone(), &b);
        for (ax, b) in times(&a, &x).iter().zip(&b) {
            assert!((ax - b).abs() < 1e-6, "{ax} {b}");
        }
    }

    #[test]
    fn eigenvectors_are_scaled_by_the_matrix() {
        let (n, a) = (15, positive(15));
        let (values, vectors) = eigen(a.clone(), n);
        assert!(values.is_sorted_by(|a, b| a >= b));
        for (value, v) in values.iter().zip(vectors.chunks_exact(n)) {
            let length: f64 = v.iter().map(|v| v * v).sum();
            assert!((length - 1.0).abs() < 1e-9, "{length}");
            for (av, v) in times(&a, v).iter().zip(v) {
                assert!(
                    (av - value * v).abs() < 1e-7 * values[0],
                    "{av} {value} {v}"
                );
            }
        }
    }
}
