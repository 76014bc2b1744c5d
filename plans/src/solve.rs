//! Choosing: a mixed-integer program over what can be decided, solved with a pure-Rust solver (PowerInfer-2 v2,
//! section 5, where it is Z3's job).
//!
//! A *way* is a choice of compute cores, read strategy and window. Exactly one way and one batch size are taken; the
//! memory that is left goes to *pieces*: weights that may stay in memory, each with the reading time that a byte of it
//! saves. The curve of misses is cut into pieces of falling worth, so the program stays linear:
//!
//! ```text
//! minimise  T + ω · Σ_b prompt_b · y_b                         (or memory, with T ≤ 1 / speed)
//! T ≥ Σ_w (compute_w + io_w) · x_w − Σ saved_io · m            nothing hides reads of neurons
//! T ≥ Σ_w (stream_w  + io_w) · x_w − Σ (saved_io + saved_stream) · m
//! fixed + Σ_w window_w · x_w + Σ_b scratch_b · y_b + Σ m ≤ memory
//! m_p ≤ size_p · x_w(p),   Σ x = 1,   Σ y = 1,   x, y ∈ {0, 1}
//! ```

use good_lp::{
    Expression, ProblemVariables, Solution, SolverModel, Variable, constraint, microlp, variable,
};

use crate::error::PlanError;

/// Weight of a prompt's token against a generated one: requests are taken to have as many of either.
const PROMPT_WEIGHT: f64 = 1.0;
/// Unit of memory in the program: numbers of one size keep the simplex exact.
const MIB: f64 = 1048576.0;
/// Unit of time.
const MS: f64 = 1e-3;

/// Weights that may stay in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Bytes.
    pub bytes: f64,
    /// Time per token that streaming all of it takes, seconds.
    pub stream_seconds: f64,
    /// Time per token that reading its neurons takes, seconds.
    pub io_seconds: f64,
}

/// A choice of cores, read strategy and window.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// Bytes of its window, buffers and scratch beyond what every choice needs.
    pub bytes: f64,
    /// Time of a token with all weights in memory, seconds.
    pub compute_seconds: f64,
    /// What may stay in memory.
    pub pieces: Vec<Piece>,
}

/// A batch size for prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Batch {
    /// Tokens.
    pub tokens: usize,
    /// Bytes of its scratch.
    pub bytes: f64,
    /// Time of a prompt's token, seconds.
    pub seconds: f64,
}

/// What is to be decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Bytes that every choice needs.
    pub fixed: f64,
    /// Choices of cores and strategy.
    pub ways: Vec<Way>,
    /// Choices of batch size.
    pub batches: Vec<Batch>,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The best speed within this many bytes.
    Fastest {
        /// Bytes.
        memory: f64,
    },
    /// The least memory with which a token takes at most this long.
    Least {
        /// Seconds.
        token_seconds: f64,
    },
}

/// The answer, by the model's linear pieces; the caller lays the memory out exactly.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Index into [`Problem::ways`].
    pub way: usize,
    /// Index into [`Problem::batches`].
    pub batch: usize,
    /// Bytes used.
    pub memory: f64,
    /// Time of a token, seconds.
    pub token_seconds: f64,
    /// Bytes kept of each piece of the way, `[pieces]`.
    pub kept: Vec<f64>,
}

struct Variables {
    ways: Vec<Variable>,
    batches: Vec<Variable>,
    /// MiB kept, by way and piece.
    kept: Vec<Vec<Variable>>,
    /// Milliseconds.
    time: Variable,
}

