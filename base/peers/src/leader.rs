//! When a leader lets another member lead: it stops, or its disk is nearly full.

use crate::membership::Membership;
use replication::member::Member;
use security::Role;
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

/// How long a leader whose disk is nearly full waits before it tries again to let another one lead.
const HAND_OVER_INTERVAL: Duration = Duration::from_mins(1);

/// When a leader whose disk is nearly full is to let another member lead.
#[derive(Debug)]
pub struct LowDisk {
    /// Whether this member has led at the last check.
    has_led: bool,
    next: Instant,
}

impl LowDisk {
    /// Begins at this time.
    pub fn new(now: Instant) -> Self {
        Self { has_led: false, next: now }
    }

    /// Returns whether another member is to lead. `is_low` is `None` while this one does not lead a
    /// group.
    pub fn is_due(&mut self, now: Instant, is_low: Option<bool>) -> bool {
        let begins_low = !self.has_led && is_low == Some(true);
        self.has_led = is_low.is_some();
        if begins_low {
            // The disks of all members may be nearly full: none of them would lead for long.
            self.next = now + HAND_OVER_INTERVAL;
        }
        let is_due = is_low == Some(true) && now >= self.next;
        if is_due {
            self.next = now + HAND_OVER_INTERVAL;
        }
        is_due
    }
}

/// If this member leads, lets another one lead, so that clients need not wait for an election.
/// `pause` calls [`Member::pause`] under the lock of the master.
pub async fn hand_over(member: &Member, membership: &Membership, pause: impl FnOnce(), why: &str) {
    if !member.is_or_becomes_leader().await {
        return;
    }
    let title = membership.role().title();
    match membership.transfer(None, pause).await {
        Ok(leader) => tracing::info!(leader, "this {title} {why}, so another one leads"),
        Err(status) => {
            tracing::warn!(why = status.message(), "this {title} {why}, and no other one leads yet");
        }
    }
}

/// Other members cannot reach a member.
#[derive(Debug, thiserror::Error)]
#[error(
    "a member of a group needs an address at which the others reach it, and {listens} stands for all of this machine: \
     set {name}.advertise to host:port, as in cluster.{name}", name = .role.name()
)]
pub struct NoAddress {
    role: Role,
    listens: SocketAddr,
}

/// Returns the address at which the other members and the clients reach a member that listens at
/// `listens`; `advertise` is empty if that is the address.
pub fn member_address(role: Role, advertise: &str, listens: SocketAddr) -> Result<String, NoAddress> {
    if !advertise.is_empty() {
        return Ok(advertise.to_owned());
    }
    if listens.ip().is_unspecified() { Err(NoAddress { role, listens }) } else { Ok(listens.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_whose_disk_becomes_low_hands_over_at_once_and_then_in_intervals() {
        let begin = Instant::now();
        let mut low_disk = LowDisk::new(begin);
        let mut is_due = |seconds, is_low| low_disk.is_due(begin + Duration::from_secs(seconds), is_low);
        assert!(!is_due(0, None) && !is_due(1, Some(false)));
        assert!(is_due(2, Some(true)), "at once");
        assert!(!is_due(3, Some(true)) && !is_due(61, Some(true)));
        assert!(is_due(62, Some(true)), "nobody else has led");
        // Another one leads, and then this one again.
        assert!(!is_due(63, None) && !is_due(200, Some(true)) && !is_due(259, Some(true)));
        assert!(is_due(260, Some(true)));
    }
}
