//! Proposals against a model: a plain list of the records of the entries that are committed.
//!
//! In place of openraft, the test decides what becomes of each proposal: committed, refused once or
//! for good, or unanswered, and then committed later or not. Others lead in between.

use crate::{
    error::StateError,
    machine::{Machine, ReplicatedState},
    proposals::{Outcome, Proposals, Ticket},
    replay::{Item, Replay},
    store::Store,
    types::{Entry, Group, LogId, Proposal, log_id},
};
use journal::{crash::CrashDisk, disk::Disk};
use openraft::{
    EntryPayload,
    entry::RaftEntry,
    storage::{IOFlushed, RaftLogStorage, RaftStateMachine},
    type_config::TypeConfigExt,
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::timeout;

/// The state of a master: the numbers of all records that it has applied.
#[derive(Default)]
struct Numbers(Mutex<(Vec<u64>, bool)>);

fn numbers_of(proposal: &Proposal) -> Vec<u64> {
    let number = |record: Option<&[u8]>| u64::from_le_bytes(record.unwrap().try_into().unwrap());
    proposal.records().map(number).collect()
}

impl ReplicatedState for Numbers {
    fn apply(&self, _: LogId, proposal: &Proposal) -> Result<(), StateError> {
        let mut state = self.0.lock().unwrap();
        assert!(!state.1, "a leader has applied its records already");
        state.0.extend(numbers_of(proposal));
        Ok(())
    }

    fn restore(&self, mut replay: Replay) -> Result<(), StateError> {
        let mut numbers = Vec::new();
        while let Some(Item::Snapshot(bytes) | Item::Record { bytes, .. }) = replay.next()? {
            numbers.push(u64::from_le_bytes(bytes.try_into()?));
        }
        self.0.lock().unwrap().0 = numbers;
        Ok(())
    }

    fn lead(&self, _: u64) {
        self.0.lock().unwrap().1 = true;
    }

    fn follow(&self) {
        self.0.lock().unwrap().1 = false;
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What openraft would do.
struct Raft {
    store: Store,
    machine: Machine,
    random: Random,
    /// The entries of the log that are not applied.
    tail: Vec<Entry>,
    /// Index of the next entry.
    next: u64,
    /// The newest term.
    term: u64,
    /// Whether another member leads in it.
    leader_is_other: bool,
    /// The model: the numbers in all entries that are committed.
    committed: Vec<u64>,
    /// How often each outcome was chosen.
    outcomes: [usize; 6],
}

impl Raft {
    async fn append(&mut self, term: u64, payload: EntryPayload<Proposal, u64, openraft::BasicNode>) {
        let entry = Entry { log_id: log_id(term, self.next), payload };
        let (sender, durable) = Group::oneshot();
        self.store.append([entry.clone()], IOFlushed::signal(sender)).await.unwrap();
        durable.await.unwrap().unwrap();
        self.next += 1;
        self.tail.push(entry);
    }

    /// Commits and applies all entries of the log.
    async fn commit(&mut self) {
        for entry in std::mem::take(&mut self.tail) {
            if let EntryPayload::Normal(proposal) = &entry.payload {
                self.committed.extend(numbers_of(proposal));
            }
            self.machine.apply(tokio_stream::iter([Ok((entry, None))])).await.unwrap();
        }
    }

    /// Another member is elected. It may have the entries of this member or not.
    async fn other_leads(&mut self) {
        if self.random.below(2) == 0
            && let Some(first) = self.tail.first().map(RaftEntry::log_id)
        {
            self.store
                .truncate_after(first.index.checked_sub(1).map(|index| log_id(0, index)))
                .await
                .unwrap();
            self.next = first.index;
            self.tail.clear();
        }
        self.term += 1;
        self.leader_is_other = true;
        self.append(self.term, EntryPayload::Blank).await;
        for _ in 0..self.random.below(3) {
            let number = 1 << 32 | self.next;
            self.append(self.term, EntryPayload::Normal(Proposal::of(&[number.to_le_bytes()]))).await;
        }
        self.commit().await;
    }

    /// Decides what becomes of a proposal.
    async fn write(&mut self, term: u64, proposal: Proposal) -> Outcome {
        let choice =
            if term == self.term { [0, 0, 0, 0, 1, 2, 3, 4, 5][self.random.below(9) as usize] } else { 2 };
        self.outcomes[choice] += 1;
        assert!(self.outcomes.iter().sum::<usize>() < 10_000, "proposals are repeated forever");
        match choice {
            0 => {
                self.append(term, EntryPayload::Normal(proposal)).await;
                self.commit().await;
                return Outcome::Committed;
            }
            1 => return Outcome::NotNow,
            2 => return Outcome::Refused,
            // It is in the log, and may be committed later.
            3 => self.append(term, EntryPayload::Normal(proposal)).await,
            // It is lost.
            4 => {}
            // It is committed by another leader, or not, before this member knows.
            _ => {
                self.append(term, EntryPayload::Normal(proposal)).await;
                self.other_leads().await;
            }
        }
        Outcome::Unknown
    }
}

async fn run(seed: u64) -> [usize; 6] {
    let disk: Arc<dyn Disk> = Arc::new(CrashDisk::new());
    let store = Store::open_with_memory(&disk, 1, 200).unwrap();
    let (state, proposals) = (Arc::new(Numbers::default()), Arc::new(Proposals::default()));
    let machine =
        Machine::open_with_proposals(store.clone(), state.clone(), "m1:9400", Arc::clone(&proposals))
            .unwrap();
    let raft = Raft {
        store,
        machine: machine.clone(),
        random: Random(seed),
        tail: Vec::new(),
        next: 0,
        term: 0,
        leader_is_other: true,
        committed: Vec::new(),
        outcomes: [0; 6],
    };
    let raft = Arc::new(tokio::sync::Mutex::new(raft));
    let (sending, sender) = (machine.clone(), Arc::clone(&raft));
    let task = tokio::spawn(async move {
        let send = |term, proposal| {
            let raft = Arc::clone(&sender);
            async move { Ok(raft.lock().await.write(term, proposal).await) }
        };
        sending.propose(send).await
    });

    let mut random = Random(!seed);
    let (mut number, mut waiting, mut acknowledged) = (0, Vec::new(), BTreeSet::new());
    // The numbers that were appended in each leadership.
    let mut leaderships: Vec<Vec<u64>> = Vec::new();
    for _ in 0..30 {
        // This member is elected, in a new term or again in the same one.
        if proposals.leading().is_none() {
            // Waits until the end of the last leadership is complete.
            machine.end_leading(0).await.unwrap();
            let mut raft = raft.lock().await;
            if random.below(3) == 0 {
                raft.other_leads().await;
            }
            if random.below(3) > 0 || raft.leader_is_other {
                raft.term += 1;
                raft.leader_is_other = false;
                let term = raft.term;
                raft.append(term, EntryPayload::Blank).await;
                raft.commit().await;
            }
            assert_eq!(state.0.lock().unwrap().0, raft.committed, "seed {seed}: the state of a follower");
            // A term with a proposal whose outcome is unknown is refused.
            if machine.begin_leading(raft.term).await.unwrap() {
                leaderships.push(Vec::new());
            }
        }
        for _ in 0..random.below(5) {
            let mut state = state.0.lock().unwrap();
            if state.1 {
                number += 1;
                state.0.push(number);
                let ticket = proposals.append(&[number.to_le_bytes()]).expect("it leads");
                leaderships.last_mut().unwrap().push(number);
                waiting.push((number, ticket));
            }
        }
        if random.below(2) == 0 {
            // All of them are committed, or the leadership ends.
            for (number, ticket) in waiting.drain(..) {
                wait(&proposals, &mut acknowledged, number, ticket).await;
            }
        } else {
            tokio::task::yield_now().await;
        }
        let raft = raft.lock().await;
        assert!(
            acknowledged.iter().all(|number| raft.committed.contains(number)),
            "seed {seed}: an acknowledged record is not committed"
        );
    }
    for (number, ticket) in waiting {
        wait(&proposals, &mut acknowledged, number, ticket).await;
    }
    if let Some(term) = proposals.leading() {
        machine.end_leading(term).await.unwrap();
    }
    let mut raft = raft.lock().await;
    raft.other_leads().await;
    assert_eq!(state.0.lock().unwrap().0, raft.committed, "seed {seed}: the state at the end");
    for appended in &leaderships {
        let committed: Vec<u64> =
            raft.committed.iter().copied().filter(|number| appended.contains(number)).collect();
        assert!(appended.starts_with(&committed), "seed {seed}: {committed:?} of {appended:?}");
    }
    let outcomes = raft.outcomes;
    drop(raft);
    assert!(!task.is_finished());
    task.abort();
    outcomes
}

async fn wait(proposals: &Proposals, acknowledged: &mut BTreeSet<u64>, number: u64, ticket: Ticket) {
    let committed = timeout(Duration::from_secs(20), proposals.wait(ticket)).await;
    if committed.expect("it is committed, or the leadership ends").is_ok() {
        acknowledged.insert(number);
    }
}

#[tokio::test]
async fn refused_repeated_and_unanswered_proposals_leave_no_gap_and_no_duplicate() {
    let mut outcomes = [0; 6];
    for seed in 0..100 {
        for (sum, count) in outcomes.iter_mut().zip(run(seed).await) {
            *sum += count;
        }
    }
    assert!(outcomes.iter().all(|count| *count > 10), "{outcomes:?}");
}

#[tokio::test]
async fn nothing_is_applied_to_a_state_that_could_not_be_replaced() {
    let disk = CrashDisk::new();
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let store = Store::open_with_memory(&shared, 1, 200).unwrap();
    let (state, proposals) = (Arc::new(Numbers::default()), Arc::new(Proposals::default()));
    let mut machine =
        Machine::open_with_proposals(store.clone(), state.clone(), "m1:9400", Arc::clone(&proposals))
            .unwrap();
    let mut log = store.clone();
    let mut append = async |term, index, payload| {
        let entry = Entry { log_id: log_id(term, index), payload };
        let (sender, durable) = Group::oneshot();
        log.append([entry.clone()], IOFlushed::signal(sender)).await.unwrap();
        durable.await.unwrap().unwrap();
        entry
    };
    let committed = |number: u64| EntryPayload::Normal(Proposal::of(&[number.to_le_bytes()]));
    for (term, index, payload) in
        [(1, 0, EntryPayload::Blank), (1, 1, committed(1)), (2, 2, EntryPayload::Blank)]
    {
        let entry = append(term, index, payload).await;
        machine.apply(tokio_stream::iter([Ok((entry, None))])).await.unwrap();
    }
    assert!(machine.begin_leading(2).await.unwrap());
    state.0.lock().unwrap().0.push(2);
    proposals.append(&[2_u64.to_le_bytes()]).unwrap();
    // The entries that lead to the state of a follower cannot be read.
    let segment = disk.files().keys().find(|name| name.starts_with("edits-")).unwrap().clone();
    disk.fail_reads(&segment, 0..4096);
    machine.end_leading(2).await.unwrap_err();
    let (term, number) = (3, 3);
    for (index, payload) in [(3, EntryPayload::Blank), (4, committed(number))] {
        let entry = append(term, index, payload).await;
        let refused = machine.apply(tokio_stream::iter([Ok((entry, None))])).await.unwrap_err();
        assert!(refused.to_string().contains("could not be replaced"), "{refused}");
    }
    assert_eq!(state.0.lock().unwrap().0, [1, 2]);
    assert_eq!(machine.applied_state().await.unwrap().0, Some(log_id(2, 2)));
}
