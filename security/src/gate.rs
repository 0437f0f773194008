//! The gate: every call passes it before any service sees it.
//!
//! Open: the caller is who it says, and may do everything. Closed: a certificate or a token says who it is, the
//! table of rules says whether it may, and all else is refused. Either way the request goes on with an [`Identity`]
//! in its extensions. The gate also counts: above a number of calls under way, or of connections that have shown who they
//! are, more are told to come later.

use crate::{
    guard::{Closed, Door},
    identity::{Identity, Role, USER_KEY, check_name},
    incoming::CallerInfo,
    revoked::Shown,
    rules::rule_of,
    tls,
    token::{TOKEN_KEY, Token},
};
use http::{HeaderMap, Request, Response};
use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};
use tonic::{Status, transport::server::TlsConnectInfo};
use tower_layer::Layer;
use tower_service::Service;

/// Calls under way in one server, at the most. A stream counts until it is open.
const CALLS_MAX: usize = 8192;
/// As much of a name as is believed without proof.
const USER_BYTES_MAX: usize = 64;

/// A layer around the services of a server.
#[derive(Debug, Clone)]
pub struct Gate {
    door: Arc<Door>,
    calls: Arc<AtomicUsize>,
}

impl Gate {
    pub(crate) fn new(door: Arc<Door>) -> Self {
        Self { door, calls: Arc::default() }
    }

    fn enter(&self) -> Option<Call> {
        // Before the comparison, so that the call that is one too many leaves like any other.
        let call = Call(self.calls.clone());
        (self.calls.fetch_add(1, Ordering::Relaxed) < CALLS_MAX).then_some(call)
    }
}

/// One call under way.
#[derive(Debug)]
struct Call(Arc<AtomicUsize>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;
    fn layer(&self, inner: S) -> Gated<S> {
        Gated { gate: self.clone(), inner }
    }
}

/// Services behind the gate.
#[derive(Debug, Clone)]
pub struct Gated<S> {
    gate: Gate,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Gated<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Answer<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Some(call) = self.gate.enter() else {
            let status = Status::unavailable(format!("{CALLS_MAX} calls are under way: try later"));
            return refuse(status);
        };
        match self.gate.door.admit(&request) {
            Ok(identity) => {
                request.extensions_mut().insert(identity);
                let answer = self.inner.call(request);
                Box::pin(async move {
                    let answer = answer.await;
                    drop(call);
                    answer
                })
            }
            Err(status) => {
                tracing::debug!(method = request.uri().path(), why = status.message(), "refused at the gate");
                refuse(status)
            }
        }
    }
}

type Answer<R, E> = Pin<Box<dyn Future<Output = Result<Response<R>, E>> + Send>>;

fn refuse<R: Default + Send + 'static, E: Send + 'static>(status: Status) -> Answer<R, E> {
    Box::pin(std::future::ready(Ok(status.into_http())))
}

impl Door {
    /// Who calls, if it may call this.
    fn admit<B>(&self, request: &Request<B>) -> Result<Identity, Status> {
        let user = user_in(request.headers())?;
        let Some(closed) = &self.closed else {
            let identity = self.believe(user)?;
            have_place(request)?;
            return Ok(identity);
        };
        let rule = rule_of(request.uri().path())
            .ok_or_else(|| Status::permission_denied("no rule allows this method to anybody"))?;
        let Some((role, name)) = closed.credential(request)? else {
            if rule.roles.is_none() {
                return self.believe(user);
            }
            return Err(Status::unauthenticated(
                "this cluster wants a credential: set security.dir or security.token in fermata.toml",
            ));
        };
        if !rule.allows(role) {
            let method = rule.method.rsplit_once('/').map_or(rule.method, |(_, name)| name);
            return Err(Status::permission_denied(format!("{method} is not for the role {role} ({name})")));
        }
        let identity = self.identify(role, &name, user)?;
        have_place(request)?;
        Ok(identity)
    }

    /// Those who act for others: the JobTracker for the users of its jobs, an admin for anybody.
    fn identify(&self, role: Role, name: &str, acts_for: Option<&str>) -> Result<Identity, Status> {
        let (name, role, superuser) = match acts_for.filter(|user| *user != name) {
            // One in `security.admins` is an admin as a person; a task in that person's name runs anybody's code.
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

    /// Where nobody proves anything.
    fn believe(&self, user: Option<&str>) -> Result<Identity, Status> {
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
    /// What the caller has proved to be; none if it shows nothing.
    fn credential<B>(&self, request: &Request<B>) -> Result<Option<(Role, String)>, Status> {
        let session = request.extensions().get::<TlsConnectInfo<CallerInfo>>();
        let chain = session.and_then(TlsConnectInfo::peer_certs);
        let (role, name, shown) = if let Some(text) = request.headers().get(TOKEN_KEY) {
            let text = text.to_str().unwrap_or_default();
            let Token { role, name, job, .. } = Token::verify(text, &self.keys)
                .map_err(|why| Status::unauthenticated(format!("{why}: get a new one")))?;
            if job.is_some_and(|job| self.jobs.is_over(&job)) {
                return Err(Status::unauthenticated("the token is of a job that is over"));
            }
            (role, name, Shown::Token(text))
        } else {
            let first = chain.as_ref().and_then(|chain| chain.first());
            let Some((first, (role, name))) = first.and_then(|first| Some((first, tls::subject_of(first)?)))
            else {
                return Ok(None);
            };
            (role, name, Shown::Certificate(first))
        };
        if self.revoked.refuses(role, &name, shown) {
            let words = format!("this credential of {name} has been revoked: ask an admin for another");
            return Err(Status::unauthenticated(words));
        }
        Ok(Some((role, name)))
    }
}

/// Who may call keeps its connection, if there is a place. A server in a test may have no such connections.
fn have_place<B>(request: &Request<B>) -> Result<(), Status> {
    let all = request.extensions();
    let secured = all.get::<TlsConnectInfo<CallerInfo>>().map(TlsConnectInfo::get_ref);
    match all.get::<CallerInfo>().or(secured) {
        Some(caller) if !caller.become_known() => Err(Status::unavailable(caller.crowded())),
        _ => Ok(()),
    }
}

fn user_in(headers: &HeaderMap) -> Result<Option<&str>, Status> {
    let Some(user) = headers.get(USER_KEY) else { return Ok(None) };
    user.to_str().map(Some).map_err(|_| Status::invalid_argument("user name is not plain text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Guard;
    use daemon::config::Config;

    #[test]
    fn one_of_the_admins_is_an_admin_in_person_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.security.secret = dir.path().join("secret");
        config.security.admins = vec!["ann".into()];
        crate::write_private(&config.security.secret, &[b'x'; 64]).unwrap();
        let guard = Guard::new(&config, Role::NameNode).unwrap();
        let superuser = |role, name, acts_for| guard.door().identify(role, name, acts_for).unwrap().superuser;
        assert!(superuser(Role::User, "ann", None));
        assert!(superuser(Role::Admin, "eve", None));
        assert!(!superuser(Role::User, "bob", None));
        // Her tasks are anybody's code, and so is what the JobTracker does for them.
        assert!(!superuser(Role::Task, "ann", None));
        assert!(!superuser(Role::JobTracker, "jobtracker", Some("ann")));
        assert!(!superuser(Role::Admin, "eve", Some("ann")));
    }
}
