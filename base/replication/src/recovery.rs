//! What becomes of a member that has lost its log or a part of it, and of one that leaves its group.
//!
//! A member that has lost what it has acknowledged must never vote again with its ID: a majority could
//! forget what it has acknowledged, or vote twice in a term. So its files are renamed, and it joins
//! its group with an ID that no member has had (ADR 0047).
//!
//! The log of a member becomes that of one master again as a new journal: a snapshot of everything in
//! it. Nothing in the old one is changed.

use crate::{
    codec::decode_entry,
    error::{StateError, StoreError},
    raft_file::{COMMITTED_FILE_NAME, FILE_NAME, RaftFile},
    replay::Replay,
    store::Store,
    types::{LogId, Membership, log_id},
};
use journal::{
    Content, Item, LogError, Recovery, SnapshotWriter, backup,
    bugs::{self, Bug},
    disk::Disk,
    home::has_journal,
    log::{self, Examined},
};
use openraft::EntryPayload;
use std::sync::Arc;
pub use types::group::NEW_ID_MIN;

/// Returns an ID that no member has had. It can be written in JSON as a number.
pub fn new_id(random: u64) -> u64 {
    NEW_ID_MIN | (random >> 12)
}

/// Opens the log of the member on a disk, whose ID is `configured` unless it was exchanged; `None` if
/// there is no log of a member, but perhaps that of one master. An error that [`StoreError::is_loss`]
/// means that the member must be exchanged: call [`reset`]. Blocks.
pub fn open(disk: &Arc<dyn Disk>, configured: u64) -> Result<Option<Store>, StoreError> {
    let Some(file) = RaftFile::open(&**disk)? else {
        let is_of_group = has_journal(&**disk)? && log::is_of_group(&**disk)?;
        return if is_of_group { Err(StoreError::RaftFileLost) } else { Ok(None) };
    };
    let found = file.state().node_id;
    drop(file);
    Store::open(disk, if found >= NEW_ID_MIN { found } else { configured }).map(Some)
}

/// Renames all files of the log of a member: it has no votes and no entries any more. Returns the new
/// names. Blocks.
pub fn reset(disk: &dyn Disk) -> Result<Vec<String>, LogError> {
    // The vote is renamed last, so that until then the log is recognised as that of a member.
    log::rename_all(disk, &[COMMITTED_FILE_NAME, FILE_NAME])
}

/// What is on the disk of a member that does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offline {
    /// The ID of the member; `None` if that file is lost, or the folder is that of one master.
    pub id: Option<u64>,
    /// Term and index of the last entry that can be read.
    pub last: Option<(u64, u64)>,
    /// The members that vote according to the log, by ID, with their addresses.
    pub voters: Vec<(u64, String)>,
    /// Why nothing after the last entry can be read, although there may be more.
    pub damage: Option<String>,
}

/// Reads the log of a member that does not run. Changes nothing, and blocks.
pub fn examine(disk: &Arc<dyn Disk>) -> Result<Offline, StoreError> {
    let (id, raft_damage) = match RaftFile::read(&**disk) {
        Ok(state) => (state.map(|state| state.node_id), None),
        Err(error) if error.is_damage() => (None, Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let examined = log::examine(Arc::clone(disk), Recovery::DropDamaged)?;
    let damage = examined.damage.clone().or(raft_damage);
    let (last, members) = last_of(examined)?;
    let voters = members.map_or_else(Vec::new, |members| {
        let address = |id: u64| members.get_node(&id).map(|node| node.addr.clone()).unwrap_or_default();
        members.voter_ids().map(|id| (id, address(id))).collect()
    });
    let last = last.map(|last| (last.leader_id.term, last.index));
    Ok(Offline { id, last, voters, damage })
}

/// Returns the last entry of a log, and the newest members.
fn last_of(examined: Examined) -> Result<(Option<LogId>, Option<Membership>), StoreError> {
    let Examined { mut replay, .. } = examined;
    let (mut last, mut members) = (None, None);
    if replay.snapshot_content() == Some(Content::Entries) {
        let place = Replay::place_of(&mut replay)?;
        last = place.last_log_id;
        members = Some(place.last_membership.membership().clone());
    } else if replay.snapshot_seq() > 0 {
        last = Some(log_id(0, replay.snapshot_seq() - 1));
    }
    while let Some(item) = replay.next()? {
        match item {
            Item::Snapshot(_) => {}
            Item::Record { seq, .. } => last = Some(log_id(0, seq - 1)),
            Item::Entry { seq, bytes } => {
                let entry = decode_entry(seq - 1, bytes).ok_or(StoreError::Undecodable { seq })?;
                last = Some(entry.log_id);
                if let EntryPayload::Membership(newest) = entry.payload {
                    members = Some(newest);
                }
            }
        }
    }
    Ok((last, members))
}

/// Makes the log of one master on an empty disk of that of a member, which does not run, with all its
/// entries. `write` writes the records of the state to which the replay leads. Without `recovery`,
/// the member must be the only one that votes, and its log undamaged. Returns what cannot be read.
/// Blocks.
pub fn leave(
    member: &Arc<dyn Disk>,
    one_master: &Arc<dyn Disk>,
    recovery: Recovery,
    write: impl FnOnce(Replay, &mut SnapshotWriter) -> Result<(), StateError>,
) -> Result<Option<String>, StoreError> {
    if recovery == Recovery::Refuse {
        let id = RaftFile::read(&**member)?.map(|state| state.node_id);
        let (_, members) = last_of(log::examine(Arc::clone(member), recovery)?)?;
        let voters = members.iter().flat_map(Membership::voter_ids);
        let others = voters.filter(|voter| Some(*voter) != id).count();
        if others > 0 {
            return Err(StoreError::OthersVote(others + 1));
        }
    }
    let Examined { replay, last_seq, damage, .. } = log::examine(Arc::clone(member), recovery)?;
    if last_seq == 0 {
        return Err(StoreError::NoSnapshot);
    }
    backup::make_journal(one_master, last_seq, |writer| {
        write(replay.into(), writer).map_err(StoreError::State)
    })?;
    Ok(damage)
}

/// Opens the log of a member for simulations, with a bug on purpose. See [`open`].
pub fn open_with_bugs(disk: &Arc<dyn Disk>, id: u64) -> Result<Store, StoreError> {
    let opened = open(disk, id).and_then(|store| store.ok_or(StoreError::NothingLeft));
    if bugs::has(Bug::LostMemberKeepsId) && opened.as_ref().is_err_and(StoreError::is_loss) {
        reset(&**disk)?;
        return Store::open(disk, id);
    }
    opened
}
