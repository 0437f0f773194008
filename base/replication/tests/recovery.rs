//! Members whose logs are damaged or lost, in any file and after any crash: none is used with its old
//! ID unless everything is there. And a member whose log becomes that of one master.

use fermata_replication::{
    error::StoreError,
    machine::{Machine, ReplicatedState},
    recovery,
    replay::{Item, Replay},
    store::Store,
    types::{Entry, Group, LogId, Membership, Proposal, Vote, log_id},
};
use journal::{
    Content, Log, Recovery,
    crash::{CrashDisk, Survive},
    disk::Disk,
    home::has_journal,
};
use openraft::{
    BasicNode, EntryPayload,
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
};
use std::{collections::BTreeMap, sync::Arc};

/// Number of records of a member, among them those of the snapshot.
const RECORDS: u64 = 8;

struct NoState;

impl ReplicatedState for NoState {
    fn apply(&self, _: LogId, _: &Proposal) -> Result<(), fermata_replication::error::StateError> {
        Ok(())
    }

    fn restore(&self, mut replay: Replay) -> Result<(), fermata_replication::error::StateError> {
        while replay.next()?.is_some() {}
        Ok(())
    }

    fn lead(&self, _: u64) {}

    fn follow(&self) {}
}

fn shared(disk: &CrashDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

/// The files of member 1 of a group of these voters: it has been one master with three records, has
/// voted, and has got entries.
async fn member(voters: &[u64]) -> BTreeMap<String, Vec<u8>> {
    let disk = CrashDisk::new();
    let log = Log::open(shared(&disk), Content::Records, Recovery::Refuse).unwrap().log;
    let records = [1_u64, 2, 3].map(u64::to_le_bytes);
    log.append_many(&records).unwrap();
    let upto = log.rotate().unwrap();
    let mut writer = log.snapshot_writer(upto).unwrap();
    for record in &records {
        writer.push(record).unwrap();
    }
    writer.finish().unwrap();
    log.snapshot_done(upto).unwrap();
    log.close().unwrap();
    drop(log);
    Store::found(&shared(&disk), 1).unwrap();
    let mut store = Store::open(&shared(&disk), 1).unwrap();
    Machine::open(store.clone(), Arc::new(NoState), "m1:9400").unwrap();
    store.save_vote(&Vote::new(4, 2)).await.unwrap();
    let nodes = voters.iter().map(|id| (*id, BasicNode::new(format!("m{id}:9400"))));
    let members = Membership::new(vec![voters.iter().copied().collect()], nodes.collect::<BTreeMap<_, _>>());
    let mut payloads = vec![EntryPayload::Membership(members.unwrap())];
    payloads.extend((5..=RECORDS).map(|n| EntryPayload::Normal(Proposal::of(&[n.to_le_bytes()]))));
    for (index, payload) in (3..).zip(payloads) {
        let (sender, durable) = Group::oneshot();
        let entry = Entry { log_id: log_id(4, index), payload };
        store.append([entry], IOFlushed::signal(sender)).await.unwrap();
        durable.await.unwrap().unwrap();
    }
    store.save_committed(Some(log_id(4, RECORDS - 1))).await.unwrap();
    store.close().unwrap();
    disk.files()
}

/// Opens the folder. Everything is there, or it is recognised as a loss.
fn is_lost(disk: &CrashDisk, what: &str) -> bool {
    match recovery::open(&shared(disk), 1) {
        Ok(Some(store)) => {
            assert_eq!(store.raft_state().vote, Some(Vote::new(4, 2)), "{what}");
            drop(store);
            let found = recovery::examine(&shared(disk)).unwrap();
            assert_eq!((found.id, found.last), (Some(1), Some((4, RECORDS - 1))), "{what}");
            false
        }
        Ok(None) => panic!("{what}: it is taken for another folder"),
        Err(error) => {
            assert!(error.is_loss(), "{what}: {error}");
            true
        }
    }
}

#[tokio::test]
async fn a_member_with_damage_in_any_file_has_everything_or_must_be_exchanged() {
    let files = member(&[1, 2, 3]).await;
    assert!(!is_lost(&CrashDisk::with_files(files.clone()), "no damage"));
    let mut lost = BTreeMap::<&str, usize>::new();
    for (name, bytes) in &files {
        let mut damaged: Vec<(String, Option<Vec<u8>>)> = vec![(format!("{name} is missing"), None)];
        for at in (0..bytes.len()).filter(|at| at % 4096 < 200).step_by(5) {
            let mut flipped = bytes.clone();
            // Both slots, if it is a file with slots.
            for at in [at, at + 4096].into_iter().filter(|at| *at < bytes.len()) {
                flipped[at] ^= 0x10;
            }
            damaged.push((format!("{name} at {at}"), Some(flipped)));
            damaged.push((format!("{name} cut at {at}"), Some(bytes[..at].to_vec())));
        }
        for (what, bytes) in damaged {
            let mut files = files.clone();
            match bytes {
                Some(bytes) => drop(files.insert(name.clone(), bytes)),
                None => drop(files.remove(name)),
            }
            let disk = CrashDisk::with_files(files);
            if !is_lost(&disk, &what) {
                continue;
            }
            *lost.entry(name.as_str()).or_default() += 1;
            recovery::reset(&disk).unwrap();
            assert!(recovery::open(&shared(&disk), 1).unwrap().is_none(), "{what}");
            let store = Store::open(&shared(&disk), recovery::new_id(7)).unwrap();
            assert_eq!((store.raft_state().vote, store.raft_state().purged), (None, None), "{what}");
        }
    }
    println!("{lost:?}");
    for name in ["RAFT", "COMMIT"] {
        assert!(lost.contains_key(name), "{name} is needed: {lost:?}");
    }
    assert!(lost.keys().filter(|name| name.starts_with("edits-")).count() > 0, "{lost:?}");
    // Of the whole journal nothing is left, and the vote is.
    let disk = CrashDisk::with_files(files.into_iter().filter(|(name, _)| name.starts_with("RAFT")));
    assert!(is_lost(&disk, "no journal"));
}

#[tokio::test]
async fn a_reset_that_is_interrupted_leaves_a_lost_member_or_nothing() {
    let mut files = member(&[1, 2, 3]).await;
    let newest = files.keys().rfind(|name| name.starts_with("edits-")).unwrap().clone();
    let bytes = files.get_mut(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    for operations in 0.. {
        let disk = CrashDisk::with_files(files.clone());
        disk.crash_after(operations);
        let is_done = recovery::reset(&disk).is_ok() && !disk.crashed();
        let seeds = (0..10).map(Survive::Seeded);
        for survive in [Survive::Everything, Survive::SyncedOnly].into_iter().chain(seeds) {
            let after = disk.after_crash(survive);
            match recovery::open(&shared(&after), 1) {
                Err(error) => assert!(error.is_loss(), "after {operations} operations: {error}"),
                Ok(None) => assert!(!has_journal(&after).unwrap(), "after {operations} operations"),
                Ok(Some(_)) => panic!("after {operations} operations it is used with its old ID"),
            }
        }
        if is_done {
            assert!(operations > 5, "{operations}");
            return;
        }
    }
}

fn read(mut replay: Replay) -> Result<Vec<u64>, StoreError> {
    let mut numbers = Vec::new();
    while let Some(Item::Snapshot(bytes) | Item::Record { bytes, .. }) = replay.next()? {
        numbers.push(u64::from_le_bytes(bytes.try_into().unwrap()));
    }
    Ok(numbers)
}

#[tokio::test]
async fn the_log_of_the_only_voter_becomes_that_of_one_master() {
    let leave = |files: &BTreeMap<String, Vec<u8>>, recovery| {
        let (member, one) = (CrashDisk::with_files(files.clone()), CrashDisk::new());
        let left = recovery::leave(&shared(&member), &shared(&one), recovery, |replay, writer| {
            for number in read(replay)? {
                writer.push(&number.to_le_bytes())?;
            }
            Ok(())
        });
        assert_eq!(member.files(), *files, "the old log is not changed");
        left.map(|damage| (one, damage))
    };
    let numbers = |disk: &CrashDisk| {
        let opened = Log::open(shared(disk), Content::Records, Recovery::Refuse).unwrap();
        read(Replay::from(opened.replay)).unwrap()
    };
    let (three, alone) = (member(&[1, 2, 3]).await, member(&[1]).await);
    let refused = leave(&three, Recovery::Refuse).err().unwrap();
    assert!(matches!(refused, StoreError::OthersVote(3)), "{refused}");
    let all = [1, 2, 3, 5, 6, 7, 8];
    for (files, recovery) in [(&three, Recovery::DropDamaged), (&alone, Recovery::Refuse)] {
        let (one, damage) = leave(files, recovery).unwrap();
        assert_eq!((numbers(&one), damage), (all.to_vec(), None));
        // It can become the first of a group again.
        Store::found(&shared(&one), recovery::new_id(1)).unwrap();
        assert!(recovery::open(&shared(&one), 1).unwrap().is_some());
    }
    // What can be read of a damaged one.
    let mut damaged = three;
    let newest = damaged.keys().rfind(|name| name.starts_with("edits-")).unwrap().clone();
    let bytes = damaged.get_mut(&newest).unwrap();
    let last = bytes.len() - 40;
    bytes[last] ^= 1;
    let (one, damage) = leave(&damaged, Recovery::DropDamaged).unwrap();
    assert!(damage.is_some());
    assert_eq!(numbers(&one), all[..all.len() - 1]);
}
