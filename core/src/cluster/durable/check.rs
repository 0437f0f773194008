//! Invariant checks for the private tables of [`Durable`], the part of the cluster state that is
//! rebuilt from the journal.

use super::Durable;
use std::collections::{BTreeMap, BTreeSet};

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

impl Durable {
    /// Checks that the name tables have exactly the hosts and racks that trackers and jobs use,
    /// each with the right reference count.
    pub(crate) fn check_names(&self) -> Result<(), String> {
        let (mut hosts, mut racks): (BTreeMap<&str, u64>, BTreeMap<&str, u64>) = <_>::default();
        for tracker in self.trackers() {
            *hosts.entry(self.host_name(tracker.host)).or_default() += 1;
            *racks.entry(self.rack_name(tracker.rack)).or_default() += 1;
        }
        for job in self.jobs() {
            let original = &job.tasks.map[..job.spec.splits.len()];
            for host in original.iter().flat_map(|task| &task.hosts) {
                *hosts.entry(self.host_name(*host)).or_default() += 1;
            }
        }
        ensure(hosts == self.hosts.reference_counts(), || {
            format!(
                "hosts are used {hosts:?} times, but the reference counts are {:?}",
                self.hosts.reference_counts()
            )
        })?;
        ensure(racks == self.racks.reference_counts(), || {
            format!(
                "racks are used {racks:?} times, but the reference counts are {:?}",
                self.racks.reference_counts()
            )
        })?;
        for (host, rack) in &self.rack_of {
            let has_tracker =
                self.trackers_on(*host).filter_map(|id| self.tracker(id)).any(|at| at.rack == *rack);
            let listed = self.hosts_in(*rack).is_some_and(|hosts| hosts.contains(host));
            ensure(has_tracker && listed, || {
                format!(
                    "host {}: no tracker on it has its rack, or the rack does not list it",
                    self.host_name(*host)
                )
            })?;
        }
        let listed: usize = self.hosts_in.values().map(BTreeSet::len).sum();
        ensure(listed == self.rack_of.len() && listed == self.trackers_on.len(), || {
            format!(
                "racks list {listed} hosts, but {} hosts have a rack and {} have trackers",
                self.rack_of.len(),
                self.trackers_on.len()
            )
        })
    }
}
