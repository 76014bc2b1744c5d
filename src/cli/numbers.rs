//! Values of options that are numbers within a range.

use std::num::IntErrorKind;
use std::time::{SystemTime, UNIX_EPOCH};

/// A number of at least `LEAST`.
pub fn at_least<const LEAST: u32>(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(n) if n >= LEAST => Ok(n),
        Err(e) if *e.kind() == IntErrorKind::PosOverflow => {
            Err(format!("give at most {}", u32::MAX))
        }
        Err(e) if *e.kind() == IntErrorKind::InvalidDigit && !text.starts_with('-') => {
            Err(format!("give a whole number, at least {LEAST}"))
        }
        _ => Err(format!("give at least {LEAST}")),
    }
}

/// A number of tokens; -1 is no limit, as in llama.cpp.
pub fn limit(text: &str) -> Result<usize, String> {
    match text {
        "-1" => Ok(usize::MAX),
        _ => text
            .parse()
            .map_err(|_| "give a number of tokens, or -1 for no limit".into()),
    }
}

/// A part of something, of which there is some.
pub fn part(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if part > 0.0 && part <= 1.0 => Ok(part),
        _ => Err("give a number above 0 and at most 1".into()),
    }
}

/// A part of something, or nothing of it.
pub fn part_or_none(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if (0.0..=1.0).contains(&part) => Ok(part),
        _ => Err("give a number, 0 to 1".into()),
    }
}

/// A seed; -1 is one from the clock, as in llama.cpp.
pub fn seed(text: &str) -> Result<u64, String> {
    match text {
        "-1" => Ok(seed_of_now()),
        _ => text
            .parse()
            .map_err(|_| "give a whole number, or -1 for one from the clock".into()),
    }
}

/// A seed that is hardly ever the same.
pub fn seed_of_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_range_are_told_the_range() {
        assert_eq!(at_least::<3>("3"), Ok(3));
        for (text, remedy) in [
            ("2", "give at least 3"),
            ("-1", "give at least 3"),
            ("", "give at least 3"),
            ("x", "give a whole number, at least 3"),
            ("4.5", "give a whole number, at least 3"),
            ("4294967296", "give at most 4294967295"),
        ] {
            assert_eq!(at_least::<3>(text), Err(remedy.into()));
        }
        assert_eq!(part_or_none("0"), Ok(0.0));
        assert!(part("0").is_err() && part("nan").is_err() && part_or_none("nan").is_err());
    }

    #[test]
    fn minus_one_is_no_limit_and_no_seed() {
        assert_eq!(limit("-1"), Ok(usize::MAX));
        assert_eq!(seed("7"), Ok(7));
        let drawn = [seed("-1"), seed("-1")];
        assert!(drawn[0].is_ok() && drawn[0] != drawn[1], "{drawn:?}");
        assert!(limit("-2").is_err() && seed("-2").is_err());
    }
}
