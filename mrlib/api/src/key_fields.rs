//! Parts of a key: the options `-k`, `-n` and `-r` of `sort`, as Hadoop's `KeyFieldBasedComparator`
//! and `KeyFieldBasedPartitioner` have them.
//!
//! A key has fields between separators, counted from 1. `-k FIELD[.CHAR][,FIELD[.CHAR]]` names a
//! part, from the first character of its first field to the last of its last. Without `-k`, the
//! only part is the complete key. `n` compares numbers, `r` reverses; after `-k` they are for that
//! part, as `-n` and `-r` for all parts that have neither.
//!
//! The type is small and `Copy`, so that it can be a part of [`crate::KeyOrder`]. Therefore the
//! number of parts is limited, and the separator is one byte.

use std::cmp::Ordering;

/// Maximum number of parts.
const PARTS_MAX: usize = 6;

/// Parts of a key, and how they are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyFields {
    separator: u8,
    parts: [Part; PARTS_MAX],
    len: u8,
}

/// Positions count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    first_field: u16,
    first_byte: u16,
    /// 0 means the end of the key.
    last_field: u16,
    /// 0 means the end of the field.
    last_byte: u16,
    numeric: bool,
    reverse: bool,
}

const ALL: Part =
    Part { first_field: 1, first_byte: 1, last_field: 0, last_byte: 0, numeric: false, reverse: false };

impl KeyFields {
    /// Parses options such as `-k1,2 -k3nr`.
    pub fn parse(options: &str, separator: u8) -> Result<Self, String> {
        let mut fields = Self { separator, parts: [ALL; PARTS_MAX], len: 0 };
        let (mut numeric, mut reverse) = (false, false);
        let mut words = options.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "-n" => numeric = true,
                "-r" => reverse = true,
                "-nr" | "-rn" => (numeric, reverse) = (true, true),
                _ => {
                    let part = word
                        .strip_prefix("-k")
                        .map(|rest| if rest.is_empty() { words.next() } else { Some(rest) });
                    let part = part.flatten().and_then(Part::parse).ok_or_else(|| {
                        format!("{options:?}: {word} is not -kFIELD[.CHAR][,FIELD[.CHAR]][n][r], -n or -r")
                    })?;
                    let Some(slot) = fields.parts.get_mut(usize::from(fields.len)) else {
                        return Err(format!("{options:?}: at most {PARTS_MAX} parts are possible"));
                    };
                    *slot = part;
                    fields.len += 1;
                }
            }
        }
        fields.len = fields.len.max(1);
        for part in &mut fields.parts {
            if !part.numeric && !part.reverse {
                (part.numeric, part.reverse) = (numeric, reverse);
            }
        }
        Ok(fields)
    }

    fn parts(&self) -> &[Part] {
        &self.parts[..usize::from(self.len)]
    }

    /// Returns the bytes of each part. A part that the key does not have is empty.
    pub fn of<'a>(&self, key: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        self.parts().iter().map(|part| part.of(key, self.separator))
    }

    /// Compares two keys by their parts, in order.
    pub fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        for part in self.parts() {
            let (a, b) = (part.of(a, self.separator), part.of(b, self.separator));
            let order = if part.numeric { compare_numbers(a, b) } else { a.cmp(b) };
            if order != Ordering::Equal {
                return if part.reverse { order.reverse() } else { order };
            }
        }
        Ordering::Equal
    }
}

impl Part {
    fn parse(text: &str) -> Option<Self> {
        let flags = text.len() - text.trim_end_matches(['n', 'r']).len();
        let (range, flags) = text.split_at(text.len() - flags);
        let (first, last) = range.split_once(',').unwrap_or((range, ""));
        // Letters may also follow the first position.
        let first_flags = &first[first.trim_end_matches(['n', 'r']).len()..];
        let has = |flag| flags.contains(flag) || first_flags.contains(flag);
        let (first_field, first_byte) = position(first.trim_end_matches(['n', 'r']))?;
        let (last_field, last_byte) = if last.is_empty() { (0, 0) } else { position(last)? };
        (first_field > 0 && !range.ends_with(',')).then_some(Self {
            first_field,
            first_byte: first_byte.max(1),
            last_field,
            last_byte,
            numeric: has('n'),
            reverse: has('r'),
        })
    }

    fn of<'a>(&self, key: &'a [u8], separator: u8) -> &'a [u8] {
        let Some((start, field_end)) = field(key, separator, self.first_field) else { return &[] };
        let start = start + usize::from(self.first_byte) - 1;
        if start >= field_end && self.first_byte > 1 {
            return &[];
        }
        let end = match self.last_field {
            0 => key.len(),
            last => match field(key, separator, last) {
                None => key.len(),
                Some((_, end)) if self.last_byte == 0 => end,
                Some((begin, end)) => end.min(begin + usize::from(self.last_byte)),
            },
        };
        key.get(start..end).unwrap_or_default()
    }
}

