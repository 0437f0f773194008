//! A group of masters: what each member knows about it, and whether it serves.

use std::time::Duration;

/// A leader that has heard from a majority within this time has not been cut off.
const CONTACT: Duration = Duration::from_secs(2);

/// The least ID of a member that is not configured: it has taken the place of another one.
pub const NEW_ID_MIN: u64 = 1 << 32;

/// What a master does in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberRole {
    /// It leads, as far as it knows. The only master of its kind leads.
    Leader,
    /// It follows a leader, or would if there were one.
    Follower,
    /// It asks for votes.
    Candidate,
    /// It receives entries and does not vote.
    Learner,
    /// It is starting or stopping, or has failed.
    Down,
}

impl MemberRole {
    /// Returns the name for messages and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Learner => "learner",
            Self::Candidate => "candidate",
            Self::Down => "down",
        }
    }
}

/// The view that a member has of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// What this member does.
    pub role: MemberRole,
    /// The newest term that it knows.
    pub term: u64,
    /// The leader that it knows.
    pub leader: Option<u64>,
    /// Number of entries in its log, including those that were purged.
    pub entries: u64,
    /// Number of entries that are applied.
    pub applied: u64,
    /// The members that it knows, in the order of their IDs; empty for the only master.
    pub peers: Vec<GroupMember>,
}

/// A member, as another one sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// Its ID.
    pub id: u64,
    /// Where the others reach it.
    pub address: String,
    /// Whether it votes.
    pub is_voter: bool,
    /// Number of entries that it is known to have. Only the leader knows.
    pub entries: Option<u64>,
    /// Time since it has answered a message. Only the leader knows, and not of itself.
    pub last_contact: Option<Duration>,
}

/// What a master answers about its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupView {
    /// Its ID; `None` if it is the only master of its kind, which has no group.
    pub id: Option<u64>,
    /// The newest epoch that it has applied.
    pub epoch: u64,
    /// What it still waits for after its start; empty if it waits for nothing.
    pub waits_for: String,
    /// What it knows.
    pub status: MemberStatus,
}

/// What the answers of all masters of a cluster say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Whether clients are served: one leads, and a majority follows it.
    pub serves: bool,
    /// The address of the one that leads and has heard from a majority.
    pub leader: Option<String>,
    /// Number of those that vote.
    pub voters: usize,
    /// Number of those that vote and answer.
    pub voters_up: usize,
    /// Those that were asked, in that order, and then the members that were not.
    pub masters: Vec<Master>,
}

/// One master of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// Its address.
    pub address: String,
    /// Its ID, if that is known.
    pub id: Option<u64>,
    /// What it does; [`MemberRole::Down`] if it does not answer, `None` if it was not asked.
    pub role: Option<MemberRole>,
    /// Whether it votes, if that is known.
    pub votes: Option<bool>,
    /// The newest term that it knows.
    pub term: Option<u64>,
    /// The newest epoch that it has applied.
    pub epoch: Option<u64>,
    /// Number of entries that it has applied.
    pub applied: Option<u64>,
    /// Number of entries that it lacks, as the leader knows.
    pub lag: Option<u64>,
    /// Time since the leader has heard from it.
    pub last_contact: Option<Duration>,
    /// What it still waits for after its start.
    pub waits_for: Option<String>,
    /// Why it does not answer.
    pub error: Option<String>,
}

impl Master {
    fn leads(&self) -> bool {
        self.role == Some(MemberRole::Leader)
    }

    fn is_recent(&self) -> bool {
        self.last_contact.is_some_and(|time| time < CONTACT)
    }

    /// Returns whether it answers; if it was not asked, whether it answers the leader.
    fn is_up(&self) -> bool {
        self.role.map_or_else(|| self.is_recent(), |role| role != MemberRole::Down)
    }
}

