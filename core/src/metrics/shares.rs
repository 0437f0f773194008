//! Compares the slots of users with their minimum shares: dissatisfaction and fairness, over time.
//!
//! COSHH (Rasooli and Down), section 5.1. Dissatisfaction(t) is the sum over users with work of
//! `(min_share - slots) / min_share * weight` where this is positive. Fairness(t) is the sum over
//! users of the difference between their slots beyond the minimum share and the mean of that number
//! over users of the same weight. For both, lower is better.
//!
//! The paper gives one number for a run and does not say for which time. Here it is the mean over
//! the time in which any user has work. Users without work are in neither sum.

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
    slots: i64,
}

/// The shares of all users, over time.
#[derive(Debug, Clone, Default)]
pub struct Shares {
    users: BTreeMap<String, User>,
    /// The time up to which `sums` are computed.
    summed_until: Time,
    /// The seconds in which any user had work, and the sums of dissatisfaction and fairness over
    /// these seconds.
    sums: [f64; 3],
}

impl Shares {
    /// Starts with the minimum shares of all users.
    pub fn new(users: impl IntoIterator<Item = (String, MinShare)>) -> Self {
        let users = users.into_iter().map(|(name, min_share)| (name, User { min_share, jobs: 0, slots: 0 }));
        Self { users: users.collect(), ..Self::default() }
    }

    /// Changes the number of active jobs of a user by `jobs`.
    pub(super) fn change_jobs(&mut self, at: Time, user: &str, jobs: i64) {
        self.change(at, user, |user| user.jobs += jobs);
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
            let (dissatisfaction, fairness) = self.now();
            let more = [passed, passed * dissatisfaction, passed * fairness];
            self.sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        if let Some(user) = self.users.get_mut(user) {
            change(user);
        }
    }

    /// Returns the current dissatisfaction and fairness.
    pub fn now(&self) -> (f64, f64) {
        let with_work = || self.users.values().filter(|user| user.jobs > 0);
        let lacks = |user: &User| {
            let MinShare { min_share, weight } = user.min_share;
            let missing = min_share - user.slots as f64;
            if min_share > 0.0 { (missing / min_share).max(0.0) * weight } else { 0.0 }
        };
        let beyond = |user: &User| user.slots as f64 - user.min_share.min_share;
        let alike = |user: &User| {
            let same: Vec<f64> = with_work()
                .filter(|other| other.min_share.weight.total_cmp(&user.min_share.weight).is_eq())
                .map(beyond)
                .collect();
            super::stats::mean(&same)
        };
        let unfair = with_work().map(|user| (beyond(user) - alike(user)).abs()).sum();
        (with_work().map(lacks).sum(), unfair)
    }

    /// Returns the mean dissatisfaction over time.
    pub fn dissatisfaction(&self) -> f64 {
        self.sums[1] / self.sums[0].max(1e-9)
    }

    /// Returns the mean fairness over time.
    pub fn fairness(&self) -> f64 {
        self.sums[2] / self.sums[0].max(1e-9)
    }
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
        }
        shares.change_slots(Time(0), "a", 1);
        shares.change_slots(Time(0), "b", 1);
        // a lacks 3 of 4 slots, with weight 2. c has no work. a has -3 slots beyond its minimum
        // share, b has 1: the mean is -1.
        let (dissatisfaction, fairness) = shares.now();
        assert!((dissatisfaction - 1.5).abs() < 1e-12 && (fairness - 4.0).abs() < 1e-12);
        shares.change_slots(Time(10_000_000), "a", 3);
        shares.change_slots(Time(20_000_000), "a", -3);
        assert!((shares.dissatisfaction() - 0.75).abs() < 1e-9, "the minimum share is met half of the time");
    }
}
