//! What a member of a group must remember besides its log, in two files with slots
//! ([`journal::slots`]): `RAFT`, which is always synced, and `RAFT-COMMITTED`, which is not.
//!
//! A slot has at most 64 bytes, so that no disk writes it in two parts.

use crate::{
    codec::{LOG_ID_BYTES, Reader, VOTE_BYTES, put_log_id, put_u64, put_vote},
    types::{LogId, Vote},
};
use journal::{
    LogError,
    disk::Disk,
    slots::{Slot, SlotFile, SlotFileState, SlotKind},
};

/// Name of the file with the vote.
pub const FILE_NAME: &str = "RAFT";
const RAFT: SlotKind =
    SlotKind { name: FILE_NAME, magic: *b"FMTR", value_bytes: 8 + VOTE_BYTES + LOG_ID_BYTES };
/// Name of the file with the newest entry that is known to be committed.
pub(crate) const COMMITTED_FILE_NAME: &str = "RAFT-COMMITTED";
const COMMITTED: SlotKind =
    SlotKind { name: COMMITTED_FILE_NAME, magic: *b"FMTK", value_bytes: LOG_ID_BYTES };

/// The contents of the file `RAFT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaftState {
    /// The ID of this member. A folder is never used with another ID.
    pub node_id: u64,
    /// The newest vote.
    pub vote: Option<Vote>,
    /// The newest entry that was removed from the start of the log.
    pub purged: Option<LogId>,
}

impl RaftState {
    /// Returns the state of a member that has neither voted nor received entries.
    pub fn new(node_id: u64) -> Self {
        Self { node_id, vote: None, purged: None }
    }

    fn encode(&self) -> Slot {
        let mut value = Vec::with_capacity(RAFT.value_bytes);
        put_u64(&mut value, self.node_id);
        put_vote(&mut value, self.vote);
        put_log_id(&mut value, self.purged);
        Slot { value, mark: false }
    }

    fn decode(slot: &Slot) -> Option<Self> {
        let mut reader = Reader(&slot.value);
        Some(Self { node_id: reader.u64()?, vote: reader.vote()?, purged: reader.log_id()? })
    }
}

/// The file `RAFT`, open for writing, and its contents.
pub struct RaftFile {
    file: SlotFile,
    state: RaftState,
}

impl RaftFile {
    /// Opens the file; `None` if it does not exist. A damaged file is an error: a member that has
    /// forgotten its vote could vote twice in a term.
    pub fn open(disk: &dyn Disk) -> Result<Option<Self>, LogError> {
        let damaged = |what| LogError::Damaged { file: RAFT.name.into(), offset: 0, what };
        let Some((file, slot)) = open(disk, RAFT, damaged("no slot is readable"))? else { return Ok(None) };
        let state = RaftState::decode(&slot).ok_or_else(|| damaged("the newest slot cannot be decoded"))?;
        Ok(Some(Self { file, state }))
    }

    /// Reads the file without a change of it; `None` if it does not exist.
    pub fn read(disk: &dyn Disk) -> Result<Option<RaftState>, LogError> {
        let damaged = |what| LogError::Damaged { file: RAFT.name.into(), offset: 0, what };
        match RAFT.read(disk)? {
            SlotFileState::Missing => Ok(None),
            SlotFileState::Valid(slot, ..) => {
                RaftState::decode(&slot).map(Some).ok_or_else(|| damaged("the newest slot cannot be decoded"))
            }
            SlotFileState::Damaged => Err(damaged("no slot is readable")),
        }
    }

    /// Creates the file durably.
    pub fn create(disk: &dyn Disk, state: RaftState) -> Result<Self, LogError> {
        Ok(Self { file: SlotFile::create(disk, RAFT, &state.encode(), 0)?, state })
    }

    /// Returns the contents.
    pub fn state(&self) -> RaftState {
        self.state
    }

