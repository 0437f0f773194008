//! The state machine: counts and hashes what is applied, and checks the numbers of proposals.
//!
//! Its state is only in memory, like that of the masters: after a restart openraft installs the
//! snapshot and applies the log again. A snapshot is a file: `SnapshotData` is the open file.

use crate::types::{Group, LogId, SnapshotMeta, StoredMembership, code};
use futures::{Stream, TryStreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    entry::RaftEntry,
    storage::{EntryResponder, RaftStateMachine, Snapshot},
};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

const NAME: &str = "snapshot";
const HEADER_BYTES: usize = 4096;

#[derive(Debug, Default, Clone)]
pub struct State {
    pub last_applied: Option<LogId>,
    pub membership: StoredMembership,
    /// Term and number of the next numbered proposal.
    pub next: (u64, u64),
    pub applied: u64,
    pub skipped: u64,
    pub digest: u64,
    /// Numbers that were applied, for tests (only while `trace`).
    pub numbers: Vec<(u64, u64)>,
    pub trace: bool,
    pub installs: u64,
}

#[derive(Clone)]
pub struct Machine {
    pub state: Arc<Mutex<State>>,
    folder: PathBuf,
    /// Bytes of filler in each snapshot, to test large ones.
    pub filler_bytes: u64,
}

/// An open snapshot file.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    pub file: Arc<File>,
    pub path: PathBuf,
}

impl Machine {
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { state: Arc::default(), folder: folder.into(), filler_bytes: 0 }
    }

    pub fn state(&self) -> State {
        self.state.lock().unwrap().clone()
    }

    /// Where a snapshot that arrives is written before it is installed.
    pub fn incoming(folder: &Path) -> PathBuf {
        folder.join("snapshot.incoming")
    }

    /// Writes a snapshot of `state` durably.
    pub fn write_snapshot(folder: &Path, state: &State, filler_bytes: u64) -> io::Result<()> {
        let temporary = folder.join("snapshot.tmp");
        let mut file = File::create(&temporary)?;
        let mut out = Vec::new();
        code::put_log_id(&mut out, state.last_applied.as_ref());
        code::put_stored_membership(&mut out, &state.membership);
        for value in [state.next.0, state.next.1, state.applied, state.skipped, state.digest, filler_bytes] {
            code::put_u64(&mut out, value);
        }
        let crc = crc32c::crc32c(&out);
        let mut header = Vec::new();
        code::put_u64(&mut header, out.len() as u64);
        code::put_u64(&mut header, u64::from(crc));
        header.extend_from_slice(&out);
        header.resize(HEADER_BYTES, 0);
        file.write_all(&header)?;
        let chunk = vec![0x5a; 1 << 20];
        let mut rest = filler_bytes as usize;
        while rest > 0 {
            let bytes = rest.min(chunk.len());
            file.write_all(&chunk[..bytes])?;
            rest -= bytes;
        }
        file.sync_all()?;
        std::fs::rename(&temporary, folder.join(NAME))?;
        File::open(folder)?.sync_all()
    }

    fn read_header(file: &File) -> io::Result<State> {
        let mut header = vec![0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0)?;
        let mut reader = code::Reader(&header);
        let (len, crc) = (reader.u64() as usize, reader.u64());
        let body = reader.0.get(..len).ok_or(io::ErrorKind::InvalidData)?;
        if u64::from(crc32c::crc32c(body)) != crc {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut reader = code::Reader(body);
        let (last_applied, membership) = (reader.log_id(), reader.stored_membership());
        let next = (reader.u64(), reader.u64());
        let (applied, skipped, digest, filler) = (reader.u64(), reader.u64(), reader.u64(), reader.u64());
        if file.metadata()?.len() != HEADER_BYTES as u64 + filler {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(State { last_applied, membership, next, applied, skipped, digest, ..State::default() })
    }
}

pub fn mix(digest: u64, bytes: &[u8]) -> u64 {
    (digest.rotate_left(5) ^ u64::from(crc32c::crc32c(bytes))).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl RaftStateMachine<Group> for Machine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = self.state.lock().unwrap();
        Ok((state.last_applied, state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Group>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            {
                let mut state = self.state.lock().unwrap();
                let id = entry.log_id();
                state.last_applied = Some(id);
                match &entry.payload {
                    EntryPayload::Blank => {}
                    EntryPayload::Membership(membership) => {
                        state.membership = StoredMembership::new(Some(id), membership.clone());
                    }
                    EntryPayload::Normal(proposal) => {
                        let term = id.leader_id.term;
                        if state.next.0 != term {
                            state.next = (term, 1);
                        }
                        if proposal.number != 0 && proposal.number != state.next.1 {
                            state.skipped += 1;
                        } else {
                            if proposal.number != 0 {
                                state.next.1 += 1;
                            }
                            state.applied += 1;
                            state.digest = mix(state.digest, &proposal.records);
                            if state.trace {
                                state.numbers.push((term, proposal.number));
                            }
                        }
                    }
                }
            }
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotFile) -> io::Result<()> {
        // Reads all of it, as a replay would.
        let (folder, file) = (self.folder.clone(), Arc::clone(&snapshot.file));
        let found = tokio::task::spawn_blocking(move || {
            let mut chunk = vec![0; 1 << 20];
            let mut reader = &*file;
            while reader.read(&mut chunk)? > 0 {}
            let found = Self::read_header(&file)?;
            if snapshot.path != folder.join(NAME) {
                file.sync_all()?;
                std::fs::rename(&snapshot.path, folder.join(NAME))?;
                File::open(&folder)?.sync_all()?;
            }
            io::Result::Ok(found)
        })
        .await??;
        assert_eq!(found.last_applied, meta.last_log_id);
        let mut state = self.state.lock().unwrap();
        let (trace, installs) = (state.trace, state.installs + 1);
        *state = State { trace, installs, ..found };
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> io::Result<
        Option<Snapshot<openraft::alias::CommittedLeaderIdOf<Group>, u64, openraft::BasicNode, SnapshotFile>>,
    > {
        let path = self.folder.join(NAME);
        let Ok(file) = File::open(&path) else { return Ok(None) };
        let state = Self::read_header(&file)?;
        let meta = SnapshotMeta { last_log_id: state.last_applied, last_membership: state.membership };
        Ok(Some(Snapshot { meta, snapshot: SnapshotFile { file: Arc::new(file), path } }))
    }
}

impl RaftSnapshotBuilder<Group> for Machine {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(
        &mut self,
    ) -> io::Result<
        Snapshot<openraft::alias::CommittedLeaderIdOf<Group>, u64, openraft::BasicNode, SnapshotFile>,
    > {
        let state = self.state();
        let (folder, filler) = (self.folder.clone(), self.filler_bytes);
        tokio::task::spawn_blocking(move || Self::write_snapshot(&folder, &state, filler)).await??;
        Ok(self.get_current_snapshot().await?.expect("just written"))
    }
}
