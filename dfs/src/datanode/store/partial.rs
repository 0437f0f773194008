//! Partial replicas: replicas that are being written.
//!
//! A partial replica has one writer at a time. A newer connection takes the partial replica over
//! from an older one, which may still be alive. Each step runs under the lock of the partial
//! replica and checks the owner first, so that all further steps of the older connection are
//! refused. A partial replica without a writer is dropped after a timeout.

use super::Store;
use crate::datanode::{
    disk::start_writing,
    error::{Refusal, RefusalKind},
    pending_reports::ReplicaEvent,
};
use dfs_client::{
    checksum::{CHUNK_BYTES, Checksums},
    ids::{BlockId, Nonce},
};
use parking_lot::Mutex;
use security::Stream;
use std::{
    fs::File,
    net::Shutdown,
    os::unix::fs::FileExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Length of the ranges that are written to disk while later data of the block is received.
const EARLY_WRITE_BYTES: u64 = 4 << 20;

/// The partial replica of a block.
#[derive(Debug)]
pub(in crate::datanode) struct PartialReplica {
    pub(in crate::datanode) volume: usize,
    nonce: Nonce,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None` until the first writer has created the file.
    data: Option<File>,
    sums: Vec<u32>,
    length: u64,
    /// The length that the writer has announced, which is the maximum.
    expected_length: u64,
    /// Bytes that are reserved in the folder and not yet written.
    reserved: u64,
    /// The `token` of the writer that may write.
    owner: u64,
    connection: Option<Stream>,
    /// Since when there has been no writer.
    disconnected_at: Option<Instant>,
    /// Whether the partial replica was finalised or dropped, and is not in the map any more.
    ended: bool,
}

/// The request of a writer to write a block.
#[derive(Debug)]
pub(in crate::datanode) struct Claim<'a> {
    pub(in crate::datanode) block: BlockId,
    pub(in crate::datanode) nonce: Nonce,
    pub(in crate::datanode) resume_at: u64,
    pub(in crate::datanode) expected_length: u64,
    /// The connection to close when another writer takes over.
    pub(in crate::datanode) connection: &'a Stream,
}

/// The answer to a [`Claim`].
#[derive(Debug)]
pub(in crate::datanode) enum ClaimOutcome<'a> {
    /// The block is already finalised, with this length.
    Finalised(u64),
    /// The writer may continue at `resume_at`.
    Write(Writer<'a>),
}

/// The right to write a partial replica, until it is dropped or another writer takes over.
#[derive(Debug)]
pub(in crate::datanode) struct Writer<'a> {
    store: &'a Store,
    partial: Arc<PartialReplica>,
    block: BlockId,
    /// Identifies this writer among all writers of the process.
    token: u64,
}

impl Store {
    /// Starts to write a block, or takes over its partial replica.
    pub(in crate::datanode) fn begin(&self, claim: &Claim<'_>) -> Result<ClaimOutcome<'_>, Refusal> {
        static TOKENS: AtomicU64 = AtomicU64::new(1);
        let &Claim { block, nonce, resume_at, .. } = claim;
        if !resume_at.is_multiple_of(CHUNK_BYTES as u64) || resume_at > claim.expected_length {
            let message =
                format!("cannot resume {block} at {resume_at}: not a chunk boundary within the block");
            return Err(Refusal::new(RefusalKind::Invalid, message));
        }
        loop {
            let mut state = self.state.lock();
            if let Some(replica) = state.replicas.get(&block) {
                let (length, found) = (replica.length, replica.nonce);
                return if found == nonce {
                    Ok(ClaimOutcome::Finalised(length))
                } else {
                    Err(other_block_refusal(block, found))
                };
            }
            let partial = match state.partials.get(&block) {
                Some(partial) if partial.nonce != nonce => {
                    return Err(other_block_refusal(block, partial.nonce));
                }
                Some(partial) => partial.clone(),
                None if resume_at > 0 => {
                    let message = format!("no partial replica of {block} to resume");
                    return Err(Refusal::new(RefusalKind::NotFound, message));
                }
                None => {
                    let volume = state.choose_volume(claim.expected_length).ok_or_else(|| self.no_space())?;
                    let partial = Arc::new(PartialReplica { volume, nonce, inner: Mutex::default() });
                    state.partials.insert(block, partial.clone());
                    partial
                }
            };
            drop(state);
            let token = TOKENS.fetch_add(1, Ordering::Relaxed);
            if self.take_over(&partial, claim, token)? {
                return Ok(ClaimOutcome::Write(Writer { store: self, partial, block, token }));
            }
        }
    }

    fn no_space(&self) -> Refusal {
        let dirs: Vec<_> =
            self.volumes.iter().map(|volume| volume.paths.root.display().to_string()).collect();
        Refusal::new(RefusalKind::NoSpace, format!("no space on {}", dirs.join(", ")))
    }

    /// Makes the writer with `token` the owner and truncates the partial replica to `resume_at`.
    /// Returns false if the partial replica was finalised or dropped in the meantime.
    fn take_over(&self, partial: &PartialReplica, claim: &Claim<'_>, token: u64) -> Result<bool, Refusal> {
        let mut inner = partial.inner.lock();
        if inner.ended {
            return Ok(false);
        }
        if claim.resume_at > inner.length {
            let message = format!(
                "cannot resume {} at {}: its partial replica has {} bytes",
                claim.block, claim.resume_at, inner.length
            );
            return Err(Refusal::new(RefusalKind::NotFound, message));
        }
        // The folder was chosen for the length in the first claim. A correct client never claims
        // more later, but a faulty one may.
        let more = claim.expected_length.saturating_sub(inner.expected_length);
        if more > 0 && !self.state.lock().has_space(partial.volume, more) {
            if inner.data.is_none() {
                self.drop_partial(partial, &mut inner, claim.block);
            }
            return Err(self.no_space());
        }
        if let Some(old) = inner.connection.take() {
            old.shutdown(Shutdown::Both).ok();
        }
        let ready = match &inner.data {
            Some(data) => data.set_len(claim.resume_at),
            None => self.volumes[partial.volume].create_partial(claim.block).map(|file| {
                inner.data = Some(file);
            }),
        };
        if let Err(refusal) = self.or_retire(partial.volume, ready) {
            self.drop_partial(partial, &mut inner, claim.block);
            return Err(refusal);
        }
        inner.length = claim.resume_at;
        inner.sums.truncate((claim.resume_at / CHUNK_BYTES as u64) as usize);
        inner.expected_length = claim.expected_length;
        inner.owner = token;
        inner.disconnected_at = None;
        inner.connection = claim.connection.try_clone().ok();
        self.set_reserved(partial, &mut inner, claim.expected_length - claim.resume_at);
        Ok(true)
    }

    fn set_reserved(&self, partial: &PartialReplica, inner: &mut Inner, reserved: u64) {
        let pending = &mut self.state.lock().volumes[partial.volume].reserved_bytes;
        *pending = pending.saturating_sub(inner.reserved).saturating_add(reserved);
        inner.reserved = reserved;
    }

    fn drop_partial(&self, partial: &PartialReplica, inner: &mut Inner, block: BlockId) {
        inner.ended = true;
        self.set_reserved(partial, inner, 0);
        let mut state = self.state.lock();
        // The map may contain a newer partial replica of the same block, which then owns the file.
        let ours = state.partials.get(&block).is_some_and(|found| std::ptr::eq(&raw const **found, partial));
        if ours {
            state.partials.remove(&block);
        }
        let failed = state.volumes[partial.volume].failed;
        drop(state);
        if ours && !failed {
            self.volumes[partial.volume].remove_partial(block);
        }
    }

    /// Drops partial replicas that have had no writer for `timeout`.
    pub(in crate::datanode) fn drop_abandoned(&self, timeout: Duration) {
        let partials: Vec<_> =
            self.state.lock().partials.iter().map(|(block, partial)| (*block, partial.clone())).collect();
        for (block, partial) in partials {
            // Skip a partial replica that is locked, because it is in use.
            let Some(mut inner) = partial.inner.try_lock() else { continue };
            if !inner.ended && inner.disconnected_at.is_some_and(|since| since.elapsed() >= timeout) {
                tracing::info!(%block, bytes = inner.length, "partial replica dropped: it has had no writer for too long");
                self.drop_partial(&partial, &mut inner, block);
            }
        }
    }
}

/// Returns the refusal for a block whose ID is in use by another block on this node, which has the
/// nonce `found`. The other block is kept, because it may be the only copy of data that was written
/// before the NameNode was restored from an older copy of its folder.
fn other_block_refusal(block: BlockId, found: Nonce) -> Refusal {
    let message =
        format!("this node has another block with the ID {block} (nonce {found}): use another node");
    Refusal::new(RefusalKind::Failed, message)
}

impl Writer<'_> {
    /// Appends the verified data of a packet.
    pub(in crate::datanode) fn append(&mut self, data: &[u8], sums: &[u32]) -> Result<(), Refusal> {
        let mut inner = self.partial.inner.lock();
        self.check_owner(&inner)?;
        let end = inner.length + data.len() as u64;
        if end > inner.expected_length {
            let message =
                format!("{} exceeds its announced length of {} bytes", self.block, inner.expected_length);
            return Err(Refusal::new(RefusalKind::Invalid, message));
        }
        let file = inner.data.as_ref().expect("created when the writer started");
        let written = file.write_all_at(data, inner.length);
        if let Err(refusal) = self.store.or_retire(self.partial.volume, written) {
            self.store.drop_partial(&self.partial, &mut inner, self.block);
            return Err(refusal);
        }
        let begun = inner.length / EARLY_WRITE_BYTES * EARLY_WRITE_BYTES;
        let complete = end / EARLY_WRITE_BYTES * EARLY_WRITE_BYTES;
        if complete > begun
            && let Some(file) = &inner.data
        {
            start_writing(file, begun..complete);
        }
        inner.length = end;
        inner.sums.extend_from_slice(sums);
        let left = inner.expected_length - end;
        self.store.set_reserved(&self.partial, &mut inner, left);
        self.store.state.lock().volumes[self.partial.volume].written_since_measured += data.len() as u64;
        Ok(())
    }

    /// Makes the replica durable and moves it to `current/`. Returns its length.
    pub(in crate::datanode) fn finalise(&mut self) -> Result<u64, Refusal> {
        let mut inner = self.partial.inner.lock();
        self.check_owner(&inner)?;
        let (block, nonce) = (self.block, self.partial.nonce);
        let sums = Checksums { block, nonce, length: inner.length, sums: std::mem::take(&mut inner.sums) };
        let file = inner.data.as_ref().expect("created when the writer started");
        let _lock = self.store.locks.lock(self.block);
        let done = self.store.volumes[self.partial.volume].finalise(file, &sums);
        if let Err(refusal) = self.store.or_retire(self.partial.volume, done) {
            self.store.drop_partial(&self.partial, &mut inner, self.block);
            return Err(refusal);
        }
        inner.ended = true;
        self.store.set_reserved(&self.partial, &mut inner, 0);
        let mut state = self.store.state.lock();
        if state.volumes[self.partial.volume].failed {
            return Err(Refusal::new(RefusalKind::Failed, "the data folder failed during the write"));
        }
        state.partials.remove(&self.block);
        state.insert(self.block, nonce, self.partial.volume, sums.length);
        self.store.pending_reports.post([(self.block, ReplicaEvent::Received(nonce, sums.length))]);
        Ok(sums.length)
    }

    fn check_owner(&self, inner: &Inner) -> Result<(), Refusal> {
        if inner.owner != self.token {
            let message = format!("a newer connection has taken over the writing of {}", self.block);
            return Err(Refusal::new(RefusalKind::Superseded, message));
        }
        if inner.ended || self.store.is_failed(self.partial.volume) {
            return Err(Refusal::new(RefusalKind::Failed, "the data folder failed during the write"));
        }
        Ok(())
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let mut inner = self.partial.inner.lock();
        if inner.owner == self.token {
            inner.disconnected_at = Some(Instant::now());
            inner.connection = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datanode::{disk::RealDisk, open};

    fn open_store(dirs: &[std::path::PathBuf]) -> (Store, Stream) {
        let (fatal_error, _) = tokio::sync::mpsc::unbounded_channel();
        let store = Store::open(dirs, &open::Settings::default(), Arc::new(RealDisk), fatal_error).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (store, connection.into())
    }

    #[test]
    fn second_claim_is_refused_if_it_needs_more_than_the_free_space() {
        let home = tempfile::tempdir().unwrap();
        let (store, connection) = open_store(&[home.path().to_owned()]);
        let claim = |expected_length| {
            let (block, nonce) = (BlockId(5), Nonce(1));
            Claim { block, nonce, resume_at: 0, expected_length, connection: &connection }
        };
        let pending = || store.state.lock().volumes[0].reserved_bytes;
        let ClaimOutcome::Write(first) = store.begin(&claim(1)).unwrap() else {
            panic!("expected ClaimOutcome::Write for a new block")
        };
        for expected_length in [1 << 63, u64::MAX] {
            assert_eq!(store.begin(&claim(expected_length)).unwrap_err().kind, RefusalKind::NoSpace);
            assert_eq!(pending(), 1);
        }
        // The first writer still owns the partial replica, and a claim that fits is granted.
        first.check_owner(&first.partial.inner.lock()).unwrap();
        let ClaimOutcome::Write(_second) = store.begin(&claim(4096)).unwrap() else {
            panic!("expected ClaimOutcome::Write for a partial replica")
        };
        assert_eq!(pending(), 4096);
        assert!(store.state.lock().choose_volume(1).is_some());
    }

    #[test]
    fn dropping_an_old_partial_keeps_a_newer_one() {
        let home = tempfile::tempdir().unwrap();
        let dirs = [home.path().join("a"), home.path().join("b")];
        let (store, connection) = open_store(&dirs);
        let (block, nonce, expected_length) = (BlockId(1), Nonce(1), CHUNK_BYTES as u64);
        let claim = Claim { block, nonce, resume_at: 0, expected_length, connection: &connection };
        let ClaimOutcome::Write(old) = store.begin(&claim).unwrap() else {
            panic!("expected ClaimOutcome::Write for a new block")
        };
        store.retire(old.partial.volume, "for the test");
        let ClaimOutcome::Write(new) = store.begin(&claim).unwrap() else {
            panic!("expected ClaimOutcome::Write on the other folder")
        };
        assert_ne!(old.partial.volume, new.partial.volume);
        store.drop_partial(&old.partial, &mut old.partial.inner.lock(), BlockId(1));
        assert!(
            store
                .state
                .lock()
                .partials
                .get(&BlockId(1))
                .is_some_and(|there| Arc::ptr_eq(there, &new.partial))
        );
        store.drop_partial(&new.partial, &mut new.partial.inner.lock(), BlockId(1));
        assert!(store.state.lock().partials.is_empty());
    }
}
