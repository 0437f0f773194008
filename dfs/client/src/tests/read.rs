//! Tests of reads: failover with correct data for every kind of fault, short-circuit reads, get.

use super::*;
use crate::bulk::{FrameKind, PACKET_BYTES, encode_frame, read_frame};
use crate::checksum::{CHUNK_BYTES, Checksums, sums_of};
use crate::ids::BlockId;
use crossbeam::channel::{Receiver, unbounded};
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::task::Poll;

async fn put(client: &Client, to: &str, data: &[u8], replication: u32, block_size: usize) {
    let options = PutOptions {
        replication: Some(replication),
        block_size: Some(block_size as u64),
        ..PutOptions::default()
    };
    client.put_with(to, data, options, &()).await.unwrap();
}

async fn read_all(reader: &mut FileReader) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(bytes) = reader.next().await? {
        assert!(!bytes.is_empty());
        all.extend_from_slice(&bytes);
        assert_eq!(reader.position(), all.len() as u64);
    }
    Ok(all)
}

#[tokio::test]
async fn complete_files_and_ranges_are_read() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    for length in [0, 1, 65_536, 65_537, PACKET_BYTES, 3 * PACKET_BYTES + 9] {
        let data = bytes(length);
        let name = format!("/f{length}");
        put(&client, &name, &data, 1, 100_000).await;
        let mut reader = client.open(&path(&name)).await.unwrap();
        assert_eq!(reader.len(), length as u64);
        assert!(read_all(&mut reader).await.unwrap() == data);
        for (from, want) in [(0, 10), (99_990, 20), (1, length), (length, 5), (length + 9, 5), (65_535, 2)] {
            let mut buffer = vec![0; want];
            let got = reader.read_at(from as u64, &mut buffer).await.unwrap();
            let right = &data[from.min(length)..(from + want).min(length)];
            assert!(buffer[..got] == *right, "{want} bytes at {from} of {length}");
        }
        reader.seek(length as u64 / 2);
        assert!(reader.next().await.unwrap().is_none_or(|bytes| data[length / 2..].starts_with(&bytes)));
        reader.seek(u64::MAX);
        assert!(reader.next().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn reader_continues_on_another_replica_after_any_damage() {
    let packet = PACKET_BYTES as u64;
    let damages = [
        (Misbehaviour::FlipByte(0), true),
        (Misbehaviour::FlipByte(2 * packet + 17), true),
        (Misbehaviour::CutAt(packet + 1), false),
        (Misbehaviour::CutAt(0), false),
        (Misbehaviour::StallAt(packet), false),
        (Misbehaviour::Missing, true),
        (Misbehaviour::Garbage, false),
        (Misbehaviour::OfferLess, false),
    ];
    for (damage, reported) in damages {
        let cluster = Cluster::start(2).await;
        let client = cluster.client().await;
        let data = bytes(7 * PACKET_BYTES + 3);
        put(&client, "/f", &data, 2, 3 * PACKET_BYTES).await;
        cluster.node(1).set_misbehaviour(damage);
        let mut reader = client.open(&path("/f")).await.unwrap();
        assert!(read_all(&mut reader).await.unwrap() == data, "{damage:?}");
        assert_eq!(reader.faults()[0].node, "n1", "{damage:?}");
        let bad = cluster.namespace.lock().bad_replica_reports.clone();
        assert_eq!(!bad.is_empty(), reported, "{damage:?}: {bad:?}");
        assert!(bad.iter().all(|(_, node)| node == "uuid-of-n1"));
        let mut once = bad.clone();
        once.dedup();
        assert_eq!(once, bad, "a replica was reported twice");
    }
}

#[tokio::test]
async fn dead_node_is_skipped_and_then_avoided() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let data = bytes(6 * PACKET_BYTES);
    put(&client, "/f", &data, 2, PACKET_BYTES).await;
    cluster.node(1).state.lock().dead = true;
    let mut reader = client.open(&path("/f")).await.unwrap();
    assert!(read_all(&mut reader).await.unwrap() == data);
    assert_eq!(reader.faults().len(), 1, "expected one fault, of the dead node: {:?}", reader.faults());
    assert!(
        cluster.namespace.lock().bad_replica_reports.is_empty(),
        "replicas of the dead node were reported as bad"
    );
}

#[tokio::test]
async fn stalled_node_is_abandoned_and_avoided() {
    let mut cluster = Cluster::start(2).await;
    cluster.config.deadline = daemon::Period::secs(60);
    let client = cluster.client().await;
    let data = bytes(20 * PACKET_BYTES);
    put(&client, "/f", &data, 2, PACKET_BYTES).await;
    // In the second iteration the reader has an idle connection to the stalled node, which it must
    // not wait for either.
    for stall_at in [PACKET_BYTES as u64 / 2, 0] {
        cluster.node(1).set_misbehaviour(Misbehaviour::StallAt(stall_at));
        cluster.node(1).state.lock().reads = 0;
        let started = std::time::Instant::now();
        let mut reader = client.open(&path("/f")).await.unwrap();
        assert!(read_all(&mut reader).await.unwrap() == data);
        let took = started.elapsed();
        assert!(
            took < Duration::from_secs(8),
            "the read took {took:?}: the reader waited for the stalled node"
        );
        assert_eq!(
            (reader.faults().len(), cluster.node(1).state.lock().reads),
            (1, 1),
            "the stalled node was asked more than once"
        );
    }
}

#[tokio::test]
async fn slow_node_with_the_only_replica_is_waited_for() {
    let mut cluster = Cluster::start(2).await;
    cluster.config.deadline = daemon::Period::secs(60);
    let client = cluster.client().await;
    let data = bytes(1000);
    for replication in [1, 2] {
        let name = format!("/f{replication}");
        put(&client, &name, &data, replication, 1 << 20).await;
        (1..=2).for_each(|number| cluster.node(number).set_misbehaviour(Misbehaviour::Slow(1500)));
        let mut reader = client.open(&path(&name)).await.unwrap();
        assert!(read_all(&mut reader).await.unwrap() == data);
        assert_eq!(
            reader.faults().len(),
            replication as usize - 1,
            "the reader did not wait for the last replica"
        );
        (1..=2).for_each(|number| cluster.node(number).state.lock().misbehaviour = None);
    }
}

#[tokio::test]
async fn block_with_all_replicas_corrupt_is_not_waited_for() {
    let mut cluster = Cluster::start(2).await;
    cluster.config.deadline = daemon::Period::secs(60);
    let client = cluster.client().await;
    put(&client, "/f", &bytes(1000), 1, 1 << 20).await;
    cluster.namespace.lock().mangle = Some(|block| {
        block.nodes.clear();
        block.damaged_on = vec!["n1".into()];
    });
    let started = std::time::Instant::now();
    for skip in [false, true] {
        let mut reader = client.open(&path("/f")).await.unwrap();
        if skip {
            reader.zero_fill_lost_blocks();
            assert!(read_all(&mut reader).await.unwrap() == [0; 1000]);
            assert_eq!(reader.lost()[0].why, "the replica on n1 is damaged");
        } else {
            let text = read_all(&mut reader).await.unwrap_err().to_string();
            assert!(text.ends_with(": the replica on n1 is damaged"), "{text}");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(
        !client.inner.has_given_up.load(std::sync::atomic::Ordering::Relaxed),
        "later waits will be short, although no wait has reached the deadline"
    );
}

#[tokio::test]
async fn reader_waits_for_an_unreachable_replica_if_the_others_are_corrupt() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    put(&client, "/f", &bytes(1000), 2, 1 << 20).await;
    cluster.namespace.lock().mangle = Some(|block| {
        block.nodes.clear();
        block.damaged_on = vec!["n1".into()];
    });
    let mut reader = client.open(&path("/f")).await.unwrap();
    let reading = tokio::spawn(async move { read_all(&mut reader).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.namespace.lock().mangle = None;
    assert!(reading.await.unwrap().unwrap() == bytes(1000));
}

#[tokio::test]
async fn error_without_a_good_replica_names_every_host_and_reason() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    put(&client, "/f", &bytes(2 * PACKET_BYTES), 2, PACKET_BYTES).await;
    cluster.node(1).set_misbehaviour(Misbehaviour::FlipByte(65_536));
    cluster.node(2).set_misbehaviour(Misbehaviour::Missing);
    let mut reader = client.open(&path("/f")).await.unwrap();
    let text = read_all(&mut reader).await.unwrap_err().to_string();
    assert!(text.starts_with("cannot read /f at byte 0: no good replica of blk_"), "{text}");
    assert!(text.contains("n1 (127.0.0.1:") && text.contains("checksum mismatch at offset 65536"), "{text}");
    assert!(text.contains("n2 (127.0.0.1:") && text.contains("this node has no such replica"), "{text}");
}

#[tokio::test]
async fn replica_that_returns_before_the_deadline_is_read() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let data = bytes(1000);
    put(&client, "/f", &data, 1, 1 << 20).await;
    let node = cluster.node(1);
    node.set_misbehaviour(Misbehaviour::Missing);
    let mut reader = client.open(&path("/f")).await.unwrap();
    let reading = tokio::spawn(async move { read_all(&mut reader).await });
    wait_until("the node got the request", || node.state.lock().reads >= 2).await;
    node.state.lock().misbehaviour = None;
    assert!(reading.await.unwrap().unwrap() == data);
}

#[tokio::test]
async fn get_writes_the_complete_file_or_nothing() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let data = bytes(2 * PACKET_BYTES + 1);
    put(&client, "/f", &data, 1, PACKET_BYTES).await;
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("f");
    let progress = CountedProgress::default();
    let report = client.get(&path("/f"), &to, GetOptions::default(), &progress).await.unwrap();
    assert_eq!((report.status.length, progress.total()), (data.len() as u64, data.len() as u64));
    assert!(std::fs::read(&to).unwrap() == data);
    let again = client.get(&path("/f"), &to, GetOptions::default(), &()).await.unwrap_err().to_string();
    assert!(again.contains("already exists"), "{again}");
    client.get(&path("/f"), &to, GetOptions { overwrite: true }, &()).await.unwrap();
    cluster.node(1).set_misbehaviour(Misbehaviour::CutAt(PACKET_BYTES as u64 / 2));
    let other = folder.path().join("g");
    client.get(&path("/f"), &other, GetOptions::default(), &()).await.unwrap_err();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left");
}

/// Serves one block over a Unix socket. The returned channel gets, for each connection, whether a
/// request arrived.
fn serve_local(listener: UnixListener, data: &std::path::Path, sums: &std::path::Path) -> Receiver<bool> {
    let (data, sums) = (std::fs::File::open(data).unwrap(), std::fs::File::open(sums).unwrap());
    let (requests, asked) = unbounded();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let frame = read_frame(&mut stream, bytes::BytesMut::new());
            // The receiver may be dropped: most tests do not use it.
            let _ = requests.send(frame.is_ok());
            let Ok(frame) = frame else { continue };
            frame.expect::<proto::dfs::BulkRequest>(FrameKind::Request).unwrap();
            let mut head = Vec::new();
            encode_frame(FrameKind::ReadReply, &proto::dfs::ReadReply::default(), 0, &mut head);
            let fds = [data.as_fd(), sums.as_fd()];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
            assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
            let iov = [std::io::IoSlice::new(&head)];
            rustix::net::sendmsg(&stream, &iov, &mut control, rustix::net::SendFlags::empty()).unwrap();
        }
    });
    asked
}

