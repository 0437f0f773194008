//! The masters of a cluster: what each of them does, and whether they serve.

use crate::output;
use comfy_table::Table;
use dfs_client::group::{Group, GroupView, Master, MemberRole};
use security::Role;
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _};

/// The role of a member that was not asked.
const UNKNOWN: &str = "unknown";
/// Number of entries that a member may lack without notice: some are always on their way.
const LAG_MAX: u64 = 100;

/// All masters of a cluster: its NameNodes and its `JobTrackers`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AllMasters {
    /// Whether both kinds serve.
    pub serves: bool,
    /// What the masters of each kind do together.
    pub groups: Vec<MastersStatus>,
    /// The NameNodes, in the order of `cluster.namenode`, and then the `JobTrackers`.
    pub masters: Vec<MasterStatus>,
}

impl AllMasters {
    /// Combines the masters of several kinds.
    pub fn new(mut groups: Vec<MastersStatus>) -> Self {
        let masters = groups.iter_mut().flat_map(|group| std::mem::take(&mut group.masters)).collect();
        Self { serves: groups.iter().all(|group| group.serves), groups, masters }
    }

    /// Returns a line per master.
    pub fn table(&self) -> Table {
        table(&self.masters)
    }
}

/// The masters of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MastersStatus {
    /// `namenode` or `jobtracker`.
    pub daemon: &'static str,
    /// Whether clients are served: one leads, and a majority follows it.
    pub serves: bool,
    /// The address of the one that leads.
    pub leader: Option<String>,
    /// Number of those that vote.
    pub voters: usize,
    /// Number of those that vote and answer.
    pub voters_up: usize,
    /// All this in one line.
    pub summary: String,
    /// The masters, in the order of the settings; empty if they are listed elsewhere.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masters: Vec<MasterStatus>,
}

/// One master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MasterStatus {
    /// `namenode` or `jobtracker`.
    pub daemon: &'static str,
    /// Its name, if the cluster is a local one.
    pub name: Option<String>,
    /// Its ID in the group; none without a group, or if it is not known.
    pub id: Option<u64>,
    pub address: String,
    /// `leader`, `follower`, `learner` (does not vote yet), `candidate`, `down`, or `unknown` if it is
    /// not in the settings.
    pub role: &'static str,
    /// Whether it votes, if that is known.
    pub votes: Option<bool>,
    pub term: Option<u64>,
    pub epoch: Option<u64>,
    /// Number of log entries that it has applied.
    pub applied: Option<u64>,
    /// Number of log entries that it lacks, as the leader knows.
    pub lag: Option<u64>,
    /// Time since the leader has heard from it.
    pub last_contact_ms: Option<u64>,
    /// What it still waits for after its start: until then, clients would wait if it led.
    pub waits_for: Option<String>,
    /// Why it does not answer.
    pub error: Option<String>,
}

impl MastersStatus {
    /// Combines the answers of all masters of this kind. `names` has the names of local ones, by
    /// address.
    pub fn new(
        kind: Role,
        answers: Vec<(String, Result<GroupView, String>)>,
        names: &BTreeMap<String, String>,
    ) -> Self {
        let Group { serves, leader, voters, voters_up, masters } = Group::of(answers);
        let daemon = kind.name();
        let master = |one: Master| MasterStatus {
            daemon,
            name: names.get(&one.address).cloned(),
            id: one.id,
            role: one.role.map_or(UNKNOWN, MemberRole::name),
            votes: one.votes,
            term: one.term,
            epoch: one.epoch,
            applied: one.applied,
            lag: one.lag,
            last_contact_ms: one.last_contact.map(|time| time.as_millis() as u64),
            waits_for: one.waits_for,
            error: match one.role {
                None => Some(format!("is not in cluster.{daemon}, so it was not asked")),
                Some(_) => one.error,
            },
            address: one.address,
        };
        let masters = masters.into_iter().map(master).collect();
        let mut all = Self { daemon, serves, leader, voters, voters_up, summary: String::new(), masters };
        all.summary = all.summarise(kind);
        all
    }

