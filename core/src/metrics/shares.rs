//! Compares the slots of users with their minimum shares: dissatisfaction and fairness, over time.
//!
//! COSHH (Rasooli and Down), section 5.1. Dissatisfaction(t) is the sum over users with unassigned
//! tasks of `(min_share - slots) / min_share * weight` where this is positive: a user who holds
//! less than the minimum share and waits for nothing is not dissatisfied. Fairness(t) is the sum
//! over users of the difference between their slots beyond the minimum share and the mean of that
//! number over users of the same weight. For both, lower is better.
//!
//! The sum of the paper's fairness is over all users, so users without jobs count with their whole
//! minimum share ([`Shares::fairness_of_all_users`]). [`Shares::fairness`] is over users with jobs.
//!
//! The paper gives one number for a run and does not say for which time. Here it is the mean over
//! the time in which any user has jobs.

use crate::time::Time;
use std::collections::BTreeMap;

/// The minimum share of a user.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MinShare {
    /// Number of slots.
    pub min_share: f64,
    /// The weight of the user.
    pub weight: f64,
}

#[derive(Debug, Clone)]
struct User {
    min_share: MinShare,
    jobs: i64,
    /// Number of tasks of these jobs that are neither running nor done. Reduces on hold do not
    /// count.
    unassigned: i64,
    slots: i64,
}

/// The metrics at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShareMetrics {
    pub dissatisfaction: f64,
    /// Over users with jobs.
    pub fairness: f64,
    /// Over all users, as in the paper.
    pub fairness_of_all_users: f64,
}

/// The shares of all users, over time.
#[derive(Debug, Clone, Default)]
pub struct Shares {
    users: BTreeMap<String, User>,
    /// The time up to which `sums` are computed.
    summed_until: Time,
    /// The seconds in which any user had jobs.
    seconds: f64,
    /// The sums of dissatisfaction, fairness, and fairness of all users over these seconds.
    sums: [f64; 3],
}

impl Shares {
    /// Starts with the minimum shares of all users.
    pub fn new(users: impl IntoIterator<Item = (String, MinShare)>) -> Self {
        let user = |min_share| User { min_share, jobs: 0, unassigned: 0, slots: 0 };
        let users = users.into_iter().map(|(name, min_share)| (name, user(min_share)));
        Self { users: users.collect(), ..Self::default() }
    }

    /// Changes the number of active jobs of a user by `jobs`.
    pub(super) fn change_jobs(&mut self, at: Time, user: &str, jobs: i64) {
        self.change(at, user, |user| user.jobs += jobs);
    }

    /// Changes the number of unassigned tasks of a user by `tasks`.
    pub(super) fn change_unassigned(&mut self, at: Time, user: &str, tasks: i64) {
        self.change(at, user, |user| user.unassigned += tasks);
    }

    /// Changes the number of slots that a user holds by `slots`.
    pub(super) fn change_slots(&mut self, at: Time, user: &str, slots: i64) {
        self.change(at, user, |user| user.slots += slots);
    }

    fn change(&mut self, at: Time, user: &str, change: impl FnOnce(&mut User)) {
        if !self.users.contains_key(user) {
            return;
        }
        let passed = at.since(self.summed_until).as_secs_f64();
        self.summed_until = self.summed_until.max(at);
        if passed > 0.0 && self.users.values().any(|user| user.jobs > 0) {
            let now = self.now();
            let more = [now.dissatisfaction, now.fairness, now.fairness_of_all_users];
            self.seconds += passed;
            self.sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += passed * more);
        }
        if let Some(user) = self.users.get_mut(user) {
            change(user);
        }
    }

    /// Returns the current metrics.
    pub fn now(&self) -> ShareMetrics {
        let lacks = |user: &User| {
            let MinShare { min_share, weight } = user.min_share;
            let missing = min_share - user.slots as f64;
            if min_share > 0.0 { (missing / min_share).max(0.0) * weight } else { 0.0 }
        };
        let waiting = self.users.values().filter(|user| user.unassigned > 0);
        let with_jobs: Vec<&User> = self.users.values().filter(|user| user.jobs > 0).collect();
        ShareMetrics {
            dissatisfaction: waiting.map(lacks).sum(),
            fairness: unfairness(&with_jobs),
            fairness_of_all_users: unfairness(&self.users.values().collect::<Vec<_>>()),
        }
    }

    /// Returns the mean dissatisfaction over time.
    pub fn dissatisfaction(&self) -> f64 {
        self.sums[0] / self.seconds.max(1e-9)
    }

    /// Returns the mean fairness of users with jobs over time.
    pub fn fairness(&self) -> f64 {
        self.sums[1] / self.seconds.max(1e-9)
    }

    /// Returns the mean fairness of all users over time.
    pub fn fairness_of_all_users(&self) -> f64 {
        self.sums[2] / self.seconds.max(1e-9)
    }
}

