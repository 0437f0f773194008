//! Sizes and durations in human notation: `64MiB`, `10s`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::{fmt, str::FromStr, time::Duration};

/// A number of bytes, written `64MiB`, `1.5GB` or `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A duration, written `10s`, `1m 30s`, `250ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

/// Why a text is not a size or a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text is not a size.
    #[error(
        "{0:?} is not a size: write a number of bytes, such as 4096, or a number with a unit, such as 64MiB"
    )]
    Size(String),
    /// The size does not fit into 64 bits.
    #[error("{0:?} is too large: the maximum is {max} bytes, just under 16EiB", max = u64::MAX)]
    TooLarge(String),
    /// The text is not a duration.
    #[error("{0:?} is not a duration: write a number with a unit, such as 10s, 250ms or 2m")]
    Duration(String),
    /// The duration is too long to compute with points in time.
    #[error("{0:?} is too long: the maximum is 100 years")]
    TooLong(String),
}

/// The longest duration that is accepted, about 100 years.
const PERIOD_MAX: Duration = Duration::from_hours(100 * 366 * 24);

/// Returns a count with its noun: `1 file`, `2 files`. Only for nouns whose plural ends in s.
pub fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Formats a size with about three digits and a binary unit: `1.50 GiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // A value that would be rounded to 1024 of a unit is shown as 1.00 of the next unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {}", UNITS[unit])
}

impl Bytes {
    /// Returns a size of `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl Period {
    /// Returns a duration of `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }
    /// Returns a duration of `n` milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(Duration::from_millis(n))
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let plain = text.trim();
        let is_number = !plain.is_empty() && plain.bytes().all(|byte| byte.is_ascii_digit());
        match plain.parse::<bytesize::ByteSize>().map(|size| size.as_u64()) {
            // `ByteSize` parses every size that is too large as `u64::MAX`.
            Ok(u64::MAX) if plain.parse() != Ok(u64::MAX) => Err(QuantityError::TooLarge(text.into())),
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) if is_number => Err(QuantityError::TooLarge(text.into())),
            Err(_) => Err(QuantityError::Size(text.into())),
        }
    }
}

impl FromStr for Period {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        use humantime::DurationError;
        match humantime::parse_duration(text.trim()) {
            Ok(period) if period <= PERIOD_MAX => Ok(Self(period)),
            Ok(_) | Err(DurationError::NumberOverflow) => Err(QuantityError::TooLong(text.into())),
            Err(_) => Err(QuantityError::Duration(text.into())),
        }
    }
}

impl fmt::Display for Bytes {
    /// Writes the exact size, with the largest binary unit that divides it, so that the text parses
    /// to the same size.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let exact = UNITS.into_iter().find(|(shift, _)| self.0 > 0 && self.0.trailing_zeros() >= *shift);
        match exact {
            Some((shift, unit)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

macro_rules! serialize_as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
serialize_as_text!(Bytes, Period);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_human_quantities() {
        assert_eq!("64MiB".parse(), Ok(Bytes::mib(64)));
        assert_eq!("1 GB".parse(), Ok(Bytes(1_000_000_000)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        assert_eq!("1m 30s".parse(), Ok(Period::secs(90)));
        assert_eq!("250ms".parse(), Ok(Period::millis(250)));
    }

    #[test]
    fn sizes_have_about_three_digits() {
        let cases: [(u64, &str); 9] = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            (100 << 20, "100 MiB"),
            (1023 << 20, "1023 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn nouns_are_plural_unless_the_count_is_one() {
        assert_eq!([0, 1, 2].map(|number| count(number, "file")), ["0 files", "1 file", "2 files"]);
    }

    #[test]
    fn rejects_malformed_quantities_with_a_hint() {
        for text in ["", "-1", "12XB", "many"] {
            assert_eq!(text.parse::<Bytes>(), Err(QuantityError::Size(text.into())));
        }
        for text in ["", "10", "-5s", "soon"] {
            assert_eq!(text.parse::<Period>(), Err(QuantityError::Duration(text.into())));
        }
    }

    #[test]
    fn sizes_beyond_64_bits_are_rejected_with_the_maximum() {
        for text in ["99999999TiB", "16EiB", "16777216 TiB", "18446744073709551616", "20.5EB"] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert_eq!(error, QuantityError::TooLarge(text.into()));
            assert!(error.to_string().contains("the maximum is 18446744073709551615 bytes"), "{error}");
        }
        assert_eq!("15EiB".parse(), Ok(Bytes(15 << 60)));
        assert_eq!("18446744073709551615".parse(), Ok(Bytes(u64::MAX)));
    }

    #[test]
    fn durations_beyond_a_century_are_rejected() {
        for text in ["500000000000y", "99999999999999999999s", "40000d"] {
            assert_eq!(text.parse::<Period>(), Err(QuantityError::TooLong(text.into())));
        }
        assert!("100y".parse::<Period>().is_ok());
    }

    #[test]
    fn printed_sizes_parse_to_the_same_size() {
        for bytes in [0, 1, 1023, 1024, 65536, 64 << 20, 3 << 30, (1 << 30) + 1] {
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
        assert_eq!(Bytes::mib(64).to_string(), "64MiB");
    }
}
