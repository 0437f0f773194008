//! The shuffle protocol, for client and server: requests and answers alternate on a connection.
//!
//! Request: u32 length of the following bytes; magic `FMS2`; token (u8 length, bytes); attempt (u8
//! length, text); partition u32.
//!
//! Answer: status u8. If it is [`OK`]: stored length, raw (uncompressed) length, number of records
//! and raw length of the longest block as u64, CRC-32C of the stored bytes as u32, then the stored
//! bytes. Otherwise: u16 length and a message. All numbers are little endian.

use crate::segment::Extent;
use bytes::{Buf as _, BufMut as _};
use mrlib_api::limits::start_of;
use std::io::{self, Read};

/// The first bytes of a request.
pub const MAGIC: [u8; 4] = *b"FMS2";
/// Maximum length of a request without its length field: magic, two texts of at most 255 bytes with
/// their lengths, and a number.
pub const REQUEST_BYTES_MAX: usize = 4 + 256 + 256 + 4;
/// The data follows.
pub const OK: u8 = 0;
/// The server does not have the output.
pub const NOT_FOUND: u8 = 1;
/// The token is not valid for this job and partition.
pub const REFUSED: u8 = 2;
/// The output on the server is damaged.
pub const DAMAGED: u8 = 3;
/// The server has too many requests.
pub const BUSY: u8 = 4;

/// Size of the header after the status of an answer with data.
const DATA_HEADER_BYTES: usize = 4 * 8 + 4;

/// An answer up to the stored bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The stored bytes follow. The offset is 0.
    Data(Extent),
    /// The server refuses: status and message.
    Refused(u8, String),
}

/// A decoded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The token of the requested partition.
    pub token: &'a [u8],
    /// The attempt whose output is requested.
    pub attempt: &'a str,
    /// The requested partition.
    pub partition: u32,
}

impl<'a> Request<'a> {
    /// Decodes the bytes after the length. None if they are malformed.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(&MAGIC)?;
        let mut text = || {
            let (length, after) = rest.split_first()?;
            let (text, after) = after.split_at_checked(usize::from(*length))?;
            rest = after;
            Some(text)
        };
        let (token, attempt) = (text()?, text()?);
        let partition = u32::from_le_bytes(rest.try_into().ok()?);
        Some(Self { token, attempt: std::str::from_utf8(attempt).ok()?, partition })
    }
}

/// Encodes a successful answer up to the stored bytes.
pub fn data_header(extent: &Extent) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + DATA_HEADER_BYTES);
    bytes.put_u8(OK);
    for number in [extent.stored, extent.raw, extent.records, extent.block_max] {
        bytes.put_u64_le(number);
    }
    bytes.put_u32_le(extent.crc);
    bytes
}

/// Encodes any other answer. A long message is truncated.
pub fn refusal(status: u8, message: &str) -> Vec<u8> {
    let message = start_of(message, usize::from(u16::MAX)).as_bytes();
    let mut bytes = Vec::with_capacity(3 + message.len());
    bytes.put_u8(status);
    bytes.put_u16_le(message.len() as u16);
    bytes.put_slice(message);
    bytes
}

/// Encodes a request.
pub fn request(token: &[u8], attempt: &str, partition: u32) -> io::Result<Vec<u8>> {
    let short = |what: &str, length: usize| {
        let why = format!("{what} of {length} bytes is too long for a shuffle request: the limit is 255");
        u8::try_from(length).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, why))
    };
    let length = MAGIC.len() + 1 + token.len() + 1 + attempt.len() + 4;
    let mut bytes = Vec::with_capacity(4 + length);
    bytes.extend_from_slice(&(length as u32).to_le_bytes());
    bytes.extend_from_slice(&MAGIC);
    bytes.push(short("token", token.len())?);
    bytes.extend_from_slice(token);
    bytes.push(short("attempt", attempt.len())?);
    bytes.extend_from_slice(attempt.as_bytes());
    bytes.extend_from_slice(&partition.to_le_bytes());
    Ok(bytes)
}

/// Reads an answer up to the stored bytes.
pub fn read_answer(from: &mut impl Read) -> io::Result<Answer> {
    let mut status = [0];
    from.read_exact(&mut status)?;
    if status[0] == OK {
        let mut fields = [0; DATA_HEADER_BYTES];
        from.read_exact(&mut fields)?;
        let mut fields = fields.as_slice();
        let [stored, raw, records, block_max] = std::array::from_fn(|_| fields.get_u64_le());
        let crc = fields.get_u32_le();
        let extent = Extent { offset: 0, stored, raw, records, block_max, crc };
        if !extent.is_plausible() {
            let why = "the size or record count in a shuffle answer exceeds the maximum";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        return Ok(Answer::Data(extent));
    }
    let mut length = [0; 2];
    from.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_le_bytes(length))];
    from.read_exact(&mut message)?;
    Ok(Answer::Refused(status[0], String::from_utf8_lossy(&message).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_round_trip() {
        let bytes = request(b"secret", "job_7.m3.0", 9).expect("short");
        let (length, asked) = bytes.split_at(4);
        assert_eq!(length, (asked.len() as u32).to_le_bytes());
        assert!(asked.len() <= REQUEST_BYTES_MAX);
        let understood = Request { token: b"secret", attempt: "job_7.m3.0", partition: 9 };
        assert_eq!(Request::parse(asked), Some(understood));
        for cut in 0..asked.len() {
            assert_eq!(Request::parse(&asked[..cut]), None, "cut at {cut}");
        }
        let extent = Extent { offset: 0, stored: 5, raw: 9, records: 2, block_max: 7, crc: 0xdead };
        let answer = read_answer(&mut data_header(&Extent { offset: 77, ..extent }).as_slice());
        assert_eq!(answer.expect("a complete message"), Answer::Data(extent));
        let answer = read_answer(&mut refusal(BUSY, "later").as_slice()).expect("a complete message");
        assert_eq!(answer, Answer::Refused(BUSY, "later".into()));
        for hostile in [
            Extent { block_max: u64::MAX, ..extent },
            Extent { stored: u64::MAX, ..extent },
            Extent { records: u64::MAX, ..extent },
        ] {
            assert!(read_answer(&mut data_header(&hostile).as_slice()).is_err(), "{hostile:?}");
        }
        let long = "ü".repeat(50_000);
        let Ok(Answer::Refused(DAMAGED, cut)) = read_answer(&mut refusal(DAMAGED, &long).as_slice()) else {
            panic!("not an answer with data");
        };
        assert!(cut.len() > 60_000 && long.starts_with(&cut));
    }
}
