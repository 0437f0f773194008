//! Frames on the umbilical, the socket between a tracker and a task process: a u32 little-endian
//! length and one message.

use prost::Message;
use std::io::{self, Read, Write};

/// Maximum length of a message.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

fn too_long(kind: io::ErrorKind, length: usize) -> io::Error {
    io::Error::new(
        kind,
        format!("a message on the umbilical has {length} bytes: the limit is {FRAME_BYTES_MAX}"),
    )
}

/// Writes one message.
pub fn write_frame(to: &mut impl Write, message: &impl Message) -> io::Result<()> {
    let length = message.encoded_len();
    if length > FRAME_BYTES_MAX {
        return Err(too_long(io::ErrorKind::InvalidInput, length));
    }
    let mut bytes = Vec::with_capacity(4 + length);
    bytes.extend_from_slice(&(length as u32).to_le_bytes());
    message.encode(&mut bytes).map_err(io::Error::other)?;
    to.write_all(&bytes)
}

/// Reads one message. None if the other side has closed the connection between two messages.
pub fn read_frame<M: Message + Default>(from: &mut impl Read) -> io::Result<Option<M>> {
    let mut length = [0; 4];
    // `read_exact` retries a read that a signal handler of the program has interrupted.
    match from.read_exact(&mut length[..1]) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        first => first?,
    }
    from.read_exact(&mut length[1..])?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(too_long(io::ErrorKind::InvalidData, length));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    M::decode(bytes.as_slice()).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::mr::{TaskHello, TaskPreempt};

    #[test]
    fn frames_round_trip() {
        let mut bytes = Vec::new();
        let hello = TaskHello { protocol: 1, version: "x".into() };
        write_frame(&mut bytes, &hello).expect("writes to memory succeed");
        write_frame(&mut bytes, &TaskPreempt::default()).expect("writes to memory succeed");
        let mut from = bytes.as_slice();
        assert_eq!(read_frame(&mut from).expect("a complete message"), Some(hello));
        assert_eq!(read_frame(&mut from).expect("a complete message"), Some(TaskPreempt::default()));
        assert_eq!(read_frame::<TaskPreempt>(&mut from).expect("the end"), None);
    }

    /// Interrupts every read once.
    struct Interrupted<'a>(&'a [u8], bool);

    impl Read for Interrupted<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 { Err(io::ErrorKind::Interrupted.into()) } else { self.0.read(buffer) }
        }
    }

    #[test]
    fn interrupted_reads_are_retried() {
        let mut bytes = Vec::new();
        let hello = TaskHello { protocol: 1, version: "x".into() };
        write_frame(&mut bytes, &hello).expect("writes to memory succeed");
        let mut from = Interrupted(&bytes, false);
        assert_eq!(read_frame(&mut from).expect("a complete message"), Some(hello));
        assert_eq!(read_frame::<TaskHello>(&mut from).expect("the end"), None);
    }

    #[test]
    fn a_cut_or_oversized_frame_is_an_error() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &TaskHello { protocol: 1, version: "x".into() })
            .expect("writes to memory succeed");
        for cut in 1..bytes.len() {
            assert!(read_frame::<TaskHello>(&mut &bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(read_frame::<TaskHello>(&mut [0xff; 8].as_slice()).is_err());
    }
}
