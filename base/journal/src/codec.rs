//! Encodes values as record bytes: a version byte, then bincode 2 (serde, standard configuration).
//!
//! bincode is unmaintained (RUSTSEC-2025-0141: no known flaw, no more releases). It is used here
//! because these bytes are read only from local disks, protected by a CRC, and never from the
//! network. Decoding is bounded: a wrong length cannot allocate more than [`VALUE_BYTES_MAX`], and
//! trailing bytes are an error. Only this file uses bincode. To replace it (for example by
//! postcard), increase [`VERSION`] and keep the code for the old version.

use bincode::config::{self, Config};
use serde::{Serialize, de::DeserializeOwned};

/// First byte of every encoded value.
pub const VERSION: u8 = 1;
/// Maximum memory of a decoded value, approximately.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Why bytes cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// There is no version byte.
    #[error("record is empty")]
    Empty,
    /// A newer Fermata wrote the record.
    #[error("record has encoding version {0}, this build knows {VERSION}: use the build that wrote it")]
    Version(u8),
    /// The bytes do not parse.
    #[error("record does not parse: {0}")]
    Malformed(#[from] bincode::error::DecodeError),
    /// There are bytes after the value.
    #[error("record has {0} bytes after its value")]
    Trailing(usize),
}

fn settings() -> impl Config {
    config::standard().with_limit::<VALUE_BYTES_MAX>()
}

/// Returns `value` as bytes.
pub fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    encode_into(value, &mut out);
    out
}

/// Appends the bytes of `value` to `out`, for callers that reuse one buffer.
pub fn encode_into<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    out.push(VERSION);
    bincode::serde::encode_into_std_write(value, out, settings())
        .expect("a Vec grows, and record types serialise without conditions");
}

/// Decodes bytes that [`encode`] has returned.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let (version, body) = bytes.split_first().ok_or(CodecError::Empty)?;
    if *version != VERSION {
        return Err(CodecError::Version(*version));
    }
    let (value, used) = bincode::serde::decode_from_slice(body, settings())?;
    if used != body.len() {
        return Err(CodecError::Trailing(body.len() - used));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Sample {
        Named { name: String, sizes: Vec<u64> },
        Plain(Option<i32>),
    }

    #[test]
    fn values_round_trip_and_malformed_records_are_refused() {
        let value = Sample::Named { name: "a/b".into(), sizes: vec![1, 300, u64::MAX] };
        let bytes = encode(&value);
        assert_eq!(decode::<Sample>(&bytes).unwrap(), value);
        for cut in 1..bytes.len() {
            assert!(matches!(decode::<Sample>(&bytes[..cut]), Err(CodecError::Malformed(_))), "cut at {cut}");
        }
        assert!(matches!(decode::<Sample>(&[]), Err(CodecError::Empty)));
        assert!(matches!(decode::<Sample>(&[9, 0]), Err(CodecError::Version(9))));
        let longer = [&bytes[..], &[0, 0]].concat();
        assert!(matches!(decode::<Sample>(&longer), Err(CodecError::Trailing(2))));
    }

    #[test]
    fn a_huge_length_in_a_record_is_refused() {
        // Version, variant 0, then a string with a length of 2^64 - 1 bytes.
        let bytes = [&[VERSION, 0, 253][..], &[255; 8], b"x"].concat();
        assert!(matches!(decode::<Sample>(&bytes), Err(CodecError::Malformed(_))));
        let bytes = [&[VERSION, 0, 0, 253][..], &[255; 8]].concat();
        assert!(matches!(decode::<Sample>(&bytes), Err(CodecError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Sample>(&bytes);
        }
    }
}
