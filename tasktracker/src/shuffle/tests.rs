//! Tests valid and invalid requests over a real connection.

use super::*;
use crate::disks::{FoundFiles, tests::write_output};
use engine::{
    fetch::wire::{Answer, MAGIC, read_answer, request},
    segment::Index,
};
use std::path::PathBuf;
use types::JobId;

/// A shuffle server with one map output and one checkpoint, and a connection to it.
struct World {
    dir: tempfile::TempDir,
    stream: TcpStream,
    _runtime: tokio::runtime::Runtime,
}

impl World {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let output = dir.path().join("m0.out");
        write_output(&output, &[b"first partition", b"", b"third"]);
        let folders = vec![dir.path().join("checkpoints")];
        let bytes = b"in memory".to_vec();
        let extent = Extent { stored: bytes.len() as u64, crc: crc32c::crc32c(&bytes), ..Extent::default() };
        let run = engine::segment::Run::in_memory("m0", bytes.into(), extent);
        let state = checkpoint::ReduceState {
            runs: vec![checkpoint::SourceRun { run, map: None }],
            ..Default::default()
        };
        checkpoint::save(&folders, "job_1.r0.0", 0, &state).unwrap();
        let found = FoundFiles {
            checkpoints: [("job_1.r0.0".parse().unwrap(), folders)].into(),
            outputs: [("job_1.m0.0".parse().unwrap(), output)].into(),
            tokens: [(JobId(1), b"secret".to_vec())].into(),
            ..FoundFiles::default()
        };
        let shuffle = Arc::new(Shuffle::new(Arc::new(ShuffleStore::new(found)), Guard::open()));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap();
        runtime.spawn(shuffle.accept(listener));
        let stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { dir, stream, _runtime: runtime }
    }

    fn output(&self) -> PathBuf {
        self.dir.path().join("m0.out")
    }

    fn send(&mut self, body: &[u8]) {
        self.stream.write_all(&(body.len() as u32).to_le_bytes()).unwrap();
        self.stream.write_all(body).unwrap();
    }

    fn answer(&mut self) -> Result<(Extent, String), (u8, String)> {
        match read_answer(&mut self.stream).unwrap() {
            Answer::Refused(status, message) => Err((status, message)),
            Answer::Data(extent) => {
                let mut text = vec![0; extent.stored as usize];
                self.stream.read_exact(&mut text).unwrap();
                Ok((extent, String::from_utf8(text).unwrap()))
            }
        }
    }

    fn fetch(
        &mut self,
        secret: &[u8],
        attempt: &str,
        partition: u32,
    ) -> Result<(Extent, String), (u8, String)> {
        let reduce = attempt.split('.').nth(1).and_then(|task| task.strip_prefix('r')?.parse().ok());
        let token = security::partition_token(secret, "job_1", reduce.unwrap_or(partition));
        self.fetch_with(&token, attempt, partition)
    }

    fn fetch_with(
        &mut self,
        token: &[u8],
        attempt: &str,
        partition: u32,
    ) -> Result<(Extent, String), (u8, String)> {
        self.stream.write_all(&request(token, attempt, partition).unwrap()).unwrap();
        self.answer()
    }
}

#[test]
fn several_partitions_are_fetched_over_one_connection() {
    let mut world = World::start();
    for (partition, wanted) in [(2, "third"), (0, "first partition"), (1, ""), (2, "third")] {
        let (extent, bytes) = world.fetch(b"secret", "job_1.m0.0", partition).unwrap();
        assert_eq!(bytes, wanted);
        assert_eq!(extent.crc, crc32c::crc32c(bytes.as_bytes()));
        assert_eq!((extent.raw, extent.records), (2 * wanted.len() as u64, 3));
    }
}

