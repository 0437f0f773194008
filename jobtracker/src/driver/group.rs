//! The driver as the state of a member of a group (ADR 0046).
//!
//! A leader applies facts when it appends them, as a JobTracker without a group does. A follower
//! applies the committed facts of the leader with the function that the replay of a journal uses, and
//! writes them to the histories. A leadership is a start: the state that begins it is that of a
//! process which has just replayed its journal. So a state that has led is replaced by a replay:
//! besides facts it contains what trackers have reported, what was ordered, and what the policy has
//! planned.
//!
//! Lock order: the group applies entries, begins and ends leaderships one after the other, and then
//! takes the lock of the driver; the driver appends under its lock, and never waits for the group.
//! The thread that writes histories takes no lock.

use super::{Driver, Leadership, Refusal};
use dfs_client::ids::StartId;
use journal::codec;
use mrcore::{Event, fact::Entry};
use replication::{
    error::StateError,
    machine::ReplicatedState,
    replay::Replay,
    types::{LogId, Proposal},
};

impl Driver {
    /// Waits until this leadership has ended.
    pub(crate) async fn ended(&self, leadership: Leadership) {
        let is_other = |now: &Option<Leadership>| *now != Some(leadership);
        self.leaderships().wait_for(is_other).await.expect("the sender is in `self`");
    }

    /// Appends nothing from now on, because another member is to lead.
    pub(crate) fn pause(&self) {
        if let Some(member) = self.journal.member() {
            let _inner = self.inner.lock();
            member.pause();
        }
    }

    /// Returns whether the disk of the journal is nearly full; `None` unless this JobTracker leads a
    /// group.
    pub(crate) fn disk_of_leader_is_low(&self) -> Option<bool> {
        self.journal.member().and(self.leadership())?;
        let reserve = self.config().disk_reserve.0;
        Some(self.journal.free_bytes().is_ok_and(|free| free < reserve))
    }

    /// Returns the newest epoch that this JobTracker knows, without a confirmation that it leads.
    pub(crate) fn newest_epoch(&self) -> u64 {
        self.peek(|cluster| cluster.epoch())
    }

    /// Refuses if another member of the group leads, before anything else is checked.
    pub(crate) fn check_leader(&self) -> Result<(), Refusal> {
        self.lock_as_leader().map(drop)
    }
}

impl ReplicatedState for Driver {
    fn apply(&self, id: LogId, proposal: &Proposal) -> Result<(), StateError> {
        let mut entries = Vec::new();
        for bytes in proposal.records() {
            let bytes = bytes.ok_or_else(|| format!("a record of entry {id} is cut"))?;
            entries.push(codec::decode::<Entry>(bytes)?);
        }
        let state = {
            let mut inner = self.inner.lock();
            for entry in &entries {
                inner.core.replay(entry).map_err(|error| format!("entry {id}: {error}"))?;
                inner.newest = inner.newest.max(entry.at);
            }
            inner.state
        };
        // Without the lock, because this may wait for the disk.
        for entry in entries {
            self.history_writer.append_blocking(state, entry);
        }
        Ok(())
    }

    fn restore(&self, replay: Replay) -> Result<(), StateError> {
        let state = {
            let mut inner = self.inner.lock();
            inner.state += 1;
            inner.state
        };
        let replayed = self.history_writer.replace(state, || {
            let core = self.blueprint.core()?;
            Ok::<_, StateError>(self.blueprint.replay(replay, core)?)
        })?;
        let mut inner = self.inner.lock();
        (inner.core, inner.newest) = (replayed.core, replayed.newest);
        tracing::info!(epoch = inner.core.cluster().epoch(), "the state of the group is restored");
        Ok(())
    }

    fn lead(&self, term: u64) {
        let mut inner = self.inner.lock();
        let id = StartId::random();
        let leadership = self.begin(&mut inner, Event::Lead { id: id.0 }, id);
        tracing::info!(term, epoch = leadership.start.epoch, "this JobTracker leads its group");
    }

    fn follow(&self) {
        let mut inner = self.inner.lock();
        inner.state += 1;
        self.leadership.send_replace(None);
        // The streams of trackers and of clients that follow jobs end.
        inner.links.clear();
        inner.watchers.clear();
        tracing::info!("this JobTracker does not lead its group any more");
    }

    fn is_replaced_after_leading(&self) -> bool {
        true
    }
}
