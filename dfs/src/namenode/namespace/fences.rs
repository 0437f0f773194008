//! Checks the start of a process against the fence of its scope.
//!
//! A fence is the newest start of the JobTracker with a certain journal. Two starts of a journal
//! have the same epoch only if one of them used an older copy of the journal. The start IDs, which
//! are random, tell these two apart. A JobTracker that was started repeatedly from an older copy
//! reaches an epoch that is higher than the fence; it is recognised because the start of the fence
//! is not among its earlier starts (ADR 0022).

use super::Namespace;
use dfs_client::{
    error::{Error, Kind},
    ids::Start,
};

impl Namespace {
    /// Returns the fence of a scope: the newest start that may commit.
    pub(in crate::namenode) fn fence(&self, scope: &str) -> Option<Start> {
        self.fences.get(scope).copied()
    }

    /// Refuses a start with a lower epoch than the fence of its scope, or with the same epoch and
    /// another ID.
    pub(in crate::namenode) fn check_fence(&self, scope: &str, start: Start) -> Result<(), Error> {
        let Some(fence) = self.fence(scope).filter(|fence| *fence != start) else { return Ok(()) };
        if start.epoch > fence.epoch {
            return Ok(());
        }
        if start.epoch == fence.epoch {
            return Err(other_history(scope, fence));
        }
        let message = format!(
            "{scope}: epoch {} is fenced by epoch {}: a newer process has taken over, or this JobTracker was \
             started from an older copy of its folder",
            start.epoch, fence.epoch
        );
        Err(Error::new(Kind::Fenced, message))
    }

    /// Refuses a process whose earlier starts, ordered by epoch, do not contain the fence of its
    /// scope. A fence that is older than all of them is accepted: a process does not keep all of
    /// its starts, and keeps none if an operator has accepted an older copy.
    pub(in crate::namenode) fn check_earlier_starts(
        &self,
        scope: &str,
        start: Start,
        earlier: &[Start],
    ) -> Result<(), Error> {
        let Some(fence) = self.fence(scope).filter(|fence| *fence != start) else { return Ok(()) };
        let is_known = earlier.contains(&fence);
        match earlier.first() {
            Some(oldest) if oldest.epoch <= fence.epoch && !is_known => Err(other_history(scope, fence)),
            _ => Ok(()),
        }
    }
}

fn other_history(scope: &str, fence: Start) -> Error {
    let message = format!(
        "{scope}: another start of the JobTracker used the same epoch {}: this one was started from an older copy of \
         its folder",
        fence.epoch
    );
    Error::new(Kind::Fenced, message)
}
