//! The gate: checks every call before a service gets it.
//!
//! In an open cluster, the gate believes the name that the caller claims, and allows everything. In
//! a closed cluster, a certificate or a token proves the identity of the caller, and the table of
//! rules decides which methods it may call; everything else is refused. In both cases the service
//! gets the request with an [`Identity`] in its extensions.
//!
//! The gate also limits the resources of callers (`limits.rs`), checks request bodies as they
//! arrive (`body.rs`), and counts and logs calls that it or a service refuses (`refusals.rs`).
//! Health calls are handled separately: they need no credential, and use none of the resources of
//! other calls (`health.rs`).

use crate::{
    body::{RequestBody, ResponseBody},
    health::{self, Health, HealthSlot},
    identity::{Identity, Role, USER_KEY, check_name},
    incoming::{CallerInfo, Connection},
    jobs::Jobs,
    keys::Keyring,
    limits::{Call, Class, Limits},
    refusals::Kind,
    revoked::{Credential, Revoked},
    rules::{Rule, rule_of},
    tls::{self, Pem},
    token::{TOKEN_KEY, Token},
};
use http::{HeaderMap, Request, Response};
use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tonic::{Status, transport::server::TlsConnectInfo};
use tower_layer::Layer;
use tower_service::Service;

/// Maximum length of a user name that is accepted without proof.
const USER_BYTES_MAX: usize = 64;
/// Name of an unknown method in the log.
const UNKNOWN: &str = "(unknown method)";

/// The access policy of the gate.
#[derive(Debug)]
pub(crate) struct AccessPolicy {
    /// How callers prove their identity; `None` in an open cluster.
    pub(crate) closed: Option<Closed>,
    /// Whether owners and permissions are enforced for callers who are not superusers.
    pub(crate) enforces: bool,
    pub(crate) admins: BTreeSet<String>,
    /// The groups of each user.
    pub(crate) groups: BTreeMap<String, Arc<[String]>>,
}

/// What a daemon of a closed cluster needs to authenticate callers.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) keys: Keyring,
    pub(crate) revoked: Revoked,
    /// Active jobs; tokens of tasks of other jobs are rejected.
    pub(crate) jobs: Arc<Jobs>,
    /// The certificate of the daemon, for gRPC and for bulk connections.
    pub(crate) tls: Option<(Pem, Arc<rustls::ServerConfig>)>,
}

/// A tower layer around the services of a server.
#[derive(Debug, Clone)]
pub struct Gate {
    access_policy: Arc<AccessPolicy>,
    limits: Arc<Limits>,
    health: Arc<Health>,
}

impl Gate {
    pub(crate) fn new(access_policy: Arc<AccessPolicy>) -> Self {
        Self { access_policy, limits: Arc::default(), health: Arc::default() }
    }

    #[cfg(test)]
    fn is_unused(&self) -> bool {
        self.limits.is_unused() && self.health.is_unused()
    }

    /// Identifies and authorises the caller, and counts the call.
    fn enter<B>(&self, request: &Request<B>, rule: Option<&'static Rule>) -> Result<Call, Status> {
        let connection = connection_of(request);
        let method = rule.map_or(UNKNOWN, |rule| rule.method);
        let refused = |kind, identity: Option<&Identity>, status: Status| {
            let address = connection.and_then(|connection| connection.address());
            self.limits.refusals.log(kind, method, identity, address, &status);
            status
        };
        let identity = self.access_policy.admit(request, rule).map_err(|denied| {
            let Denied { caller, status } = *denied;
            refused(Kind::of_access(status.code()).unwrap_or(Kind::Request), caller.as_ref(), status)
        })?;
        // The connection of an authorised caller gets a slot, if one is free. Servers in tests may
        // have connections without slots.
        if let Some(connection) = connection.filter(|connection| !connection.authenticate()) {
            return Err(refused(
                Kind::Connection,
                Some(&identity),
                Status::unavailable(connection.no_slot_message()),
            ));
        }
        let class = match identity.role {
            Some(role) if role.is_daemon() => Class::Daemon,
            None if rule.is_some_and(Rule::is_for_daemons) => Class::Daemon,
            _ => Class::Client,
        };
        let started = self.limits.begin_call(class, method, identity.clone(), connection.cloned());
        started.map_err(|(kind, status)| refused(kind, Some(&identity), status))
    }
}

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;
    fn layer(&self, inner: S) -> Gated<S> {
        Gated { gate: self.clone(), inner }
    }
}

