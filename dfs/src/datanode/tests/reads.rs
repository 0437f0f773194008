//! Tests of reads: ranges over TCP, file descriptors over the Unix socket.

use super::harness::*;
use bytes::BytesMut;
use dfs_client::{
    bulk::{FRAME_HEADER_BYTES, FrameError, FrameKind, PACKET_BYTES, read_frame},
    checksum::{Checksums, from_bytes, verify},
    ids::BlockId,
};
use proto::dfs::{OpenLocal, ReadReply, bulk_request::Op};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::{
    fs::File,
    io::{IoSliceMut, Read},
    mem::MaybeUninit,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};

#[tokio::test(flavor = "multi_thread")]
async fn replies_are_complete_chunks_that_contain_the_requested_range() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let data = bytes(2 * PACKET_BYTES + 4321, 2);
    let length = data.len() as u64;
    put(&chain(&[&node]), 1, &data).unwrap();
    put(&chain(&[&node]), 2, b"another").unwrap();
    // Send many requests on one connection, some of which are refused.
    let mut stream = connect(node.data_addr());
    for (start, end) in [(0, 1), (1, 2), (65535, 65537), (70_000, 600_001), (length - 1, length), (0, length)]
    {
        let (reply, got) = read_on(&mut stream, 1, start..end, length).unwrap();
        assert!(reply.offset <= start && reply.offset + reply.length >= end, "{start}..{end}");
        assert!(start - reply.offset < CHUNK as u64 && reply.offset + reply.length < end + CHUNK as u64);
        verify(&got, reply.offset, &from_bytes(&reply.checksums)).unwrap();
        assert!(got == data[reply.offset as usize..][..reply.length as usize], "{start}..{end}");
        assert_eq!(refusal_kind(read_on(&mut stream, 99, 0..1, 1)), "not-found");
        assert_eq!(read_on(&mut stream, 2, 0..7, 7).unwrap().1, b"another");
    }
    assert_eq!(read_on(&mut stream, 1, 0..u64::MAX, length).unwrap().1.len() as u64, length);
    assert_eq!(refusal_kind(read_on(&mut stream, 1, length + 1..length + 2, length)), "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn reader_with_another_length_is_refused_and_the_replica_reported() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    put(&chain(&[&node]), 1, b"hello").unwrap();
    bench.namenode.until(&node, "report", |k| k.replicas.contains_key(&1)).await;
    bench.namenode.registrations.lock().nodes.values_mut().for_each(|known| known.replicas.clear());
    assert_eq!(refusal_kind(read_on(&mut connect(node.data_addr()), 1, 0..6, 6)), "damaged");
    bench.namenode.until(&node, "second report", |k| k.replicas.get(&1) == Some(&5)).await;
    // The replica is kept, because the reader may be wrong.
    assert_eq!(read(&node, 1, 5).unwrap().1, b"hello");
}

fn open_local(path: &str, request_: OpenLocal) -> Result<(ReadReply, Vec<File>), FrameError> {
    let mut stream = UnixStream::connect(path).unwrap();
    request(&mut stream, Op::OpenLocal(request_));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut head = [0; FRAME_HEADER_BYTES];
    let got = rustix::net::recvmsg(
        &stream,
        &mut [IoSliceMut::new(&mut head)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap();
    assert_eq!(got.bytes, FRAME_HEADER_BYTES);
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors.map(File::from));
        }
    }
    let frame = read_frame(&mut head.chain(&mut stream), BytesMut::new())?;
    Ok((frame.expect(FrameKind::ReadReply)?, files))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_reader_gets_the_files_and_can_map_them() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let data = bytes(3 * CHUNK + 5, 2);
    put(&chain(&[&node]), 1, &data).unwrap();
    let socket = node.address().local_socket.clone();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o666);
    let (block_length, node_uuid) = (data.len() as u64, node.uuid().to_string());
    let ask = OpenLocal { block_id: 1, block_length, node_uuid, nonce: NONCE };
    let (reply, mut files) = open_local(&socket, ask.clone()).unwrap();
    assert_eq!((reply.offset, reply.length, files.len()), (0, 0, 2));
    let mut sums = Vec::new();
    files[1].read_to_end(&mut sums).unwrap();
    let sums = Checksums::decode(&sums, BlockId(1)).unwrap();
    assert!(reply.checksums.is_empty(), "the reply has checksums, which belong in the second file");
    #[allow(unsafe_code, reason = "mapping the descriptor is what is tested")]
    // SAFETY: no thread changes a finalised block while the test runs.
    let map = unsafe { memmap2::Mmap::map(&files[0]) }.unwrap();
    assert!(map[..] == data);
    verify(&map, 0, &sums.sums).unwrap();
    let other_node = OpenLocal { node_uuid: "another".into(), ..ask.clone() };
    assert_eq!(refusal_kind(open_local(&socket, other_node)), "invalid");
    assert_eq!(refusal_kind(open_local(&socket, OpenLocal { block_id: 2, ..ask.clone() })), "not-found");
    assert_eq!(refusal_kind(open_local(&socket, OpenLocal { nonce: NONCE + 1, ..ask.clone() })), "not-found");
    assert_eq!(refusal_kind(open_local(&socket, OpenLocal { block_length: 1, ..ask })), "damaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn socket_is_in_another_folder_if_set_or_if_its_path_is_too_long() {
    let bench = Bench::new().await;
    let sockets = bench.dir("sockets");
    std::fs::create_dir(&sockets).unwrap();
    for (name, socket_dir) in [("long".repeat(30), Path::new("")), ("short".into(), &sockets)] {
        let mut config = bench.config("n1");
        config.datanode.dirs = vec![bench.dir(&name)];
        config.datanode.socket_dir = socket_dir.to_owned();
        let node = bench.node_with(&config).await;
        put(&chain(&[&node]), 1, b"hello").unwrap();
        let socket = node.address().local_socket.clone();
        assert!(!socket.is_empty() && socket.len() <= 100, "{socket}");
        let folder = Path::new(&socket).parent().unwrap();
        assert!(folder.starts_with(socket_dir), "{socket}");
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o711, "{socket}");
        let node_uuid = node.uuid().to_string();
        let ask = OpenLocal { block_id: 1, block_length: 5, node_uuid, nonce: NONCE };
        assert_eq!(open_local(&socket, ask).unwrap().1.len(), 2);
        node.stop().await;
        assert!(!folder.exists(), "{socket}");
    }
    assert!(sockets.exists(), "a folder that the node did not create was removed");
}
