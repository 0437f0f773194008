//! Minimum shares of users under the policies recorded in the histories, not under the current
//! policy.

use super::PolicyUse;
use mrcore::metrics::shares::MinShare;
use std::{collections::BTreeMap, fmt};

/// Why the minimum shares of users are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownShares {
    /// Histories of older versions do not contain the policy.
    NoPolicy,
    /// The jobs ran under policies with different minimum shares.
    Several,
    /// Pools were per queue, not per user.
    Queues,
}

impl fmt::Display for UnknownShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoPolicy => "histories of older versions do not contain the minimum shares of users",
            Self::Several => "the jobs ran under policies with different minimum shares",
            Self::Queues => "minimum shares were per queue, not per user",
        })
    }
}

/// Returns the minimum share of each user under the policies recorded in the histories.
pub(super) fn min_shares<'a>(
    users: impl Iterator<Item = &'a str>,
    ran: &[PolicyUse],
) -> Result<Vec<(String, MinShare)>, UnknownShares> {
    let users: Vec<&str> = users.collect();
    let mut by_policy = ran.iter().map(|ran| min_shares_under(&users, ran));
    let first = by_policy.next().ok_or(UnknownShares::NoPolicy)??;
    for other in by_policy {
        if other? != first {
            return Err(UnknownShares::Several);
        }
    }
    Ok(first.into_iter().collect())
}

/// Returns the minimum shares under one policy, from parameters such as `fair.pools.NAME.min_maps`
/// and `coshh.users.NAME.weight`. A minimum share is the sum over map and reduce slots.
fn min_shares_under(users: &[&str], ran: &PolicyUse) -> Result<BTreeMap<String, MinShare>, UnknownShares> {
    let sections = ran.policy.split(['(', ')']).filter(|name| !name.is_empty());
    let param = |key: &str| sections.clone().find_map(|section| ran.params.get(&format!("{section}.{key}")));
    if param("pool_by").is_some_and(|by| by == "queue") {
        return Err(UnknownShares::Queues);
    }
    let min_share_of = |user: &str| {
        let of = |what: &str| {
            let keys =
                [user, "default"].map(|name| ["pools", "users"].map(|kind| format!("{kind}.{name}.{what}")));
            keys.iter().flatten().find_map(|key| param(key)?.parse::<f64>().ok())
        };
        let min_share = of("min_maps").unwrap_or(0.0) + of("min_reduces").unwrap_or(0.0);
        MinShare { min_share, weight: of("weight").unwrap_or(1.0) }
    };
    Ok(users.iter().map(|user| ((*user).to_owned(), min_share_of(user))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(policy: &str, params: &[(&str, &str)]) -> PolicyUse {
        let params = params.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        PolicyUse { policy: policy.into(), params: params.collect(), jobs: Vec::new() }
    }

    fn of(ran: &[PolicyUse]) -> Result<Vec<(String, MinShare)>, UnknownShares> {
        min_shares(["bob", "ann", "bob"].into_iter(), ran)
    }

    #[test]
    fn min_shares_come_from_the_policy_in_use() {
        let tuned = [
            ("fair.node_wait", "3s"),
            ("fair.pools.ann.weight", "2"),
            ("fair.pools.ann.min_maps", "4"),
            ("fair.pools.ann.min_reduces", "1"),
            ("fair.pools.default.min_maps", "1"),
        ];
        let min_share_of = |user: &str, min_share, weight| (user.to_owned(), MinShare { min_share, weight });
        let expected = vec![min_share_of("ann", 5.0, 2.0), min_share_of("bob", 1.0, 1.0)];
        assert_eq!(of(&[ran("fair", &tuned)]), Ok(expected.clone()));
        assert_eq!(of(&[ran("chronos(fair)", &tuned)]), Ok(expected));
        let nothing = vec![min_share_of("ann", 0.0, 1.0), min_share_of("bob", 0.0, 1.0)];
        assert_eq!(of(&[ran("fifo", &tuned)]), Ok(nothing.clone()), "the section fair does not apply");
        assert_eq!(of(&[ran("fifo", &[]), ran("hsrtf-prp", &[])]), Ok(nothing), "neither has minimum shares");
    }

    #[test]
    fn min_shares_are_unknown_if_policies_are_missing_differ_or_use_queues() {
        let owed = ran("coshh", &[("coshh.users.ann.min_maps", "4")]);
        assert_eq!(of(&[]), Err(UnknownShares::NoPolicy));
        assert_eq!(of(&[owed, ran("fifo", &[])]), Err(UnknownShares::Several));
        assert_eq!(of(&[ran("fair", &[("fair.pool_by", "queue")])]), Err(UnknownShares::Queues));
    }
}
