//! Reports about replicas, for each NameNode those that it has not received yet.
//!
//! All NameNodes get all reports. A report is kept until each NameNode has answered a heartbeat
//! that contains it. There is at most one report of a change per block, the newest, and at most one
//! that its replica was verified. The number of reports is bounded by the number of blocks on the
//! disks; but a NameNode that cannot be reached gets a full report later instead of more than
//! [`UNREACHABLE_REPORTS_MAX`] reports.

use dfs_client::ids::{BlockId, Nonce};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
    sync::Arc,
};
use tokio::sync::Notify;

/// What happened to a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReplicaEvent {
    /// The replica is durable, with this nonce and length.
    Received(Nonce, u64),
    /// The replica was deleted on command.
    Deleted,
    /// The replica is damaged and was quarantined.
    Corrupt(String),
    /// The replica was in a data folder that has failed.
    Lost,
    /// The replica was verified on command and is good.
    Checked,
}

/// Maximum number of reports per heartbeat. Keeps the message well below the size limit of gRPC.
const BATCH_REPORTS_MAX: usize = 10_000;
/// If there are more reports than this, they are not kept for NameNodes that cannot be reached.
const UNREACHABLE_REPORTS_MAX: usize = 100_000;

/// The reports to send, and what each link to a NameNode has sent.
#[derive(Debug, Default)]
pub(super) struct PendingReports {
    queue: Mutex<ReportQueue>,
}

#[derive(Debug, Default)]
struct ReportQueue {
    /// The number of the newest report. Every report has a new number.
    newest: u64,
    reports: BTreeMap<u64, (BlockId, ReplicaEvent)>,
    /// The number of the report of the newest change of a replica.
    changes: BTreeMap<BlockId, u64>,
    /// The number of the report that a replica was verified. It is not in `changes`, because a
    /// NameNode that has not received the change needs both.
    checks: BTreeMap<BlockId, u64>,
    links: Vec<Mark>,
}

/// What one NameNode has received.
#[derive(Debug, Default)]
struct Mark {
    /// The number up to which it has received all reports.
    received: u64,
    /// Whether its last call has succeeded.
    is_reachable: bool,
    /// Whether it has missed reports, so that it must get a full report.
    has_gap: bool,
    changed: Arc<Notify>,
}

/// The number of a link in [`PendingReports`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LinkId(usize);

/// Copies of some reports, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Batch {
    pub(super) reports: Vec<(BlockId, ReplicaEvent)>,
    /// Whether there are no more reports for this link.
    pub(super) is_complete: bool,
    /// The number of the last of the reports.
    upto: u64,
}

impl Mark {
    fn lacks(&self, number: u64) -> bool {
        self.received < number
    }
}

impl ReportQueue {
    fn insert(&mut self, block: BlockId, event: ReplicaEvent) {
        self.newest += 1;
        let is_check = event == ReplicaEvent::Checked;
        let index = if is_check { &mut self.checks } else { &mut self.changes };
        let before = index.insert(block, self.newest);
        let check = if is_check { None } else { self.checks.remove(&block) };
        for replaced in before.into_iter().chain(check) {
            self.reports.remove(&replaced);
        }
        self.reports.insert(self.newest, (block, event));
    }

    /// Returns the reports that a link has not sent.
    fn after(&self, received: u64) -> impl Iterator<Item = (&u64, &(BlockId, ReplicaEvent))> {
        self.reports.range((Excluded(received), Unbounded))
    }

    /// Removes the reports that no link needs any more.
    fn trim(&mut self) {
        if self.reports.len() > UNREACHABLE_REPORTS_MAX {
            for mark in self.links.iter_mut().filter(|mark| !mark.is_reachable) {
                mark.has_gap = true;
            }
        }
        let needed = self.links.iter().filter(|mark| !mark.has_gap).map(|mark| mark.received).min();
        let all = if self.links.is_empty() { 0 } else { self.newest };
        let needless = needed.unwrap_or(all);
        while let Some(first) = self.reports.first_entry().filter(|first| *first.key() <= needless) {
            let (number, (block, event)) = first.remove_entry();
            let index = if event == ReplicaEvent::Checked { &mut self.checks } else { &mut self.changes };
            debug_assert_eq!(index.get(&block), Some(&number));
            index.remove(&block);
        }
    }