#[test]
fn invalid_request_is_refused_and_the_connection_stays_open() {
    let mut world = World::start();
    let cases: [(&[u8], &str, u32, u8); 7] = [
        (b"secreT", "job_1.m0.0", 0, 2),
        (b"", "job_1.m0.0", 0, 2),
        (b"secret", "job_2.m0.0", 0, 2),
        (b"secret", "../../etc/passwd", 0, 2),
        (b"secret", "job_1.m1.0", 0, 1),
        (b"secret", "job_1.m0.0", 3, 1),
        (b"secret", "job_1.m0.0", u32::MAX, 1),
    ];
    for (token, attempt, partition, status) in cases {
        let refused = world.fetch(token, attempt, partition).unwrap_err();
        assert_eq!(refused.0, status, "{attempt} {partition}: {}", refused.1);
    }
    // Neither the token of another partition nor the secret of the job gives access.
    for wrong in [&security::partition_token(b"secret", "job_1", 1)[..], b"secret", b""] {
        assert_eq!(world.fetch_with(wrong, "job_1.m0.0", 0).unwrap_err().0, 2);
    }
    world.send(b"GET / HTTP/1.1");
    assert_eq!(world.answer().unwrap_err().0, 2);
    world.send(&[&MAGIC[..], b"\xff"].concat());
    assert_eq!(world.answer().unwrap_err().0, 2);
    world.send(b"");
    assert_eq!(world.answer().unwrap_err().0, 2);
    assert_eq!(world.fetch(b"secret", "job_1.m0.0", 0).unwrap().1, "first partition");
}

#[test]
fn damaged_index_and_short_or_missing_file_are_reported() {
    let mut world = World::start();
    let path = Index::path_of(&world.output());
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[20] ^= 1;
    std::fs::write(&path, bad).unwrap();
    let (status, message) = world.fetch(b"secret", "job_1.m0.0", 0).unwrap_err();
    assert_eq!(status, DAMAGED);
    assert!(message.contains("checksum"), "{message}");
    // An invalid index is not cached. A valid index is cached, so its file is not needed any more.
    std::fs::write(&path, good).unwrap();
    assert_eq!(world.fetch(b"secret", "job_1.m0.0", 2).unwrap().1, "third");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(world.fetch(b"secret", "job_1.m0.0", 2).unwrap().1, "third");
    std::fs::write(world.output(), "short").unwrap();
    assert_eq!(world.fetch(b"secret", "job_1.m0.0", 0).unwrap_err().0, DAMAGED);
    std::fs::remove_file(world.output()).unwrap();
    assert_eq!(world.fetch(b"secret", "job_1.m0.0", 0).unwrap_err().0, NOT_FOUND);
}

#[test]
fn connection_is_closed_after_a_request_that_is_too_long() {
    let mut world = World::start();
    world.stream.write_all(&u32::MAX.to_le_bytes()).unwrap();
    assert_eq!(world.answer().unwrap_err().0, 2);
    assert_eq!(world.stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn checkpoint_is_served_in_parts() {
    let mut world = World::start();
    let (extent, text) = world.fetch(b"secret", "job_1.r0.0", 1).unwrap();
    assert_eq!((text.as_str(), extent.crc), ("in memory", crc32c::crc32c(b"in memory")));
    assert!(matches!(world.fetch(b"secrex", "job_1.r0.0", 1), Err((REFUSED, _))));
    assert!(matches!(world.fetch(b"secret", "job_1.r1.0", 0), Err((NOT_FOUND, _))));
    assert!(matches!(world.fetch(b"secret", "job_1.r0.0", 9), Err((DAMAGED, _))));
    std::fs::write(world.dir.path().join("checkpoints/state"), "nonsense").unwrap();
    assert!(matches!(world.fetch(b"secret", "job_1.r0.0", 0), Err((DAMAGED, _))));
}

#[test]
fn link_or_pipe_instead_of_an_output_or_checkpoint_is_not_served() {
    use std::os::unix::fs::symlink;
    let mut world = World::start();
    let output = world.output();
    let secret = world.dir.path().join("secret");
    std::fs::write(&secret, "a key of the machine, long enough to be served").unwrap();
    world.fetch(b"secret", "job_1.m0.0", 0).unwrap();
    for pipe in [false, true] {
        std::fs::remove_file(&output).unwrap();
        if pipe {
            rustix::fs::mkfifoat(rustix::fs::CWD, &output, rustix::fs::Mode::RWXU).unwrap();
        } else {
            symlink(&secret, &output).unwrap();
        }
        let (status, message) = world.fetch(b"secret", "job_1.m0.0", 0).unwrap_err();
        assert_eq!(status, DAMAGED, "{message}");
    }
    // The same is true for a part of the checkpoint of a paused reduce, and for its state file.
    for name in ["memory", "state"] {
        let part = world.dir.path().join("checkpoints").join(name);
        std::fs::remove_file(&part).unwrap();
        symlink(&secret, &part).unwrap();
        let number = u32::from(name == "memory");
        world.fetch(b"secret", "job_1.r0.0", number).unwrap_err();
    }
}
