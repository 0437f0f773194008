//! Tests of streams over real sockets: plain and TLS streams behave in the same way.

use super::*;
use crate::{Authority, Role, tls, tls::Pem};
use rustls::pki_types::ServerName;
use std::net::TcpListener;

/// Returns both ends of a connection: client and server.
fn connected_streams(plain: bool) -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    if plain {
        return (near.into(), far.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("test").unwrap();
    let server = authority.daemon(Role::DataNode, 1).unwrap();
    let server = Pem { authority: authority.certificate().into(), own: server.into_bytes() };
    let client = Pem { authority: authority.certificate().into(), own: Vec::new() };
    let server = tls::server_config(&server, dir.path()).unwrap();
    let client = tls::client_config(&client, dir.path()).unwrap();
    let serving = std::thread::spawn(move || {
        Stream::secured(far, rustls::ServerConnection::new(server).unwrap().into()).unwrap()
    });
    let name = ServerName::try_from(Role::DataNode.server_name()).unwrap();
    let near = Stream::secured(near, rustls::ClientConnection::new(client, name).unwrap().into()).unwrap();
    (near, serving.join().unwrap())
}

#[test]
fn bytes_are_sent_in_both_directions_at_once() {
    for plain in [true, false] {
        let (near, far) = connected_streams(plain);
        let data: Vec<u8> = (0..3_000_000_u32).map(|at| (at * 7) as u8).collect();
        let (sent, expected) = (data.clone(), data.clone());
        let far_writer = far.try_clone().unwrap();
        let writes = std::thread::spawn(move || (&far_writer).write_all(&sent).unwrap());
        let reads = std::thread::spawn(move || {
            let mut got = vec![0; expected.len()];
            (&far).read_exact(&mut got).unwrap();
            assert!(got == expected);
        });
        let near_writer = near.try_clone().unwrap();
        let outgoing = data.clone();
        let out = std::thread::spawn(move || (&near_writer).write_all(&outgoing).unwrap());
        let mut got = vec![0; data.len()];
        (&near).read_exact(&mut got).unwrap();
        assert!(got == data);
        for thread in [writes, reads, out] {
            thread.join().unwrap();
        }
    }
}

#[test]
fn has_input_does_not_block_and_is_true_at_the_end() {
    for plain in [true, false] {
        let (near, far) = connected_streams(plain);
        assert!(!near.has_input().unwrap(), "plain {plain}");
        (&far).write_all(b"word").unwrap();
        while !near.has_input().unwrap() {
            std::thread::yield_now();
        }
        let mut word = [0; 4];
        (&near).read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
        assert!(!near.has_input().unwrap());
        far.shutdown(Shutdown::Both).unwrap();
        assert_eq!((&near).read(&mut word).unwrap(), 0);
        assert!(near.has_input().unwrap());
    }
}

#[test]
fn files_are_sent_from_the_requested_offset() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let data: Vec<u8> = (0..700_000_u32).map(|at| (at / 3) as u8).collect();
    std::fs::write(&path, &data).unwrap();
    for plain in [true, false] {
        let (near, far) = connected_streams(plain);
        let file = File::open(&path).unwrap();
        let sending = std::thread::spawn(move || {
            let mut at = 1000;
            while far.send_file(&file, &mut at, 1 << 20).unwrap() > 0 {}
            assert_eq!(at, 700_000);
        });
        let mut got = Vec::new();
        (&near).take(699_000).read_to_end(&mut got).unwrap();
        sending.join().unwrap();
        assert!(got == data[1000..]);
    }
}

#[test]
fn server_of_another_role_or_cluster_is_rejected() {
    let (ours, theirs) = (Authority::new("ours").unwrap(), Authority::new("theirs").unwrap());
    for (server, wanted) in [(&ours, Role::NameNode), (&theirs, Role::DataNode)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let own = server.daemon(Role::DataNode, 1).unwrap().into_bytes();
        let pem = Pem { authority: server.certificate().into(), own };
        let config = tls::server_config(&pem, std::path::Path::new("")).unwrap();
        let serving = std::thread::spawn(move || {
            Stream::secured(far, rustls::ServerConnection::new(config).unwrap().into()).is_ok()
        });
        let pem = Pem { authority: ours.certificate().into(), own: Vec::new() };
        let config = tls::client_config(&pem, std::path::Path::new("")).unwrap();
        let name = ServerName::try_from(wanted.server_name()).unwrap();
        let session = rustls::ClientConnection::new(config, name).unwrap().into();
        assert!(Stream::secured(near, session).is_err(), "{wanted}");
        assert!(!serving.join().unwrap());
    }
}
