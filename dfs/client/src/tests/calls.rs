//! Tests of calls to the NameNode: retries, deadlines, metadata, paging, patterns, invalid replies.

use super::*;
use crate::error::{Error, Kind};
use tonic::Status;

#[tokio::test]
async fn retries_have_the_same_request_id_and_other_operations_another() {
    let cluster = Cluster::start(0).await;
    let client = cluster.client().await;
    for failure in [
        Error::new(Kind::Safemode, "safemode: 3 of 9 blocks").into(),
        Status::unavailable("connection lost"),
        Status::unknown("transport error"),
    ] {
        cluster.namespace.lock().failures.push_back(failure);
    }
    client.mkdir(&path("/a"), false).await.unwrap();
    client.mkdir(&path("/b"), false).await.unwrap();
    let asked = cluster.namespace.lock().mutations.clone();
    assert_eq!(asked.len(), 5);
    assert!(asked[..4].iter().all(|call| *call == asked[0]), "{asked:?}");
    assert_ne!(asked[4].1, asked[0].1);
    assert!(cluster.namespace.lock().users.iter().all(|user| user == "tester"));
}

#[tokio::test]
async fn client_never_acts_as_itself_for_an_invalid_user_name() {
    let cluster = Cluster::start(0).await;
    let client = cluster.client().await;
    client.acting_for("ann").unwrap().mkdir(&path("/a"), false).await.unwrap();
    assert_eq!(cluster.namespace.lock().users, ["ann"]);
    let error = client.acting_for("a\nb").map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), Some(Kind::Invalid));
    assert_eq!(error.to_string(), "cannot act for user \"a\\nb\": the name is not plain ASCII");
}

#[tokio::test]
async fn refusal_is_not_retried_and_its_message_is_unchanged() {
    let cluster = Cluster::start(0).await;
    let client = cluster.client().await;
    let error = client.stat(&path("/none")).await.unwrap_err();
    assert_eq!(error.to_string(), "/none: no such file or folder");
    assert_eq!(error.kind(), Some(Kind::NotFound));
    assert!(!client.exists(&path("/none")).await.unwrap());
    assert!(client.exists(&path("/")).await.unwrap());
}

#[tokio::test]
async fn retries_end_at_the_deadline_with_the_last_reason() {
    let cluster = Cluster::start(0).await;
    let client = cluster.client().await;
    let transient = || Status::from(Error::new(Kind::Safemode, "safemode: 3 of 9 blocks"));
    cluster.namespace.lock().failures.extend((0..1000).map(|_| transient()));
    let error = client.stat(&path("/a")).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("stat /a did not succeed within 2."), "{text}");
    assert!(text.ends_with(" s: safemode: 3 of 9 blocks"), "{text}");
    assert_eq!(error.kind(), Some(Kind::Safemode));
}

#[tokio::test]
async fn connection_refused_fails_at_once_with_the_address() {
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let options = ClientOptions::new(gone.clone(), daemon::config::ClientConfig::default());
    let text = Client::connect(options).await.map(|_| ()).unwrap_err().to_string();
    assert!(text.starts_with(&format!("the NameNode at {gone} does not answer (")), "{text}");
    assert!(text.to_lowercase().contains("refused"), "{text}");
    let options = ClientOptions::new("not an address", daemon::config::ClientConfig::default());
    assert!(matches!(Client::connect(options).await, Err(ClientError::Unreachable { .. })));
}

