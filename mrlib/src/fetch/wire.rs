//! The shuffle protocol: one request, one answer, again on the same connection.
//!
//! Request: u32 little-endian length of what follows; magic `FMS1`; token (u8 length, bytes); attempt (u8 length,
//! text); partition u32. Answer: status u8; if it is [`OK`]: stored length u64, raw length u64, records u64, crc32c
//! u32 of the stored bytes, then exactly those; if not: u16 length and a message. All numbers are little endian.

use std::io::{self, Read};

/// First bytes of a request.
pub const MAGIC: [u8; 4] = *b"FMS1";
/// Here it comes.
pub const OK: u8 = 0;
/// There is no such output.
pub const NOT_FOUND: u8 = 1;
/// The token is not the job's.
pub const REFUSED: u8 = 2;
/// The server's copy is damaged.
pub const DAMAGED: u8 = 3;
/// Too many are asking.
pub const BUSY: u8 = 4;

/// What an answer announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// Bytes that follow.
    pub stored: u64,
    /// Bytes of them decompressed.
    pub raw: u64,
    /// Records.
    pub records: u64,
    /// Of the stored bytes.
    pub crc: u32,
}

/// An answer up to the bytes themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// So many bytes follow.
    Coming(Announced),
    /// Status and message.
    No(u8, String),
}

/// The bytes of a request.
pub fn request(token: &[u8], attempt: &str, partition: u32) -> io::Result<Vec<u8>> {
    let short = |what: &str, length: usize| {
        let why = format!("{what} of {length} bytes is too long for a shuffle request: 255 at most");
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

/// Reads an answer up to the bytes themselves.
pub fn read_answer(from: &mut impl Read) -> io::Result<Answer> {
    let mut status = [0];
    from.read_exact(&mut status)?;
    if status[0] == OK {
        let mut fields = [0; 28];
        from.read_exact(&mut fields)?;
        let number = |at: usize| u64::from_le_bytes(fields[at..at + 8].try_into().expect("eight bytes"));
        let crc = u32::from_le_bytes(fields[24..].try_into().expect("four bytes"));
        return Ok(Answer::Coming(Announced { stored: number(0), raw: number(8), records: number(16), crc }));
    }
    let mut length = [0; 2];
    from.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_le_bytes(length))];
    from.read_exact(&mut message)?;
    Ok(Answer::No(status[0], String::from_utf8_lossy(&message).into_owned()))
}
