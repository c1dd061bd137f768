//! Formats numbers for readers, and escapes text for pages.

/// Text escaped for SVG and HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// `25.7 ms`: three significant digits, and the unit that keeps them short.
pub fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    format!("{} {unit}", digits(value))
}

/// `3750 km`.
pub fn distance(kilometres: f64) -> String {
    format!("{} km", digits(kilometres))
}

/// `1.07x`.
pub fn factor(factor: f64) -> String {
    format!("{}x", digits(factor))
}

/// `128 MiB`.
pub fn size(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let power = ((bytes.max(1.0).log2() / 10.0 + 1e-9) as usize).min(UNITS.len() - 1);
    format!("{} {}", digits(bytes / 1024_f64.powi(power as i32)), UNITS[power])
}

/// `400 Gbit/s`.
pub fn rate(bps: f64) -> String {
    const UNITS: [&str; 5] = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"];
    let power = ((bps.max(1.0).log10() / 3.0 + 1e-9) as usize).min(UNITS.len() - 1);
    format!("{} {}", digits(bps / 1000_f64.powi(power as i32)), UNITS[power])
}

/// `3.1e-4`, and `0.2`.
pub fn loss(p: f64) -> String {
    if p == 0.0 || p >= 0.05 {
        return digits(p);
    }
    let exponent = p.log10().floor() as i32;
    let mantissa = p / 10_f64.powi(exponent);
    let mantissa = format!("{mantissa:.1}");
    match mantissa.as_str() {
        "10.0" => format!("1e{}", exponent + 1),
        whole if whole.ends_with(".0") => format!("{}e{exponent}", &whole[..whole.len() - 2]),
        _ => format!("{mantissa}e{exponent}"),
    }
}

/// `87 %`, and tiny ones as powers.
pub fn share(p: f64) -> String {
    if p == 0.0 || p >= 1e-3 { format!("{} %", digits(p * 100.0)) } else { loss(p) }
}

/// Three significant digits.
pub fn digits(value: f64) -> String {
    let text = match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(time(0.0257), "25.7 ms");
        assert_eq!(time(44.0), "44 s");
        assert_eq!(size(f64::from(128 << 20)), "128 MiB");
        assert_eq!(size((2_u64 << 40) as f64), "2 TiB");
        assert_eq!(rate(400e9), "400 Gbit/s");
        assert_eq!(loss(3.1e-4), "3.1e-4");
        assert_eq!(loss(1e-5), "1e-5");
        assert_eq!(loss(9.99e-6), "1e-5");
        assert_eq!(share(0.871), "87.1 %");
        assert_eq!(share(1e-5), "1e-5");
        assert_eq!(factor(1.0699), "1.07x");
    }
}
