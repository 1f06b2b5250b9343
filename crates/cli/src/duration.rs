//! Durations on command lines: `2h`, `90m`, `1h30m`, `45s`, `1d`.

use std::time::Duration;

const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

/// Parses a duration; zero is one.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration: write, for example, 2h, 90m, 1h30m, 45s or 1d");
    let (mut seconds, mut number, mut least) = (0u64, String::new(), u64::MAX);
    for character in text.chars() {
        if character.is_ascii_digit() {
            number.push(character);
            continue;
        }
        let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == character).ok_or_else(wrong)?;
        let count = number.parse::<u64>().map_err(|_| wrong())?;
        // Larger units come first, each at most once.
        if unit >= least {
            return Err(wrong());
        }
        seconds = count.checked_mul(unit).and_then(|of| seconds.checked_add(of)).ok_or_else(wrong)?;
        (least, number) = (unit, String::new());
    }
    if number.is_empty() && least < u64::MAX { Ok(Duration::from_secs(seconds)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, seconds) in [("2h", 7_200), ("90m", 5_400), ("1h30m", 5_400), ("1d2h3m4s", 93_784), ("0s", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "2", "h", "30m1h", "1h1h", "2 h", "-1h", "1.5h", "99999999999999999999h", "999999999999999999d"] {
            assert!(parse(text).unwrap_err().contains("write, for example, 2h"), "{text}");
        }
    }
}
