//! A rolling restart of masters: one after the other, so that no request of a client fails.
//!
//! Those that lead come last. A master is restarted when all of its group vote and lack nothing, and
//! after it has handed over its leadership, to one that was restarted before. So each leadership
//! changes once. Nothing is restarted while a master is down, because the group could then lose its
//! quorum.

use crate::output;
use anyhow::{Result, anyhow, bail};
use clusters::locate::Target;
use dfs_client::group::{ChangeResult, GroupChange};
use security::Role;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use view::masters::{AllMasters, MasterStatus};

/// How long to wait for the answers of all masters.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a request for a transfer may take. A transfer waits twice for 1.5 s.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a master may take until it has everything that the others have.
const READY_TIMEOUT: Duration = Duration::from_mins(5);
/// A master that is down before the restart may be starting. Not longer than `NOTICE_AFTER`, so that
/// the refusal is the only line.
const BEFORE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long mrctl waits before it prints what it is waiting for.
const NOTICE_AFTER: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Masters that are restarted together: those of a machine, or one of a local cluster.
#[derive(Debug)]
pub(super) struct Unit {
    /// Name for messages and for the caller.
    pub(super) name: String,
    /// Role and address of each.
    pub(super) masters: Vec<(Role, String)>,
}

impl Unit {
    fn has(&self, one: &MasterStatus) -> bool {
        self.masters.iter().any(|(role, address)| role.name() == one.daemon && *address == one.address)
    }

    /// Returns those of its masters that lead a group with other members.
    fn leading<'a>(&'a self, all: &'a AllMasters) -> impl Iterator<Item = &'a (Role, String)> {
        self.masters.iter().filter(move |(role, address)| {
            let group = all.groups.iter().find(|group| group.daemon == role.name());
            group.is_some_and(|group| group.voters > 1 && group.leader.as_ref() == Some(address))
        })
    }
}

/// Restarts all units, one after the other, with `restart`.
pub(super) async fn restart(
    target: &Target,
    units: Vec<Unit>,
    mut restart: impl AsyncFnMut(&Unit) -> Result<()>,
) -> Result<()> {
    await_all(target, BEFORE_TIMEOUT, is_whole).await?;
    let (mut left, mut done): (Vec<Unit>, Vec<Unit>) = (units, Vec::new());
    while !left.is_empty() {
        let all = target.all_masters(ANSWER_TIMEOUT).await?;
        let next = (0..left.len()).min_by_key(|at| left[*at].leading(&all).count()).unwrap_or(0);
        let unit = left.remove(next);
        hand_over(target, &unit, &done).await?;
        restart(&unit).await?;
        let since = Instant::now();
        await_all(target, READY_TIMEOUT, |all| {
            is_whole(all).or_else(|| all.masters.iter().find_map(|one| not_reached(&unit, one, since)))
        })
        .await?;
        done.push(unit);
    }
    Ok(())
}

/// Waits until each group serves and all its members that answer vote.
pub(super) async fn await_votes(target: &Target) -> Result<()> {
    let learner = |all: &AllMasters| {
        let learner = all.masters.iter().find(|one| one.error.is_none() && !may_vote(one));
        learner.map(|one| format!("{} does not vote yet", one.address))
    };
    await_all(target, READY_TIMEOUT, |all| does_not_serve(all).or_else(|| learner(all))).await
}

/// Returns whether a master votes. The only master of its kind has no votes.
fn may_vote(one: &MasterStatus) -> bool {
    one.votes == Some(true) || one.id.is_none()
}