/// Solves `problem`.
///
/// # Errors
/// Nothing keeps the goal: the memory is too small for every way, or no way is fast enough.
pub fn solve(problem: &Problem, goal: Goal) -> Result<Choice, PlanError> {
    let mut all = ProblemVariables::new();
    let v = Variables {
        ways: all.add_vector(variable().binary(), problem.ways.len()),
        batches: all.add_vector(variable().binary(), problem.batches.len()),
        kept: problem
            .ways
            .iter()
            .map(|w| all.add_vector(variable().min(0.0), w.pieces.len()))
            .collect(),
        time: all.add(variable().min(0.0)),
    };
    let memory = memory(problem, &v);
    let prompt: Expression = v
        .batches
        .iter()
        .zip(&problem.batches)
        .map(|(&y, b)| y * (b.seconds / MS * PROMPT_WEIGHT))
        .sum();
    let objective = match goal {
        Goal::Fastest { .. } => v.time + prompt,
        // Of equal sizes, the faster.
        Goal::Least { .. } => memory.clone() + (v.time + prompt) * 1e-3,
    };
    let mut model = all.minimise(objective).using(microlp);
    model = match goal {
        Goal::Fastest { memory: most } => model.with(constraint!(memory.clone() <= most / MIB)),
        Goal::Least { token_seconds } => model.with(constraint!(v.time <= token_seconds / MS)),
    };
    for constraint in constraints(problem, &v) {
        model = model.with(constraint);
    }
    let solution = model.solve().map_err(|e| PlanError::NoPlan {
        why: match goal {
            Goal::Fastest { memory } => format!(
                "{:.0} MiB hold no choice of threads and buffers ({e}); give more --memory",
                memory / MIB
            ),
            Goal::Least { token_seconds } => format!(
                "no choice generates {:.1} tokens per second, even with all weights in memory ({e}); ask for less \
                 --speed",
                1.0 / token_seconds
            ),
        },
    })?;
    let chosen = |vars: &[Variable]| {
        let values = vars.iter().map(|&x| solution.value(x));
        values
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map_or(0, |(i, _)| i)
    };
    let way = chosen(&v.ways);
    Ok(Choice {
        way,
        kept: v.kept[way]
            .iter()
            .map(|&m| solution.value(m) * MIB)
            .collect(),
        batch: chosen(&v.batches),
        memory: solution.eval(&memory) * MIB,
        token_seconds: solution.value(v.time) * MS,
    })
}

/// MiB that are used.
fn memory(problem: &Problem, v: &Variables) -> Expression {
    let mut sum = Expression::from(problem.fixed / MIB);
    for (w, &x) in problem.ways.iter().zip(&v.ways) {
        sum += x * (w.bytes / MIB);
    }
    for (b, &y) in problem.batches.iter().zip(&v.batches) {
        sum += y * (b.bytes / MIB);
    }
    for &m in v.kept.iter().flatten() {
        sum += m;
    }
    sum
}

