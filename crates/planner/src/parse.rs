//! Parses values as users write them, on the command line and in the page.

use bowline_link::{LinkProfile, units};
use bowline_plan::{GilbertElliott, Loss, Scheme};

/// A rate in bits per second: `400Gbps`.
///
/// # Errors
/// What is wrong with the text, and how to write it. The same holds for all functions here.
pub fn rate(text: &str) -> Result<u64, String> {
    units::parse_rate(text)
}

/// A round trip in seconds: `25ms`.
///
/// # Errors
/// See [`rate`].
pub fn rtt(text: &str) -> Result<f64, String> {
    let rtt_s = units::parse_duration(text)?.as_secs_f64();
    if rtt_s <= 0.0 {
        return Err(format!("invalid round trip `{text}`: give more than 0, e.g. 25ms or 100us"));
    }
    Ok(rtt_s)
}

/// A distance in kilometres: `3750km`, `500m`.
///
/// # Errors
/// See [`rate`].
pub fn distance(text: &str) -> Result<f64, String> {
    let wrong = || format!("invalid distance `{text}`: write 3750km or 500m");
    let (number, scale) = match (text.strip_suffix("km"), text.strip_suffix('m')) {
        (Some(number), _) => (number, 1.0),
        (None, Some(number)) => (number, 1e-3),
        (None, None) => return Err(wrong()),
    };
    let kilometres = number.trim().parse::<f64>().map_err(|_| wrong())? * scale;
    if (1e-6..=1e9).contains(&kilometres) { Ok(kilometres) } else { Err(wrong()) }
}

/// Loss of packets, as in a link profile: `1e-5`, `0.1%`, `ge(p,r)`, `ge(p,r,bad,good)`.
///
/// # Errors
/// See [`rate`].
pub fn loss(text: &str) -> Result<Loss, String> {
    let wrong = || {
        format!(
            "invalid loss `{text}`: write a probability below 1 as 1e-5 or 0.1%, or bursts as \
             ge(1e-5,12%)"
        )
    };
    // A profile is a list; only its loss is accepted.
    if text.contains('=') {
        return Err(wrong());
    }
    let profile: LinkProfile = format!("loss={text}").parse().map_err(|_| wrong())?;
    match profile.faults.loss {
        bowline_link::Loss::None => Ok(Loss::Packet(0.0)),
        bowline_link::Loss::Iid(p) if p < bowline_link::Prob::ALWAYS => {
            Ok(Loss::Packet(p.as_f64()))
        }
        bowline_link::Loss::GilbertElliott(model) => Ok(Loss::Bursts(GilbertElliott {
            to_bad: model.good_to_bad.as_f64(),
            to_good: model.bad_to_good.as_f64(),
            loss_good: model.loss_good.as_f64(),
            loss_bad: model.loss_bad.as_f64(),
        })),
        bowline_link::Loss::Iid(_) | bowline_link::Loss::Bursts(_) => Err(wrong()),
    }
}

/// Loss of whole chunks: `1e-4`.
///
/// # Errors
/// See [`rate`].
pub fn chunk_loss(text: &str) -> Result<Loss, String> {
    match units::parse_probability(text) {
        Ok(p) if p < 1.0 => Ok(Loss::Chunk(p)),
        _ => Err(format!("invalid loss `{text}`: write a probability below 1 as 1e-4 or 0.1%")),
    }
}

/// The mean number of packets that are lost together, at least 1: `8`.
///
/// # Errors
/// See [`rate`].
pub fn burst(text: &str) -> Result<f64, String> {
    const MAX_PACKETS: f64 = 1e6;
    match text.trim().parse::<f64>() {
        Ok(packets) if (1.0..=MAX_PACKETS).contains(&packets) => Ok(packets),
        _ => Err(format!("invalid burst `{text}`: write the mean number of packets, e.g. 8")),
    }
}

/// Turns independent losses into bursts of this mean length; 1 leaves them independent.
///
/// # Errors
/// For losses that are bursty already, and for those of chunks.
pub fn with_burst(loss: Loss, packets: f64) -> Result<Loss, String> {
    match loss {
        Loss::Packet(p) if packets > 1.0 && p > 0.0 => {
            Ok(Loss::Bursts(GilbertElliott::bursts(p, packets)))
        }
        Loss::Packet(_) => Ok(loss),
        Loss::Chunk(_) | Loss::Bursts(_) => {
            Err("a burst goes with a plain packet loss, e.g. a loss of 1e-4".to_owned())
        }
    }
}

/// A size in bytes with its unit, or as `bowline perf` takes them: bytes, or K, M, G, T of 1024.
///
/// # Errors
/// See [`rate`].
pub fn size(text: &str) -> Result<u64, String> {
    let short = ["K", "M", "G", "T"].iter().any(|unit| text.ends_with(unit));
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let unit = if short {
        "iB"
    } else if plain {
        "B"
    } else {
        ""
    };
    match units::parse_size(&format!("{text}{unit}")) {
        Ok(0) => Err("invalid size `0`: give at least one byte, e.g. 128MiB".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("invalid size `{text}`: write 128MiB, 64KiB or 4096")),
    }
}

/// The name of a scheme: `sr-nack`.
///
/// # Errors
/// See [`rate`].
pub fn scheme(text: &str) -> Result<&'static str, String> {
    let names = Scheme::all().map(|scheme| scheme.name());
    let found = names.into_iter().find(|name| *name == text.trim());
    found.ok_or_else(|| format!("invalid scheme `{text}`: it is one of {}", names.join(", ")))
}

/// Two numbers: `32,8`.
///
/// # Errors
/// See [`rate`].
pub fn pair(text: &str) -> Result<(u32, u32), String> {
    let pair = text
        .split_once(',')
        .and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)));
    pair.ok_or_else(|| format!("invalid pair `{text}`: write two numbers, e.g. 32,8"))
}