/// Waits until `missing` returns nothing.
async fn await_all(
    target: &Target,
    limit: Duration,
    missing: impl Fn(&AllMasters) -> Option<String>,
) -> Result<()> {
    let (since, mut is_announced) = (Instant::now(), false);
    loop {
        let all = target.all_masters(ANSWER_TIMEOUT).await?;
        let Some(why) = missing(&all) else { return Ok(()) };
        if since.elapsed() > limit {
            bail!("{why} (waited for {} s); `mrctl masters` shows all", limit.as_secs());
        }
        if !is_announced && since.elapsed() > NOTICE_AFTER {
            is_announced = true;
            eprintln!("mrctl: waiting up to {} s more: {why}", limit.saturating_sub(NOTICE_AFTER).as_secs());
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn does_not_serve(all: &AllMasters) -> Option<String> {
    all.groups.iter().find(|group| !group.serves).map(|group| group.summary.clone())
}

/// Returns what a master lacks so that another one may be stopped.
fn is_whole(all: &AllMasters) -> Option<String> {
    does_not_serve(all).or_else(|| all.masters.iter().find_map(lacks))
}

fn lacks(one: &MasterStatus) -> Option<String> {
    let MasterStatus { daemon, address, lag, waits_for, error, .. } = one;
    let what = match (error, waits_for, lag) {
        (Some(error), ..) => error.clone(),
        _ if !may_vote(one) => "does not vote yet".into(),
        (_, Some(what), _) => format!("waits: {what}"),
        (_, _, None) => "has not answered the one that leads yet".into(),
        (.., Some(0)) => return None,
        (.., Some(lag)) => format!("lacks {lag} entries"),
    };
    Some(format!("{daemon} {address} {what}"))
}

/// Returns why a master that was restarted at `since` may lack something: what the leader knows of it is
/// older.
fn not_reached(unit: &Unit, one: &MasterStatus, since: Instant) -> Option<String> {
    let contact = one.last_contact_ms.filter(|_| unit.has(one))?;
    let is_older = since.elapsed() < Duration::from_millis(contact);
    is_older.then(|| format!("{} {} has not answered the one that leads yet", one.daemon, one.address))
}

/// Lets other masters lead in the place of those of `unit`.
async fn hand_over(target: &Target, unit: &Unit, done: &[Unit]) -> Result<()> {
    let until = Instant::now() + READY_TIMEOUT;
    loop {
        let all = target.all_masters(ANSWER_TIMEOUT).await?;
        let Some((role, address)) = unit.leading(&all).next() else { return Ok(()) };
        if Instant::now() > until {
            bail!("{address} still leads after {} s: `mrctl masters` shows all", READY_TIMEOUT.as_secs());
        }
        let restarted = done.iter().flat_map(|unit| &unit.masters).find(|(other, _)| other == role);
        let to = restarted.map(|(_, address)| address.clone());
        let asked = target.group(*role)?.change(&GroupChange::Transfer(to), TRANSFER_TIMEOUT).await;
        if let ChangeResult::Done(leader) = asked.map_err(|why| anyhow!(why))? {
            output::line(format!("{leader} leads in the place of {address}"))?;
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower() -> MasterStatus {
        MasterStatus {
            daemon: "namenode",
            name: None,
            id: Some(2),
            address: "b:2".into(),
            role: "follower",
            votes: Some(true),
            term: Some(1),
            epoch: Some(1),
            applied: Some(7),
            lag: Some(0),
            last_contact_ms: Some(80),
            waits_for: None,
            error: None,
        }
    }

    #[test]
    fn master_that_lacks_something_is_waited_for() {
        assert_eq!(lacks(&follower()), None);
        for (one, why) in [
            (MasterStatus { lag: Some(3), ..follower() }, "lacks 3 entries"),
            (MasterStatus { lag: None, ..follower() }, "has not answered the one that leads yet"),
            (MasterStatus { votes: Some(false), ..follower() }, "does not vote yet"),
            (MasterStatus { error: Some("silent for 2s".into()), ..follower() }, "silent for 2s"),
            (
                MasterStatus { waits_for: Some("1 of 9 blocks reported".into()), ..follower() },
                "waits: 1 of 9 blocks reported",
            ),
        ] {
            assert_eq!(lacks(&one).unwrap(), format!("namenode b:2 {why}"));
        }
        let alone = MasterStatus { id: None, votes: None, last_contact_ms: None, ..follower() };
        assert_eq!(lacks(&alone), None);
    }

    #[test]
    fn contact_from_before_the_restart_does_not_count() {
        let unit = Unit { name: "m".into(), masters: vec![(Role::NameNode, "b:2".into())] };
        let since = Instant::now();
        let before = MasterStatus { last_contact_ms: Some(600_000), ..follower() };
        assert!(not_reached(&unit, &before, since).is_some());
        let now = MasterStatus { last_contact_ms: Some(0), ..follower() };
        assert_eq!(not_reached(&unit, &now, since), None);
        let other = MasterStatus { address: "c:3".into(), ..before };
        assert_eq!(not_reached(&unit, &other, since), None);
    }
}
