//! Numbers with units, as people write them.

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
    let error = || format!("invalid duration `{text}`: write 10ms, 50us, 1.5s or 100ns");
    let nanos = with_unit(text, &[("ns", 1), ("us", 1_000), ("µs", 1_000), ("ms", 1_000_000)])
        .or_else(|| with_unit(text, &[("s", 1_000_000_000)]))
        .ok_or_else(error)?;
    Ok(Duration::from_nanos(nanos))
}

/// `1Gbps`, `100Mbps`, `2.5Gbit`; also `1gbit`, as `tc` has it.
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
    text.strip_suffix("bps")
        .or_else(|| text.strip_suffix("bit/s"))
        .or_else(|| text.strip_suffix("bit"))
        .and_then(|number| with_unit(number, &UNITS))
        .filter(|rate| *rate > 0)
        .ok_or_else(|| format!("invalid rate `{text}`: write 1Gbps, 100Mbps or 500kbps"))
}

/// `8MiB`, `64KiB`, `1500B`.
///
/// # Errors
/// What is wrong with the text, and how to write it.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    with_unit(text, &UNITS)
        .ok_or_else(|| format!("invalid size `{text}`: write 8MiB, 64KiB or 1500B"))
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
