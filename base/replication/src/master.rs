//! The journal of a master: its own log, or the log of its group.

use crate::{
    error::{StateError, StoreError},
    member::Member,
    proposals::{AppendError, NotCommitted, Ticket},
    replay::Replay,
};
use journal::{
    Log, LogError, LogFailed, Seq, SnapshotPolicy, SnapshotWriter, backup::Parts, log::Stats, snapshot_policy,
};
use std::{fmt, io, path::PathBuf};
use types::group::{GroupView, MemberRole, MemberStatus};

/// The journal of a master. A record must not be acknowledged before [`Self::wait`] has returned.
pub enum Journal {
    /// One master without a group. Durable means synced to its disk.
    Single(Log),
    /// A member of a group. Durable means committed by a quorum.
    Group(Member),
}

impl Journal {
    /// Appends the records of an event, which the caller has applied to its state: after a crash
    /// all or none of them exist. May block while too much waits for the disk.
    pub fn append<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Ticket, AppendError> {
        match self {
            Self::Single(log) => Ok(Ticket::of(log.append_many(records)?)),
            Self::Group(member) => member.append(records),
        }
    }

    /// Returns whether a record of up to `bytes` bytes can be appended without blocking. The answer
    /// is valid until the next append. In a group, false while another member is to lead.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        match self {
            Self::Single(log) => log.has_room_for(bytes),
            Self::Group(member) => member.has_room_for(bytes),
        }
    }

    /// Returns the ticket of the newest event.
    pub fn newest(&self) -> Ticket {
        match self {
            Self::Single(log) => Ticket::of(log.last_seq()),
            Self::Group(member) => member.newest(),
        }
    }

    /// Waits until what `ticket` stands for, and all before it, is durable.
    pub async fn wait(&self, ticket: Ticket) -> Result<(), NotCommitted> {
        match self {
            Self::Single(log) => Ok(log.wait_durable(ticket.number).await?),
            Self::Group(member) => member.wait(ticket).await,
        }
    }

    /// Waits until a value may be sent that was read when `ticket` was the newest: until all before
    /// it is durable, and no other master can have changed the value meanwhile. It is an error if
    /// the journal has failed, because the value may contain what could not be appended.
    pub async fn confirm(&self, ticket: Ticket) -> Result<(), NotCommitted> {
        match self {
            Self::Single(log) => {
                log.wait_durable(ticket.number).await?;
                Ok(log.check()?)
            }
            Self::Group(member) => member.confirm(ticket).await,
        }
    }

    /// Returns an error if the journal has failed.
    pub fn check(&self) -> Result<(), NotCommitted> {
        match self {
            Self::Single(log) => Ok(log.check()?),
            Self::Group(member) => Ok(member.check()?),
        }
    }

    /// Waits until the journal fails, and returns the reason.
    pub async fn failed(&self) -> LogFailed {
        match self {
            Self::Single(log) => log.failed().await,
            Self::Group(member) => member.failed().await,
        }
    }

    /// Makes a snapshot of the state after all records so far, unless there is one; in a group, after
    /// all that are applied. `write` writes the records of the state to which the replay leads.
    /// Blocks, so it must run on a thread for blocking work.
    pub fn make_snapshot(
        &self,
        write: impl FnOnce(Replay, &mut SnapshotWriter) -> Result<(), StateError>,
    ) -> Result<(), StoreError> {
        let log = match self {
            Self::Single(log) => log,
            Self::Group(member) => return member.make_snapshot(write),
        };
        let _exclusive = log.lock_snapshots();
        log.check_newest_snapshot()?;
        let upto = log.rotate().map_err(LogError::from)?;
        if log.newest_snapshot()?.map_or(0, |newest| newest.seq) == upto {
            return Ok(());
        }
        let mut writer = log.snapshot_writer(upto)?;
        write(log.replay_closed(upto)?.into(), &mut writer).map_err(StoreError::State)?;
        let bytes = writer.finish()?;
        log.snapshot_done(upto)?;
        tracing::info!(upto, bytes, "snapshot written");
        Ok(())
    }

    /// Lets `policy` decide whether a snapshot is due. Then `make` runs in a thread of its own.
    pub fn check_snapshots<E: fmt::Display>(
        &self,
        policy: &mut SnapshotPolicy,
        make: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) {
        policy.check(self.log(), make);
    }

    /// Returns once whether a damaged snapshot was dropped, so that a new one must be made, for
    /// simulations: [`Self::check_snapshots`] does it otherwise.
    pub fn take_needs_snapshot(&self) -> bool {
        self.log().take_needs_snapshot()
    }

    /// Returns why there is too little space on the disk for a snapshot, if `reserve` bytes must stay
    /// free; `None` if there is enough.
    pub fn snapshot_shortage(&self, reserve: u64) -> Option<String> {
        snapshot_policy::shortage(self.log(), reserve)
    }

    /// Returns the newest snapshot and `others` as the parts of a backup: see [`Parts::of`].
    pub fn backup(&self, folder: &'static str, others: Vec<(String, PathBuf)>) -> Result<Parts, StoreError> {
        Ok(Parts::of(self.log(), folder, others)?)
    }

    /// Returns the number of free bytes on the disk of this master.
    pub fn free_bytes(&self) -> io::Result<u64> {
        self.log().free_bytes()
    }

    /// Returns the sequence number of the newest record on this master, durable or not.
    pub fn last_seq(&self) -> Seq {
        self.log().last_seq()
    }

    /// Returns what was written to the disk of this master since the journal was opened.
    pub fn stats(&self) -> Stats {
        self.log().stats()
    }

    /// Returns the view that this master has of its group, for operators. `epoch` is the newest that
    /// it knows, and `waits_for` what it still waits for after its start.
    pub fn view(&self, epoch: u64, waits_for: String) -> GroupView {
        let (id, status) = if let Some(member) = self.member() {
            (Some(member.id()), member.status())
        } else {
            let (role, records) = (MemberRole::Leader, self.last_seq());
            let (entries, applied) = (records, records);
            (None, MemberStatus { role, term: 0, leader: None, entries, applied, peers: Vec::new() })
        };
        GroupView { id, epoch, waits_for, status }
    }

    /// Returns the member of a group; `None` with one master.
    pub fn member(&self) -> Option<&Member> {
        match self {
            Self::Single(_) => None,
            Self::Group(member) => Some(member),
        }
    }

    /// Accepts nothing more. With one master, blocks until everything before is durable, and seals
    /// the log.
    pub fn close(&self) -> Result<(), LogFailed> {
        match self {
            Self::Single(log) => log.close(),
            Self::Group(member) => {
                member.refuse_appends();
                Ok(())
            }
        }
    }

    /// Like [`Self::close`], and leaves the group. The log is sealed in any case.
    pub async fn stop(&self) -> Result<(), LogFailed> {
        match self {
            Self::Single(log) => log.close(),
            Self::Group(member) => member.stop().await,
        }
    }

    /// Returns the log on the disk of this master. The log of a group is changed by openraft only.
    fn log(&self) -> &Log {
        match self {
            Self::Single(log) => log,
            Self::Group(member) => member.log(),
        }
    }
}
