//! Tests of writes: single nodes, pipelines, failing nodes, resumed writes and take-overs.

use super::{super::DataNode, harness::*};
use bytes::BytesMut;
use daemon::Period;
use dfs_client::{
    bulk::{FrameError, FrameKind, PACKET_BYTES, encode_frame, read_frame},
    checksum::{sums_of, to_bytes, verify},
};
use proto::dfs::{
    DataNodeAddress, DeleteBlocks, NamedBlock, Packet, ReadBlock, ReadReply, WriteBlock, WriteStatus,
    bulk_request::Op, command::Kind,
};
use std::{io::Write, net::TcpListener};

#[tokio::test(flavor = "multi_thread")]
async fn written_blocks_are_read_unchanged_and_reported() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let lengths =
        [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, PACKET_BYTES, PACKET_BYTES + 1, 3 * PACKET_BYTES, 3 * CHUNK + 7];
    for (block, length) in (1..).zip(lengths) {
        let data = bytes(length, block);
        let done = put(&chain(&[&node]), block, &data).unwrap();
        assert_eq!((done.acked, done.nodes), (length as u64, uuids(&[&node])));
        let (reply, got) = read(&node, block, length as u64).unwrap();
        assert!(got == data, "{length} bytes");
        verify(&got, 0, &dfs_client::checksum::from_bytes(&reply.checksums)).unwrap();
        bench.namenode.until(&node, "report", |k| k.replicas.get(&block) == Some(&(length as u64))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_last_packet_ends_a_block() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let data = bytes(2 * CHUNK, 1);
    let (mut put, first) = Put::open(&chain(&[&node]), 5, 0).unwrap();
    assert_eq!((first.acked, first.done), (0, false));
    put.packet(&data, false);
    put.wait_acked(2 * CHUNK as u64);
    put.packet(&[], true);
    assert_eq!(put.wait_done().unwrap().acked, 2 * CHUNK as u64);
    assert!(read(&node, 5, 2 * CHUNK as u64).unwrap().1 == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn block_written_through_three_nodes_has_three_replicas() {
    let bench = Bench::new().await;
    let nodes = [bench.node("n1").await, bench.node("n2").await, bench.node("n3").await];
    let nodes: Vec<_> = nodes.iter().collect();
    let data = bytes(5 * PACKET_BYTES + 11, 3);
    let done = put(&chain(&nodes), 77, &data).unwrap();
    assert_eq!((done.acked, done.nodes, done.faults), (data.len() as u64, uuids(&nodes), vec![]));
    for node in nodes {
        assert!(read(node, 77, data.len() as u64).unwrap().1 == data);
        bench.namenode.until(node, "report", |k| k.replicas.contains_key(&77)).await;
    }
}

/// Returns an address where no server listens.
fn unreachable_address(name: &str) -> DataNodeAddress {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let data_addr = listener.local_addr().unwrap().to_string();
    DataNodeAddress { node: name.into(), uuid: name.into(), data_addr, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_mirror_is_removed() {
    let bench = Bench::new().await;
    let (first, third) = (bench.node("n1").await, bench.node("n3").await);
    let mut pipeline = chain(&[&first, &third]);
    pipeline.insert(1, unreachable_address("n2"));
    let data = bytes(PACKET_BYTES + 5, 4);
    let done = put(&pipeline, 9, &data).unwrap();
    assert_eq!(done.nodes, uuids(&[&first, &third]));
    assert_eq!(done.faults.len(), 1);
    assert_eq!(done.faults[0].node, "n2");
    assert!(done.faults[0].reason.contains("cannot connect"), "{}", done.faults[0].reason);
    assert!(read(&third, 9, data.len() as u64).unwrap().1 == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_mirror_is_removed() {
    let bench = Bench::new().await;
    let mut config = bench.config("n1");
    config.datanode.transfer_timeout = Period::secs(1);
    let first = bench.node_with(&config).await;
    // Create a server that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let data_addr = silent.local_addr().unwrap().to_string();
    let mut pipeline = chain(&[&first]);
    pipeline.push(DataNodeAddress { node: "n2".into(), data_addr, ..Default::default() });
    let done = put(&pipeline, 9, b"hello").unwrap();
    assert_eq!(done.nodes, uuids(&[&first]));
    assert_eq!(done.faults[0].node, "n2");
}

#[tokio::test(flavor = "multi_thread")]
async fn mirror_that_becomes_silent_mid_block_is_removed_in_time() {
    let bench = Bench::new().await;
    let mut config = bench.config("n1");
    config.datanode.transfer_timeout = Period::secs(2);
    let first = bench.node_with(&config).await;
    // Start a server that answers the set-up and then hangs with the connection open.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let data_addr = silent.local_addr().unwrap().to_string();
    let hang = std::thread::spawn(move || {
        let (mut stream, _) = silent.accept().unwrap();
        read_frame(&mut stream, bytes::BytesMut::new()).unwrap();
        let mut out = Vec::new();
        let status = WriteStatus { nodes: vec!["u2".into()], ..Default::default() };
        encode_frame(FrameKind::Status, &status, 0, &mut out);
        stream.write_all(&out).unwrap();
        stream
    });
    let mut pipeline = chain(&[&first]);
    pipeline.push(DataNodeAddress { node: "n2".into(), uuid: "u2".into(), data_addr, ..Default::default() });
    let (mut put, ready) = Put::open(&pipeline, 9, 0).unwrap();
    let _open = hang.join().unwrap();
    assert_eq!(ready.nodes.len(), 2);
    let begin = std::time::Instant::now();
    put.packet(&bytes(CHUNK, 1), false);
    let status = put.wait_acked(CHUNK as u64);
    assert!(begin.elapsed().as_secs_f64() < 2.0, "the mirror was removed later than the writer can wait");
    assert_eq!((status.nodes, status.faults[0].node.as_str()), (uuids(&[&first]), "n2"));
    assert!(status.faults[0].reason.starts_with("no answer for"), "{}", status.faults[0].reason);
    put.packet(&[], true);
    put.wait_done().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mirror_that_dies_mid_block_is_removed_and_others_continue() {
    let bench = Bench::new().await;
    let (first, second, third) = (bench.node("n1").await, bench.node("n2").await, bench.node("n3").await);
    let data = bytes(6 * PACKET_BYTES, 5);
    let (mut put, ready) = Put::open(&chain(&[&first, &second, &third]), 8, 0).unwrap();
    assert_eq!(ready.nodes, uuids(&[&first, &second, &third]));
    let (early, late) = data.split_at(2 * PACKET_BYTES);
    for piece in early.chunks(PACKET_BYTES) {
        put.packet(piece, false);
    }
    put.wait_acked(early.len() as u64);
    drop(third);
    let mut pieces = late.chunks(PACKET_BYTES).peekable();
    while let Some(piece) = pieces.next() {
        put.packet(piece, pieces.peek().is_none());
    }
    let done = put.wait_done().unwrap();
    assert_eq!((done.acked, &done.nodes), (data.len() as u64, &uuids(&[&first, &second])));
    assert_eq!(done.faults.iter().map(|fault| fault.node.as_str()).collect::<Vec<_>>(), ["n3"]);
    for node in [&first, &second] {
        assert!(read(node, 8, data.len() as u64).unwrap().1 == data);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_middle_node_disconnects_later_nodes() {
    let bench = Bench::new().await;
    let (first, second, third) = (bench.node("n1").await, bench.node("n2").await, bench.node("n3").await);
    let data = bytes(3 * PACKET_BYTES, 5);
    let (mut put, _) = Put::open(&chain(&[&first, &second, &third]), 8, 0).unwrap();
    put.packet(&data[..PACKET_BYTES], false);
    put.wait_acked(PACKET_BYTES as u64);
    drop(second);
    put.packet(&data[PACKET_BYTES..2 * PACKET_BYTES], false);
    put.packet(&data[2 * PACKET_BYTES..], true);
    let done = put.wait_done().unwrap();
    assert_eq!(done.nodes, uuids(&[&first]));
    assert_eq!(done.faults.iter().map(|fault| fault.node.as_str()).collect::<Vec<_>>(), ["n2"]);
    assert!(read(&first, 8, data.len() as u64).unwrap().1 == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn writer_resumes_on_the_second_node_when_the_first_dies() {
    let bench = Bench::new().await;
    let (first, second, third) = (bench.node("n1").await, bench.node("n2").await, bench.node("n3").await);
    let data = bytes(5 * PACKET_BYTES + 99, 6);
    let (mut put, _) = Put::open(&chain(&[&first, &second, &third]), 8, 0).unwrap();
    for piece in data[..4 * PACKET_BYTES].chunks(PACKET_BYTES) {
        put.packet(piece, false);
    }
    let acked = put.wait_acked(2 * PACKET_BYTES as u64).acked;
    drop(first);
    while put.status().is_ok() {}
    let rest = [&second, &third];
    let (mut again, ready) = Put::open(&chain(&rest), 8, acked).unwrap();
    assert_eq!((ready.acked, ready.nodes), (acked, uuids(&rest)));
    let mut pieces = data[acked as usize..].chunks(PACKET_BYTES).peekable();
    while let Some(piece) = pieces.next() {
        again.packet(piece, pieces.peek().is_none());
    }
    let done = again.wait_done().unwrap();
    assert_eq!((done.acked, done.nodes), (data.len() as u64, uuids(&rest)));
    for node in rest {
        assert!(read(node, 8, data.len() as u64).unwrap().1 == data);
    }
    // The writer may not have received `done`: a repeated request is answered at once.
    let (_, done) = Put::open(&chain(&rest), 8, 5 * PACKET_BYTES as u64).unwrap();
    assert!(done.done && done.acked == data.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_connection_takes_over_from_a_live_one() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let data = bytes(4 * CHUNK, 7);
    let (mut old, _) = Put::open(&chain(&[&node]), 3, 0).unwrap();
    old.packet(&data[..CHUNK], false);
    old.packet(&bytes(CHUNK, 999), false);
    old.wait_acked(2 * CHUNK as u64);
    let (mut new, _) = Put::open(&chain(&[&node]), 3, CHUNK as u64).unwrap();
    old.packet(&bytes(CHUNK, 1000), true);
    assert!(old.wait_done().is_err(), "the superseded writer got an acknowledgement");
    new.packet(&data[CHUNK..], true);
    assert_eq!(new.wait_done().unwrap().acked, data.len() as u64);
    assert!(read(&node, 3, data.len() as u64).unwrap().1 == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_replica_is_not_served_and_is_dropped_without_a_writer() {
    let bench = Bench::new().await;
    let mut config = bench.config("n1");
    config.datanode.transfer_timeout = Period::millis(300);
    let node = bench.node_with(&config).await;
    let (mut put, _) = Put::open(&chain(&[&node]), 3, 0).unwrap();
    put.packet(&bytes(CHUNK, 1), false);
    put.wait_acked(CHUNK as u64);
    assert_eq!(refusal_kind(read(&node, 3, CHUNK as u64)), "not-found");
    let partial = bench.dir("n1").join("tmp/blk_3");
    assert!(partial.exists());
    drop(put);
    wait_for("the partial replica to go", || !partial.exists()).await;
    assert_eq!(refusal_kind(Put::open(&chain(&[&node]), 3, CHUNK as u64).map(drop)), "not-found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_packet_is_refused_and_not_written() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let data = bytes(CHUNK, 1);
    let (mut put, _) = Put::open(&chain(&[&node]), 3, 0).unwrap();
    put.packet(&data, false);
    put.wait_acked(CHUNK as u64);
    let mut bad = data.clone();
    bad[17] ^= 4;
    let packet = Packet { offset: CHUNK as u64, last: true, checksums: to_bytes(&sums_of(&data)) };
    put.raw_packet(&packet, &bad);
    assert_eq!(refusal_kind(put.wait_done()), "checksum");
    // The bytes before the damaged packet are kept, and the write can be resumed.
    let (mut again, _) = Put::open(&chain(&[&node]), 3, CHUNK as u64).unwrap();
    again.packet(&data, true);
    again.wait_done().unwrap();
    assert!(read(&node, 3, 2 * CHUNK as u64).unwrap().1 == [data.clone(), data].concat());
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_with_wrong_offset_or_length_are_refused() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    let data = bytes(CHUNK, 1);
    let refused = |offset: u64, data: &[u8]| {
        let (mut put, _) = Put::open(&chain(&[&node]), 3, 0).unwrap();
        let packet = Packet { offset, last: false, checksums: to_bytes(&sums_of(data)) };
        put.raw_packet(&packet, data);
        refusal_kind(put.wait_done())
    };
    assert_eq!(refused(CHUNK as u64, &data), "invalid");
    assert_eq!(refused(0, &data[..100]), "invalid");
    assert_eq!(refusal_kind(Put::open(&chain(&[&node]), 4, 77).map(drop)), "invalid");
    assert_eq!(refusal_kind(Put::open(&chain(&[&node]), 4, CHUNK as u64).map(drop)), "not-found");
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_over_the_limit_is_refused_as_busy() {
    let bench = Bench::new().await;
    let mut config = bench.config("n1");
    config.datanode.transfers_max = 2;
    let node = bench.node_with(&config).await;
    put(&chain(&[&node]), 1, b"hello").unwrap();
    wait_for("no connections", || node.node.connections.count() == 0).await;
    let holders: Vec<_> = (10..12).map(|block| Put::open(&chain(&[&node]), block, 0).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(refusal_kind(read(&node, 1, 5)), "busy");
    }
    drop(holders);
    wait_for("no connections", || node.node.connections.count() == 0).await;
    assert_eq!(read(&node, 1, 5).unwrap().1, b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_input_closes_only_its_own_connection() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    put(&chain(&[&node]), 1, b"hello").unwrap();
    for seed in 0..200 {
        let mut junk = bytes(1 + (seed as usize * 37) % 3000, seed + 1);
        if seed % 2 == 0 {
            // Start the junk like a valid frame.
            let head = [b'F', b'B', 1, (seed % 7) as u8];
            let n = junk.len().min(4);
            junk[..n].copy_from_slice(&head[..n]);
        }
        connect(node.data_addr()).write_all(&junk).ok();
    }
    assert_eq!(read(&node, 1, 5).unwrap().1, b"hello");
    wait_for("the connections to be closed", || node.node.connections.count() == 0).await;
    let mut stream = connect(node.data_addr());
    stream.write_all(&[7; 64]).unwrap();
    let answer = read_frame(&mut stream, bytes::BytesMut::new()).unwrap();
    assert!(matches!(
        answer.expect::<Packet>(FrameKind::Packet),
        Err(FrameError::Refused { kind, .. }) if kind == "invalid"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn error_of_the_first_node_is_not_reported_as_a_fault_of_the_mirror() {
    let bench = Bench::new().await;
    let (first, second) = (bench.node("n1").await, bench.node("n2").await);
    let (mut put, _) = Put::open(&chain(&[&first, &second]), 3, 0).unwrap();
    let packet = Packet { offset: 0, last: true, checksums: vec![0; 4] };
    put.raw_packet(&packet, b"hello");
    let end = put.until(|status| !status.faults.is_empty());
    assert_eq!(refusal_kind(end), "checksum");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_writer_is_kept_alive_through_the_whole_pipeline() {
    let bench = Bench::new().await;
    let mut nodes = Vec::new();
    // The timeouts are longer than the pause between two packets, even on a busy machine.
    for (name, millis) in [("n1", 2400), ("n2", 1500), ("n3", 1800)] {
        let mut config = bench.config(name);
        config.datanode.transfer_timeout = Period::millis(millis);
        nodes.push(bench.node_with(&config).await);
    }
    let nodes: Vec<_> = nodes.iter().collect();
    let data = bytes(3 * CHUNK, 1);
    let (mut put, ready) = Put::open(&chain(&nodes), 3, 0).unwrap();
    assert_eq!(ready.timeout_ms, 1500, "not the shortest timeout of the three nodes");
    put.packet(&data[..CHUNK], false);
    put.wait_acked(CHUNK as u64);
    let begin = std::time::Instant::now();
    while begin.elapsed().as_millis() < 2 * 2400 {
        put.packet(&[], false);
        let status = put.status().unwrap();
        assert_eq!((status.acked, status.nodes), (CHUNK as u64, uuids(&nodes)));
        tokio::time::sleep(std::time::Duration::from_millis(125)).await;
    }
    put.packet(&data[CHUNK..], true);
    let done = put.wait_done().unwrap();
    assert_eq!((done.nodes, done.faults), (uuids(&nodes), vec![]));
    for node in nodes {
        assert!(read(node, 3, data.len() as u64).unwrap().1 == data);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn block_with_the_same_id_and_another_nonce_is_another_block() {
    let bench = Bench::new().await;
    let node = bench.node("n1").await;
    put(&chain(&[&node]), 1, b"first").unwrap();
    let mut stream = connect(node.data_addr());
    // A writer with another nonce must not get the reply that its block is already finalised.
    let other = WriteBlock { block_id: 1, expected_length: 5, nonce: NONCE + 1, ..WriteBlock::default() };
    request(&mut stream, Op::Write(other));
    let answer = read_frame(&mut stream, BytesMut::new()).unwrap().expect::<WriteStatus>(FrameKind::Status);
    assert!(refusal_kind(answer) == "failed", "a writer with another nonce was not refused");
    // A reader with another nonce does not get the block.
    let mut stream = connect(node.data_addr());
    let ask = ReadBlock { block_id: 1, offset: 0, length: 5, block_length: 5, nonce: NONCE + 1 };
    request(&mut stream, Op::Read(ask));
    let answer = read_frame(&mut stream, BytesMut::new()).unwrap().expect::<ReadReply>(FrameKind::ReadReply);
    assert_eq!(refusal_kind(answer), "not-found");
    // A deletion with another nonce does not delete the block.
    let delete = DeleteBlocks { blocks: vec![NamedBlock { block_id: 1, nonce: NONCE + 1 }] };
    bench.namenode.command(&node, Kind::Delete(delete));
    bench.namenode.until(&node, "an answer", |known| known.deleted == [1]).await;
    assert_eq!(read(&node, 1, 5).unwrap().1, b"first");
    // The nonce is durable and is reported.
    node.stop().await;
    let node = bench.node("n1").await;
    assert_eq!(read(&node, 1, 5).unwrap().1, b"first");
}

#[tokio::test(flavor = "multi_thread")]
async fn node_refuses_a_namenode_older_than_the_last_one_it_registered_with() {
    let bench = Bench::new().await;
    bench.namenode.registrations.lock().epoch = 7;
    let node = bench.node("n1").await;
    put(&chain(&[&node]), 1, b"hello").unwrap();
    node.stop().await;
    bench.namenode.registrations.lock().epoch = 6;
    let node = DataNode::start(&bench.config("n1")).await.unwrap();
    let asked = |known: &ReceivedRequests| known.registrations.len() >= 3;
    bench.namenode.until(&node, "two more tries", asked).await;
    let known = bench.namenode.requests_of(&node);
    assert_eq!(
        known.registrations.last().unwrap().seen_epoch,
        7,
        "the node does not send the last start that it has registered with"
    );
    assert_eq!(known.full_reports, 1, "replicas were reported to the older NameNode");
    // The node has not ended: it registers when the newer NameNode runs.
    bench.namenode.registrations.lock().epoch = 8;
    bench.namenode.until(&node, "a report", |known| known.full_reports == 2).await;
    assert_eq!(read(&node, 1, 5).unwrap().1, b"hello");
}
