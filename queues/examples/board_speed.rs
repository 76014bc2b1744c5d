//! Nanoseconds per element of the boards' copies:
//! `cargo run --release -p forebay-queues --example board_speed`.

use std::hint::black_box;
use std::time::Instant;

use forebay_queues::board::{F32Board, I64Board};

const LEN: usize = 4096;

/// The best of many rounds, since anything else on the machine only adds time.
fn ns_per_element(mut copy: impl FnMut()) -> f64 {
    let best = (0..2000).map(|_| {
        let start = Instant::now();
        (0..16).for_each(|_| copy());
        start.elapsed()
    });
    best.min().unwrap_or_default().as_nanos() as f64 / (16 * LEN) as f64
}

fn main() {
    let floats = F32Board::new(LEN);
    let mut part = vec![1.5_f32; LEN];
    let sums = I64Board::new(LEN);
    let mut whole = vec![3_i64; LEN];
    let mut plain = vec![0.0_f32; LEN];
    let rows = [
        (
            "f32 write",
            ns_per_element(|| floats.write(0, black_box(&part))),
        ),
        (
            "f32 read",
            ns_per_element(|| floats.read(0, black_box(&mut part))),
        ),
        (
            "i64 write",
            ns_per_element(|| sums.write(0, black_box(&whole))),
        ),
        (
            "i64 read",
            ns_per_element(|| sums.read(0, black_box(&mut whole))),
        ),
        (
            "f32 memcpy",
            ns_per_element(|| black_box(&mut plain).copy_from_slice(black_box(&part))),
        ),
    ];
    for (name, ns) in rows {
        println!("{name:10} {ns:.3} ns per element");
    }
}
