//! Timing prompts and generation inside the engine thread, without text, sampling or hashes.

use std::time::Instant;

use flume::Sender;
use forebay_actors::shared::Shared;

use super::evaluator::Evaluator;
use super::said::Said;
use crate::error::Error;
use crate::speed::bounds::Machine;
use crate::speed::work::{ModelWork, Rates, Steps, bound};
use crate::speed::{BenchTest, Phase, Spread, TestReport, random_tokens};

/// After a repetition: the test, the number of the repetition from 1 on, and its speed.
pub(in crate::engine) type RepetitionDone = (BenchTest, usize, f64);

#[derive(Debug)]
pub(in crate::engine) struct BenchJob {
    pub tests: Vec<BenchTest>,
    pub repetitions: usize,
    pub said: Sender<Said<RepetitionDone, Vec<TestReport>>>,
}

/// Measurements of one test.
#[derive(Debug, Default)]
struct Measured {
    tokens_per_second: Vec<f64>,
    memory: Vec<f64>,
    int8: Vec<f64>,
    f32: Vec<f64>,
    steps: Steps,
    disk_bytes: u64,
}

impl BenchJob {
    pub fn answer(&self, evaluator: &mut Evaluator) {
        let result = self.run(evaluator);
        // Nobody may be listening any more.
        let _ = self.said.send(Said::Result(result));
    }

    fn run(&self, evaluator: &mut Evaluator) -> Result<Vec<TestReport>, Error> {
        for test in &self.tests {
            if test.tokens > evaluator.context() {
                return Err(evaluator.facts.too_long(test.tokens));
            }
        }
        let mut measured: Vec<Measured> = self.tests.iter().map(|_| Measured::default()).collect();
        // Tests take turns, so that a drift of the clock rate affects all of them. The first turn is the warm-up.
        for repetition in 0..=self.repetitions {
            for (test, measured) in self.tests.iter().zip(&mut measured) {
                // Different tokens each time: the neuron cache must not benefit from the last turn.
                let tokens = random_tokens(test.tokens, repetition, evaluator.vocabulary());
                evaluator.empty(&tokens)?;
                if repetition == 0 {
                    once(evaluator, *test, &tokens, &mut Measured::default())?;
                    continue;
                }
                measure_machine(evaluator, measured);
                let speed = once(evaluator, *test, &tokens, measured)?;
                let done = Said::Progress((*test, repetition, speed));
                if self.said.send(done).is_err() {
                    return Err(Error::Stopped);
                }
            }
        }
        let tests = self.tests.iter().zip(&measured);
        let work = {
            let shared = evaluator.shared();
            ModelWork::of(&shared.bundle, shared.rule.is_predicted())
        };
        let disk = evaluator.disk_ceiling();
        Ok(tests
            .map(|(test, measured)| {
                let disk = match test.phase {
                    Phase::Prefill => disk.prompt,
                    Phase::Decode => disk.decode,
                };
                measured.report(*test, &work, disk)
            })
            .collect())
    }
}

/// Runs a test on `tokens`, from an empty context, and returns its speed in tokens per second.
fn once(
    evaluator: &mut Evaluator,
    test: BenchTest,
    tokens: &[u32],
    measured: &mut Measured,
) -> Result<f64, Error> {
    let batch = match test.phase {
        Phase::Prefill => evaluator.shared().max_batch,
        Phase::Decode => 1,
    };
    let disk_before = evaluator.io_counters().bytes;
    let start = Instant::now();
    let mut left = tokens;
    while !left.is_empty() {
        let (batch, following) = left.split_at(left.len().min(batch));
        left = following;
        let logits = test.phase == Phase::Decode || left.is_empty();
        match test.phase {
            Phase::Decode => evaluator.decode(batch[0])?,
            Phase::Prefill => evaluator.step_of(batch, usize::from(logits), following)?,
        }
        measured
            .steps
            .count(batch.len(), evaluator.computed(), logits);
    }
    let speed = tokens.len() as f64 / start.elapsed().as_secs_f64();
    measured.disk_bytes += evaluator.io_counters().bytes - disk_before;
    measured.tokens_per_second.push(speed);
    Ok(speed)
}

/// Measures what the engine's cores can do while the engine is idle.
fn measure_machine(evaluator: &Evaluator, measured: &mut Measured) {
    let shared = evaluator.shared();
    let machine = Machine {
        kernels: shared.kernels,
        cores: evaluator.cores(),
    };
    measured.memory.push(machine.read(&pinned_weights(shared)));
    measured.int8.push(machine.int8());
    measured.f32.push(machine.f32());
}

/// Pinned clusters by core, as the cores read them while they compute.
fn pinned_weights(shared: &Shared) -> Vec<Vec<&[u8]>> {
    let mut parts = vec![Vec::new(); shared.threads];
    for (i, &owner) in shared.plan.owner.iter().enumerate() {
        let bytes = shared.resident.bytes(i);
        if let Some(part) = parts
            .get_mut(usize::from(owner))
            .filter(|_| !bytes.is_empty())
        {
            part.push(bytes);
        }
    }
    parts
}

impl Measured {
    fn report(&self, test: BenchTest, work: &ModelWork, disk: f64) -> TestReport {
        let speed = Spread::of(&self.tokens_per_second);
        let cost = work.per_token(&self.steps);
        let disk_bytes = self.disk_bytes as f64 / self.steps.tokens().max(1.0);
        let rates = Rates {
            memory: Spread::of(&self.memory).median,
            int8: Spread::of(&self.int8).median,
            f32: Spread::of(&self.f32).median,
            disk,
        };
        let bound = bound(&cost, disk_bytes, &rates);
        TestReport {
            test: test.to_string(),
            tokens_per_second: speed,
            samples: self.tokens_per_second.clone(),
            bytes_per_token: cost.bytes,
            gb_per_second: cost.bytes * speed.median / 1e9,
            bound_gb_per_second: rates.memory / 1e9,
            disk_bytes_per_token: disk_bytes,
            disk_gb_per_second: rates.disk / 1e9,
            gops: 2.0 * (cost.int8 + cost.f32) * speed.median / 1e9,
            int8_peak_gops: rates.int8 / 1e9,
            f32_peak_gops: rates.f32 / 1e9,
            bound,
            fraction_of_bound: speed.median / bound.tokens_per_second.max(f64::MIN_POSITIVE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_reproducible_spread_out_and_in_the_vocabulary() {
        let tokens = random_tokens(1000, 1, 500);
        assert_eq!(tokens, random_tokens(1000, 1, 500));
        assert_ne!(tokens, random_tokens(1000, 2, 500));
        assert!(tokens.iter().all(|&t| t < 500));
        let mut distinct = tokens;
        distinct.sort_unstable();
        distinct.dedup();
        // 500 * (1 - e^-2) = 432 are expected.
        assert!((380..=480).contains(&distinct.len()), "{}", distinct.len());
    }
}