impl Group {
    /// Combines the answers of all masters with their addresses. An error says why there is none.
    pub fn of(answers: Vec<(String, Result<GroupView, String>)>) -> Self {
        let views = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
        let leaders = views().filter(|view| view.status.role == MemberRole::Leader);
        let leading = leaders.max_by_key(|view| view.status.term);
        // A leader knows best who is in the group.
        let best = leading.or_else(|| views().max_by_key(|view| (view.status.term, view.status.applied)));
        let members = best.map(|view| view.status.peers.as_slice()).unwrap_or_default();
        // A member that has lost its log is at the same address as the one that takes its place.
        let at = |address: &String, answer: &Result<GroupView, String>| {
            let id = answer.as_ref().ok().and_then(|view| view.id);
            let mut here = members.iter().filter(|member| member.address == *address);
            match here.clone().find(|member| Some(member.id) == id) {
                None if id.is_some_and(|id| id >= NEW_ID_MIN) => None,
                found => found.or_else(|| here.next()),
            }
        };
        let asked =
            answers.iter().map(|(address, answer)| Master::of(address, answer, at(address, answer), leading));
        let is_shown = |member: &&GroupMember| {
            answers.iter().any(|(address, answer)| at(address, answer).is_some_and(|one| one.id == member.id))
        };
        let others = members.iter().filter(|member| !is_shown(member)).map(|member| {
            let is_lost = answers.iter().any(|(address, _)| *address == member.address);
            Master::not_asked(member, is_lost)
        });
        let masters: Vec<Master> = asked.chain(others).collect();
        // Until the group is known, all that are configured count.
        let votes = |master: &&Master| master.votes.unwrap_or(members.is_empty());
        let voters = masters.iter().filter(votes).count();
        let voters_up = masters.iter().filter(votes).filter(|one| one.is_up()).count();
        let reached = masters.iter().filter(votes).filter(|one| one.is_recent() || one.leads()).count();
        let is_majority = |count: usize| 2 * count > voters;
        let leader = leading
            .filter(|_| is_majority(reached))
            .and_then(|leading| masters.iter().find(|one| one.id == leading.id && one.leads()))
            .map(|one| one.address.clone());
        Self { serves: leader.is_some() && is_majority(voters_up), leader, voters, voters_up, masters }
    }
}

impl Master {
    fn of(
        address: &str,
        answer: &Result<GroupView, String>,
        member: Option<&GroupMember>,
        leading: Option<&GroupView>,
    ) -> Self {
        let view = answer.as_ref().ok();
        let leads = leading.is_some() && view == leading;
        let lag = leading.and_then(|leading| {
            // A new leader knows nothing about a member that it has not reached.
            let known = || member.filter(|member| member.last_contact.is_some())?.entries;
            let entries = if leads { leading.status.entries } else { known()? };
            Some(leading.status.entries.saturating_sub(entries))
        });
        Self {
            address: address.to_owned(),
            id: view.and_then(|view| view.id).or(member.map(|member| member.id)),
            role: Some(view.map_or(MemberRole::Down, |view| view.status.role)),
            votes: member.map(|member| member.is_voter),
            term: view.map(|view| view.status.term),
            epoch: view.map(|view| view.epoch),
            applied: view.map(|view| view.status.applied),
            lag,
            last_contact: member.and_then(|member| member.last_contact).filter(|_| !leads),
            waits_for: view.map(|view| view.waits_for.clone()).filter(|what| !what.is_empty()),
            error: answer.as_ref().err().cloned(),
        }
    }

    /// A member whose address nobody was asked at, or at whose address another member is, because it
    /// has lost its log.
    fn not_asked(member: &GroupMember, is_lost: bool) -> Self {
        Self {
            address: member.address.clone(),
            id: Some(member.id),
            role: is_lost.then_some(MemberRole::Down),
            votes: Some(member.is_voter),
            term: None,
            epoch: None,
            applied: None,
            lag: None,
            last_contact: member.last_contact,
            waits_for: None,
            error: is_lost.then(|| "has lost its log, and another member takes its place".into()),
        }
    }
}
