//! Groups of three members in one process: real stores on disks in memory, and a network in memory
//! that can be cut in each direction. Links are cut, leaders change, members are killed and lose
//! what they had not synced, while clients append and read. Then all histories are checked.

use fermata_replication::{
    error::{StateError, StoreError},
    machine::ReplicatedState,
    master::Journal,
    member::{ChangeError, Member, Peer, Role},
    memory::{self, Master as _, MemoryNetwork, address, wait_for},
    network::Message,
    proposals::NotCommitted,
    replay::{Item, Replay},
    store::Store,
    types::{LogId, Proposal},
};
use journal::{
    Content, Log, Recovery,
    crash::{Call, CrashDisk, Survive},
    disk::Disk,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    ops::Deref,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

/// The state of a master: the list of the numbers of its records.
#[derive(Default)]
struct State {
    numbers: Vec<u64>,
    is_leader: bool,
    /// The terms in which this member has led.
    terms: Vec<u64>,
}

/// A master: applies records before they are committed while it leads, as the real ones do.
struct Master {
    member: Member,
    state: Mutex<State>,
    /// Length of the records of its snapshots, at least.
    snapshot_record_bytes: usize,
}

/// The record of a new leader.
const LEADS: u64 = 1 << 63;

fn push_numbers(numbers: &mut Vec<u64>, proposal: &Proposal) -> Result<(), StateError> {
    for record in proposal.records() {
        numbers.push(u64::from_le_bytes(record.ok_or("a record is cut")?.try_into()?));
    }
    Ok(())
}

fn read_numbers(mut replay: Replay) -> Result<Vec<u64>, StateError> {
    let mut numbers = Vec::new();
    while let Some(item) = replay.next()? {
        match item {
            Item::Snapshot(bytes) => numbers.push(u64::from_le_bytes(bytes[..8].try_into()?)),
            Item::Record { bytes, .. } => numbers.push(u64::from_le_bytes(bytes.try_into()?)),
        }
    }
    Ok(numbers)
}

impl ReplicatedState for Master {
    fn apply(&self, _: LogId, proposal: &Proposal) -> Result<(), StateError> {
        let mut state = self.state.lock().unwrap();
        assert!(!state.is_leader, "a leader has applied its records already");
        push_numbers(&mut state.numbers, proposal)
    }

    fn restore(&self, replay: Replay) -> Result<(), StateError> {
        let numbers = read_numbers(replay)?;
        self.state.lock().unwrap().numbers = numbers;
        Ok(())
    }

    fn lead(&self, term: u64) {
        let mut state = self.state.lock().unwrap();
        state.is_leader = true;
        state.terms.push(term);
        state.numbers.push(LEADS | term);
        self.member.append(&[(LEADS | term).to_le_bytes()]).unwrap();
    }

    fn follow(&self) {
        self.state.lock().unwrap().is_leader = false;
    }
}

impl Master {
    /// Appends a number. An error says that it may or may not be appended.
    async fn append(&self, number: u64) -> Result<(), NotCommitted> {
        let ticket = {
            let mut state = self.state.lock().unwrap();
            if !state.is_leader {
                return Err(NotCommitted::NotLeader);
            }
            state.numbers.push(number);
            self.member.append(&[number.to_le_bytes()]).unwrap()
        };
        self.member.wait(ticket).await
    }

    async fn read(&self) -> Result<Vec<u64>, NotCommitted> {
        let (numbers, ticket) = {
            let state = self.state.lock().unwrap();
            if !state.is_leader {
                return Err(NotCommitted::NotLeader);
            }
            (state.numbers.clone(), self.member.newest())
        };
        self.member.confirm(ticket).await?;
        Ok(numbers)
    }

    async fn make_snapshot(&self) -> Result<(), StoreError> {
        let (member, record_bytes) = (self.member.clone(), self.snapshot_record_bytes);
        let make = move || {
            member.make_snapshot(|replay, writer| {
                for number in read_numbers(replay)? {
                    let mut record = number.to_le_bytes().to_vec();
                    record.resize(record_bytes.max(8), 0);
                    writer.push(&record)?;
                }
                Ok(())
            })
        };
        spawn_blocking(make).await.unwrap()
    }
}

impl memory::Master for Master {
    fn member(&self) -> &Member {
        &self.member
    }

    fn is_leader(&self) -> bool {
        self.state.lock().unwrap().is_leader
    }
}

/// The network and the members on it.
#[derive(Clone)]
struct Net {
    network: MemoryNetwork<Master>,
    snapshots: Arc<Snapshots>,
}

#[derive(Default)]
struct Snapshots {
    /// Parts that were sent.
    parts: AtomicUsize,
    /// Length of a record, at least.
    record_bytes: AtomicUsize,
    /// Number of the part from which on no part arrives; 0 for none.
    lost_from: AtomicUsize,
}

impl Deref for Net {
    type Target = MemoryNetwork<Master>;

    fn deref(&self) -> &Self::Target {
        &self.network
    }
}

impl Net {
    fn new() -> Self {
        let (network, snapshots) = (MemoryNetwork::default(), Arc::new(Snapshots::default()));
        let sent = Arc::clone(&snapshots);
        network.lose_if(move |message| {
            matches!(message, Message::Part(_)) && {
                let part = sent.parts.fetch_add(1, Ordering::Relaxed) + 1;
                let lost_from = sent.lost_from.load(Ordering::Relaxed);
                lost_from > 0 && part >= lost_from
            }
        });
        Self { network, snapshots }
    }

    fn master(&self, id: u64) -> Arc<Master> {
        Arc::clone(&self.all()[&id])
    }

    async fn start(&self, id: u64, disk: &CrashDisk) {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let member = Member::new(Store::open_with_memory(&disk, id, 1000).unwrap());
        let snapshot_record_bytes = self.snapshots.record_bytes.load(Ordering::Relaxed);
        let master = Arc::new(Master { member, state: Mutex::default(), snapshot_record_bytes });
        self.network.start(id, Arc::clone(&master), master).await.unwrap();
    }

    async fn stop(&self, id: u64) {
        let master = self.remove(id);
        // It is an error if the disk has crashed before.
        let _crashed = master.member.stop().await;
    }
}

/// The disk of one master with the records 1 to 5 and a snapshot of the first three.
fn one_master() -> CrashDisk {
    let disk = CrashDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let log = Log::open(Arc::clone(&shared), Content::Records, Recovery::Refuse).unwrap().log;
    for number in 1..=5_u64 {
        log.append(&number.to_le_bytes()).unwrap();
        if number == 3 {
            let upto = log.rotate().unwrap();
            let mut writer = log.snapshot_writer(upto).unwrap();
            (1..=3_u64).for_each(|number| writer.push(&number.to_le_bytes()).unwrap());
            writer.finish().unwrap();
            log.snapshot_done(upto).unwrap();
        }
    }
    log.close().unwrap();
    disk
}

/// Starts one master as the first of a group, and two more that join.
async fn group_of_three() -> (Net, BTreeMap<u64, CrashDisk>) {
    group_of_three_on(Net::new()).await
}

async fn group_of_three_on(net: Net) -> (Net, BTreeMap<u64, CrashDisk>) {
    let disks: BTreeMap<u64, CrashDisk> =
        [(1, one_master()), (2, CrashDisk::new()), (3, CrashDisk::new())].into();
    let first: Arc<dyn Disk> = Arc::new(disks[&1].clone());
    Store::found(&first, 1).unwrap();
    net.start(1, &disks[&1]).await;
    let (_, leader) = net.wait_for_leader().await;
    for id in [2, 3] {
        net.start(id, &disks[&id]).await;
        leader.member.add(id, &address(id)).await.unwrap();
    }
    (net, disks)
}

/// Waits until all members have applied the same entries. Returns the numbers of these.
async fn wait_until_equal(net: &Net) -> Vec<u64> {
    wait_for("equal states", || {
        let all: Vec<_> = net
            .all()
            .values()
            .map(|master| {
                let numbers = master.state.lock().unwrap().numbers.clone();
                (numbers, master.member.status().applied)
            })
            .collect();
        all.windows(2).all(|pair| pair[0] == pair[1]).then(|| all[0].0.clone())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_master_becomes_three_and_all_have_its_records() {
    let (net, _disks) = group_of_three().await;
    let (_, leader) = net.wait_for_leader().await;
    for number in 6..=20 {
        leader.append(number).await.unwrap();
    }
    let numbers = wait_until_equal(&net).await;
    let without_leaders: Vec<u64> = numbers.iter().copied().filter(|number| number & LEADS == 0).collect();
    assert_eq!(without_leaders, (1..=20).collect::<Vec<_>>());
    assert!(net.snapshots.parts.load(Ordering::Relaxed) >= 2, "new members get a snapshot");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_leader_forgets_what_is_not_committed() {
    let (net, _disks) = group_of_three().await;
    let (old, leader) = net.wait_for_leader().await;
    leader.append(6).await.unwrap();
    net.isolate(old);
    let (_, new) = wait_for("another leader", || net.leader().filter(|(id, _)| *id != old)).await;
    new.append(8).await.unwrap();
    // It does not know yet that another leads, and must not answer with an old state.
    assert!(leader.is_leader());
    assert_eq!(leader.read().await, Err(NotCommitted::NoQuorum));
    let lost = {
        let leader = Arc::clone(&leader);
        tokio::spawn(async move { leader.append(7).await })
    };
    let has_applied = || leader.state.lock().unwrap().numbers.contains(&7).then_some(());
    wait_for("a change that is not committed", has_applied).await;
    assert_eq!(leader.read().await, Err(NotCommitted::NoQuorum));
    net.heal();
    assert_eq!(lost.await.unwrap(), Err(NotCommitted::NotLeader));
    let numbers = wait_until_equal(&net).await;
    assert!(numbers.contains(&8) && !numbers.contains(&7), "{numbers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_changes_the_leader_and_loses_nothing() {
    let (net, _disks) = group_of_three().await;
    let (old, leader) = net.wait_for_leader().await;
    let to = old % 3 + 1;
    for id in [old, 4] {
        let refused = leader.member.transfer(id).await.unwrap_err();
        assert!(refused.to_string().contains(&format!("member {id} is not another voting member")));
    }
    assert!(matches!(net.master(to).member.transfer(old).await, Err(ChangeError::NotLeader)));
    leader.member.transfer(to).await.unwrap();
    wait_for("the transfer", || net.master(to).is_leader().then_some(())).await;
    assert!(!leader.is_leader());
    net.master(to).append(6).await.unwrap();
    let numbers = wait_until_equal(&net).await;
    assert!(numbers.contains(&6));
}

/// Appends numbers while a member leads and accepts them. Each must be committed. Returns how many.
async fn write_while_accepted(leader: Arc<Master>) -> u64 {
    let mut committed = 0;
    loop {
        let ticket = {
            let mut state = leader.state.lock().unwrap();
            if !state.is_leader {
                return committed;
            }
            leader.member.has_room_for(8).then(|| {
                state.numbers.push(7);
                leader.member.append(&[7_u64.to_le_bytes()]).unwrap()
            })
        };
        match ticket {
            Some(ticket) => {
                leader.member.wait(ticket).await.expect("what was accepted is committed");
                committed += 1;
            }
            None => sleep(Duration::from_millis(1)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hands_over_loses_nothing_that_it_has_accepted() {
    let (net, _disks) = group_of_three().await;
    for _ in 0..10 {
        let (old, leader) = net.wait_for_leader().await;
        let writers: Vec<_> = (0..4).map(|_| tokio::spawn(write_while_accepted(leader.clone()))).collect();
        let before = leader.member.status().applied;
        wait_for("commits", || (leader.member.status().applied > before + 20).then_some(())).await;
        {
            let _state = leader.state.lock().unwrap();
            leader.member.pause();
        }
        assert_ne!(leader.member.hand_over(None).await.unwrap(), old);
        for writer in writers {
            assert!(writer.await.unwrap() > 0);
        }
        assert!(leader.member.is_committed(), "no state is replaced");
    }
    wait_until_equal(&net).await;
    // Without another member that answers it keeps leading, and accepts changes again.
    let (id, leader) = net.wait_for_leader().await;
    for other in (1..=3).filter(|other| *other != id) {
        net.stop(other).await;
    }
    wait_for("silence", || {
        let peers = leader.member.status().peers;
        let is_silent = |peer: &Peer| peer.last_contact.is_none_or(|time| time > Duration::from_secs(1));
        peers.iter().all(is_silent).then_some(())
    })
    .await;
    leader.member.pause();
    assert!(!leader.member.has_room_for(8));
    let refused = leader.member.hand_over(None).await.unwrap_err();
    assert!(matches!(refused, ChangeError::Refused(_) | ChangeError::NotLeader), "{refused}");
    assert!(leader.member.has_room_for(8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_cannot_be_made_ends_no_member() {
    let (net, _disks) = group_of_three().await;
    let (_, leader) = net.wait_for_leader().await;
    leader.append(6).await.unwrap();
    let member = leader.member.clone();
    let failed = spawn_blocking(move || member.make_snapshot(|_, _| Err("the state is odd".into()))).await;
    assert!(failed.unwrap().unwrap_err().to_string().contains("the state is odd"));
    leader.append(7).await.unwrap();
    leader.make_snapshot().await.unwrap();
    leader.append(8).await.unwrap();
    leader.member.check().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_several_parts_is_sent_again_after_interruptions() {
    let net = Net::new();
    net.snapshots.record_bytes.store(700 << 10, Ordering::Relaxed);
    let (net, mut disks) = group_of_three_on(net).await;
    let (id, leader) = net.wait_for_leader().await;
    let behind = id % 3 + 1;
    net.isolate(behind);
    for number in 6..=9 {
        leader.append(number).await.unwrap();
    }
    leader.make_snapshot().await.unwrap();
    // More than 9 records of 700 KiB are more than 6 parts of 1 MiB. The fourth does not arrive.
    let sent = || net.snapshots.parts.load(Ordering::Relaxed);
    let first = sent();
    net.snapshots.lost_from.store(first + 4, Ordering::Relaxed);
    net.heal();
    wait_for("an interruption", || (sent() > first + 5).then_some(())).await;
    assert!(!net.master(behind).state.lock().unwrap().numbers.contains(&9));
    // The receiver dies with three parts. The leader begins again, and is deposed before it ends.
    let is_received = |name: &str| name.ends_with(".received.tmp");
    wait_for("a received file", || disks[&behind].files().keys().any(|name| is_received(name)).then_some(()))
        .await;
    disks[&behind].crash_after(0);
    net.stop(behind).await;
    let disk = disks[&behind].after_crash(Survive::Everything);
    net.start(behind, &disk).await;
    disks.insert(behind, disk.clone());
    net.snapshots.lost_from.store(sent() + 4, Ordering::Relaxed);
    wait_for("a received file", || disk.files().keys().any(|name| is_received(name)).then_some(())).await;
    net.isolate(id);
    net.snapshots.lost_from.store(0, Ordering::Relaxed);
    let (_, new) = wait_for("another leader", || net.leader().filter(|(other, _)| *other != id)).await;
    new.append(10).await.unwrap();
    net.heal();
    let numbers = wait_until_equal(&net).await;
    assert!((1..=10).all(|number| numbers.contains(&number)), "{numbers:?}");
    // What the deposed leader has sent is removed, although the new one may send entries only.
    wait_for("the removal", || (!disk.files().keys().any(|name| is_received(name))).then_some(())).await;
}

/// Returns the names of the snapshots on a disk, oldest first.
fn snapshots(disk: &CrashDisk) -> Vec<String> {
    let is_snapshot =
        |name: &String| Path::new(name).extension().is_some_and(|extension| extension == "snap");
    disk.files().into_keys().filter(is_snapshot).collect()
}

/// Flips a bit of a file.
fn flip(disk: &CrashDisk, name: &str, at: usize) {
    let mut bytes = disk.files()[name].clone();
    bytes[at] ^= 1;
    disk.set_file(name, bytes);
}

/// Starts a group of which one member lacks entries that the others have purged. Returns its leader
/// and that member.
async fn group_with_a_member_behind() -> (Net, BTreeMap<u64, CrashDisk>, u64, u64) {
    let (net, disks) = group_of_three().await;
    let (id, leader) = net.wait_for_leader().await;
    let behind = id % 3 + 1;
    net.isolate(behind);
    for number in 6..=20 {
        leader.append(number).await.unwrap();
        if number % 5 == 0 {
            leader.make_snapshot().await.unwrap();
        }
    }
    leader.append(21).await.unwrap();
    (net, disks, id, behind)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_snapshot_of_the_leader_is_replaced_before_another_member_gets_it() {
    // In its place in the log, and in a record.
    for from_end in [false, true] {
        let (net, disks, id, _) = group_with_a_member_behind().await;
        let leader = net.master(id);
        let newest = snapshots(&disks[&id]).pop().unwrap();
        let length = disks[&id].files()[&newest].len();
        flip(&disks[&id], &newest, if from_end { length - 24 } else { 60 });
        net.heal();
        let journal = Journal::Group(leader.member.clone());
        wait_for("the damage to be noticed", || journal.take_needs_snapshot().then_some(())).await;
        assert!(disks[&id].files().contains_key(&format!("{newest}.damaged-1")));
        leader.make_snapshot().await.unwrap();
        let numbers = wait_until_equal(&net).await;
        assert!((1..=21).all(|number| numbers.contains(&number)), "{numbers:?}");
        leader.member.check().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_any_snapshot_that_helps_another_member_ends() {
    let (net, disks, id, behind) = group_with_a_member_behind().await;
    let leader = net.master(id);
    for name in snapshots(&disks[&id]) {
        flip(&disks[&id], &name, 60);
    }
    net.heal();
    let journal = Journal::Group(leader.member.clone());
    wait_for("the damage to be noticed", || journal.take_needs_snapshot().then_some(())).await;
    leader.make_snapshot().await.unwrap_err();
    let failed = timeout(Duration::from_mins(1), leader.member.failed()).await.unwrap();
    assert!(failed.to_string().contains("the log on the disk of this master is damaged"), "{failed}");
    net.stop(id).await;
    // The third one has all entries.
    wait_for("another leader", || net.leader().filter(|(other, _)| *other != id)).await;
    let behind = net.master(behind);
    wait_for("the entries", || behind.state.lock().unwrap().numbers.contains(&21).then_some(())).await;
}

/// Runs a group in one thread, in which nothing may wait for a disk or for the lock of a master.
fn in_one_thread(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

#[test]
fn a_disk_that_syncs_slowly_delays_only_its_member() {
    in_one_thread(async {
        let (net, disks) = group_of_three().await;
        let (id, leader) = net.wait_for_leader().await;
        let (slow, term) = (id % 3 + 1, leader.member.status().term);
        disks[&slow].call_before(|call| {
            if call == Call::Sync {
                std::thread::sleep(Duration::from_secs(2));
            }
        });
        for number in 6..=100 {
            let appended = timeout(Duration::from_secs(1), leader.append(number)).await;
            appended.expect("it does not wait for the slow disk").unwrap();
        }
        let status = leader.member.status();
        assert_eq!((status.role, status.term), (Role::Leader, term));
        disks[&slow].call_before(|_| {});
        let numbers = wait_until_equal(&net).await;
        assert!((1..=100).all(|number| numbers.contains(&number)));
        // Every disk is slow: everything takes long, and nothing is lost.
        for disk in disks.values() {
            disk.call_before(|call| {
                if call == Call::Sync {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
        }
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let (measured, ticks) = (Arc::clone(&longest), async move |longest: Arc<Mutex<Duration>>| {
            loop {
                let begin = Instant::now();
                sleep(Duration::from_millis(10)).await;
                let mut longest = longest.lock().unwrap();
                *longest = longest.max(begin.elapsed());
            }
        });
        let ticking = tokio::spawn(ticks(measured));
        // A snapshot removes entries while others are sent, and another leader is elected.
        let faults = tokio::spawn({
            let (net, leader, disks) = (net.clone(), Arc::clone(&leader), disks.clone());
            async move {
                leader.make_snapshot().await.unwrap();
                let _uncertain = timeout(Duration::from_secs(5), leader.append(2000)).await;
                net.isolate(id);
                wait_for("a vote", || {
                    let votes = |(other, master): (&u64, &Arc<Master>)| {
                        *other != id && master.member.status().term > term
                    };
                    net.all().iter().any(votes).then_some(())
                })
                .await;
                // Elections take less time than votes on these disks.
                for disk in disks.values() {
                    disk.call_before(|_| {});
                }
                net.heal();
                net.wait_for_leader().await;
            }
        });
        let mut acknowledged = Vec::new();
        let mut number = 100;
        while !faults.is_finished() {
            number += 1;
            let Some((_, leader)) = net.leader() else {
                sleep(Duration::from_millis(10)).await;
                continue;
            };
            if matches!(timeout(Duration::from_secs(4), leader.append(number)).await, Ok(Ok(()))) {
                acknowledged.push(number);
            }
        }
        faults.await.unwrap();
        sleep(Duration::from_millis(20)).await;
        ticking.abort();
        let longest = *longest.lock().unwrap();
        assert!(longest < Duration::from_millis(500), "a disk was waited for in the runtime: {longest:?}");
        let (_, leader) = net.wait_for_leader().await;
        let _uncertain = leader.append(3000).await;
        let numbers = wait_until_equal(&net).await;
        assert!(acknowledged.iter().all(|number| numbers.contains(number)), "{acknowledged:?}, {numbers:?}");
    });
}

#[test]
fn a_member_answers_and_votes_while_the_lock_of_its_master_is_held() {
    in_one_thread(async {
        let (net, _disks) = group_of_three().await;
        let (id, leader) = net.wait_for_leader().await;
        let (held, term) = (net.master(id % 3 + 1), leader.member.status().term);
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (locked, is_locked) = tokio::sync::oneshot::channel();
        let holder = {
            let held = Arc::clone(&held);
            std::thread::spawn(move || {
                let _state = held.state.lock().unwrap();
                locked.send(()).unwrap();
                // It ends in any case, so that a failure is reported.
                released.recv_timeout(Duration::from_secs(20)).is_ok()
            })
        };
        is_locked.await.unwrap();
        let end = Instant::now() + Duration::from_secs(2);
        let mut number = 5;
        while Instant::now() < end {
            number += 1;
            leader.append(number).await.unwrap();
            sleep(Duration::from_millis(50)).await;
        }
        let status = leader.member.status();
        assert_eq!((status.role, status.term), (Role::Leader, term));
        let peer = status.peers.iter().find(|peer| peer.id == held.member.id()).unwrap();
        assert!(peer.last_contact.unwrap() < Duration::from_millis(500), "{peer:?}");
        assert_eq!(peer.entries, Some(status.entries), "it receives entries");
        // It lacks the newest entry, so it cannot lead itself, and without its vote nobody can.
        net.cut([(id, held.member.id())]);
        leader.append(number + 1).await.unwrap();
        net.isolate(id);
        let other = net.master((id + 1) % 3 + 1);
        wait_for("another leader", || other.is_leader().then_some(())).await;
        other.append(number + 2).await.unwrap();
        net.heal();
        release.send(()).unwrap();
        assert!(holder.join().unwrap(), "the lock was held for too long");
        let numbers = wait_until_equal(&net).await;
        assert!((1..=number + 2).all(|number| numbers.contains(&number)), "{numbers:?}");
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_does_not_answer_is_not_added() {
    let (net, mut disks) = group_of_three().await;
    let (_, leader) = net.wait_for_leader().await;
    let refused = leader.member.add(4, &address(4)).await.unwrap_err().to_string();
    assert!(refused.contains("member 4 at m4:9400 has not answered for 15s"), "{refused}");
    assert_eq!(leader.member.status().peers.len(), 3, "it is no learner any more");
    let disk = CrashDisk::new();
    net.start(4, &disk).await;
    disks.insert(4, disk);
    leader.member.add(4, &address(4)).await.unwrap();
    leader.append(6).await.unwrap();
    assert!(wait_until_equal(&net).await.contains(&6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_keeps_leading_while_the_disks_of_its_quorum_are_slow() {
    let (net, disks) = group_of_three().await;
    let (id, leader) = net.wait_for_leader().await;
    leader.append(6).await.unwrap();
    let term = leader.member.status().term;
    net.isolate(id % 3 + 1);
    // Longer than the limit of an append, and than the time after which a link becomes quiet.
    for disk in disks.values() {
        disk.call_before(|call| {
            if call == Call::Sync {
                std::thread::sleep(Duration::from_millis(1500));
            }
        });
    }
    for number in 7..=9 {
        leader.append(number).await.unwrap();
    }
    for disk in disks.values() {
        disk.call_before(|_| {});
    }
    let status = leader.member.status();
    assert_eq!((status.role, status.term), (Role::Leader, term));
    net.heal();
    assert!(wait_until_equal(&net).await.contains(&9));
}

/// An operation of a client.
#[derive(Debug)]
enum Operation {
    Append { number: u64, is_acknowledged: bool },
    Read(Vec<u64>),
}

#[derive(Debug)]
struct Recorded {
    begin: Instant,
    end: Instant,
    operation: Operation,
}

/// A client: appends and reads at whatever master leads, until `until`.
async fn run_client(net: Net, client: u64, until: Instant) -> Vec<Recorded> {
    let mut history = Vec::new();
    let mut next = 0;
    while Instant::now() < until {
        let leaders: Vec<_> = net.all().into_iter().filter(|(_, master)| master.is_leader()).collect();
        let Some((_, leader)) = leaders.get(next as usize % leaders.len().max(1)) else {
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        next += 1;
        let begin = Instant::now();
        let limit = Duration::from_millis(500);
        let operation = if next % 3 == 0 {
            match timeout(limit, leader.read()).await {
                Ok(Ok(numbers)) => Operation::Read(numbers),
                _ => continue,
            }
        } else {
            let number = client << 32 | next;
            let is_acknowledged = matches!(timeout(limit, leader.append(number)).await, Ok(Ok(())));
            Operation::Append { number, is_acknowledged }
        };
        history.push(Recorded { begin, end: Instant::now(), operation });
        sleep(Duration::from_millis(2)).await;
    }
    history
}

/// Checks the histories of the clients against the final list.
fn check(history: &[Recorded], list: &[u64]) {
    let place: HashMap<u64, usize> = list.iter().enumerate().map(|(at, number)| (*number, at)).collect();
    assert_eq!(place.len(), list.len(), "a number was appended twice");
    // A list that only grows is linearizable if each operation sees all that ended before it began.
    let mut ended: Vec<(Instant, usize)> = Vec::new();
    for Recorded { begin, end, operation } in history {
        match operation {
            Operation::Append { number, is_acknowledged } => {
                let at = place.get(number);
                assert!(at.is_some() || !is_acknowledged, "number {number:#x} was acknowledged and is lost");
                if let (Some(at), true) = (at, *is_acknowledged) {
                    ended.push((*end, at + 1));
                }
            }
            Operation::Read(numbers) => {
                assert!(list.starts_with(numbers), "a read has seen what was not committed: {begin:?}");
                ended.push((*end, numbers.len()));
            }
        }
    }
    ended.sort_unstable();
    let mut newest = 0;
    for (_, length) in &mut ended {
        newest = newest.max(*length);
        *length = newest;
    }
    for Recorded { begin, operation, .. } in history {
        let before = ended.partition_point(|(end, _)| end < begin);
        let least = before.checked_sub(1).map_or(0, |at| ended[at].1);
        match operation {
            Operation::Append { number, .. } => {
                let at = place.get(number).copied().unwrap_or(usize::MAX);
                assert!(at >= least, "number {number:#x} was appended before it was sent");
            }
            Operation::Read(numbers) => {
                assert!(numbers.len() >= least, "a stale read: {} of {least} numbers", numbers.len());
            }
        }
    }
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Counts {
    leaders: usize,
    acknowledged: usize,
    uncertain: usize,
    reads: usize,
    restarts: usize,
    parts: usize,
}

async fn run_with_faults(seed: u64) -> Counts {
    let (net, mut disks) = group_of_three().await;
    let mut random = Random(seed);
    let until = Instant::now() + Duration::from_secs(6);
    let clients: Vec<_> =
        (1..=4).map(|client| tokio::spawn(run_client(net.clone(), client, until))).collect();
    let mut counts = Counts::default();
    while Instant::now() < until {
        let id = 1 + random.below(3);
        let leader = net.leader().map_or(id, |(id, _)| id);
        match random.below(8) {
            0 => net.isolate(leader),
            1 => net.isolate(id),
            2 => net.cut([(id, leader), (id, id % 3 + 1)]),
            3 => net.cut([(id % 3 + 1, leader), ((id + 1) % 3 + 1, leader)]),
            4 => {
                let victim = if random.below(2) == 0 { leader } else { id };
                disks[&victim].crash_after(0);
                net.stop(victim).await;
                let survive = match random.below(3) {
                    0 => Survive::Everything,
                    1 => Survive::SyncedOnly,
                    _ => Survive::Seeded(random.below(u64::MAX)),
                };
                let disk = disks[&victim].after_crash(survive);
                sleep(Duration::from_millis(random.below(500))).await;
                net.start(victim, &disk).await;
                disks.insert(victim, disk);
                counts.restarts += 1;
            }
            5 => {
                if let Some((_, leader)) = net.leader() {
                    // It is refused if the member does not answer.
                    let _refused = leader.member.transfer(id).await;
                }
            }
            6 => {
                // A member that is behind needs the snapshot of the leader.
                net.isolate(leader % 3 + 1);
                sleep(Duration::from_millis(200)).await;
                // It fails if a snapshot of another leader is installed meanwhile.
                let _failed = net.master(leader).make_snapshot().await;
            }
            _ => drop(net.master(id).make_snapshot().await),
        }
        sleep(Duration::from_millis(100 + random.below(600))).await;
        if random.below(2) == 0 {
            net.heal();
        }
    }
    net.heal();
    let mut history = Vec::new();
    for client in clients {
        history.extend(client.await.unwrap());
    }
    // The group works again.
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let (_, leader) = net.wait_for_leader().await;
        if matches!(timeout(Duration::from_secs(1), leader.append(0)).await, Ok(Ok(()))) {
            break;
        }
        assert!(Instant::now() < end, "no leader commits anything");
    }
    let mut list = wait_until_equal(&net).await;
    while list.last() == Some(&0) {
        list.pop();
    }
    let leaders: Vec<u64> = list.iter().copied().filter(|number| number & LEADS != 0).collect();
    assert!(leaders.is_sorted() && leaders.len() == leaders.iter().collect::<BTreeSet<_>>().len());
    list.retain(|number| *number != 0);
    check(&history, &list);
    counts.leaders = leaders.len();
    counts.parts = net.snapshots.parts.load(Ordering::Relaxed);
    for Recorded { operation, .. } in &history {
        match operation {
            Operation::Append { is_acknowledged: true, .. } => counts.acknowledged += 1,
            Operation::Append { .. } => counts.uncertain += 1,
            Operation::Read(_) => counts.reads += 1,
        }
    }
    for (id, _) in net.all() {
        net.stop(id).await;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_and_no_read_is_stale_under_faults() {
    let first: u64 = std::env::var("FERMATA_FIRST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let runs: Vec<_> = (first..first + 4).map(|seed| tokio::spawn(run_with_faults(seed))).collect();
    let mut all = Vec::new();
    for (seed, run) in (first..).zip(runs) {
        let counts = run.await.unwrap_or_else(|panic| panic!("FERMATA_FIRST_SEED={seed}: {panic}"));
        println!("seed {seed}: {counts:?}");
        all.push(counts);
    }
    // The runs together test something. In a single one, the group may have no quorum for long.
    let sum = |of: fn(&Counts) -> usize| all.iter().map(of).sum::<usize>();
    assert!(sum(|counts| counts.leaders) > 4 + 2, "leaders change");
    assert!(sum(|counts| counts.uncertain) > 0, "some appends were not acknowledged");
    assert!(sum(|counts| counts.acknowledged) > 50 && sum(|counts| counts.reads) > 20, "clients work");
    assert!(sum(|counts| counts.restarts) > 0, "members were killed");
}