#[tokio::test]
async fn a_local_block_is_mapped_and_verified() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let content = bytes(PACKET_BYTES + 12_345);
    put(&client, "/f", &content, 2, 1 << 20).await;
    let (_, located) = client.locate(&path("/f"), 0, u64::MAX).await.unwrap();
    let block = located[0].block;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("data"), &content).unwrap();
    let sums = |block| {
        Checksums { block, nonce: located[0].nonce, length: content.len() as u64, sums: sums_of(&content) }
            .encode()
    };
    std::fs::write(at("sums"), sums(block)).unwrap();
    std::fs::write(at("wrong"), sums(BlockId(block.0 + 1))).unwrap();
    for (socket, sums) in [("good.sock", "sums"), ("bad.sock", "wrong")] {
        serve_local(UnixListener::bind(at(socket)).unwrap(), &at("data"), &at(sums));
    }
    let with = |socket: &str| {
        let mut block = located[0].clone();
        block.nodes[0].local_socket = Some(at(socket));
        block
    };
    let local = client.open_local_block(&with("good.sock")).await.unwrap().unwrap();
    assert!(local.bytes() == content);
    local.verify(0..u64::MAX).unwrap();
    assert!(
        client.open_local_block(&with("bad.sock")).await.unwrap().is_none(),
        "a block with the checksums of another block was mapped"
    );
    assert!(client.open_local_block(&with("none.sock")).await.unwrap().is_none());
    // Fetch the same block through the socket. Later, a changed byte must be reported as damage.
    let run = |socket| {
        let block = with(socket);
        let part = fetch::BlockRange {
            node: block.nodes[0].clone(),
            from: 7,
            to: block.length,
            block,
            has_other_replica: false,
        };
        fetch::start(&client, vec![part])
    };
    let reads = cluster.node(1).state.lock().reads;
    let mut fetched = Vec::new();
    let mut good = run("good.sock");
    while let Some(Ok((offset, bytes))) = good.next().await {
        assert_eq!(offset as usize, fetched.len());
        fetched.extend_from_slice(&bytes);
    }
    assert!(fetched == content);
    assert_eq!(cluster.node(1).state.lock().reads, reads, "the block was read over TCP");
    let mut file = std::fs::OpenOptions::new().write(true).open(at("data")).unwrap();
    file.write_all(&[content[0] ^ 1]).unwrap();
    let found = local.verify(1..2);
    let wanted = crate::checksum::ChecksumError::Mismatch(0);
    assert!(matches!(&found, Err(ReadError::Damaged(error)) if *error == wanted), "{found:?}");
    local.verify(65_536..content.len() as u64).unwrap();
    let mut bad = run("good.sock");
    assert!(matches!(bad.next().await, Some(Err(failure)) if failure.damaged));
}

