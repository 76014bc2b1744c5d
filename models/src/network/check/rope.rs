//! Bounds on rotations.

use std::path::Path;

use super::wrong;
use crate::error::Result;
use crate::limits::{MAX_CONTEXT, MAX_DIMENSION, positive, size};
use crate::network::{Rope, RopeScaling};

pub(super) fn check_rope(path: &Path, rope: &Rope) -> Result<()> {
    positive(path, "rope.theta", rope.theta)?;
    positive(path, "rope.magnitude", rope.magnitude)?;
    let dim = rope.rotary_dim;
    if !dim.is_multiple_of(2) || dim == 0 || dim as u64 > MAX_DIMENSION {
        return wrong(
            path,
            "rotary dimension",
            format!("{dim} is not an even number"),
        );
    }
    let all = |values: &[f32]| {
        let each = values.iter().map(|&v| positive(path, "rope.scaling", v));
        each.collect::<Result<Vec<_>>>().map(drop)
    };
    let divisors = |values: &[f32]| {
        if values.len() != dim / 2 {
            let problem = format!("{} factors for {} frequencies", values.len(), dim / 2);
            return wrong(path, "rope.scaling", problem);
        }
        all(values)
    };
    match &rope.scaling {
        RopeScaling::None => Ok(()),
        RopeScaling::Linear { factor } => all(&[*factor]),
        RopeScaling::Factors(factors) => divisors(factors),
        RopeScaling::LongShort {
            short,
            long,
            original_context,
        } => {
            size(path, "rope.scaling", *original_context as u64, MAX_CONTEXT)?;
            divisors(short).and_then(|()| divisors(long))
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            if high_freq_factor <= low_freq_factor {
                let problem = format!("{high_freq_factor} is not above {low_freq_factor}");
                return wrong(path, "rope scaling high_freq_factor", problem);
            }
            all(&[
                *factor,
                *low_freq_factor,
                *high_freq_factor,
                *original_context,
            ])
        }
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
        } => {
            if rope.theta <= 1.0 {
                return wrong(path, "rope.theta", "it must be above 1");
            }
            all(&[*factor, *original_context, *beta_fast, *beta_slow])
        }
    }
}
