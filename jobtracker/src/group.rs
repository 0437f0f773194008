//! The folder of a JobTracker that is a member of a group (ADR 0046).
//!
//! The folder of the first member is that of one JobTracker, which has made a snapshot. Another member
//! begins with an empty folder: it asks the `JobTrackers` that it knows, and the leader adds it and
//! sends it everything. `peers::folder` decides what a folder is, also of a member that has lost it.
//!
//! The starts of the members are facts, and those of one JobTracker are in a file. So they are moved
//! when a folder becomes that of a first member, and when it leaves its group.

use crate::{
    blueprint::{Blueprint, Replayed},
    clock::Clock,
    end::JobTrackerError,
    opened::Opened,
    starts,
    storage::{self, OWNER},
};
use daemon::config::Config;
use dfs_client::ids::Start;
use journal::{AppendError, Log, Recovery, SnapshotWriter, codec};
use mrcore::{Fact, cluster::Starts, fact::Entry};
use peers::{
    folder::{FolderError, MemberFolder},
    group::Group,
    join::NewMember,
};
use replication::{error::StateError, master::Journal, replay::Replay};
use security::{Credentials, Role};
use std::path::Path;

/// Opens the folder of a member, which the others reach at `address`. Waits for the leader of the
/// group if the folder is empty, or its log is damaged.
pub(crate) async fn open(
    config: &Config,
    recovery: Recovery,
    address: String,
) -> Result<Group, JobTrackerError> {
    let credentials = Credentials::of_daemon(config, Role::JobTracker)?;
    Group::open(
        member_folder(config, recovery, address),
        credentials,
        |recovery| close_one_master(config, recovery),
        |replay, writer| write_without_starts(replay, writer, &config.jobtracker.dir),
    )
    .await
}

fn member_folder(config: &Config, recovery: Recovery, address: String) -> MemberFolder<'_> {
    let settings = &config.jobtracker;
    MemberFolder {
        owner: OWNER,
        dir: &settings.dir,
        member: NewMember { id: settings.member, address, role: Role::JobTracker },
        join: &settings.join,
        masters: &config.cluster.jobtracker,
        recovery,
    }
}

/// Makes the folder of the only member of a group that of one JobTracker; does nothing if it is not
/// that of a member. Blocks.
pub(crate) fn leave_if_alone(config: &Config) -> Result<(), FolderError> {
    let folder = member_folder(config, Recovery::Refuse, String::new());
    folder.leave_if_alone(|replay, writer| write_without_starts(replay, writer, &config.jobtracker.dir))
}

/// Writes the snapshot of one JobTracker to which the journal of a member leads, and the starts in it
/// to the file of one JobTracker.
pub(crate) fn write_without_starts(
    replay: Replay,
    writer: &mut SnapshotWriter,
    folder: &Path,
) -> Result<(), StateError> {
    let mut recorded = Starts::default();
    let entries = storage::read_all(replay)?;
    for entry in &entries {
        if let Fact::StartRecorded { start, accepted } = entry.fact {
            recorded.add(start, accepted);
        }
    }
    starts::replace(folder, recorded.iter().map(starts::from_fact))?;
    storage::write_compacted(without_starts(entries), writer)
}

fn without_starts(mut entries: Vec<Entry>) -> Vec<Entry> {
    entries.retain(|entry| !matches!(entry.fact, Fact::StartRecorded { .. }));
    entries
}

/// Makes the folder of one JobTracker, which is initialised if it is empty, ready to be that of the
/// first member of a group, and closes it. Returns a message if records were lost. Blocks.
fn close_one_master(config: &Config, recovery: Recovery) -> Result<Option<String>, JobTrackerError> {
    let Opened { log, blueprint, replayed, notice, .. } = Opened::open(config, recovery)?;
    let earlier = starts::read(&config.jobtracker.dir).map_err(FolderError::from)?;
    found_on(log, &replayed, &blueprint, &earlier)?;
    Ok(notice)
}

/// Makes a snapshot of the journal of one JobTracker with what that of a group contains besides, and
/// closes the journal. `earlier` are the starts that the NameNode may have accepted.
pub(crate) fn found_on(
    log: Log,
    replayed: &Replayed,
    blueprint: &Blueprint,
    earlier: &[Start],
) -> Result<(), JobTrackerError> {
    // The founding counts as a start, so there is a fact for the snapshot.
    let epoch = replayed.core.cluster().epoch() + 1;
    let at = Clock::start(replayed.newest).now();
    let fact = Fact::JobTrackerStarted { epoch, scheduler: blueprint.scheduler_name().into() };
    let appended = log.append(&codec::encode(&Entry { at, fact })).map_err(|error| match error {
        AppendError::Failed(failed) => failed,
        AppendError::TooLarge { .. } => unreachable!("the name of a policy is short"),
    })?;
    log.sync(appended)?;
    let journal = Journal::Single(log);
    journal.make_snapshot(|replay, writer| {
        // A backup of a group has starts, which the operator who restores it gives up.
        let mut entries = without_starts(storage::read_all(replay)?);
        entries.extend(earlier.iter().map(|start| {
            let start = starts::to_fact(*start);
            Entry { at, fact: Fact::StartRecorded { start, accepted: false } }
        }));
        storage::write_compacted(entries, writer)
    })?;
    Ok(journal.close()?)
}
