//! Checks of replicas on request. A client reports a replica that it could not read, and the
//! DataNode verifies the replica.
//!
//! A check is a full read of a block, so there are limits. One replica is checked once per
//! [`RECHECK_INTERVAL_MS`], the number of replicas that are checked at a time is limited, and so is
//! the number of requests per user and minute. The report of a client is not proof: only the
//! DataNode decides that a replica is corrupt. A check is pending until the DataNode has reported
//! the result. The command is sent again every [`RECHECK_INTERVAL_MS`], because a reply to a
//! heartbeat can be lost.

use super::{State, nodes::NodeIx};
use crate::namenode::{
    op::{Caller, Command, Now},
    permit::Need,
    view::Checked,
};
use dfs_client::{
    error::{Error, Kind},
    ids::{BlockId, NodeUuid},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Minimum interval between two checks of the same replica.
const RECHECK_INTERVAL_MS: u64 = 60_000;
/// Maximum number of replicas that are being checked or were checked recently. Superusers may
/// request more (`fsck --verify`).
const CHECKS_MAX: usize = 10_000;
/// Maximum number of commands in the outbox of one DataNode. At this number no more checks are
/// accepted.
const NODE_CHECKS_MAX: usize = 1000;
/// Maximum number of replicas that one user may report within [`RECHECK_INTERVAL_MS`]. Superusers
/// are not limited.
const USER_CHECKS_MAX: u32 = 100;
/// Maximum length of a logged reason, in characters.
const REASON_CHARS_MAX: usize = 200;

/// Returns text from a client in a form that is safe to log: shortened, on one line, without
/// control characters.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The running and recent checks, and the number of reports per user.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// For each replica with a running or recent check: when it may be checked again.
    recheck_at: BTreeMap<(BlockId, NodeIx), u64>,
    /// The times and replicas of `recheck_at`, in order of time. Also contains outdated entries.
    recheck_order: VecDeque<(u64, (BlockId, NodeIx))>,
    /// Checks whose result is not reported yet.
    pending: BTreeSet<(BlockId, NodeIx)>,
    /// The pending checks that no client has requested. Each verifies a good replica before the
    /// damaged replicas of the same block are deleted.
    internal: BTreeSet<(BlockId, NodeIx)>,
    /// Results of checks since the start.
    pub(super) checked: Checked,
    /// For each user: when the count is reset, and the number of reports until now.
    by_user: BTreeMap<String, (u64, u32)>,
}

impl Checks {
    /// Removes the replicas that may be checked again now. Returns those whose check is still
    /// pending: the command must be sent again.
    fn forget_old(&mut self, now_ms: u64) -> Vec<(BlockId, NodeIx)> {
        let mut again = Vec::new();
        while let Some((until, key)) = self.recheck_order.front().copied()
            && until <= now_ms
        {
            self.recheck_order.pop_front();
            if self.recheck_at.get(&key) != Some(&until) {
                continue;
            }
            if self.pending.contains(&key) {
                again.push(key);
            } else {
                self.recheck_at.remove(&key);
            }
        }
        for key in &again {
            self.schedule(now_ms, *key);
        }
        self.by_user.retain(|_, (until, _)| *until > now_ms);
        again
    }

    fn schedule(&mut self, now_ms: u64, key: (BlockId, NodeIx)) {
        let until = now_ms + RECHECK_INTERVAL_MS;
        self.recheck_at.insert(key, until);
        self.recheck_order.push_back((until, key));
        self.pending.insert(key);
    }

    /// Ends the check of a replica, because the DataNode has reported its result. Returns whether a
    /// check that a client requested was pending.
    pub(super) fn finish(&mut self, block: BlockId, ix: NodeIx) -> bool {
        self.pending.remove(&(block, ix)) && !self.internal.remove(&(block, ix))
    }

    /// Removes the pending checks of a DataNode that is dead, or that has registered again and lost
    /// its commands.
    pub(super) fn forget_node(&mut self, ix: NodeIx) {
        self.pending.retain(|(_, at)| *at != ix);
        self.internal.retain(|(_, at)| *at != ix);
    }