/// Parses `FIELD` or `FIELD.CHAR`.
fn position(text: &str) -> Option<(u16, u16)> {
    let (field, byte) = text.split_once('.').map_or((text, None), |(field, byte)| (field, Some(byte)));
    Some((field.parse().ok()?, byte.map_or(Some(0), |byte| byte.parse().ok())?))
}

/// Returns the range of the field with this number, without separators.
fn field(key: &[u8], separator: u8, number: u16) -> Option<(usize, usize)> {
    let mut start = 0;
    for (at, field) in key.split(|byte| *byte == separator).enumerate() {
        if at + 1 == usize::from(number) {
            return Some((start, start + field.len()));
        }
        start += field.len() + 1;
    }
    None
}

/// Compares decimal numbers of any length. Text that does not begin with a number counts as 0.
fn compare_numbers(a: &[u8], b: &[u8]) -> Ordering {
    let (a, b) = (Number::of(a), Number::of(b));
    match (a.negative, b.negative) {
        (false, false) => a.compare_size(&b),
        (true, true) => b.compare_size(&a),
        (true, false) => Ordering::Less,
        (false, true) => Ordering::Greater,
    }
}

struct Number<'a> {
    negative: bool,
    /// Digits before the point, without leading zeros.
    whole: &'a [u8],
    /// Digits after the point, without trailing zeros.
    fraction: &'a [u8],
}

impl<'a> Number<'a> {
    fn of(text: &'a [u8]) -> Self {
        let text = text.trim_ascii_start();
        let (sign, text) = text.strip_prefix(b"-").map_or((false, text), |rest| (true, rest));
        let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (whole, rest) = text.split_at(digits(text));
        let fraction = rest.strip_prefix(b".").unwrap_or_default();
        let mut fraction = &fraction[..digits(fraction)];
        while let Some(shorter) = fraction.strip_suffix(b"0") {
            fraction = shorter;
        }
        let whole = &whole[whole.iter().take_while(|byte| **byte == b'0').count()..];
        Self { negative: sign && !(whole.is_empty() && fraction.is_empty()), whole, fraction }
    }

    fn compare_size(&self, other: &Self) -> Ordering {
        let whole = self.whole.len().cmp(&other.whole.len()).then_with(|| self.whole.cmp(other.whole));
        whole.then_with(|| self.fraction.cmp(other.fraction))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(options: &str, key: &str) -> Vec<String> {
        let fields = KeyFields::parse(options, b'.').expect(options);
        fields.of(key.as_bytes()).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    #[test]
    fn parts_are_fields_from_a_first_to_a_last_character() {
        for (options, expected) in [
            ("", vec!["ab.cd.ef"]),
            ("-k1,1", vec!["ab"]),
            ("-k 2,2", vec!["cd"]),
            ("-k2", vec!["cd.ef"]),
            ("-k1,2", vec!["ab.cd"]),
            ("-k1.2,2.1", vec!["b.c"]),
            ("-k3,3nr -k1,1", vec!["ef", "ab"]),
            ("-k4", vec![""]),
            ("-k1.3,1", vec![""]),
            ("-k2,9", vec!["cd.ef"]),
        ] {
            assert_eq!(parts(options, "ab.cd.ef"), expected, "{options}");
        }
        for options in ["-k", "-kx", "-k0", "-k1,", "-x", "1", "-k1,2q", "-k1 -k1 -k1 -k1 -k1 -k1 -k1"] {
            assert!(KeyFields::parse(options, b'.').is_err(), "{options}");
        }
    }

    #[test]
    fn parts_are_compared_in_order_as_text_or_numbers() {
        let order = |options: &str, a: &str, b: &str| {
            KeyFields::parse(options, b'\t').expect(options).compare(a.as_bytes(), b.as_bytes())
        };
        assert_eq!(order("", "10", "9"), Ordering::Less);
        assert_eq!(order("-n", "10", "9"), Ordering::Greater);
        assert_eq!(order("-nr", "10", "9"), Ordering::Less);
        assert_eq!(order("-k1,1", "a\t1", "a\t2"), Ordering::Equal);
        assert_eq!(order("-k1,1 -k2,2nr", "a\t1", "a\t2"), Ordering::Greater);
        assert_eq!(order("-r -k1,1", "a", "b"), Ordering::Greater);
        for (less, more) in
            [("-2", "1"), ("-10", "-9"), ("1.25", "1.3"), ("x", "1"), ("007", "8"), ("-1", "0")]
        {
            assert_eq!(order("-n", less, more), Ordering::Less, "{less} {more}");
        }
        for (a, b) in [("1", "1.0"), ("-0", "0"), (" 5", "05"), ("", "0")] {
            assert_eq!(order("-n", a, b), Ordering::Equal, "{a} {b}");
        }
    }
}