    /// Returns whether one leads, all vote, and all answer.
    pub fn is_complete(&self) -> bool {
        self.serves && self.masters.iter().all(|one| one.error.is_none() && one.votes != Some(false))
    }

    fn summarise(&self, kind: Role) -> String {
        let title = kind.title();
        if let [only] = self.masters.as_slice()
            && only.votes.is_none()
        {
            return match &only.error {
                None => format!("one {title}, at {}", only.address),
                Some(why) => format!("the {title} is down: {} {why}", only.address),
            };
        }
        let silent =
            self.masters.iter().filter_map(|one| Some(format!("{} {}", one.address, one.error.as_ref()?)));
        let silent = silent.collect::<Vec<_>>().join("; ");
        let silent = if silent.is_empty() { silent } else { format!(" ({silent})") };
        let verb = if self.voters_up == 1 { "is" } else { "are" };
        let up = format!("{} of {} {title}s {verb} up{silent}", self.voters_up, self.voters);
        let needed = self.voters / 2 + 1;
        if self.voters_up < needed {
            let missing = match needed - self.voters_up {
                1 => "one".to_owned(),
                more => more.to_string(),
            };
            return format!(
                "no quorum: {up}: nothing is lost; start {missing} of them; if their folders are lost, `mrctl masters --help` says \
                 what to do"
            );
        }
        let Some(leader) = self.masters.iter().find(|one| Some(&one.address) == self.leader.as_ref()) else {
            return format!("no leader: {up}, and elect one");
        };
        let mut text = format!("{} leads; {up}", leader.name.as_ref().unwrap_or(&leader.address));
        for learner in self.masters.iter().filter(|one| one.votes == Some(false)) {
            let name = learner.name.as_ref().unwrap_or(&learner.address);
            let _ = write!(text, "; {name} does not vote yet");
        }
        for (one, lag) in self.masters.iter().filter_map(|one| Some((one, one.lag?))) {
            let name = one.name.as_ref().unwrap_or(&one.address);
            if lag > LAG_MAX && one.error.is_none() {
                let _ = write!(text, "; {name} lacks {lag} entries");
            }
        }
        if self.voters_up == needed && self.voters > 1 {
            text += match kind {
                Role::JobTracker => "; if one more fails, no job makes progress",
                _ => "; if one more fails, no file can be read or written",
            };
        }
        text
    }
}