#[tokio::test]
async fn list_walk_and_glob_read_all_pages() {
    let cluster = Cluster::start(0).await;
    let client = cluster.client().await;
    for folder in ["/d", "/d/e", "/x"] {
        client.mkdir(&path(folder), false).await.unwrap();
    }
    for file in ["/d/1.txt", "/d/2.txt", "/d/3.log", "/d/e/4.txt", "/d/zz", "/x/5.txt"] {
        client.create(&path(file), CreateOptions::default()).await.unwrap().close().await.unwrap();
    }
    let texts = |found: Vec<FileStatus>| found.iter().map(|s| s.path.to_string()).collect::<Vec<_>>();
    let listed = client.list(&path("/d")).await.unwrap();
    assert_eq!(texts(listed), ["/d/1.txt", "/d/2.txt", "/d/3.log", "/d/e", "/d/zz"]);
    let walked = client.walk(&path("/d")).await.unwrap();
    assert_eq!(texts(walked), ["/d/1.txt", "/d/2.txt", "/d/3.log", "/d/e/4.txt", "/d/zz"]);
    for (pattern, found) in [
        ("/d/*.txt", &["/d/1.txt", "/d/2.txt"][..]),
        ("/*/[45].txt", &["/x/5.txt"]),
        ("/d/*/*", &["/d/e/4.txt"]),
        ("/{d/e,x}/*", &["/d/e/4.txt", "/x/5.txt"]),
        ("/d/zz", &["/d/zz"]),
        ("/d/zz/*", &[]),
        ("/none/*", &[]),
        ("/", &["/"]),
    ] {
        assert_eq!(texts(client.glob(pattern).await.unwrap()), found, "{pattern}");
    }
    assert!(matches!(client.glob("/[").await, Err(ClientError::Pattern { .. })));
}

#[tokio::test]
async fn inputs_that_overlap_are_listed_once_and_a_search_ends_at_its_limit() {
    let cluster = Cluster::start(0).await;
    let client = cluster.client().await;
    for folder in ["/d", "/d/e", "/d/_hidden"] {
        client.mkdir(&path(folder), false).await.unwrap();
    }
    for file in ["/d/1", "/d/2", "/d/3", "/d/4", "/d/5", "/d/6", "/d/e/7", "/d/_hidden/8"] {
        client.put_bytes(file, b"").await.unwrap();
    }
    let calls = || cluster.namespace.lock().users.len();
    let texts = |inputs: &[&str]| inputs.iter().map(|input| (*input).to_owned()).collect::<Vec<_>>();
    let overlapping = texts(&["/d/3", "/d", "/d/", "/d/e", "/d/*", "/d/_hidden"]);
    let found = client.find_inputs(&overlapping, true, 8).await.unwrap();
    let names: Vec<&str> = found.files.iter().map(|file| file.path.name()).collect();
    assert_eq!(names, ["3", "1", "2", "4", "5", "6", "7", "8"]);
    let before = calls();
    let found = client.find_inputs(&vec!["/d".to_owned(); 10_000], false, 6).await.unwrap();
    assert_eq!((found.files.len(), found.named.len()), (6, 1));
    assert!(calls() - before < 10, "a repeated input was looked up again");
    // Every page has two entries. The folder has eight, and is not read to its end.
    for (input, calls_max) in [("/d", 4), ("/d/*", 5)] {
        let before = calls();
        let error = client.find_inputs(&texts(&[input]), true, 3).await.unwrap_err();
        assert_eq!(error.to_string(), "the input has more than 3 files", "{input}");
        assert!(calls() - before <= calls_max, "{input}: {} calls", calls() - before);
    }
}

#[tokio::test]
async fn malformed_replies_return_errors() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let text = client.report().await.unwrap_err().to_string();
    assert_eq!(text, "report: invalid reply of the NameNode: the reply has no safemode status");
    let safemode = client.safemode().await.unwrap();
    assert_eq!((safemode.on, safemode.reason.as_str()), (true, "for a test"));
    let text = client.drain("n1", false).await.unwrap_err().to_string();
    assert!(text.contains("unknown node state 77"), "{text}");
    assert_eq!(client.usage(&path("/")).await.unwrap_err().kind(), Some(Kind::Refused));
    client.put_bytes("/f", &bytes(100)).await.unwrap();
    let mangles: [fn(&mut proto::dfs::LocatedBlock); 4] = [
        |block| block.offset = u64::MAX,
        |block| block.nodes[0].data_addr.clear(),
        |block| block.offset = 7,
        |block| block.nodes[0].data_addr = "no such host here:1".into(),
    ];
    for mangle in mangles {
        cluster.namespace.lock().mangle = Some(mangle);
        let read = async { client.open(&path("/f")).await?.next().await };
        assert!(read.await.is_err());
        assert!(client.put_bytes("/g", &bytes(100)).await.is_err() || cluster.content("/g") == bytes(100));
        let _ = client.delete(&path("/g"), false).await;
    }
}

