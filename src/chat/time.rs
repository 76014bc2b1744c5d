//! Dates for templates: Python's `strftime` in English, in UTC, since the standard library knows no time zones.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The first day of 1970 was a Thursday.
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// A date of the Gregorian calendar.
struct Date {
    year: u64,
    /// From 0.
    month: usize,
    /// From 1.
    day: u64,
    /// From 1.
    day_of_year: u64,
}

impl Date {
    fn of(mut days: u64) -> Self {
        let is_leap = |year: u64| {
            year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        let mut year = 1970;
        loop {
            let length = 365 + u64::from(is_leap(year));
            if days < length {
                break;
            }
            days -= length;
            year += 1;
        }
        let day_of_year = days + 1;
        let february = 28 + u64::from(is_leap(year));
        let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut month = 0;
        while days >= lengths[month] {
            days -= lengths[month];
            month += 1;
        }
        Self {
            year,
            month,
            day: days + 1,
            day_of_year,
        }
    }
}

/// `time` by a format of `strftime`. Directives that no template uses stay as they are.
pub(super) fn format_time(format: &str, time: SystemTime) -> String {
    // Ten thousand years are enough for any clock.
    const LATEST: u64 = 8_000 * 366 * 86_400;
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = seconds.as_secs().min(LATEST);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let date = Date::of(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let month = MONTHS[date.month];
    let weekday = DAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = rest.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = rest.next();
        }
        let number = |n: u64, width: usize| match unpadded {
            true => n.to_string(),
            false => format!("{n:0width$}"),
        };
        out.push_str(&match directive {
            Some('Y') => number(date.year, 4),
            Some('y') => number(date.year % 100, 2),
            Some('m') => number(date.month as u64 + 1, 2),
            Some('d') => number(date.day, 2),
            Some('e') => format!("{:2}", date.day),
            Some('j') => number(date.day_of_year, 3),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second % 60, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{:04}-{:02}-{:02}", date.year, date.month + 1, date.day),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_pythons() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let all = "%A %a %d %-d %B %b %m %Y %y %j %H:%M:%S %I%p %F %% %Q";
        assert_eq!(
            format_time(all, at(0)),
            "Thursday Thu 01 1 January Jan 01 1970 70 001 00:00:00 12AM 1970-01-01 % %Q"
        );
        // 29 February 2024, 23:59:59.
        assert_eq!(
            format_time(all, at(1_709_251_199)),
            "Thursday Thu 29 29 February Feb 02 2024 24 060 23:59:59 11PM 2024-02-29 % %Q"
        );
        assert_eq!(format_time("%d %b %Y", at(1_763_942_400)), "24 Nov 2025");
        assert_eq!(format_time("100%", at(0)), "100%");
    }
}