/// Serves forged contents of a block, with matching checksums, over a Unix socket of another
/// account. Checks that the client detects the forgery by the account of the server.
#[tokio::test]
async fn a_local_socket_of_another_account_gets_no_request_and_the_block_is_read_over_tcp() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip("root", "only root can act as another account");
    }
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let content = bytes(PACKET_BYTES + 12_345);
    put(&client, "/f", &content, 1, 1 << 20).await;
    let (_, located) = client.locate(&path("/f"), 0, u64::MAX).await.unwrap();
    let mut block = located[0].clone();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let forged: Vec<u8> = content.iter().map(|byte| !byte).collect();
    let sums =
        Checksums { block: block.block, nonce: block.nonce, length: block.length, sums: sums_of(&forged) };
    std::fs::write(at("data"), &forged).unwrap();
    std::fs::write(at("sums"), sums.encode()).unwrap();

    let listener = UnixListener::bind(at("local.sock")).unwrap();
    block.nodes[0].local_socket = Some(at("local.sock"));
    // The peer credentials are those of the thread that called `listen(2)` last.
    let other = listener.try_clone().unwrap();
    let as_nobody = move || {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        rustix::net::listen(&other, 8).unwrap();
    };
    std::thread::spawn(as_nobody).join().unwrap();
    let own = listener.try_clone().unwrap();
    let requests = serve_local(listener, &at("data"), &at("sums"));

    assert!(
        client.open_local_block(&block).await.unwrap().is_none(),
        "a block of an untrusted account was mapped"
    );
    let reads = cluster.node(1).state.lock().reads;
    let (node, to) = (block.nodes[0].clone(), block.length);
    let part = fetch::BlockRange { node, from: 0, to, block: block.clone(), has_other_replica: false };
    let (mut run, mut fetched) = (fetch::start(&client, vec![part]), Vec::new());
    while let Some(item) = run.next().await {
        let Ok((_, bytes)) = item else { panic!("failed at byte {}", fetched.len()) };
        fetched.extend_from_slice(&bytes);
    }
    assert!(fetched == content, "the bytes are not those of the DataNode");
    assert_eq!(cluster.node(1).state.lock().reads, reads + 1, "the block was not read over TCP");
    // A request would contain the token of the block, so none must be sent.
    for _ in 0..2 {
        assert_eq!(
            requests.recv_timeout(Duration::from_secs(10)),
            Ok(false),
            "an untrusted account got a request"
        );
    }

    // The same server is accepted if its account is trusted. This shows that nothing else prevented
    // the read.
    rustix::net::listen(&own, 8).unwrap();
    let local = client.open_local_block(&block).await.unwrap().unwrap();
    assert!(local.bytes() == forged);
}