/// A service behind the gate.
#[derive(Debug, Clone)]
pub struct Gated<S> {
    gate: Gate,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Gated<S>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>>,
    S::Future: Unpin,
    R: Default,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = GatedFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if request.uri().path().starts_with(health::SERVICE) {
            let connection = connection_of(&request);
            return match self.gate.health.enter(request.uri().path(), connection.cloned()) {
                Ok(slot) => {
                    let answer = self.inner.call(request.map(RequestBody::of_health));
                    GatedFuture(Progress::Health(answer, Some(slot), self.gate.limits.clone()))
                }
                Err(status) => {
                    let address = connection.and_then(|connection| connection.address());
                    self.gate.limits.refusals.log(Kind::Health, health::SERVICE, None, address, &status);
                    GatedFuture(Progress::Refused(Some(status)))
                }
            };
        }
        let rule = rule_of(request.uri().path());
        match self.gate.enter(&request, rule) {
            Ok(call) => {
                let call = Arc::new(call);
                request.extensions_mut().insert(call.identity.clone());
                let streams = rule.is_some_and(|rule| rule.streams);
                let request = request.map(|body| RequestBody::of_call(body, call.clone(), streams));
                GatedFuture(Progress::Call(self.inner.call(request), Some(call)))
            }
            Err(status) => GatedFuture(Progress::Refused(Some(status))),
        }
    }
}

/// The future of a response: that of the service, or a refusal.
#[derive(Debug)]
pub struct GatedFuture<F>(Progress<F>);

#[derive(Debug)]
enum Progress<F> {
    Refused(Option<Status>),
    Call(F, Option<Arc<Call>>),
    Health(F, Option<HealthSlot>, Arc<Limits>),
}

impl<F, R, E> Future for GatedFuture<F>
where
    F: Future<Output = Result<Response<R>, E>> + Unpin,
    R: Default,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.get_mut().0 {
            Progress::Refused(status) => refusal(status.take()),
            Progress::Call(answer, call) => {
                let response = ready!(Pin::new(answer).poll(context))?;
                let call = call.take();
                // A service refuses calls that the owner of a file or job does not permit. Log
                // those too.
                let status = response.extensions().get::<Status>();
                if let (Some(status), Some(call)) = (status, &call)
                    && let Some(kind) = Kind::of_access(status.code())
                {
                    call.log_refusal(kind, status);
                }
                response.map(|body| ResponseBody::new(body, call, None))
            }
            Progress::Health(answer, slot, limits) => match Pin::new(answer).poll(context) {
                Poll::Ready(response) => {
                    let mut slot = slot.take();
                    if let Some(slot) = &mut slot {
                        slot.mark_answered();
                    }
                    response?.map(|body| ResponseBody::new(body, None, slot))
                }
                Poll::Pending => {
                    let Some(waiting) = slot else { return Poll::Pending };
                    let status = ready!(waiting.poll_end(context));
                    limits.refusals.log(Kind::Health, health::SERVICE, None, waiting.address(), &status);
                    *slot = None;
                    refusal(Some(status))
                }
            },
        };
        Poll::Ready(Ok(answer))
    }
}

fn refusal<R: Default>(status: Option<Status>) -> Response<ResponseBody<R>> {
    let status = status.unwrap_or_else(|| Status::internal("the call has already been answered"));
    status.into_http::<R>().map(|body| ResponseBody::new(body, None, None))
}

/// The refusal of a call, with the caller if its identity is proven.
struct Denied {
    caller: Option<Identity>,
    status: Status,
}

impl From<Status> for Box<Denied> {
    fn from(status: Status) -> Self {
        Self::new(Denied { caller: None, status })
    }
}

/// Returns the name of a method as words: `SetQuota` is "set quota".
fn method_text(method: &str) -> String {
    let mut words = String::new();
    for letter in method.chars() {
        if letter.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.push(letter.to_ascii_lowercase());
    }
    words
}

impl AccessPolicy {
    fn groups_of(&self, user: &str) -> Arc<[String]> {
        self.groups.get(user).cloned().unwrap_or_default()
    }