#[tokio::test]
async fn fsck_sums_pages_and_reports_the_worst_status() {
    let cluster = Cluster::start(0).await;
    let found = cluster.client().await.fsck(&path("/")).await.unwrap();
    assert_eq!((found.files, found.blocks, found.bytes), (6, 8, 10));
    assert_eq!(found.status, Health::Corrupt);
    let each: Vec<_> = found.problems.iter().map(|file| (file.path.as_str(), file.status)).collect();
    assert_eq!(each, [("/a", Health::Degraded), ("/b", Health::Corrupt)]);
}

/// Returns a client with a listener, and the messages that the listener has received.
async fn client_with_listener(cluster: &Cluster) -> (Client, std::sync::Arc<Lock<Vec<String>>>) {
    let received: std::sync::Arc<Lock<Vec<String>>> = std::sync::Arc::default();
    let messages = received.clone();
    let mut options = ClientOptions::new(cluster.namenode.clone(), cluster.config.clone());
    options.listener = Some(Listener::new(move |line| messages.lock().push(line.to_owned())));
    (Client::connect(options).await.unwrap(), received)
}

#[tokio::test]
async fn waiting_call_is_reported_once_with_reason_and_timeout() {
    let mut cluster = Cluster::start(0).await;
    cluster.config.deadline = daemon::Period::secs(4);
    let (client, received) = client_with_listener(&cluster).await;
    client.stat(&path("/")).await.unwrap();
    assert!(received.lock().is_empty(), "a quick call is not reported");
    let transient = || Status::from(Error::new(Kind::Safemode, "safemode: 3 of 9 blocks"));
    cluster.namespace.lock().failures.extend((0..1000).map(|_| transient()));
    client.stat(&path("/")).await.unwrap_err();
    let received = received.lock().clone();
    let wanted =
        format!("waiting for the NameNode at {}: safemode: 3 of 9 blocks; timeout in ", cluster.namenode);
    assert!(received.len() == 1 && received[0].starts_with(&wanted), "{received:?}");
}

#[tokio::test]
async fn manual_safemode_is_waited_for_only_without_a_listener() {
    let cluster = Cluster::start(0).await;
    let in_safemode =
        || Status::from(Error::new(Kind::ManualSafemode, "safemode is on: turned on by an operator"));
    cluster.namespace.lock().failures.push_back(in_safemode());
    cluster.client().await.stat(&path("/")).await.unwrap();
    cluster.namespace.lock().failures.push_back(in_safemode());
    let (client, _) = client_with_listener(&cluster).await;
    let error = client.stat(&path("/")).await.unwrap_err();
    assert_eq!(error.to_string(), "safemode is on: turned on by an operator");
}

#[tokio::test]
async fn server_that_is_not_a_namenode_is_reported_without_retries() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            // Read the request first: closing a socket with unread input would reset the
            // connection, and the reply would be lost.
            std::thread::spawn(move || while stream.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {});
        }
    });
    let config = daemon::config::ClientConfig::default();
    let client = Client::connect(ClientOptions::new(addr.clone(), config)).await.unwrap();
    let root = path("/");
    let asked = tokio::time::timeout(std::time::Duration::from_secs(20), client.stat(&root));
    let text = asked.await.expect("fails long before the deadline of a minute").unwrap_err().to_string();
    assert!(text.starts_with(&format!("the server at {addr} is not a Fermata NameNode")), "{text}");
}

#[tokio::test]
async fn locate_combines_the_blocks_of_several_replies() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let options = PutOptions { replication: Some(1), block_size: Some(65_536), ..PutOptions::default() };
    client.put_with("/f", &bytes(65_536 * 8), options, &()).await.unwrap();
    // The fake NameNode returns at most three blocks per reply.
    let (_, blocks) = client.locate(&path("/f"), 65_536, u64::MAX).await.unwrap();
    let offsets: Vec<u64> = blocks.iter().map(|block| block.offset).collect();
    assert_eq!(offsets, (1..8).map(|n| n * 65_536).collect::<Vec<u64>>());
}
