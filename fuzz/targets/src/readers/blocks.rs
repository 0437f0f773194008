//! Targets for readers of DataNodes (frames of the bulk protocol, checksum files) and for the
//! parser of DFS paths.

use super::SMALL_LIMIT;
use crate::{Damage, Limit, Target};
use bytes::BytesMut;
use dfs_client::{
    bulk::{
        FRAME_HEADER_BYTES, Frame, FrameError, FrameKind, PACKET_BYTES, encode_frame, read_frame,
        read_request,
    },
    checksum::{self, CHUNK_BYTES, Checksums},
    ids::{BlockId, Nonce},
    path::DfsPath,
};
use prost::Message;
use proto::dfs::{
    BulkError, BulkRequest, DataNodeAddress, NodeFault, OpenLocal, Packet, ReadBlock, ReadReply, WriteBlock,
    WriteStatus, bulk_request::Op,
};

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "bulk_frame",
        reads: "dfs_client::bulk::read_request, read_frame, Frame::expect, checksum::verify of packets",
        seeds: frame_seeds,
        body: check_frames,
        damage: Damage::Unnoticed,
        // Memory for a body of 1 MiB and the data of one packet, for any length fields.
        memory: Limit { fixed: (2 << 20) + PACKET_BYTES, per_byte: 512 },
    },
    Target {
        name: "checksum_file",
        reads: "dfs_client::checksum::Checksums::decode",
        seeds: || {
            let of = |length: usize| {
                let data: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
                let sums = checksum::sums_of(&data);
                Checksums { block: BLOCK, nonce: NONCE, length: length as u64, sums }.encode()
            };
            vec![of(0), of(5), of(CHUNK_BYTES), of(3 * CHUNK_BYTES + 1)]
        },
        body: check_checksum_file,
        damage: Damage::Refused,
        memory: SMALL_LIMIT,
    },
    Target {
        name: "dfs_path",
        reads: "dfs_client::path::DfsPath::parse",
        seeds: || {
            [&b"/"[..], b"/user/ann/in", b"//a//b/", "/\u{fc}/\u{1f642}".as_bytes()]
                .map(<[u8]>::to_vec)
                .to_vec()
        },
        body: check_path,
        damage: Damage::Unnoticed,
        memory: SMALL_LIMIT,
    },
];

const BLOCK: BlockId = BlockId(7);
const NONCE: Nonce = Nonce(9);

fn frame_bytes(kind: FrameKind, body: &impl Message, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(kind, body, data.len(), &mut out);
    out.extend_from_slice(data);
    out
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let request = |op| BulkRequest { op: Some(op), token: vec![3; 32] };
    let mirror = DataNodeAddress { uuid: "u".into(), ..DataNodeAddress::default() };
    let write =
        WriteBlock { block_id: 7, mirrors: vec![mirror], expected_length: 9, ..WriteBlock::default() };
    let read = ReadBlock { block_id: 7, offset: 0, length: 9, block_length: 9, nonce: 9 };
    let local = OpenLocal { block_id: 7, block_length: 9, node_uuid: "u".into(), nonce: 9 };
    let data = vec![5; CHUNK_BYTES + 9];
    let packet = |data: &[u8], last| Packet {
        offset: 0,
        last,
        checksums: checksum::to_bytes(&checksum::sums_of(data)),
    };
    let fault = NodeFault { node: "u".into(), reason: "gone".into() };
    let status =
        WriteStatus { acked: 9, done: true, nodes: vec!["u".into()], faults: vec![fault], timeout_ms: 5000 };
    let reply = ReadReply { offset: 0, length: 9, chunk_size: CHUNK_BYTES as u32, checksums: vec![1; 4] };
    let error = BulkError { kind: "not-found".into(), message: "no such block".into() };
    vec![
        frame_bytes(FrameKind::Request, &request(Op::Write(write)), b""),
        frame_bytes(FrameKind::Request, &request(Op::Read(read)), b""),
        frame_bytes(FrameKind::Request, &request(Op::OpenLocal(local)), b""),
        [
            frame_bytes(FrameKind::Packet, &packet(b"", false), b""),
            frame_bytes(FrameKind::Packet, &packet(b"some", true), b"some"),
        ]
        .concat(),
        frame_bytes(FrameKind::Packet, &packet(&data, true), &data),
        frame_bytes(FrameKind::Status, &status, b""),
        frame_bytes(FrameKind::ReadReply, &reply, b""),
        frame_bytes(FrameKind::Error, &error, b""),
    ]
}

