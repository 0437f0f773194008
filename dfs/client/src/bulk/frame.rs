//! Encodes a frame, and decodes one from a blocking stream. The decoder checks sizes before it
//! allocates, so that a hostile peer cannot make it use much memory.

use bytes::BytesMut;
use prost::Message;
use std::io::{self, Read};

/// Length of a frame header.
pub const FRAME_HEADER_BYTES: usize = 16;
const MAGIC: [u8; 2] = *b"FB";
const VERSION: u8 = 2;
/// Maximum length of a frame body. The `ReadReply` for a 4 GiB block has 256 KiB of checksums.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum length of the body of a request. A request contains a block, a token and a few nodes.
/// The limit is low because the server reads the request before it can check the token.
const REQUEST_BYTES_MAX: usize = 64 << 10;
const DATA_BYTES_MAX: usize = super::PACKET_BYTES;

/// The type of a frame, which determines the type of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// The body is a `BulkRequest`.
    Request,
    /// The body is a `Packet`; data follows.
    Packet,
    /// The body is a `WriteStatus`.
    Status,
    /// The body is a `ReadReply`.
    ReadReply,
    /// The body is a `BulkError`.
    Error,
}

const KINDS: [FrameKind; 5] =
    [FrameKind::Request, FrameKind::Packet, FrameKind::Status, FrameKind::ReadReply, FrameKind::Error];