    /// Removes all pending and recent checks.
    pub(super) fn forget_all(&mut self) {
        *self = Self { checked: self.checked, ..Self::default() };
    }

    /// Returns the number of pending checks that clients have requested.
    pub(super) fn pending(&self) -> u64 {
        (self.pending.len() - self.internal.len()) as u64
    }

    fn count_report_of_user(&mut self, now_ms: u64, user: &str) -> Result<(), Error> {
        let (_, count) = self.by_user.entry(user.to_owned()).or_insert((now_ms + RECHECK_INTERVAL_MS, 0));
        if *count >= USER_CHECKS_MAX {
            let message = format!(
                "user {user} has reported {USER_CHECKS_MAX} bad replicas within a minute: try again later"
            );
            return Err(Error::new(Kind::Quota, message));
        }
        *count += 1;
        Ok(())
    }
}

impl State {
    /// Sends the check commands again that DataNodes have not answered within
    /// [`RECHECK_INTERVAL_MS`].
    pub(super) fn repeat_checks(&mut self, now: Now) {
        for (block, ix) in self.checks.forget_old(now.mono_ms) {
            match self.namespace.block(block).map(|known| known.nonce) {
                Some(nonce) => self.nodes.get_mut(ix).outbox.push_back(Command::Check(block, nonce)),
                None => _ = self.checks.finish(block, ix),
            }
        }
    }

    /// Requests a check of a replica that counts as good. If it is good, damaged replicas of the
    /// block can be deleted.
    pub(super) fn verify_good(&mut self, ix: NodeIx, block: BlockId) {
        let key = (block, ix);
        let Some(nonce) = self.namespace.block(block).map(|known| known.nonce) else { return };
        if !self.checks.pending.contains(&key) {
            self.checks.internal.insert(key);
            self.checks.schedule(self.last_tick_ms, key);
            self.nodes.get_mut(ix).outbox.push_back(Command::Check(block, nonce));
        }
    }

    /// Requests a check of a replica that a client could not read, or that an operator wants
    /// checked. Returns false if a check is already pending or was done recently.
    pub fn report_bad_replica(
        &mut self,
        now: Now,
        caller: &Caller,
        block: BlockId,
        node: NodeUuid,
    ) -> Result<bool, Error> {
        let unknown = || Error::new(Kind::NotFound, format!("DataNode {node} has no {block}"));
        if !caller.superuser {
            self.checks.count_report_of_user(now.mono_ms, &caller.user)?;
            // Only users who may read the file can have found a bad replica.
            let file = self.namespace.block(block).ok_or_else(unknown)?.file;
            let path = self.namespace.path_of(file).ok_or_else(unknown)?;
            self.namespace.permit(caller, &path, Need::Read)?;
        }
        let ix = self.nodes.find(node).ok_or_else(unknown)?;
        let uncommitted = self.uncommitted.get(&block).is_some_and(|on| on.iter().any(|(at, _)| *at == ix));
        if !self.nodes.get(ix).blocks.contains(&block) && !uncommitted {
            return if self.bad.contains(&(block, ix)) { Ok(false) } else { Err(unknown()) };
        }
        let nonce = self.namespace.block(block).ok_or_else(unknown)?.nonce;
        let key = (block, ix);
        if self.checks.internal.remove(&key) {
            return Ok(true);
        }
        let recently = !caller.superuser && self.checks.recheck_at.contains_key(&key);
        if recently || self.checks.pending.contains(&key) {
            return Ok(false);
        }
        let waiting = self.nodes.get(ix).outbox.len();
        if !caller.superuser && self.checks.recheck_at.len() >= CHECKS_MAX || waiting >= NODE_CHECKS_MAX {
            let message =
                format!("{} replicas are being checked: try again later", self.checks.recheck_at.len());
            return Err(Error::new(Kind::Unavailable, message));
        }
        self.checks.schedule(now.mono_ms, key);
        self.nodes.get_mut(ix).outbox.push_back(Command::Check(block, nonce));
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn printable_text_is_bounded_and_on_one_line() {
        assert_eq!(printable("a\nb\u{1b}[31mc"), "a?b?[31mc");
        assert_eq!(printable(&"x".repeat(10_000)).len(), 200);
    }
}
