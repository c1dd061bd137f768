//! The origin of a page or chart: the command that made it, and the date.

use std::time::{SystemTime, UNIX_EPOCH};

/// The origin of the numbers: the command and the date.
pub(crate) fn source() -> String {
    format!("{}, {}", command(), today())
}

/// This process's command line, quoted for a shell.
pub(crate) fn command() -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "+-.,%/_:=@".contains(c);
    let word = |word: String| {
        let is_plain = !word.is_empty() && word.chars().all(plain);
        if is_plain { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let words = std::env::args_os().skip(1).map(|text| word(text.to_string_lossy().into_owned()));
    std::iter::once("bowline".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// The date in UTC, or that of `SOURCE_DATE_EPOCH` for reproducible builds.
pub(crate) fn today() -> String {
    let fixed = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(fixed.unwrap_or_else(now))
}

/// The day of a time in seconds since 1970, in the Gregorian calendar.
fn date(seconds: u64) -> String {
    // Years start in March here, so that the leap day is their last day. 400 of them have 146097
    // days.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year, if month < 10 { month + 3 } else { month - 9 });
    format!("{}-{month:02}-{day:02}", year + u64::from(month <= 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_800, "2024-02-29"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_400, "2100-03-01"),
        ];
        for (seconds, day) in days {
            assert_eq!(date(seconds), day);
        }
    }
}