/// Why a frame could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The peer closed the stream between two frames.
    #[error("connection closed")]
    Closed,
    /// The stream failed, or ended inside a frame.
    #[error("{}", describe_io_error(.0))]
    Io(#[from] io::Error),
    /// The bytes are damaged or not of this protocol.
    #[error("not a valid frame: {0}")]
    Malformed(&'static str),
    /// The peer uses a different version of the protocol.
    #[error("the peer uses bulk protocol version {0}, this build uses {VERSION}")]
    Version(u8),
    /// The peer refused the request.
    #[error("{message}")]
    Refused {
        /// The machine-readable kind of the refusal.
        kind: String,
        /// The message for the user.
        message: String,
    },
    /// The peer sent a frame of an unexpected kind.
    #[error("unexpected frame: {0:?}")]
    Unexpected(FrameKind),
}

/// Returns whether a socket timeout has expired. The operating system reports that as `EAGAIN`,
/// "resource temporarily unavailable".
pub fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn describe_io_error(error: &io::Error) -> String {
    if is_timeout(error) { "no answer in time".into() } else { format!("connection lost: {error}") }
}

/// A frame that was read. The data of a packet starts at a chunk boundary of its block.
#[derive(Debug)]
pub struct Frame {
    /// The type of the frame.
    pub kind: FrameKind,
    body: BytesMut,
    /// The raw bytes after the body. Empty except in packets.
    pub data: BytesMut,
}

impl Frame {
    /// Decodes the body if the frame is of `kind`. An `Error` frame becomes `FrameError::Refused`.
    pub fn expect<M: Message + Default>(&self, kind: FrameKind) -> Result<M, FrameError> {
        if self.kind == FrameKind::Error && kind != FrameKind::Error {
            let error: proto::dfs::BulkError = self.decode()?;
            return Err(FrameError::Refused { kind: error.kind, message: error.message });
        }
        if self.kind != kind {
            return Err(FrameError::Unexpected(self.kind));
        }
        self.decode()
    }

    fn decode<M: Message + Default>(&self) -> Result<M, FrameError> {
        M::decode(&self.body[..]).map_err(|_| FrameError::Malformed("body does not parse"))
    }
}

/// Appends the header and the body of a frame to `out`. The caller sends `data_len` bytes of data
/// after them.
pub fn encode_frame(kind: FrameKind, body: &impl Message, data_len: usize, out: &mut Vec<u8>) {
    let body_len = body.encoded_len();
    debug_assert!(
        body_len <= body_bytes_max(kind) && data_len <= DATA_BYTES_MAX,
        "the frame exceeds its limits"
    );
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.push(VERSION);
    out.push(KINDS.iter().position(|known| *known == kind).expect("KINDS lists every kind") as u8 + 1);
    out.extend_from_slice(&(body_len as u32).to_le_bytes());
    out.extend_from_slice(&(data_len as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body.encode(out).expect("encoding into a Vec cannot fail");
    let crc = frame_crc(&out[start..start + 12], &out[start + FRAME_HEADER_BYTES..]);
    out[start + 12..start + 16].copy_from_slice(&crc.to_le_bytes());
}

fn body_bytes_max(kind: FrameKind) -> usize {
    if kind == FrameKind::Request { REQUEST_BYTES_MAX } else { BODY_BYTES_MAX }
}

fn frame_crc(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

struct Header {
    kind: FrameKind,
    body_len: usize,
    data_len: usize,
    crc: u32,
}

impl Header {
    fn parse(raw: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, FrameError> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| raw[at + i]));
        if raw[..2] != MAGIC {
            return Err(FrameError::Malformed("bad magic"));
        }
        if raw[2] != VERSION {
            return Err(FrameError::Version(raw[2]));
        }
        let kind = usize::from(raw[3]).checked_sub(1).and_then(|index| KINDS.get(index));
        let Some(&kind) = kind else { return Err(FrameError::Malformed("unknown kind")) };
        let header =
            Self { kind, body_len: u32_at(4) as usize, data_len: u32_at(8) as usize, crc: u32_at(12) };
        if header.body_len > body_bytes_max(kind) || header.data_len > DATA_BYTES_MAX {
            return Err(FrameError::Malformed("longer than the limit"));
        }
        if header.data_len > 0 && kind != FrameKind::Packet {
            return Err(FrameError::Malformed("data in a frame that is not a packet"));
        }
        Ok(header)
    }

    fn check(&self, raw: &[u8], body: &[u8]) -> Result<(), FrameError> {
        if frame_crc(&raw[..12], body) == self.crc {
            Ok(())
        } else {
            Err(FrameError::Malformed("header checksum mismatch"))
        }
    }
}

/// Reads one frame from a blocking stream. The data of the frame is read into `buffer`, which is
/// resized; see [`recycle`].
pub fn read_frame(stream: &mut impl Read, buffer: BytesMut) -> Result<Frame, FrameError> {
    let (raw, header) = read_header(stream)?;
    read_rest(stream, &raw, &header, buffer)
}

/// Reads a request. A frame of another kind is refused by its header, before memory for its body is
/// allocated.
pub fn read_request(stream: &mut impl Read) -> Result<proto::dfs::BulkRequest, FrameError> {
    let (raw, header) = read_header(stream)?;
    if header.kind != FrameKind::Request {
        return Err(FrameError::Unexpected(header.kind));
    }
    read_rest(stream, &raw, &header, BytesMut::new())?.expect(FrameKind::Request)
}

fn read_header(stream: &mut impl Read) -> Result<([u8; FRAME_HEADER_BYTES], Header), FrameError> {
    let mut raw = [0; FRAME_HEADER_BYTES];
    // A stream that ends between two frames is closed and not broken. `read_exact` retries a read
    // that is interrupted, which happens when a stopped process continues.
    match stream.read_exact(&mut raw[..1]) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(FrameError::Closed),
        first => first?,
    }
    stream.read_exact(&mut raw[1..])?;
    let header = Header::parse(&raw)?;
    Ok((raw, header))
}

fn read_rest(
    stream: &mut impl Read,
    raw: &[u8],
    header: &Header,
    buffer: BytesMut,
) -> Result<Frame, FrameError> {
    let mut body = BytesMut::zeroed(header.body_len);
    stream.read_exact(&mut body)?;
    header.check(raw, &body)?;
    let mut data = buffer;
    data.resize(header.data_len, 0);
    stream.read_exact(&mut data)?;
    Ok(Frame { kind: header.kind, body, data })
}

/// Returns the data buffer of a frame, for the next [`read_frame`].
pub fn recycle(frame: Frame) -> BytesMut {
    frame.data
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::dfs::{BulkError, Packet};

    fn packet_frame(data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let body = Packet { offset: 0, last: true, checksums: vec![1, 2, 3, 4] };
        encode_frame(FrameKind::Packet, &body, data.len(), &mut out);
        out.extend_from_slice(data);
        out
    }

    #[test]
    fn packet_frame_round_trips() {
        let raw = packet_frame(b"hello");
        let frame = read_frame(&mut &raw[..], BytesMut::new()).unwrap();
        let packet: Packet = frame.expect(FrameKind::Packet).unwrap();
        assert!(packet.last);
        assert_eq!(&frame.data[..], b"hello");
    }

    #[test]
    fn invalid_request_is_refused_after_its_header() {
        // Sends only the header of a packet, and a request whose header announces a body that is
        // too long. Checks that both are refused without reading a body.
        let packet = packet_frame(&[0; 100]);
        let read = read_request(&mut &packet[..FRAME_HEADER_BYTES]);
        assert!(matches!(read, Err(FrameError::Unexpected(FrameKind::Packet))), "{read:?}");
        let mut long = Vec::new();
        encode_frame(FrameKind::Request, &proto::dfs::BulkRequest::default(), 0, &mut long);
        assert!(read_request(&mut &long[..]).is_ok());
        long[4..8].copy_from_slice(&(REQUEST_BYTES_MAX as u32 + 1).to_le_bytes());
        let read = read_request(&mut &long[..]);
        assert!(matches!(read, Err(FrameError::Malformed("longer than the limit"))), "{read:?}");
    }

    /// A reader whose every other read fails with `Interrupted`.
    struct InterruptingReader<'a>(&'a [u8], bool);

    impl Read for InterruptingReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 { Err(io::ErrorKind::Interrupted.into()) } else { self.0.read(buffer) }
        }
    }

    #[test]
    fn interrupted_reads_are_retried() {
        let raw = packet_frame(b"hello");
        let mut from = InterruptingReader(&raw, false);
        assert_eq!(&read_frame(&mut from, BytesMut::new()).unwrap().data[..], b"hello");
        assert!(matches!(read_frame(&mut from, BytesMut::new()), Err(FrameError::Closed)));
    }

    #[test]
    fn error_frame_is_returned_as_a_refusal() {
        let mut raw = Vec::new();
        let body = BulkError { kind: "not-found".into(), message: "no such block".into() };
        encode_frame(FrameKind::Error, &body, 0, &mut raw);
        let frame = read_frame(&mut &raw[..], BytesMut::new()).unwrap();
        let got = frame.expect::<Packet>(FrameKind::Packet);
        assert!(matches!(got, Err(FrameError::Refused { message, .. }) if message == "no such block"));
    }

    #[test]
    fn flipped_header_or_body_bit_is_detected() {
        let good = packet_frame(b"");
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(read_frame(&mut &bad[..], BytesMut::new()).is_err(), "flip at {at}.{bit}");
            }
        }
    }

    #[test]
    fn closed_stream_and_truncated_frame_give_different_errors() {
        assert!(matches!(read_frame(&mut &[][..], BytesMut::new()), Err(FrameError::Closed)));
        let raw = packet_frame(b"hello");
        for cut in 1..raw.len() {
            assert!(matches!(read_frame(&mut &raw[..cut], BytesMut::new()), Err(FrameError::Io(_))));
        }
    }

    use proptest::prelude::*;

    /// A reader that counts bytes and fails if more than the largest frame is requested at once.
    struct CountingReader<'a>(&'a [u8], usize);

    impl Read for CountingReader<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            assert!(
                into.len() <= BODY_BYTES_MAX.max(DATA_BYTES_MAX),
                "the reader requests more than the largest frame"
            );
            let read = self.0.read(into)?;
            self.1 += read;
            Ok(read)
        }
    }

    fn read_and_decode(bytes: &[u8]) -> Result<Frame, FrameError> {
        let mut stream = CountingReader(bytes, 0);
        let frame = read_frame(&mut stream, BytesMut::new())?;
        assert_eq!(stream.1, FRAME_HEADER_BYTES + frame.body.len() + frame.data.len());
        frame.expect::<Packet>(FrameKind::Packet).ok();
        frame.expect::<proto::dfs::BulkRequest>(FrameKind::Request).ok();
        frame.expect::<proto::dfs::WriteStatus>(FrameKind::Status).ok();
        frame.expect::<proto::dfs::ReadReply>(FrameKind::ReadReply).ok();
        Ok(frame)
    }

    /// Returns a frame with a valid header and checksum around an arbitrary body.
    fn frame_with_body(kind: u8, body: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = [&MAGIC[..], &[VERSION, kind]].concat();
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&(data.len() as u32).to_le_bytes());
        let crc = frame_crc(&out, body);
        [&out[..], &crc.to_le_bytes(), body, data].concat()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases * 12))]

        #[test]
        fn arbitrary_bytes_give_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            read_and_decode(&bytes).ok();
            read_and_decode(&[&MAGIC[..], &[VERSION], &bytes].concat()).ok();
        }

        #[test]
        fn arbitrary_body_is_decoded_or_refused(
            kind in 0_u8..8,
            body in prop::collection::vec(any::<u8>(), 0..100),
            data in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            read_and_decode(&frame_with_body(kind, &body, &data)).ok();
        }

        #[test]
        fn a_damaged_frame_is_refused_or_differs_in_its_data_only(
            data in prop::collection::vec(any::<u8>(), 0..100),
            changes in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let good = packet_frame(&data);
            let mut bad = good.clone();
            for (at, flip) in changes {
                let at = at.index(bad.len());
                bad[at] ^= flip;
            }
            let head = good.len() - data.len();
            prop_assert_eq!(read_and_decode(&bad).is_ok(), bad[..head] == good[..head]);
            let cut = cut.index(good.len());
            prop_assert!(read_and_decode(&good[..cut]).is_err());
        }
    }
}