    /// Wakes all links, because there are new reports.
    fn end_post(&mut self) {
        self.trim();
        for mark in &self.links {
            mark.changed.notify_one();
        }
    }
}

impl PendingReports {
    /// Adds a link, which gets all reports that exist and that follow.
    pub(super) fn add_link(&self) -> LinkId {
        let links = &mut self.queue.lock().links;
        links.push(Mark::default());
        LinkId(links.len() - 1)
    }

    /// Adds a report for each block, in place of an earlier one, and wakes the links.
    pub(super) fn post(&self, reports: impl IntoIterator<Item = (BlockId, ReplicaEvent)>) {
        let mut queue = self.queue.lock();
        for (block, event) in reports {
            queue.insert(block, event);
        }
        queue.end_post();
    }

    /// Adds a report of a change, unless there is one of this block that no NameNode has received.
    pub(super) fn post_if_absent(&self, block: BlockId, event: ReplicaEvent) {
        let mut queue = self.queue.lock();
        if let Some(number) = queue.changes.get(&block)
            && queue.links.iter().all(|mark| mark.lacks(*number))
        {
            return;
        }
        queue.insert(block, event);
        queue.end_post();
    }

    /// Returns whether all NameNodes that can be reached have received all reports.
    pub(super) fn is_empty(&self) -> bool {
        let queue = self.queue.lock();
        let mut reachable = queue.links.iter().filter(|mark| mark.is_reachable);
        reachable.all(|mark| queue.after(mark.received).next().is_none())
    }

    /// Returns whether nothing is kept for any NameNode.
    #[cfg(test)]
    pub(super) fn queue_is_empty(&self) -> bool {
        self.queue.lock().reports.is_empty()
    }

    /// Returns a copy of the oldest reports of a link, at most [`BATCH_REPORTS_MAX`].
    pub(super) fn batch(&self, link: LinkId) -> Batch {
        let queue = self.queue.lock();
        let received = queue.links[link.0].received;
        let some: Vec<_> = queue.after(received).take(BATCH_REPORTS_MAX).collect();
        let upto = some.last().map_or(received, |(number, _)| **number);
        let is_complete = queue.after(upto).next().is_none();
        Batch { reports: some.into_iter().map(|(_, report)| report.clone()).collect(), is_complete, upto }
    }

    /// Notes that the NameNode has received the reports of a batch. A report that has replaced one
    /// of them stays. Returns whether it must get a full report, because reports for it were
    /// dropped.
    pub(super) fn acknowledge(&self, link: LinkId, batch: &Batch) -> bool {
        let mut queue = self.queue.lock();
        let mark = &mut queue.links[link.0];
        mark.is_reachable = true;
        mark.received = mark.received.max(batch.upto);
        let received = mark.received;
        if queue.after(received).next().is_some() {
            queue.links[link.0].changed.notify_one();
        }
        queue.trim();
        queue.links[link.0].has_gap
    }

    /// Notes that a call to the NameNode has failed.
    pub(super) fn set_unreachable(&self, link: LinkId) {
        let mut queue = self.queue.lock();
        queue.links[link.0].is_reachable = false;
        queue.trim();
    }

    /// Must be called before the replicas for a full report are listed: all later changes are
    /// reported in addition, and all reports that are still here are repeated.
    pub(super) fn begin_full_report(&self, link: LinkId) {
        let mark = &mut self.queue.lock().links[link.0];
        (mark.received, mark.is_reachable, mark.has_gap) = (0, true, false);
    }

