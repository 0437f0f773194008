//! The masters of one kind as a client sees them, and which of them leads.
//!
//! With one master, a call is one call: nothing else is sent. If that master says that another one
//! leads, the call has failed: the settings lack that address. With several, a call goes to the
//! leader that this client knows:
//!
//! 1. If that master does not lead and names a configured one that does, the call goes there.
//! 2. If it does not lead, or the connection fails, all masters are asked at once whether they lead
//!    (`Leadership`), and the call goes to the one that does.
//! 3. Without an answer for [`SILENCE`] the others are asked, again and again. The call is repeated
//!    elsewhere only if another master leads in a higher epoch: the known leader may just be slow.
//!    They are also asked if the leader answers that it is `unavailable`.
//!
//! Calls are repeated, so every request that changes something needs an ID. Each epoch has one
//! leader, and a leader confirms its epoch with its group before it answers `Leadership`.

use crate::error::{Error, Kind, Leader, from_status};
use daemon::MasterAddrs;
use parking_lot::Mutex;
use proto::master::{
    ChangeGroupReply, ChangeGroupRequest, GroupReply, GroupRequest, LeadershipRequest,
    master_client::MasterClient,
};
use security::{Credentials, Endpoint, Role};
use std::{
    any::Any,
    error::Error as _,
    fmt,
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tonic::{
    Code, Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::{self, Channel},
};

/// How long a call waits for the leader before the other masters are asked.
pub const SILENCE: Duration = Duration::from_secs(1);
/// The pause before all masters are asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// A reply of any type.
pub type AnyReply = Box<dyn Any + Send>;
/// A boxed future.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// Sends a request over a channel, once for each attempt.
pub type SendCall<'a> = dyn Fn(Channel) -> Boxed<'static, Result<AnyReply, Status>> + Sync + 'a;

/// Why a call was not answered.
#[derive(Debug)]
pub enum CallError {
    /// A master has refused the call, or the call to the only master has failed.
    Status(Status),
    /// The only master has not answered in time.
    Silent,
    /// None of several masters leads: what is wrong with each of them.
    NoLeader(String),
}

/// Why no connection was made.
#[derive(Debug)]
pub enum ConnectError {
    /// The only master cannot be reached, for this reason.
    Unreachable(String),
    /// None of several masters leads: what is wrong with each of them.
    NoLeader(String),
}

/// The master that leads, as far as this client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its number in the list.
    pub at: usize,
    /// The epoch of its leadership; 0 if it is not known to lead.
    pub epoch: u64,
}

/// The masters of one kind. Cheap to clone; the clones share what they know.
#[derive(Clone)]
pub struct Masters(Arc<Shared>);

struct Shared {
    role: Role,
    masters: Vec<Master>,
    credentials: Credentials,
    user: MetadataValue<Ascii>,
    silence: Duration,
    leader: watch::Sender<Claim>,
    last_rounds: AsyncMutex<LastRounds>,
}

struct Master {
    addr: String,
    endpoint: Endpoint,
    channel: OnceLock<Channel>,
    state: Mutex<MasterState>,
}

/// Why a master is not used.
#[derive(Debug, Clone, PartialEq)]
enum MasterState {
    /// It has not failed since it was last used.
    Usable,
    /// It does not lead.
    Follows(String),
    /// It has failed in a way that may be temporary.
    Failed(String),
    /// It has failed in a way that a repetition does not change.
    Unusable(String),
    /// It has not answered since this time.
    Silent(Instant),
}

/// When masters were last asked. Many calls fail together; one of them asks for all.
#[derive(Default)]
struct LastRounds {
    /// When the leader was searched, and whether there was one.
    search: Option<(Instant, bool)>,
    /// When the others were asked for a newer leader.
    check: Option<Instant>,
}

impl fmt::Debug for Masters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.masters.iter().map(|master| &master.addr)).finish()
    }
}