fn table(masters: &[MasterStatus]) -> Table {
    let header = ["DAEMON", "NAME", "ID", "ADDRESS", "ROLE", "TERM", "EPOCH", "APPLIED", "LAG", "CONTACT"];
    let mut table = output::table(&header, &[2, 5, 6, 7, 8, 9]);
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |number| number.to_string());
    for one in masters {
        let contact = one.last_contact_ms.map_or("-".to_owned(), output::age);
        table.add_row([
            one.daemon.to_owned(),
            one.name.clone().unwrap_or_else(|| "-".into()),
            number(one.id),
            one.address.clone(),
            one.role.to_owned(),
            number(one.term),
            number(one.epoch),
            number(one.applied),
            number(one.lag),
            contact,
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use dfs_client::group::{GroupMember, MemberStatus, NEW_ID_MIN};
    use std::time::Duration;

    const ADDRESSES: [&str; 3] = ["a:1", "b:2", "c:3"];

    fn view(id: u64, role: MemberRole) -> GroupView {
        let member = |(at, address): (usize, &&str)| GroupMember {
            id: at as u64 + 1,
            address: (*address).into(),
            is_voter: true,
            entries: (role == MemberRole::Leader).then_some(20 - at as u64),
            last_contact: (role == MemberRole::Leader && at as u64 + 1 != id)
                .then_some(Duration::from_millis(80)),
        };
        let peers = ADDRESSES.iter().enumerate().map(member).collect();
        let status = MemberStatus { role, term: 4, leader: None, entries: 20, applied: 18, peers };
        GroupView { id: Some(id), epoch: 7, waits_for: String::new(), status }
    }

    fn group(answers: [Result<MemberRole, &str>; 3]) -> MastersStatus {
        let answers = answers.into_iter().enumerate().map(|(at, answer)| {
            let answer = answer.map(|role| view(at as u64 + 1, role)).map_err(str::to_owned);
            (ADDRESSES[at].to_owned(), answer)
        });
        MastersStatus::new(
            Role::NameNode,
            answers.collect(),
            &BTreeMap::from([("a:1".into(), "namenode".into())]),
        )
    }

    const REFUSED: &str = "refused the connection";

    #[test]
    fn group_with_a_leader_and_all_members_is_complete() {
        let all = group([Ok(MemberRole::Leader), Ok(MemberRole::Follower), Ok(MemberRole::Follower)]);
        assert!(all.serves && all.is_complete());
        assert_eq!(all.summary, "namenode leads; 3 of 3 NameNodes are up");
        assert_eq!(all.masters.iter().map(|one| one.lag).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        assert_eq!(
            all.masters.iter().map(|one| one.last_contact_ms).collect::<Vec<_>>(),
            [None, Some(80), Some(80)]
        );
    }

    #[test]
    fn one_of_two_that_are_left_may_not_fail() {
        let two = group([Err(REFUSED), Ok(MemberRole::Leader), Ok(MemberRole::Follower)]);
        assert!(two.serves && !two.is_complete());
        assert_eq!(
            two.summary,
            "b:2 leads; 2 of 3 NameNodes are up (a:1 refused the connection); if one more fails, no file can be read \
             or written"
        );
        assert_eq!((two.masters[0].role, two.masters[0].id), ("down", Some(1)));
    }

    #[test]
    fn no_quorum_names_those_that_are_down_and_what_to_do() {
        for left in [MemberRole::Candidate, MemberRole::Leader] {
            let one = group([Ok(left), Err(REFUSED), Err("silent for 1s")]);
            assert!(!one.serves);
            assert_eq!(
                one.summary,
                "no quorum: 1 of 3 NameNodes is up (b:2 refused the connection; c:3 silent for 1s): nothing is lost; \
                 start one of them; if their folders are lost, `mrctl masters --help` says what to do"
            );
        }
        let none = group([Err(REFUSED), Err(REFUSED), Err(REFUSED)]);
        assert!(
            none.summary.starts_with("no quorum: 0 of 3 NameNodes are up (a:1 refused"),
            "{}",
            none.summary
        );
        assert!(none.summary.contains("start 2 of them;"), "{}", none.summary);
    }

    #[test]
    fn member_that_lacks_much_is_named() {
        let mut leader = view(1, MemberRole::Leader);
        leader.status.entries = 200;
        leader.status.peers[0].entries = Some(200);
        leader.status.peers[2].entries = Some(150);
        let follower = |id| Ok(view(id, MemberRole::Follower));
        let answers = ADDRESSES.map(str::to_owned).into_iter().zip([Ok(leader), follower(2), follower(3)]);
        let all = MastersStatus::new(Role::NameNode, answers.collect(), &BTreeMap::new());
        assert_eq!(all.summary, "a:1 leads; 3 of 3 NameNodes are up; b:2 lacks 181 entries");
    }

    #[test]
    fn member_that_has_lost_its_log_votes_until_another_takes_its_place() {
        let new = NEW_ID_MIN + 7;
        let mut leader = view(1, MemberRole::Leader);
        leader.status.peers[1].last_contact = None;
        let answers = |leader: &GroupView, id| {
            let other = GroupView { id: Some(id), ..view(2, MemberRole::Learner) };
            let third = view(3, MemberRole::Follower);
            let all = [Ok(leader.clone()), Ok(other), Ok(third)];
            let answers = ADDRESSES.map(str::to_owned).into_iter().zip(all).collect();
            MastersStatus::new(Role::NameNode, answers, &BTreeMap::new())
        };
        // It has started, and the leader has not added it yet.
        let all = answers(&leader, new);
        assert_eq!((all.voters, all.voters_up, all.masters.len()), (3, 2, 4));
        assert_eq!((all.masters[1].id, all.masters[1].votes), (Some(new), None));
        assert_eq!((all.masters[3].id, all.masters[3].role), (Some(2), "down"));
        let lost = "2 of 3 NameNodes are up (b:2 has lost its log, and another member takes its place)";
        assert!(all.summary.contains(lost), "{}", all.summary);
        // It has been added.
        let learner = GroupMember {
            id: new,
            is_voter: false,
            last_contact: Some(Duration::ZERO),
            ..leader.status.peers[1].clone()
        };
        leader.status.peers.push(learner);
        let all = answers(&leader, new);
        assert_eq!((all.voters, all.voters_up, all.masters.len()), (3, 2, 4));
        assert_eq!((all.masters[1].id, all.masters[1].votes), (Some(new), Some(false)));
        // It votes, in place of the other one.
        leader.status.peers.remove(1);
        leader.status.peers[2].is_voter = true;
        let all = answers(&leader, new);
        assert_eq!((all.voters, all.voters_up, all.masters.len()), (3, 3, 3));
        assert!(all.is_complete(), "{all:?}");
    }

    #[test]
    fn leader_that_the_others_do_not_reach_does_not_serve() {
        let mut cut = view(1, MemberRole::Leader);
        cut.status.peers.iter_mut().for_each(|member| member.last_contact = None);
        let other = view(2, MemberRole::Follower);
        let answers = [Ok(cut), Ok(other.clone()), Ok(GroupView { id: Some(3), ..other })];
        let answers = ADDRESSES.iter().map(|address| (*address).to_owned()).zip(answers);
        let all = MastersStatus::new(Role::NameNode, answers.collect(), &BTreeMap::new());
        assert!(!all.serves && all.leader.is_none());
        assert_eq!(all.summary, "no leader: 3 of 3 NameNodes are up, and elect one");
    }

    #[test]
    fn learner_is_named_and_does_not_count() {
        let mut leader = view(1, MemberRole::Leader);
        leader.status.peers[2].is_voter = false;
        let answers = [
            ("a:1".to_owned(), Ok(leader)),
            ("b:2".to_owned(), Ok(view(2, MemberRole::Follower))),
            ("c:3".to_owned(), Ok(view(3, MemberRole::Learner))),
        ];
        let all = MastersStatus::new(Role::NameNode, answers.into(), &BTreeMap::new());
        assert!(all.serves && !all.is_complete());
        assert!(all.summary.starts_with("a:1 leads; 2 of 2 NameNodes are up; c:3 does not vote yet"));
    }

    #[test]
    fn only_namenode_is_no_group() {
        let (role, peers) = (MemberRole::Leader, Vec::new());
        let status = MemberStatus { role, term: 0, leader: None, entries: 9, applied: 9, peers };
        let alone = GroupView { id: None, epoch: 3, waits_for: String::new(), status };
        let one = MastersStatus::new(Role::NameNode, vec![("a:1".into(), Ok(alone))], &BTreeMap::new());
        assert!(one.serves && one.is_complete());
        assert_eq!((one.summary.as_str(), one.masters[0].lag), ("one NameNode, at a:1", Some(0)));
        let down =
            MastersStatus::new(Role::NameNode, vec![("a:1".into(), Err(REFUSED.into()))], &BTreeMap::new());
        assert!(!down.serves);
        assert_eq!(down.summary, "the NameNode is down: a:1 refused the connection");
        let jobtracker =
            MastersStatus::new(Role::JobTracker, vec![("b:1".into(), Err(REFUSED.into()))], &BTreeMap::new());
        assert_eq!(jobtracker.summary, "the JobTracker is down: b:1 refused the connection");
        let all = AllMasters::new(vec![one, jobtracker]);
        assert!(!all.serves && all.groups.iter().all(|group| group.masters.is_empty()));
        assert_eq!(all.masters.iter().map(|one| one.daemon).collect::<Vec<_>>(), ["namenode", "jobtracker"]);
    }
}