#[tokio::test]
async fn corrupt_chunk_ends_the_fetch_after_all_good_packets() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let content = bytes(4 * PACKET_BYTES + 77);
    put(&client, "/f", &content, 1, 8 * PACKET_BYTES).await;
    let (_, blocks) = client.locate(&path("/f"), 0, u64::MAX).await.unwrap();
    let run = |from, to| {
        let block = blocks[0].clone();
        fetch::start(
            &client,
            vec![fetch::BlockRange {
                node: block.nodes[0].clone(),
                from,
                to,
                block,
                has_other_replica: false,
            }],
        )
    };
    // Complete chunks are returned for any range. Only the last chunk of the block is short.
    let (chunk, end) = (CHUNK_BYTES as u64, content.len() as u64);
    for (from, to) in [(0, end), (1, 2), (chunk, 2 * chunk), (chunk - 1, chunk + 1), (end - 1, end)] {
        let (mut run, mut at) = (run(from, to), from / chunk * chunk);
        while let Some(item) = run.next().await {
            let Ok((offset, bytes)) = item else { panic!("{from}..{to} failed at {at}") };
            assert_eq!(offset, at);
            assert!(bytes == content[at as usize..at as usize + bytes.len()]);
            at += bytes.len() as u64;
        }
        assert_eq!(at, to.next_multiple_of(chunk).min(end), "{from}..{to}");
    }
    cluster.node(1).set_misbehaviour(Misbehaviour::FlipByte(2 * PACKET_BYTES as u64 + 5));
    let mut run = run(0, end);
    for packet in 0..2 {
        assert!(matches!(run.next().await, Some(Ok((at, _))) if at == packet * PACKET_BYTES as u64));
    }
    assert!(matches!(run.next().await, Some(Err(failure)) if failure.damaged));
    assert!(run.next().await.is_none(), "bytes were returned after a failure");
}

