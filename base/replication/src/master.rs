//! The journal of a master: its own log, or the log of its group.

use crate::{
    member::Member,
    proposals::{AppendError, NotCommitted, Ticket},
};
use journal::{Log, LogFailed};

/// The journal of a master. A record must not be acknowledged before [`Self::wait`] has returned.
pub enum Journal {
    /// One master without a group. Durable means synced to its disk.
    Single(Log),
    /// A member of a group. Durable means committed by a quorum.
    Group(Member),
}

impl Journal {
    /// Returns the log on the disk of this master, for snapshots and figures.
    pub fn log(&self) -> &Log {
        match self {
            Self::Single(log) => log,
            Self::Group(member) => member.log(),
        }
    }

    /// Appends the records of an event, which the caller has applied to its state: after a crash
    /// all or none of them exist. May block while too much waits for the disk.
    pub fn append<R: AsRef<[u8]>>(&self, records: &[R]) -> Result<Ticket, AppendError> {
        match self {
            Self::Single(log) => Ok(Ticket::of(log.append_many(records)?)),
            Self::Group(member) => member.append(records),
        }
    }

    /// Returns whether a record of up to `bytes` bytes can be appended without blocking. The answer
    /// is valid until the next append.
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
}
