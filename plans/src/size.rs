//! Sizes as written on the command line.
//!
//! The convention is GNU coreutils': `K`, `M`, `G`, `T` alone and with `iB` are powers of 1024, with `B` they are
//! powers of 1000. So `2G` = `2GiB` = 2 147 483 648 and `2GB` = 2 000 000 000. Upper and lower case mean the same, and
//! there may be a space before the unit.

use std::fmt;
use std::str::FromStr;

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// More decimals than this cannot change a byte of a TiB.
const MOST_DECIMALS: usize = 18;

/// A text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// There is no text.
    #[error("a size is missing; write bytes or a number with a unit, such as 640MiB, 2G or 60%")]
    Empty,
    /// There is no number at the start.
    #[error("{0:?} does not start with a number; write for example 640MiB, 1.5GiB, 2G or 60%")]
    NotANumber(String),
    /// The unit is unknown.
    #[error(
        "unknown unit {unit:?} in {text:?}; use B, K/KiB, M/MiB, G/GiB, T/TiB (powers of 1024), \
         KB, MB, GB, TB (powers of 1000) or %"
    )]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// Its unit.
        unit: String,
    },
    /// The number of bytes does not fit.
    #[error("{0:?} is more than 16 EiB")]
    TooLarge(String),
    /// A share that is not above 0 and at most 100.
    #[error("{0:?} is not a share of memory; give more than 0% and at most 100%")]
    BadPercentage(String),
    /// A share, although only a number of bytes makes sense.
    #[error("{0:?} is a percentage, but here a number of bytes is needed, such as 2GiB")]
    PercentageNotAllowed(String),
}

/// An amount of memory: absolute, or a share of what is available.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MemorySize {
    /// This many bytes.
    Bytes(u64),
    /// This percentage (above 0, at most 100) of the available memory.
    Percent(f64),
}

impl MemorySize {
    /// The number of bytes if `available` bytes are 100 %.
    pub fn resolve(self, available: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // 53 bits of mantissa are exact up to 8 PiB; the share is rounded down.
            Self::Percent(percent) => (available as f64 * (percent / 100.0)) as u64,
        }
    }
}

impl FromStr for MemorySize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let Some(number) = text.trim().strip_suffix('%') else {
            return parse_size(text).map(Self::Bytes);
        };
        let bad = || SizeError::BadPercentage(text.to_owned());
        split_number(number.trim())
            .filter(|(_, unit)| unit.is_empty())
            .ok_or_else(bad)?;
        let percent: f64 = number.trim().parse().map_err(|_| bad())?;
        if percent > 0.0 && percent <= 100.0 {
            Ok(Self::Percent(percent))
        } else {
            Err(bad())
        }
    }
}

/// Exact: the printed text parses to the same value.
impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bytes(bytes) => {
                let power = if bytes == 0 {
                    0
                } else {
                    (bytes.trailing_zeros() as usize / 10).min(UNITS.len() - 1)
                };
                write!(f, "{}{}", bytes >> (10 * power), UNITS[power])
            }
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Bytes of a size such as `1048576`, `640MiB`, `1.5 GiB`, `2G` or `2GB`; fractions of a byte are
/// dropped.
///
/// # Errors
/// The text is not a size, or a percentage, or does not fit 64 bits.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(SizeError::Empty);
    }
    let (number, unit) =
        split_number(trimmed).ok_or_else(|| SizeError::NotANumber(text.to_owned()))?;
    if unit == "%" {
        return Err(SizeError::PercentageNotAllowed(text.to_owned()));
    }
    let scale = unit_bytes(unit).ok_or_else(|| SizeError::UnknownUnit {
        text: text.to_owned(),
        unit: unit.to_owned(),
    })?;
    scaled(number, scale).ok_or_else(|| SizeError::TooLarge(text.to_owned()))
}

/// Splits `12.5 GiB` into `12.5` and `GiB`; `None` if there is no digit or more than one point.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let points = number.matches('.').count();
    let has_digit = number.bytes().any(|b| b.is_ascii_digit());
    (has_digit && points <= 1).then(|| (number, unit.trim_start()))
}

fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let (base, power): (u64, u32) = match unit.as_str() {
        "" | "b" => (1, 0),
        "k" | "kib" => (1024, 1),
        "m" | "mib" => (1024, 2),
        "g" | "gib" => (1024, 3),
        "t" | "tib" => (1024, 4),
        "kb" => (1000, 1),
        "mb" => (1000, 2),
        "gb" => (1000, 3),
        "tb" => (1000, 4),
        _ => return None,
    };
    Some(base.pow(power))
}

/// `number * scale` without a rounding error of floating point: 1.1GiB must not depend on the machine.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let decimals = &decimals[..decimals.len().min(MOST_DECIMALS)];
    let part: u128 = if decimals.is_empty() {
        0
    } else {
        decimals.parse().ok()?
    };
    // part < 10^18 and scale < 2^41, so the product fits 128 bits.
    let part = part * u128::from(scale) / 10u128.pow(decimals.len() as u32);
    let total = u128::from(whole) * u128::from(scale) + part;
    u64::try_from(total).ok()
}