#[tokio::test]
async fn cancelled_read_resumes_without_a_gap() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let content = bytes(20 * PACKET_BYTES);
    put(&client, "/f", &content, 1, 4 * PACKET_BYTES).await;
    let mut reader = client.open(&path("/f")).await.unwrap();
    let (mut read, mut given_up) = (Vec::new(), 0);
    while read.len() < content.len() {
        // Poll once, then drop the future.
        let polled = {
            let mut next = std::pin::pin!(reader.next());
            std::future::poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await
        };
        match polled {
            Poll::Ready(next) => read.extend_from_slice(&next.unwrap().expect("not at the end")),
            Poll::Pending => {
                given_up += 1;
                if given_up % 2 == 0 {
                    read.extend_from_slice(&reader.next().await.unwrap().expect("not at the end"));
                }
            }
        }
    }
    assert!(given_up > 0);
    assert!(read == content);
    assert!(reader.next().await.unwrap().is_none());
}

#[tokio::test]
async fn lost_block_is_reported_and_other_blocks_can_be_read() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let size = 100_000;
    let data = bytes(3 * size + 5);
    put(&client, "/f", &data, 1, size).await;
    let lost = cluster.namespace.lock().files["/f"].blocks[1].0;
    cluster.node(1).state.lock().blocks.remove(&lost);

    let error = read_all(&mut client.open(&path("/f")).await.unwrap()).await.unwrap_err();
    let text = error.to_string();
    let wanted = format!("cannot read /f at byte {size}: no good replica of {}", BlockId(lost));
    assert!(text.starts_with(&wanted), "{text}");

    let mut holed = data.clone();
    holed[size..2 * size].fill(0);
    let mut reader = client.open(&path("/f")).await.unwrap();
    reader.zero_fill_lost_blocks();
    assert!(read_all(&mut reader).await.unwrap() == holed);
    let [hole] = reader.lost() else { panic!("{:?}", reader.lost()) };
    assert_eq!((hole.block, hole.offset, hole.length), (BlockId(lost), size as u64, size as u64));

    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("f");
    let report = client.get_skipping_lost(&path("/f"), &to, GetOptions::default(), &()).await.unwrap();
    assert_eq!(report.lost.len(), 1);
    assert!(std::fs::read(&to).unwrap() == holed);
}

#[tokio::test]
async fn unreachable_block_is_waited_for_even_with_skip_lost() {
    let mut cluster = Cluster::start(1).await;
    cluster.config.deadline = daemon::Period::secs(30);
    let client = cluster.client().await;
    let data = bytes(1000);
    put(&client, "/f", &data, 1, 1000).await;
    let block = cluster.namespace.lock().files["/f"].blocks[0].0;
    let node = cluster.node(1);
    let away = node.state.lock().blocks.remove(&block).unwrap();
    // The block returns after 2 s, which is longer than the short wait for lost blocks
    // (`SKIP_LOST_TIMEOUT`).
    let back = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        node.state.lock().blocks.insert(block, away);
    };
    let mut reader = client.open(&path("/f")).await.unwrap();
    reader.zero_fill_lost_blocks();
    let (read, ()) = tokio::join!(read_all(&mut reader), back);
    assert!(read.unwrap() == data);
    assert!(reader.lost().is_empty());
}