    /// Waits until the link is to send a heartbeat.
    pub(super) async fn wait_woken(&self, link: LinkId) {
        let changed = self.queue.lock().links[link.0].changed.clone();
        changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datanode::{
        disk::RealDisk,
        open,
        store::{
            Store,
            partial::{Claim, ClaimOutcome},
        },
    };
    use std::{sync::Arc, time::Duration};

    const BLOCK: BlockId = BlockId(1);

    fn with_writer(test: impl FnOnce(&Store, crate::datanode::store::partial::Writer<'_>)) {
        let home = tempfile::tempdir().unwrap();
        let (fatal_error, _) = tokio::sync::mpsc::unbounded_channel();
        let dirs = ["a", "b"].map(|name| home.path().join(name));
        let store = Store::open(&dirs, &open::Settings::default(), Arc::new(RealDisk), fatal_error).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap().into();
        let claim = Claim {
            block: BLOCK,
            nonce: Nonce(1),
            resume_at: 0,
            expected_length: 0,
            connection: &connection,
        };
        let ClaimOutcome::Write(writer) = store.begin(&claim).unwrap() else {
            panic!("expected ClaimOutcome::Write for a new block")
        };
        test(&store, writer);
    }

    /// Checks that no thread can see the change of the map that `change` makes before its report is
    /// added. The caller sees `change` wait for the lock of the reports.
    fn map_and_report_change_together(store: &Store, change: impl FnOnce() + Send) {
        let before = store.find(BLOCK);
        std::thread::scope(|scope| {
            let reports = store.pending_reports.queue.lock();
            scope.spawn(change);
            while let Some(state) = store.state.try_lock_for(Duration::from_millis(500)) {
                assert_eq!(state.replicas.get(&BLOCK).copied(), before, "changed without a report");
            }
            drop(reports);
        });
        assert_ne!(store.find(BLOCK), before);
    }

    #[test]
    fn report_of_a_replica_is_added_before_other_threads_see_the_change() {
        with_writer(|store, mut writer| {
            let link = store.pending_reports.add_link();
            let event = || store.pending_reports.batch(link).reports.pop().unwrap().1;
            map_and_report_change_together(store, || {
                writer.finalise().unwrap();
            });
            assert_eq!(event(), ReplicaEvent::Received(Nonce(1), 0));
            let volume = store.find(BLOCK).unwrap().volume;
            map_and_report_change_together(store, || store.retire(volume, "for the test"));
            assert_eq!(event(), ReplicaEvent::Lost);
        });
    }

    #[test]
    fn check_of_a_replica_that_is_gone_reports_nothing() {
        with_writer(|store, mut writer| {
            writer.finalise().unwrap();
            let replica = store.find(BLOCK).unwrap();
            let reports = &store.pending_reports;
            let link = reports.add_link();
            let acknowledge = || {
                reports.acknowledge(link, &reports.batch(link));
                // All calls have succeeded.
                assert!(reports.is_empty());
            };
            acknowledge();
            store.post_absent(BLOCK);
            assert!(store.pending_reports.is_empty(), "a replica that exists is reported as lost");
            store.post_checked(BLOCK, replica);
            assert_eq!(reports.batch(link).reports[0].1, ReplicaEvent::Checked);
            drop(store.quarantine_replica(BLOCK, replica, "for the test".into()));
            acknowledge();
            store.post_checked(BLOCK, replica);
            assert!(store.pending_reports.is_empty(), "a damaged replica is reported as good");
        });
    }

    /// Two threads report on the same blocks. Checks that `post_if_absent` never replaces a report.
    #[test]
    fn report_that_must_be_absent_replaces_none() {
        const BLOCKS: u64 = 50_000;
        let reports = PendingReports::default();
        let together = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                (0..BLOCKS).for_each(|block| reports.post([(BlockId(block), ReplicaEvent::Lost)]));
            });
            together.wait();
            (0..BLOCKS).for_each(|block| reports.post_if_absent(BlockId(block), ReplicaEvent::Deleted));
        });
        let queue = reports.queue.lock();
        let replaced = queue.reports.values().filter(|(_, event)| *event != ReplicaEvent::Lost).count();
        assert_eq!((queue.reports.len() as u64, replaced), (BLOCKS, 0));
    }

    fn received(length: u64) -> ReplicaEvent {
        ReplicaEvent::Received(Nonce(1), length)
    }

    #[test]
    fn newest_report_is_kept_until_acknowledged() {
        let reports = PendingReports::default();
        let link = reports.add_link();
        reports.post([(BlockId(1), received(5)), (BlockId(2), received(6))]);
        reports.post([(BlockId(1), ReplicaEvent::Deleted)]);
        let batch = reports.batch(link);
        assert_eq!(batch.reports, [(BlockId(2), received(6)), (BlockId(1), ReplicaEvent::Deleted)]);
        reports.post([(BlockId(2), ReplicaEvent::Lost)]);
        assert!(!reports.acknowledge(link, &batch));
        assert_eq!(reports.batch(link).reports, [(BlockId(2), ReplicaEvent::Lost)]);
    }

    #[test]
    fn each_link_gets_all_reports_once() {
        let reports = PendingReports::default();
        let (one, two) = (reports.add_link(), reports.add_link());
        reports.post([(BlockId(1), received(5)), (BlockId(2), received(6))]);
        reports.acknowledge(one, &reports.batch(one));
        reports.post([(BlockId(2), ReplicaEvent::Deleted), (BlockId(3), received(7))]);
        let new = [(BlockId(2), ReplicaEvent::Deleted), (BlockId(3), received(7))];
        assert_eq!(reports.batch(one).reports, new);
        assert_eq!(reports.batch(two).reports[0], (BlockId(1), received(5)));
        assert_eq!(reports.batch(two).reports[1..], new);
        reports.acknowledge(two, &reports.batch(two));
        assert!(!reports.is_empty(), "one has not received the newest reports");
        reports.acknowledge(one, &reports.batch(one));
        assert!(reports.is_empty());
        assert!(reports.queue_is_empty() && reports.queue.lock().changes.is_empty());
    }

    /// The reports that one NameNode has received stay here for another one.
    #[test]
    fn report_for_one_namenode_replaces_none_that_another_needs() {
        let reports = PendingReports::default();
        let (one, two) = (reports.add_link(), reports.add_link());
        reports.post([(BlockId(1), received(5)), (BlockId(2), ReplicaEvent::Deleted)]);
        reports.acknowledge(one, &reports.batch(one));
        // A check on command of one. Two still needs to know that there is a replica.
        reports.post([(BlockId(1), ReplicaEvent::Checked)]);
        reports.post_if_absent(BlockId(2), ReplicaEvent::Lost);
        let new = [(BlockId(1), ReplicaEvent::Checked), (BlockId(2), ReplicaEvent::Lost)];
        assert_eq!(reports.batch(one).reports, new);
        assert_eq!(reports.batch(two).reports, [&[(BlockId(1), received(5))], &new[..]].concat());
    }

    #[test]
    fn unreachable_namenode_gets_a_full_report_instead_of_too_many_reports() {
        let reports = PendingReports::default();
        let (one, two) = (reports.add_link(), reports.add_link());
        let missed = reports.batch(two);
        reports.set_unreachable(two);
        let mut posted = 0;
        while posted < 3 * UNREACHABLE_REPORTS_MAX as u64 {
            reports.post((0..1_000).map(|at| (BlockId(posted + at), ReplicaEvent::Deleted)));
            posted += 1_000;
            while !reports.batch(one).reports.is_empty() {
                assert!(!reports.acknowledge(one, &reports.batch(one)));
            }
            assert!(reports.queue.lock().reports.len() <= UNREACHABLE_REPORTS_MAX);
        }
        assert!(reports.acknowledge(two, &missed), "two has a gap");
        reports.begin_full_report(two);
        reports.post([(BlockId(1), received(5))]);
        let batch = reports.batch(two);
        assert_eq!(batch.reports, [(BlockId(1), received(5))]);
        assert!(!reports.acknowledge(two, &batch));
    }

    #[test]
    fn batch_is_complete_only_if_nothing_is_left() {
        let reports = PendingReports::default();
        let link = reports.add_link();
        assert!(reports.batch(link).is_complete);
        reports.post((0..=BATCH_REPORTS_MAX as u64).map(|block| (BlockId(block), ReplicaEvent::Lost)));
        let batch = reports.batch(link);
        assert_eq!((batch.reports.len(), batch.is_complete), (BATCH_REPORTS_MAX, false));
        reports.acknowledge(link, &batch);
        assert_eq!((reports.batch(link).reports.len(), reports.batch(link).is_complete), (1, true));
    }
}