/// A readable size, in powers of 1024 with at least three significant digits: `812 B`, `24.0 KiB`, `1.50 GiB`. Within
/// 0.5 % of the value; [`MemorySize`]'s `Display` is the exact form.
pub fn format_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut power = 0;
    // 1023.95 would be printed as 1024.0, which belongs to the next unit.
    while value >= 1023.5 && power + 1 < UNITS.len() {
        value /= 1024.0;
        power += 1;
    }
    let decimals = match value {
        _ if power == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", UNITS[power])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_follow_gnu_coreutils() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("1K", 1 << 10),
            ("1k", 1 << 10),
            ("1KiB", 1 << 10),
            ("1kB", 1000),
            ("640MiB", 640 << 20),
            ("640M", 640 << 20),
            ("640MB", 640_000_000),
            ("2GiB", 2 << 30),
            ("2G", 2 << 30),
            ("2g", 2 << 30),
            (" 2 GB ", 2_000_000_000),
            ("1.5GiB", 3 << 29),
            (".5M", 1 << 19),
            ("3.T", 3 << 40),
            ("1.1GiB", 1_181_116_006),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_reason() {
        use SizeError::*;
        assert_eq!(parse_size(" "), Err(Empty));
        for text in ["GiB", "-1", "x", ".", "1.2.3G", "٣G", "+2"] {
            assert_eq!(parse_size(text), Err(NotANumber(text.into())), "{text}");
        }
        for (text, unit) in [
            ("2GiBs", "GiBs"),
            ("2e9", "e9"),
            ("1 000", "000"),
            ("2Q", "Q"),
        ] {
            let (text, unit) = (text.to_owned(), unit.to_owned());
            assert_eq!(parse_size(&text.clone()), Err(UnknownUnit { text, unit }));
        }
        for text in [
            "18446744073709551616",
            "16777216T",
            "99999999999999999999999G",
        ] {
            assert_eq!(parse_size(text), Err(TooLarge(text.into())), "{text}");
        }
        assert_eq!(parse_size("60%"), Err(PercentageNotAllowed("60%".into())));
        let message = parse_size("2Q").unwrap_err().to_string();
        assert!(
            message.contains("\"Q\"") && message.contains("GiB"),
            "{message}"
        );
    }

    #[test]
    fn shares_are_of_what_is_available() {
        assert_eq!("60%".parse(), Ok(MemorySize::Percent(60.0)));
        assert_eq!("12.5 %".parse(), Ok(MemorySize::Percent(12.5)));
        assert_eq!("2G".parse(), Ok(MemorySize::Bytes(2 << 30)));
        assert_eq!(MemorySize::Percent(25.0).resolve(8 << 30), 2 << 30);
        assert_eq!(MemorySize::Percent(100.0).resolve(12345), 12345);
        assert_eq!(MemorySize::Bytes(7).resolve(1), 7);
        for text in ["0%", "101%", "%", "-5%", "inf%", "NaN%", "1e1%", "G%"] {
            let parsed = text.parse::<MemorySize>();
            assert_eq!(parsed, Err(SizeError::BadPercentage(text.into())));
        }
    }

    #[test]
    fn sizes_read_well() {
        for (bytes, text) in [
            (0, "0 B"),
            (812, "812 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (24 << 10, "24.0 KiB"),
            (640 << 20, "640 MiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (3 << 29, "1.50 GiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn exact_form_round_trips(bytes in any::<u64>(), shift in 0u32..64) {
            let size = MemorySize::Bytes(bytes >> shift);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
            let round = MemorySize::Bytes(bytes << shift);
            prop_assert_eq!(round.to_string().parse(), Ok(round));
        }

        #[test]
        fn human_form_is_within_half_a_percent(bytes in any::<u64>(), shift in 0u32..64) {
            let bytes = bytes >> shift;
            // The largest values round up past 64 bits: 16777216 TiB is 2^64.
            prop_assume!(bytes < 1 << 63);
            let back = parse_size(&format_size(bytes)).expect("own output parses");
            prop_assert!(back.abs_diff(bytes) as f64 <= bytes as f64 * 0.005 + 1.0);
        }

        #[test]
        fn shares_round_trip(hundredths in 1u32..=10_000) {
            let size = MemorySize::Percent(f64::from(hundredths) / 100.0);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,12}") {
            let _ = text.parse::<MemorySize>();
        }

        #[test]
        fn decimals_are_exact(whole in 0u64..1 << 20, thousandths in 0u64..1000) {
            let bytes = (whole * 1000 + thousandths) as u128 * (1 << 30) / 1000;
            let parsed = parse_size(&format!("{whole}.{thousandths:03}GiB"));
            prop_assert_eq!(parsed.map(u128::from), Ok(bytes));
        }
    }
}
