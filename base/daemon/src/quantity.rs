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
    #[error("{0:?} is not a size: write a number with a unit, such as 64MiB, 1GB or 4096")]
    Size(String),
    /// The text is not a duration.
    #[error("{0:?} is not a duration: write a number with a unit, such as 10s, 250ms or 2m")]
    Duration(String),
}

/// `1 file`, `2 files`: for nouns with a plural in s.
pub fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

impl Bytes {
    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
}

impl Period {
    /// `n` seconds.
    pub const fn secs(n: u64) -> Self {
        Self(Duration::from_secs(n))
    }
    /// `n` milliseconds.
    pub const fn millis(n: u64) -> Self {
        Self(Duration::from_millis(n))
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let size: bytesize::ByteSize = text.trim().parse().map_err(|_| QuantityError::Size(text.into()))?;
        Ok(Self(size.as_u64()))
    }
}

impl FromStr for Period {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        humantime::parse_duration(text.trim()).map(Self).map_err(|_| QuantityError::Duration(text.into()))
    }
}

impl fmt::Display for Bytes {
    /// Exact: uses the largest binary unit that divides the number, so that the text parses to the
    /// same number.
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

macro_rules! as_text {
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
as_text!(Bytes, Period);

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
    fn singular_units_have_no_plural() {
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
    fn quantities_round_trip() {
        for bytes in [0, 1, 1023, 1024, 65536, 64 << 20, 3 << 30, (1 << 30) + 1] {
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
        assert_eq!(Bytes::mib(64).to_string(), "64MiB");
    }
}