fn constraints(problem: &Problem, v: &Variables) -> Vec<good_lp::Constraint> {
    let mut list = vec![
        constraint!(v.ways.iter().sum::<Expression>() == 1.0),
        constraint!(v.batches.iter().sum::<Expression>() == 1.0),
    ];
    let (mut computing, mut streaming) = (Expression::from(0.0), Expression::from(0.0));
    for ((w, &x), kept) in problem.ways.iter().zip(&v.ways).zip(&v.kept) {
        let sum = |of: fn(&Piece) -> f64| w.pieces.iter().map(of).sum::<f64>();
        let (stream, io) = (sum(|p| p.stream_seconds), sum(|p| p.io_seconds));
        computing += x * ((w.compute_seconds + io) / MS);
        streaming += x * ((stream + io) / MS);
        for (p, &m) in w.pieces.iter().zip(kept) {
            let size = p.bytes.max(1.0) / MIB;
            list.push(constraint!(m <= x * size));
            let (io, both) = (p.io_seconds, p.io_seconds + p.stream_seconds);
            computing -= m * (io / MS / size);
            streaming -= m * (both / MS / size);
        }
    }
    list.push(constraint!(v.time >= computing));
    list.push(constraint!(v.time >= streaming));
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(mib: f64, stream_ms: f64, io_ms: f64) -> Piece {
        Piece {
            bytes: mib * MIB,
            stream_seconds: stream_ms * MS,
            io_seconds: io_ms * MS,
        }
    }

    fn way(compute_ms: f64, pieces: Vec<Piece>) -> Way {
        Way {
            bytes: 10.0 * MIB,
            compute_seconds: compute_ms * MS,
            pieces,
        }
    }

    const BATCHES: [Batch; 2] = [
        Batch {
            tokens: 8,
            bytes: 1.0 * MIB,
            seconds: 10.0 * MS,
        },
        Batch {
            tokens: 128,
            bytes: 20.0 * MIB,
            seconds: 2.0 * MS,
        },
    ];

    fn problem(ways: Vec<Way>) -> Problem {
        Problem {
            fixed: 50.0 * MIB,
            ways,
            batches: BATCHES.to_vec(),
        }
    }

    #[test]
    fn memory_goes_where_a_byte_saves_most() {
        // Two ways of 40 ms; 100 MiB that save 10 ms, and 100 MiB that save 50 ms.
        let p = problem(vec![way(
            40.0,
            vec![piece(100.0, 0.0, 10.0), piece(100.0, 0.0, 50.0)],
        )]);
        let most = 50.0 + 10.0 + 20.0 + 100.0;
        let choice = solve(&p, Goal::Fastest { memory: most * MIB }).unwrap();
        assert!((choice.token_seconds / MS - 50.0).abs() < 1e-6);
        assert_eq!(choice.batch, 1);
        assert!((choice.memory / MIB - most).abs() < 1e-6);
    }

    #[test]
    fn streaming_hides_behind_computing() {
        let p = problem(vec![way(40.0, vec![piece(100.0, 80.0, 0.0)])]);
        // Half of it in memory: 40 ms of reading hide behind 40 ms of computing, and the rest is not needed.
        let choice = solve(
            &p,
            Goal::Least {
                token_seconds: 40.0 * MS,
            },
        )
        .unwrap();
        assert!((choice.memory / MIB - (50.0 + 10.0 + 20.0 + 50.0)).abs() < 20.0);
        let choice = solve(
            &p,
            Goal::Fastest {
                memory: 125.0 * MIB,
            },
        )
        .unwrap();
        assert!((choice.token_seconds / MS - (80.0 - 80.0 * 0.45)).abs() < 1e-6);
    }

    #[test]
    fn the_faster_way_is_taken_where_it_fits() {
        let small = Way {
            bytes: 0.0,
            ..way(60.0, vec![piece(10.0, 0.0, 10.0)])
        };
        let large = Way {
            bytes: 100.0 * MIB,
            ..way(30.0, vec![piece(10.0, 0.0, 10.0)])
        };
        let p = problem(vec![small, large]);
        let at = |mib: f64| solve(&p, Goal::Fastest { memory: mib * MIB }).map(|c| c.way);
        assert_eq!(at(200.0).unwrap(), 1);
        assert_eq!(at(100.0).unwrap(), 0);
        assert!(at(40.0).unwrap_err().to_string().contains("--memory"));
        let never = solve(
            &p,
            Goal::Least {
                token_seconds: 1.0 * MS,
            },
        );
        assert!(never.unwrap_err().to_string().contains("--speed"));
    }

    /// The same by trying everything: each way and batch, pieces in the order of what a byte of them saves.
    fn exhaustive(p: &Problem, memory: f64) -> Option<f64> {
        let mut best: Option<f64> = None;
        for w in &p.ways {
            for b in &p.batches {
                let mut left = memory - p.fixed - w.bytes - b.bytes;
                if left < 0.0 {
                    continue;
                }
                let mut pieces = w.pieces.clone();
                pieces
                    .sort_by(|x, y| (y.io_seconds / y.bytes).total_cmp(&(x.io_seconds / x.bytes)));
                let mut io = 0.0;
                for piece in pieces {
                    let kept = left.min(piece.bytes);
                    left -= kept;
                    io += piece.io_seconds * (1.0 - kept / piece.bytes);
                }
                let cost = w.compute_seconds + io + b.seconds * PROMPT_WEIGHT;
                best = Some(best.map_or(cost, |x: f64| x.min(cost)));
            }
        }
        best
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn nothing_beats_the_solution(
            ways in proptest::collection::vec((0.0f64..50.0, 1.0f64..100.0, proptest::collection::vec((1.0f64..200.0, 0.0f64..100.0), 1..6)), 1..5),
            memory in 20.0f64..800.0,
        ) {
            let ways = ways
                .into_iter()
                .map(|(mib, ms, pieces)| Way {
                    bytes: mib * MIB,
                    ..way(ms, pieces.into_iter().map(|(mib, ms)| piece(mib, 0.0, ms)).collect())
                })
                .collect();
            let p = problem(ways);
            let found = solve(&p, Goal::Fastest { memory: memory * MIB });
            match exhaustive(&p, memory * MIB) {
                None => prop_assert!(found.is_err()),
                Some(best) => {
                    let found = found.unwrap();
                    let cost = found.token_seconds + p.batches[found.batch].seconds * PROMPT_WEIGHT;
                    prop_assert!((cost - best).abs() < 1e-6, "{cost} {best}");
                    prop_assert!(found.memory <= memory * MIB + 1.0);
                }
            }
        }
    }
}