    /// Changes the contents durably, in both slots one after the other: if one is damaged later, the
    /// other has the same vote.
    pub fn update(&mut self, change: impl FnOnce(&mut RaftState)) -> Result<(), LogError> {
        change(&mut self.state);
        for _ in 0..2 {
            self.file.write(&self.state.encode())?;
            self.file.sync()?;
        }
        Ok(())
    }
}

/// The file `RAFT-COMMITTED`: the newest entry that is known to be committed. After a power loss it
/// may be an older one, which only means that less is applied before there is a leader.
pub struct CommittedFile {
    file: SlotFile,
    committed: Option<LogId>,
}

impl CommittedFile {
    /// Opens the file, or creates it. A damaged file is replaced.
    pub fn open(disk: &dyn Disk) -> Result<Self, LogError> {
        let damaged =
            LogError::Damaged { file: COMMITTED.name.into(), offset: 0, what: "no slot is readable" };
        match open(disk, COMMITTED, damaged) {
            Ok(Some((file, slot))) => {
                let committed = Reader(&slot.value).log_id().flatten();
                return Ok(Self { file, committed });
            }
            Ok(None) => {}
            Err(error) if error.is_damage() => tracing::warn!("{error}: it is replaced"),
            Err(error) => return Err(error),
        }
        let file = SlotFile::create(disk, COMMITTED, &Self::encode(None), 0)?;
        Ok(Self { file, committed: None })
    }

    fn encode(committed: Option<LogId>) -> Slot {
        let mut value = Vec::with_capacity(COMMITTED.value_bytes);
        put_log_id(&mut value, committed);
        Slot { value, mark: false }
    }

    /// Returns the newest entry that is known to be committed.
    pub fn committed(&self) -> Option<LogId> {
        self.committed
    }

    /// Writes the newest entry that is known to be committed, without a sync.
    pub fn set(&mut self, committed: Option<LogId>) -> Result<(), LogError> {
        self.committed = committed;
        self.file.write(&Self::encode(committed))
    }
}

/// Opens a file and reads its newest slot; `None` if it does not exist.
fn open(disk: &dyn Disk, kind: SlotKind, damaged: LogError) -> Result<Option<(SlotFile, Slot)>, LogError> {
    let (slot, counter, is_other_damaged) = match kind.read(disk)? {
        SlotFileState::Missing => return Ok(None),
        SlotFileState::Valid(slot, counter, is_other_damaged) => (slot, counter, is_other_damaged),
        SlotFileState::Damaged => return Err(damaged),
    };
    if is_other_damaged {
        tracing::warn!(file = kind.name, "one slot is damaged: the other slot is used");
        return Ok(Some((SlotFile::create(disk, kind, &slot, counter)?, slot)));
    }
    Ok(Some((SlotFile::open(disk, kind, counter)?, slot)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use journal::crash::CrashDisk;

    #[test]
    fn one_damaged_slot_loses_no_vote_and_two_are_an_error() {
        let disk = CrashDisk::new();
        let mut file = RaftFile::create(&disk, RaftState::new(1)).unwrap();
        let vote = Some(Vote::new(7, 2));
        file.update(|state| state.vote = vote).unwrap();
        drop(file);
        let bytes = disk.files()["RAFT"].clone();
        let with_damage = |at: &[usize]| {
            let mut bytes = bytes.clone();
            for at in at {
                bytes[*at] ^= 1;
            }
            CrashDisk::with_files([("RAFT", bytes)])
        };
        for at in [20, 4096 + 20] {
            let disk = with_damage(&[at]);
            assert_eq!(RaftFile::open(&disk).unwrap().unwrap().state().vote, vote);
            // The file was replaced.
            let SlotFileState::Valid(_, _, false) = RAFT.read(&disk).unwrap() else { panic!("two slots") };
        }
        let damaged = RaftFile::open(&with_damage(&[20, 4096 + 20])).err().unwrap();
        assert!(damaged.is_damage(), "{damaged}");
        assert!(RaftFile::open(&CrashDisk::new()).unwrap().is_none());
    }
}