impl Masters {
    /// Names the masters. Connects to none. `user` is the name that the caller claims; `set` changes
    /// the settings of the endpoints. An address that is not `host:port` is returned as the error.
    pub fn new(
        role: Role,
        addrs: &MasterAddrs,
        credentials: Credentials,
        user: MetadataValue<Ascii>,
        set: impl Fn(transport::Endpoint) -> transport::Endpoint,
    ) -> Result<Self, String> {
        let master = |addr: &String| {
            let endpoint = credentials.endpoint(addr, role).ok_or_else(|| addr.clone())?.with(&set);
            let state = Mutex::new(MasterState::Usable);
            Ok(Master { addr: addr.clone(), endpoint, channel: OnceLock::new(), state })
        };
        let masters = addrs.iter().map(master).collect::<Result<_, String>>()?;
        let leader = watch::Sender::new(Claim { at: 0, epoch: 0 });
        let last_rounds = AsyncMutex::default();
        Ok(Self(Arc::new(Shared { role, masters, credentials, user, silence: SILENCE, leader, last_rounds })))
    }

    /// Changes [`SILENCE`], for tests. Call this before the masters are shared.
    #[must_use]
    pub fn with_silence(mut self, silence: Duration) -> Self {
        Arc::get_mut(&mut self.0).expect("the masters are not shared yet").silence = silence;
        self
    }

    /// Returns whether there is only one master.
    pub fn is_single(&self) -> bool {
        self.0.masters.len() == 1
    }