/// Decodes the body of a frame, and checks that encoding and decoding it again gives the same
/// message.
fn decode_body<M: Message + Default + PartialEq + std::fmt::Debug>(
    frame: &Frame,
    kind: FrameKind,
) -> Result<M, FrameError> {
    let message: M = frame.expect(kind)?;
    let again = frame_bytes(kind, &message, b"");
    let again =
        read_frame(&mut again.as_slice(), BytesMut::new()).expect("a frame that was just encoded is valid");
    assert_eq!(again.expect::<M>(kind).expect("a frame that was just encoded is valid"), message);
    Ok(message)
}

fn read_frames(mut input: &[u8]) -> Result<(), FrameError> {
    let (mut position, mut spare) = (0, BytesMut::new());
    loop {
        let frame = match read_frame(&mut input, spare) {
            Err(FrameError::Closed) => return Ok(()),
            frame => frame?,
        };
        assert!(frame.data.len() <= PACKET_BYTES, "more data than a packet has");
        match frame.kind {
            FrameKind::Request => drop(decode_body::<BulkRequest>(&frame, frame.kind)?),
            FrameKind::Status => drop(decode_body::<WriteStatus>(&frame, frame.kind)?),
            FrameKind::ReadReply => drop(decode_body::<ReadReply>(&frame, frame.kind)?),
            FrameKind::Error => drop(decode_body::<BulkError>(&frame, frame.kind)?),
            FrameKind::Packet => {
                let packet = decode_body::<Packet>(&frame, frame.kind)?;
                let sums = checksum::from_bytes(&packet.checksums);
                // Like a DataNode, verifies only the packet at the expected offset.
                if packet.offset == position && checksum::verify(&frame.data, position, &sums).is_ok() {
                    position += frame.data.len() as u64;
                }
            }
        }
        spare = frame.data;
    }
}

/// Reads the first request as a DataNode does before it has checked a token. Checks that the result
/// equals that of `read_frame`.
fn check_first_request(input: &[u8]) {
    let frame = read_frame(&mut &input[..], BytesMut::new());
    let expected = frame.and_then(|frame| frame.expect::<BulkRequest>(FrameKind::Request));
    match (read_request(&mut &input[..]), expected) {
        (Ok(request), Ok(expected)) => assert_eq!(request, expected),
        (Err(_), Err(_)) => {}
        (request, expected) => panic!("read_request: {request:?}, read_frame: {expected:?}"),
    }
}

fn check_frames(input: &[u8]) -> Option<Vec<u8>> {
    // Also reads the input with a corrected checksum of header and body, which any peer can
    // compute.
    let mut sound = input.to_vec();
    if sound.len() >= FRAME_HEADER_BYTES {
        let length = u32::from_le_bytes([sound[4], sound[5], sound[6], sound[7]]) as usize;
        let end = FRAME_HEADER_BYTES.saturating_add(length).min(sound.len());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&sound[..12]), &sound[FRAME_HEADER_BYTES..end]);
        sound[12..16].copy_from_slice(&crc.to_le_bytes());
        check_first_request(&sound);
        let _refused = read_frames(&sound);
    }
    check_first_request(input);
    read_frames(input).ok().map(|()| Vec::new())
}

fn check_checksum_file(input: &[u8]) -> Option<Vec<u8>> {
    let read = |bytes: &[u8]| {
        let sums = Checksums::decode(bytes, BLOCK).ok()?;
        assert_eq!(sums.encode(), bytes, "encoding an accepted input again gives different bytes");
        assert_eq!(sums.sums.len() as u64, sums.length.div_ceil(CHUNK_BYTES as u64));
        let _mismatch = checksum::verify(&[0; 100], 0, &sums.sums);
        Some(bytes.to_vec())
    };
    // Also reads the input with corrected checksums of the header and of the table.
    if let Ok(fields) = <[u8; 8]>::try_from(input.get(24..32).unwrap_or_default()) {
        let table = checksum::from_bytes(input.get(checksum::HEADER_BYTES..).unwrap_or_default());
        let length = u64::from_le_bytes(fields);
        read(&Checksums { block: BLOCK, nonce: NONCE, length, sums: table }.encode());
    }
    read(input)
}

fn check_path(input: &[u8]) -> Option<Vec<u8>> {
    let path = DfsPath::parse(std::str::from_utf8(input).ok()?).ok()?;
    let text = path.as_str();
    assert!(text.starts_with('/') && !text.contains("//"), "{text:?} is not normalised");
    assert!(path.names().all(|name| name != "." && name != ".." && !name.contains('\0')));
    assert_eq!(
        DfsPath::parse(text).as_ref(),
        Ok(&path),
        "parsing a normalised path again gives a different path"
    );
    Some(text.as_bytes().to_vec())
}
