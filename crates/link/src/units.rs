//! Numbers with units, as users write them.

use std::time::Duration;

/// `1%` or `0.01`.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn parse_probability(text: &str) -> Result<f64, String> {
    let p = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|p| p / 100.0),
        None => text.parse(),
    };
    match p {
        Ok(p) if (0.0..=1.0).contains(&p) => Ok(p),
        _ => Err(format!("invalid probability `{text}`: write 0.1% or 0.001, at most 100%")),
    }
}

/// `10ms`, `50us`, `1.5s`, `100ns`.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || invalid("duration", text, "ms", "write 10ms, 50us, 1.5s or 100ns");
    let nanos = with_unit(text, &[("ns", 1), ("us", 1_000), ("µs", 1_000), ("ms", 1_000_000)])
        .or_else(|| with_unit(text, &[("s", 1_000_000_000)]))
        .ok_or_else(error)?;
    Ok(Duration::from_nanos(nanos))
}

/// `1Gbps`, `100Mbps`, `2.5Gbit`; also `400G`, and `1gbit`, as `tc` has it.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("T", 1_000_000_000_000),
        ("t", 1_000_000_000_000),
        ("G", 1_000_000_000),
        ("g", 1_000_000_000),
        ("M", 1_000_000),
        ("m", 1_000_000),
        ("K", 1_000),
        ("k", 1_000),
        ("", 1),
    ];
    let named = text
        .strip_suffix("bps")
        .or_else(|| text.strip_suffix("bit/s"))
        .or_else(|| text.strip_suffix("bit"));
    let bps = match named {
        Some(number) => with_unit(number, &UNITS),
        // Without `bps` the prefix is the unit, and a bare number has none.
        None => with_unit(text, &UNITS[..UNITS.len() - 1]),
    };
    bps.filter(|rate| *rate > 0)
        .ok_or_else(|| invalid("rate", text, "Gbps", "write 1Gbps, 100Mbps or 500kbps"))
}

/// `8MiB`, `64KiB`, `1500B`; also `8M` for `8MiB`.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 14] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
        ("k", 1 << 10),
        ("K", 1 << 10),
        ("M", 1 << 20),
        ("G", 1 << 30),
        ("T", 1 << 40),
    ];
    with_unit(text, &UNITS)
        .ok_or_else(|| invalid("size", text, "MiB", "write 8MiB, 64KiB or 1500B"))
}

/// What is wrong with a text: a bare number lacks a unit, anything else needs another form.
fn invalid(what: &str, text: &str, unit: &str, form: &str) -> String {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => {
            format!("invalid {what} `{text}`: add a unit, e.g. {text}{unit}")
        }
        _ => format!("invalid {what} `{text}`: {form}"),
    }
}

/// A number times its unit; the first unit that the text ends with counts.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, scale) = units
        .iter()
        .find_map(|(unit, scale)| text.strip_suffix(unit).map(|number| (number.trim(), *scale)))?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(scale);
    }
    let value = number.parse::<f64>().ok()? * scale as f64;
    (0.0..1e18).contains(&value).then_some(value.round() as u64)
}

/// The arguments of `name(a,b,…)`; none if the text is not of this form.
pub(crate) fn arguments<'a>(
    text: &'a str,
    name: &str,
) -> Result<Option<impl Iterator<Item = &'a str>>, String> {
    let Some(inner) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix('(')) else {
        return Ok(None);
    };
    let inner = inner.strip_suffix(')').ok_or("a `)` is missing")?;
    Ok(Some(inner.split(',').map(str::trim)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_refused_with_its_unit() {
        let text = parse_duration("25").unwrap_err();
        assert_eq!(text, "invalid duration `25`: add a unit, e.g. 25ms");
        assert_eq!(parse_rate("400").unwrap_err(), "invalid rate `400`: add a unit, e.g. 400Gbps");
        assert_eq!(parse_size("8").unwrap_err(), "invalid size `8`: add a unit, e.g. 8MiB");
        assert!(parse_duration("soon").unwrap_err().contains("write 10ms"));
        assert!(parse_rate("-1").unwrap_err().contains("write 1Gbps"));
        assert!(parse_rate("0").unwrap_err().contains("write 1Gbps"));
    }

    #[test]
    fn short_units_are_understood() {
        assert_eq!(parse_rate("400G"), Ok(400_000_000_000));
        assert_eq!(parse_rate("2.5M"), Ok(2_500_000));
        assert_eq!(parse_rate("64bps"), Ok(64));
        assert_eq!(parse_size("8M"), Ok(8 << 20));
        assert_eq!(parse_size("64K"), Ok(64 << 10));
        assert_eq!(parse_size("64kB"), Ok(64_000));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
    }
}