    /// Identifies the caller, and checks that it may call this method.
    fn admit<B>(&self, request: &Request<B>, rule: Option<&Rule>) -> Result<Identity, Box<Denied>> {
        let user = user_in(request.headers())?;
        let Some(closed) = &self.closed else { return Ok(self.accept_claim(user)?) };
        let Some((role, name)) = closed.authenticate(request)? else {
            return Err(Box::from(Status::unauthenticated(
                "this cluster requires a credential: give its configuration with --config, or a credential with \
                 --security-dir or --token-file (security.dir, security.token in fermata.toml)",
            )));
        };
        let proven = |status| {
            let name = name.as_str().into();
            let caller = Identity { role: Some(role), name, groups: Arc::default(), superuser: false };
            Box::new(Denied { caller: Some(caller), status })
        };
        let Some(rule) = rule else {
            return Err(proven(Status::permission_denied("this method does not exist or no rule allows it")));
        };
        if !rule.allows(role) {
            let method = rule.method.rsplit_once('/').map_or(rule.method, |(_, name)| name);
            let roles: Vec<String> = rule.roles.unwrap_or_default().iter().map(ToString::to_string).collect();
            let (what, roles) = (method_text(method), roles.join(", "));
            let why = format!("\"{what}\" is not for the role {role} ({name}), only for {roles}");
            return Err(proven(Status::permission_denied(why)));
        }
        self.identify(role, &name, user).map_err(proven)
    }

    /// Determines the effective identity. The JobTracker acts for the users of its jobs, an admin
    /// for any user.
    fn identify(&self, role: Role, name: &str, acts_for: Option<&str>) -> Result<Identity, Status> {
        let (name, role, superuser) = match acts_for.filter(|user| *user != name) {
            // A user in `security.admins` is a superuser. A task with the name of that user is not,
            // because it may run code of others.
            None => {
                let person = role == Role::User && self.admins.contains(name);
                (name, role, person || matches!(role, Role::Admin | Role::JobTracker))
            }
            Some(user) if matches!(role, Role::Admin | Role::JobTracker) => {
                check_name(user).map_err(|error| Status::invalid_argument(error.to_string()))?;
                (user, role, false)
            }
            Some(user) => {
                return Err(Status::permission_denied(format!("{name} cannot act for {user}")));
            }
        };
        let superuser = superuser || !self.enforces;
        Ok(Identity { role: Some(role), name: name.into(), groups: self.groups_of(name), superuser })
    }

    /// Returns the identity that a caller in an open cluster claims.
    fn accept_claim(&self, user: Option<&str>) -> Result<Identity, Status> {
        let name = user.unwrap_or("anonymous");
        if name.is_empty() || name.len() > USER_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(Status::invalid_argument(format!(
                "user name must have 1 to {USER_BYTES_MAX} bytes and no control character"
            )));
        }
        let superuser = !self.enforces || self.admins.contains(name);
        Ok(Identity { role: None, name: name.into(), groups: self.groups_of(name), superuser })
    }
}

impl Closed {
    /// Returns the role and name that the credential of a request proves; `None` if it has none.
    fn authenticate<B>(&self, request: &Request<B>) -> Result<Option<(Role, String)>, Status> {
        let session = request.extensions().get::<TlsConnectInfo<CallerInfo>>();
        let chain = session.and_then(TlsConnectInfo::peer_certs);
        let (role, name, shown) = if let Some(text) = request.headers().get(TOKEN_KEY) {
            let text = text.to_str().unwrap_or_default();
            let Token { role, name, job, .. } = Token::verify(text, &self.keys)
                .map_err(|why| Status::unauthenticated(format!("{why}: get a new one")))?;
            if job.is_some_and(|job| self.jobs.has_ended(&job)) {
                return Err(Status::unauthenticated("the job of this token has ended"));
            }
            (role, name, Credential::Token(text))
        } else {
            let first = chain.as_ref().and_then(|chain| chain.first());
            let Some((first, (role, name))) = first.and_then(|first| Some((first, tls::subject_of(first)?)))
            else {
                return Ok(None);
            };
            (role, name, Credential::Certificate(first))
        };
        if self.revoked.contains(role, &name, shown) {
            let words = format!("this credential of {name} has been revoked: ask an admin for another");
            return Err(Status::unauthenticated(words));
        }
        Ok(Some((role, name)))
    }
}

/// Returns the connection of a request; `None` in tests whose servers have other connections.
fn connection_of<B>(request: &Request<B>) -> Option<&Arc<Connection>> {
    let all = request.extensions();
    let secured = all.get::<TlsConnectInfo<CallerInfo>>().map(TlsConnectInfo::get_ref);
    all.get::<CallerInfo>().or(secured).map(|CallerInfo(connection)| connection)
}

fn user_in(headers: &HeaderMap) -> Result<Option<&str>, Status> {
    let Some(user) = headers.get(USER_KEY) else { return Ok(None) };
    user.to_str().map(Some).map_err(|_| Status::invalid_argument("user name is not plain text"))
}

#[cfg(test)]
mod tests;
