//! Values of options that are numbers within a range.

use std::fmt::Display;
use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// A number of at least `LEAST`.
pub fn at_least<const LEAST: u32>(text: &str) -> Result<u32, String> {
    between(text, LEAST, u32::MAX)
}

/// A number of things, at least `LEAST` and as many as memory may hold.
pub fn count<const LEAST: usize>(text: &str) -> Result<usize, String> {
    between(text, LEAST, usize::MAX)
}

/// A number from `least` on; `most` is the largest of its type.
fn between<N>(text: &str, least: N, most: N) -> Result<N, String>
where
    N: FromStr<Err = ParseIntError> + PartialOrd + Display,
{
    match text.parse::<N>() {
        Ok(n) if n >= least => Ok(n),
        Err(e) if *e.kind() == IntErrorKind::PosOverflow => Err(format!("give at most {most}")),
        Err(e) if *e.kind() == IntErrorKind::InvalidDigit && !text.starts_with('-') => {
            Err(format!("give a whole number, at least {least}"))
        }
        _ => Err(format!("give at least {least}")),
    }
}

/// A number, also `inf` and `nan`, whose refusal names the range. One that is too large for the type is not taken for
/// infinity.
pub fn real(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().map_err(|_| "give a number")?;
    match number.is_infinite() && text.contains(|c: char| c.is_ascii_digit()) {
        true => Err("the number is too large".into()),
        false => Ok(number),
    }
}

/// A temperature; less than 0 is greedy, as in llama.cpp.
pub fn temperature(number: f32) -> f32 {
    // Not the larger of both: of NaN and 0, that is 0.
    if number < 0.0 { 0.0 } else { number }
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
        assert_eq!(count::<2>("4294967296"), Ok(4_294_967_296));
        assert_eq!(count::<2>("1"), Err("give at least 2".into()));
        assert_eq!(part_or_none("0"), Ok(0.0));
        assert!(part("0").is_err() && part("nan").is_err() && part_or_none("nan").is_err());
    }

    #[test]
    fn a_number_that_is_too_large_is_not_infinity() {
        assert_eq!(real("1e3"), Ok(1000.0));
        assert_eq!(real("inf"), Ok(f32::INFINITY));
        assert_eq!(real("1e308"), Err("the number is too large".into()));
        assert_eq!(real("-1e308"), Err("the number is too large".into()));
        assert_eq!(real("hot"), Err("give a number".into()));
        assert_eq!((temperature(-0.5), temperature(0.5)), (0.0, 0.5));
        assert!(temperature(f32::NAN).is_nan());
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