    /// Returns the addresses for messages: `a:9400`, or `a:9400, b:9400`.
    pub fn addrs(&self) -> String {
        self.0.masters.iter().map(|master| master.addr.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the master that leads, as far as this client knows.
    pub fn leader(&self) -> Claim {
        *self.0.leader.borrow()
    }

    /// Returns the address of a master.
    pub fn addr(&self, at: usize) -> &str {
        &self.0.masters[at].addr
    }

    /// Returns the endpoint of a master.
    pub fn endpoint(&self, at: usize) -> &Endpoint {
        &self.0.masters[at].endpoint
    }

    /// Completes when this client uses another leader than now.
    pub fn leader_changed(&self) -> impl Future<Output = ()> + use<> {
        let (mut leader, now, shared) = (self.0.leader.subscribe(), self.leader(), self.0.clone());
        async move {
            // The sender is in `shared`, so this is no error.
            leader.wait_for(|leader| *leader != now).await.ok();
            drop(shared);
        }
    }

    /// Asks all masters at once what they know about their group. Returns the answers, or why there
    /// is none, in the order of the list.
    pub async fn groups(&self, limit: Duration) -> Vec<Result<GroupReply, String>> {
        let mut asked = JoinSet::new();
        for at in 0..self.0.masters.len() {
            let shared = self.0.clone();
            asked.spawn(async move {
                let answer = timeout(limit, shared.ask_group(at)).await;
                (at, answer.unwrap_or_else(|_| Err(format!("silent for {limit:?}"))))
            });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Asks the leader to change its group, once. Without an answer of a leader, the reply says that
    /// the change waits for one. The error is the reason of the leader for a refusal.
    pub async fn change_group(
        &self,
        request: ChangeGroupRequest,
        limit: Duration,
    ) -> Result<ChangeGroupReply, String> {
        let send = |channel| -> Boxed<'static, Result<AnyReply, Status>> {
            let mut request = Request::new(request.clone());
            self.0.credentials.sign(request.metadata_mut(), &self.0.user);
            Box::pin(async move {
                let reply = MasterClient::new(channel).change_group(request).await?;
                Ok(Box::new(reply.into_inner()) as AnyReply)
            })
        };
        match self.call(limit, limit, &send).await {
            Ok(reply) => Ok(*reply.downcast().expect("the reply that `send` has boxed")),
            Err(CallError::Status(status)) if is_temporary(&status) => Ok(waits_for(status.message())),
            Err(CallError::Status(status)) => Err(security::call_failure(&status)),
            Err(CallError::Silent) => Ok(waits_for(&format!("an answer of {}", self.addrs()))),
            Err(CallError::NoLeader(tried)) => {
                Ok(waits_for(&format!("one of the {}s to lead ({tried})", self.0.role.title())))
            }
        }
    }

    /// Connects to the only master, or finds the leader of several, within this time.
    pub async fn connect(&self, limit: Duration) -> Result<(), ConnectError> {
        let [only] = self.0.masters.as_slice() else { return self.find_leader(limit).await };
        let unreachable = |why| Err(ConnectError::Unreachable(why));
        match timeout(limit, only.endpoint.connect()).await {
            Ok(Ok(channel)) => {
                only.channel.set(channel).ok();
                Ok(())
            }
            Ok(Err(error)) => unreachable(root_cause(&error)),
            Err(_) => unreachable(format!("no answer within {limit:?}")),
        }
    }

    /// Asks several masters until one leads, at least once. Fails early if none will ever answer.
    /// Does nothing with one master.
    pub async fn find_leader(&self, limit: Duration) -> Result<(), ConnectError> {
        let end = Instant::now() + limit;
        loop {
            if self.is_single() || self.0.find(Instant::now()).await {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            let is_unusable = |master: &Master| matches!(&*master.state.lock(), MasterState::Unusable(_));
            if left.is_zero() || self.0.masters.iter().all(is_unusable) {
                return Err(ConnectError::NoLeader(self.0.describe()));
            }
            sleep(PAUSE.min(left)).await;
        }
    }

    /// Calls the leader. One attempt takes at most `one`, all attempts together about `total`. With
    /// several masters, a call that fails is repeated until each of them could have been the
    /// leader; the caller waits before it calls again.
    pub async fn call(
        &self,
        one: Duration,
        total: Duration,
        send: &SendCall<'_>,
    ) -> Result<AnyReply, CallError> {
        let shared = &self.0;
        if let [only] = shared.masters.as_slice() {
            return match timeout(one.min(total), send(only.channel())).await {
                Ok(reply) => reply.map_err(|status| CallError::Status(refusal_of_only(status))),
                Err(_) => Err(CallError::Silent),
            };
        }
        let began = Instant::now();
        let mut failures = 0;
        while failures <= shared.masters.len() {
            let leader = self.leader();
            let master = &shared.masters[leader.at];
            let left = total.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
            let began_at = Instant::now();
            let answer = tokio::select! {
                biased;
                answer = timeout(one.min(left), send(master.channel())) => answer,
                () = self.newer_leader(leader) => continue,
            };
            let failed_at = Instant::now();
            match answer {
                Ok(Ok(reply)) => {
                    master.set_state(MasterState::Usable);
                    return Ok(reply);
                }
                Ok(Err(status)) => match shared.classify(&status) {
                    // It may be cut off from the others, or its disk may have failed.
                    Answer::Refusal
                        if is_temporary(&status)
                            && failures < shared.masters.len()
                            && shared.has_newer_leader(leader).await =>
                    {
                        failures += 1;
                        continue;
                    }
                    Answer::Refusal => return Err(CallError::Status(status)),
                    Answer::Failure { state, hint } => {
                        master.set_state(state);
                        failures += 1;
                        if hint.is_some_and(|hint| shared.follow(leader, &hint)) {
                            continue;
                        }
                    }
                },
                Err(_) => {
                    master.set_silent(began_at, shared.silence);
                    failures += 1;
                }
            }
            if began.elapsed() >= total || !shared.find(failed_at).await {
                break;
            }
        }
        Err(CallError::NoLeader(shared.describe()))
    }

    /// Completes when another master is known to lead in a higher epoch than this one. Asks the
    /// others after [`SILENCE`], and again. Never completes with one master.
    pub fn newer_leader(&self, than: Claim) -> impl Future<Output = ()> + Send {
        self.newer_leader_every(self.0.silence, than)
    }

    /// Like [`Self::newer_leader`], but waits for `period` before the others are asked.
    pub async fn newer_leader_every(&self, period: Duration, than: Claim) {
        if self.is_single() {
            return std::future::pending().await;
        }
        loop {
            sleep(period).await;
            if self.0.has_newer_leader(than).await {
                return;
            }
        }
    }
}

/// What the status of a failed call means, with several masters.
enum Answer {
    /// The leader has answered: it refuses the call.
    Refusal,
    /// This master cannot answer the call. It may know the leader.
    Failure { state: MasterState, hint: Option<Leader> },
}

impl Shared {
    /// Finds the leader after a failure at this time. Returns whether there is one.
    async fn find(self: &Arc<Self>, failed_at: Instant) -> bool {
        let mut last_rounds = self.last_rounds.lock().await;
        if let Some((_, found)) = last_rounds.search.filter(|(began, _)| *began >= failed_at) {
            return found;
        }
        let began = Instant::now();
        let known = self.leader.borrow().epoch;
        // A lower epoch is used only if nobody has a higher one: the folder of the masters may be
        // new.
        let claim = self.ask_all(None, known).await;
        if let Some(claim) = claim {
            self.leader.send_if_modified(|leader| std::mem::replace(leader, claim) != claim);
        }
        last_rounds.search = Some((began, claim.is_some()));
        claim.is_some()
    }

    /// Returns whether another master leads in a higher epoch than this one. Asks the others, but at
    /// most once in [`SILENCE`].
    async fn has_newer_leader(self: &Arc<Self>, than: Claim) -> bool {
        let mut last_rounds = self.last_rounds.lock().await;
        if *self.leader.borrow() != than {
            return true;
        }
        if last_rounds.check.is_some_and(|began| began.elapsed() < self.silence) {
            return false;
        }
        let began = Instant::now();
        let claim = self.ask_all(Some(than.at), than.epoch.saturating_add(1)).await;
        let claim = claim.filter(|claim| claim.epoch > than.epoch);
        if let Some(claim) = claim {
            self.leader.send_replace(claim);
        }
        last_rounds.check = Some(began);
        claim.is_some()
    }

    /// Asks all masters but one whether they lead. Returns a claim to lead in `enough` or a higher
    /// epoch as soon as there is one; otherwise the one with the highest epoch.
    async fn ask_all(self: &Arc<Self>, except: Option<usize>, enough: u64) -> Option<Claim> {
        let mut asked = JoinSet::new();
        for at in (0..self.masters.len()).filter(|at| Some(*at) != except) {
            let shared = self.clone();
            asked.spawn(async move {
                let epoch = shared.ask(at).await?;
                Some(Claim { at, epoch })
            });
        }
        let mut best: Option<Claim> = None;
        while let Some(answer) = asked.join_next().await {
            let Ok(Some(claim)) = answer else { continue };
            if claim.epoch >= enough {
                return Some(claim);
            }
            best = best.filter(|best| best.epoch > claim.epoch).or(Some(claim));
        }
        best
    }

    /// Asks a master whether it leads. Returns its epoch if it does.
    async fn ask(&self, at: usize) -> Option<u64> {
        let (master, began) = (&self.masters[at], Instant::now());
        let mut request = Request::new(LeadershipRequest {});
        self.credentials.sign(request.metadata_mut(), &self.user);
        let mut client = MasterClient::new(master.channel());
        let state = match timeout(self.silence, client.leadership(request)).await {
            Ok(Ok(reply)) if reply.get_ref().leads => {
                let mut state = master.state.lock();
                // If a call to it has failed, that is the better explanation.
                if !matches!(*state, MasterState::Failed(_)) {
                    *state = MasterState::Usable;
                }
                return Some(reply.get_ref().epoch);
            }
            Ok(Ok(_)) => MasterState::Follows("does not lead".into()),
            Ok(Err(status)) => match self.classify(&status) {
                Answer::Failure { state, .. } => state,
                Answer::Refusal if is_denial(&status) => MasterState::Unusable(status.message().to_owned()),
                Answer::Refusal => MasterState::Failed(status.message().to_owned()),
            },
            Err(_) => {
                master.set_silent(began, self.silence);
                return None;
            }
        };
        master.set_state(state);
        None
    }

    /// Asks a master what it knows about its group.
    async fn ask_group(&self, at: usize) -> Result<GroupReply, String> {
        let mut request = Request::new(GroupRequest {});
        self.credentials.sign(request.metadata_mut(), &self.user);
        match MasterClient::new(self.masters[at].channel()).group(request).await {
            Ok(reply) => Ok(reply.into_inner()),
            Err(status) => Err(match self.classify(&status) {
                Answer::Failure { state: MasterState::Failed(why) | MasterState::Unusable(why), .. } => why,
                _ => status.message().to_owned(),
            }),
        }
    }

    fn classify(&self, status: &Status) -> Answer {
        let failure = |state, hint| Answer::Failure { state, hint };
        if let Some(error) = from_status(status) {
            if error.kind != Kind::NotLeader {
                return Answer::Refusal;
            }
            let unknown = error.leader.as_ref().filter(|leader| self.number_of(&leader.addr).is_none());
            let why = match unknown {
                Some(Leader { addr, .. }) => format!("does not lead ({addr} leads and is not in the list)"),
                None => "does not lead".into(),
            };
            return failure(MasterState::Follows(why), error.leader);
        }
        if let Some(source) = status.source() {
            let cause = root_cause(source);
            return match security::tls_mismatch(&cause) {
                Some(meaning) => failure(MasterState::Unusable(format!("cannot use TLS: {meaning}")), None),
                None if cause.contains("Connection refused") => {
                    failure(MasterState::Failed("refused the connection".into()), None)
                }
                None => failure(MasterState::Failed(format!("cannot be reached ({cause})")), None),
            };
        }
        if status.code() == Code::Unimplemented || status.message().contains("HTTP status code") {
            let why = format!("is no Fermata {} ({})", self.role.title(), status.message());
            return failure(MasterState::Unusable(why), None);
        }
        Answer::Refusal
    }

    /// Follows a member to the leader that it names. Returns false if that is no configured master,
    /// or if this client knows a newer leader.
    fn follow(&self, from: Claim, hint: &Leader) -> bool {
        let Some(at) = self.number_of(&hint.addr).filter(|at| *at != from.at) else { return false };
        let claim = Claim { at, epoch: hint.epoch };
        self.leader.send_if_modified(|leader| {
            // Another call may have found the leader meanwhile.
            let is_newer = *leader == from && claim.epoch >= from.epoch;
            if is_newer {
                *leader = claim;
            }
            is_newer
        });
        *self.leader.borrow() != from
    }

    fn number_of(&self, addr: &str) -> Option<usize> {
        self.masters.iter().position(|master| master.addr == addr)
    }

    /// Returns what is wrong with each master: `a:9400 refused the connection; b:9400 does not lead`.
    fn describe(&self) -> String {
        self.masters.iter().map(Master::describe).collect::<Vec<_>>().join("; ")
    }
}

impl Master {
    fn channel(&self) -> Channel {
        self.channel.get_or_init(|| self.endpoint.connect_lazy()).clone()
    }

    fn set_state(&self, state: MasterState) {
        *self.state.lock() = state;
    }

    /// Notes that the master has not answered since this time. A call may have little time left:
    /// less than `silence` does not replace what is known to be wrong with the master.
    fn set_silent(&self, since: Instant, silence: Duration) {
        let mut state = self.state.lock();
        let is_explained = since.elapsed() < silence && *state != MasterState::Usable;
        if !is_explained && !matches!(*state, MasterState::Silent(_)) {
            *state = MasterState::Silent(since);
        }
    }

    fn describe(&self) -> String {
        let addr = &self.addr;
        match &*self.state.lock() {
            MasterState::Usable => format!("{addr} leads, but does not answer"),
            MasterState::Follows(why) | MasterState::Failed(why) | MasterState::Unusable(why) => {
                format!("{addr} {why}")
            }
            MasterState::Silent(since) => {
                format!("{addr} silent for {:.0} s", since.elapsed().as_secs_f64().ceil())
            }
        }
    }
}

/// Returns whether the master itself says that it cannot answer now, and is not in safemode.
fn is_temporary(status: &Status) -> bool {
    let kind = from_status(status).map_or(Kind::Unavailable, |error| error.kind);
    status.code() == Code::Unavailable && kind == Kind::Unavailable
}

fn waits_for(what: &str) -> ChangeGroupReply {
    ChangeGroupReply { waits_for: what.to_owned(), ..ChangeGroupReply::default() }
}

/// Returns the refusal of the only master that a client is configured with. If another one leads,
/// only its address helps, and a repetition does not.
fn refusal_of_only(status: Status) -> Status {
    match from_status(&status) {
        Some(error) if error.kind == Kind::NotLeader && error.leader.is_some() => {
            Error { kind: Kind::Refused, ..error }.into()
        }
        _ => status,
    }
}

/// Returns whether the caller has no access to this master.
fn is_denial(status: &Status) -> bool {
    matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied)
}

/// Returns the innermost cause, for example "connection refused" instead of "transport error".
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