/// Returns the sum of the distances of users from the mean of the users with their weight, in slots
/// beyond the minimum share.
fn unfairness(users: &[&User]) -> f64 {
    let beyond = |user: &User| user.slots as f64 - user.min_share.min_share;
    let alike = |user: &User| {
        let same =
            users.iter().filter(|other| other.min_share.weight.total_cmp(&user.min_share.weight).is_eq());
        super::stats::mean(&same.map(|other| beyond(other)).collect::<Vec<_>>())
    };
    users.iter().map(|user| (beyond(user) - alike(user)).abs()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn min_share(min_share: f64, weight: f64) -> MinShare {
        MinShare { min_share, weight }
    }

    #[test]
    fn dissatisfaction_and_fairness_match_values_computed_by_hand() {
        let users = [("a", min_share(4.0, 2.0)), ("b", min_share(0.0, 2.0)), ("c", min_share(5.0, 1.0))];
        let mut shares = Shares::new(users.map(|(name, min_share)| (name.to_owned(), min_share)));
        for user in ["a", "b"] {
            shares.change_jobs(Time(0), user, 1);
            shares.change_unassigned(Time(0), user, 9);
        }
        shares.change_slots(Time(0), "a", 1);
        shares.change_slots(Time(0), "b", 1);
        // a lacks 3 of 4 slots, with weight 2. c has no work. a has -3 slots beyond its minimum
        // share, b has 1: the mean is -1. c has -5, which is the mean of its weight.
        let now = shares.now();
        assert!((now.dissatisfaction - 1.5).abs() < 1e-12 && (now.fairness - 4.0).abs() < 1e-12);
        shares.change_slots(Time(10_000_000), "a", 3);
        shares.change_slots(Time(20_000_000), "a", -3);
        assert!((shares.dissatisfaction() - 0.75).abs() < 1e-9, "the minimum share is met half of the time");
        assert!((shares.fairness() - 2.5).abs() < 1e-9, "4, then (0 - 1)/2 on both sides");
    }

    #[test]
    fn only_users_with_unassigned_tasks_are_dissatisfied() {
        let users = [("a", min_share(4.0, 2.0)), ("b", min_share(2.0, 2.0))];
        let mut shares = Shares::new(users.map(|(name, min_share)| (name.to_owned(), min_share)));
        shares.change_jobs(Time(0), "a", 1);
        shares.change_unassigned(Time(0), "a", 1);
        shares.change_slots(Time(0), "a", 3);
        assert!((shares.now().dissatisfaction - 0.5).abs() < 1e-12, "one of four slots, weight 2");
        // Its last task is assigned elsewhere or on hold: it lacks a slot that it cannot use.
        shares.change_unassigned(Time(10_000_000), "a", -1);
        assert!(shares.now().dissatisfaction.abs() < 1e-12);
        shares.change_slots(Time(20_000_000), "a", -3);
        assert!((shares.dissatisfaction() - 0.25).abs() < 1e-9, "half of the time");
        // b has no jobs. In the paper it counts: -1 for a and -2 for b, on average -1.5.
        let now = shares.now();
        assert!(now.fairness.abs() < 1e-12);
        assert!((now.fairness_of_all_users - 2.0).abs() < 1e-12, "-4 for a, -2 for b: {now:?}");
        assert!((shares.fairness_of_all_users() - 1.0).abs() < 1e-9, "-1 for a, -2 for b until then");
    }
}
