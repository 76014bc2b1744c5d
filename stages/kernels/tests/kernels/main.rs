//! Every kernel on every instruction set, against definitions written independently of the kernels.

mod attention;
mod axpy;
mod definition;
mod dot;
mod elementwise;
mod fixed;
mod kv;
mod laned;
mod matmul;
mod probe;
#[path = "../../src/tests/random.rs"]
mod random;
mod recurrent;
mod scattered;
mod throughput;

use forebay_kernels::{Isa, KernelTable};
use random::Random;

/// Kernels of every instruction set that this machine has; plain Rust first.
fn tables() -> Vec<KernelTable> {
    Isa::ALL.into_iter().filter_map(KernelTable::new).collect()
}

/// Best speed of any piece of `n` units, in units per second; each of the pieces is run once per pass.
fn best((pieces, passes): (usize, usize), n: usize, mut run: impl FnMut(usize, usize)) -> f64 {
    let mut best = 0.0_f64;
    for i in 0..pieces * passes {
        let piece = i % pieces;
        let (first, end) = (piece * n / pieces, (piece + 1) * n / pieces);
        let start = std::time::Instant::now();
        run(first, end);
        best = best.max((end - first) as f64 / start.elapsed().as_secs_f64());
    }
    best
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Runs `f` on every instruction set, demands equal bits, and returns them.
fn on_all(mut f: impl FnMut(&KernelTable) -> Vec<f32>) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for table in tables() {
        let out = f(&table);
        match &first {
            None => first = Some(out),
            Some(scalar) => assert_eq!(bits(scalar), bits(&out), "{} differs", table.isa()),
        }
    }
    first.expect("plain Rust is always there")
}

#[test]
fn names_round_trip_and_the_best_is_available() {
    for isa in Isa::ALL {
        assert_eq!(isa.to_string().parse(), Ok(isa));
    }
    assert!("sse9".parse::<Isa>().is_err());
    let best = KernelTable::best();
    assert_eq!(best.isa(), Isa::detect());
    assert_eq!(tables().last().map(KernelTable::isa), Some(best.isa()));
    // `.ci/arm` says what must be found on the CPUs that it emulates, so that nothing is left out
    // unseen.
    if let Ok(expected) = std::env::var("FOREBAY_EXPECT_ISA") {
        assert_eq!(best.isa().name(), expected);
    }
}
