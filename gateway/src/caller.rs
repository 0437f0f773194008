//! Who sends a request, and the connections to the masters with which its calls are made.
//!
//! The gateway has no rights of its own. In a closed cluster a caller shows a token of the cluster
//! (`Authorization: Bearer` or `delegation=`), and every call to a master carries that token, so the
//! masters decide what the caller may do. The gateway has no key and cannot make or check a token: a
//! token is accepted when the NameNode has answered a call with it. In an open cluster, the name in
//! `user.name` is passed on without proof, as all clients of an open cluster do.
//!
//! The connections of a token are kept for later requests with the same token. The masters check the
//! token of each call again, so a token that has been revoked is of no use.

use crate::params::Params;
use axum::http::{HeaderMap, header::AUTHORIZATION};
use client::JobTracker;
use daemon::config::Config;
use dfs_client::{Client, ClientError, ClientOptions, error::Kind, path::DfsPath};
use security::{Credentials, Role, Token};
use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

/// The largest number of tokens whose connections are kept. The connections that were not used for
/// the longest time are closed.
const SESSIONS_MAX: usize = 256;
/// The largest number of unknown tokens that are checked at the same time.
const CHECKS_MAX: usize = 8;
/// How long a request waits for the check of its token to begin.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest length of a token.
const TOKEN_BYTES_MAX: usize = 1024;

/// Why a caller is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// The request has no valid credential.
    #[error("{0}")]
    Unauthenticated(String),
    /// The credential does not allow the name in the request.
    #[error("{0}")]
    Forbidden(String),
    /// A name is invalid.
    #[error("{0}")]
    Invalid(String),
    /// A limit on requests.
    #[error("{0}")]
    Limit(String),
    /// The masters do not answer.
    #[error("{0}")]
    Unavailable(String),
}

/// Identifies callers.
pub(crate) struct Callers {
    config: Config,
    /// The connections by the hash of the token; in an open cluster, the only ones.
    sessions: Mutex<HashMap<[u8; 32], Arc<Session>>>,
    checks: Semaphore,
}

/// The connections of a token, or those of all callers of an open cluster.
struct Session {
    /// The token; None in an open cluster.
    token: Option<Token>,
    credentials: Credentials,
    files: Client,
    jobs: OnceCell<JobTracker>,
    used: Mutex<Instant>,
    requests: Arc<Semaphore>,
    rate: Mutex<Rate>,
}

/// The sender of a request.
#[derive(Clone)]
pub(crate) struct Caller {
    /// The name of the user that the request acts as.
    pub(crate) name: String,
    /// The token that was shown, with its text; None in an open cluster.
    pub(crate) token: Option<ShownToken>,
    /// The client of the file system.
    pub(crate) files: Client,
    /// The user that the caller acts for, if that is not the user of the token.
    acts_for: Option<String>,
    session: Arc<Session>,
    jobtracker: daemon::MasterAddrs,
    /// Counts the request until the last clone is dropped.
    _permit: Arc<OwnedSemaphorePermit>,
}

/// A token as it was shown.
#[derive(Clone)]
pub(crate) struct ShownToken {
    pub(crate) text: String,
    /// Expiry, in seconds since the Unix epoch.
    pub(crate) expires: u64,
}

impl Callers {
    pub(crate) fn new(config: &Config) -> Self {
        Self { config: config.clone(), sessions: Mutex::default(), checks: Semaphore::new(CHECKS_MAX) }
    }

    /// Identifies the sender of a request, and counts the request.
    pub(crate) async fn identify(&self, headers: &HeaderMap, params: &Params) -> Result<Caller, Denied> {
        let named = params.text("user.name");
        let acts_for = params.text("doas");
        for name in [named, acts_for].into_iter().flatten() {
            security::check_name(name).map_err(|error| Denied::Invalid(error.to_string()))?;
        }
        let (session, name, token) = if self.config.security.is_closed() {
            let text = shown_token(headers, params)?;
            let token = check_token(&text, named)?;
            let session = self.session(Sha256::digest(&text).into(), Some((&text, &token))).await?;
            let name = token.name.clone();
            (session, name, Some(ShownToken { text, expires: token.expires }))
        } else {
            let name = named.ok_or_else(|| {
                let text = "this cluster is open: name the user with user.name=NAME";
                Denied::Unauthenticated(text.into())
            })?;
            (self.session([0; 32], None).await?, name.to_owned(), None)
        };
        let permit = session.count_request(self.config.gateway.user_request_rate)?;
        let is_other = |user: &&str| *user != name || token.is_none();
        let other = acts_for.or(token.is_none().then_some(name.as_str())).filter(is_other);
        let files = match other {
            Some(user) => {
                session.files.acting_for(user).map_err(|error| Denied::Invalid(error.to_string()))?
            }
            None => session.files.clone(),
        };
        Ok(Caller {
            files,
            acts_for: other.map(str::to_owned),
            name: acts_for.map_or(name, str::to_owned),
            token,
            session,
            jobtracker: self.config.cluster.jobtracker.clone(),
            _permit: Arc::new(permit),
        })
    }

    /// Returns the connections for a token, or makes them if the NameNode accepts the token.
    async fn session(&self, key: [u8; 32], token: Option<(&str, &Token)>) -> Result<Arc<Session>, Denied> {
        if let Some(known) = self.known(key) {
            return Ok(known);
        }
        let waiting = tokio::time::timeout(CHECK_TIMEOUT, self.checks.acquire()).await;
        let Ok(Ok(_permit)) = waiting else {
            return Err(Denied::Limit("too many new tokens are being checked: try again later".into()));
        };
        // Another request with this token may have made them meanwhile.
        if let Some(known) = self.known(key) {
            return Ok(known);
        }
        let session = Arc::new(self.connect(token).await?);
        let mut all = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        while all.len() >= SESSIONS_MAX
            && let Some(oldest) =
                all.iter().min_by_key(|(_, session)| session.last_use()).map(|(key, _)| *key)
        {
            all.remove(&oldest);
        }
        all.insert(key, session.clone());
        Ok(session)
    }

    fn known(&self, key: [u8; 32]) -> Option<Arc<Session>> {
        let all = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let session = all.get(&key)?;
        *session.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Some(session.clone())
    }

    async fn connect(&self, token: Option<(&str, &Token)>) -> Result<Session, Denied> {
        let config = &self.config;
        let credentials = match token {
            Some((text, _)) => Credentials::of_shown_token(text, &config.security)
                .map_err(|error| Denied::Unauthenticated(error.to_string()))?,
            None => Credentials::default(),
        };
        let options = ClientOptions::new(&config.cluster.namenode, config.client.clone());
        let files = Client::connect_with_retry(options.with(credentials.clone())).await;
        let files = files.map_err(|error| Denied::Unavailable(error.to_string()))?;
        if token.is_some() {
            // Every account may look at the root folder, so only an invalid token is refused.
            match files.stat(&DfsPath::root()).await {
                Err(error) if error.is(Kind::Denied) => {
                    return Err(Denied::Unauthenticated(error.to_string()));
                }
                Err(error) if is_from_server(&error) => {}
                Err(error) => return Err(Denied::Unavailable(error.to_string())),
                Ok(_) => {}
            }
        }
        Ok(Session {
            token: token.map(|(_, token)| token.clone()),
            credentials,
            files,
            jobs: OnceCell::new(),
            used: Mutex::new(Instant::now()),
            requests: Arc::new(Semaphore::new(config.gateway.user_requests_max)),
            rate: Mutex::new(Rate::full(config.gateway.user_request_rate)),
        })
    }
}

/// Returns whether the NameNode has refused the call for another reason than the token.
fn is_from_server(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused(_))
}

/// Returns the token that a request shows.
fn shown_token(headers: &HeaderMap, params: &Params) -> Result<String, Denied> {
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = header.and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    match bearer.or_else(|| params.text("delegation")) {
        Some(token) => Ok(token.to_owned()),
        None => Err(Denied::Unauthenticated(
            "this cluster is closed: send a token as \"Authorization: Bearer TOKEN\" or delegation=TOKEN; the owner of \
             the cluster finds one in the file gateway.token in its folder, and `mrctl token` prints others"
                .into(),
        )),
    }
}

/// Checks what a token says about itself. Only the masters can check its signature.
fn check_token(text: &str, named: Option<&str>) -> Result<Token, Denied> {
    if text.len() > TOKEN_BYTES_MAX {
        return Err(Denied::Unauthenticated(format!("the token is longer than {TOKEN_BYTES_MAX} bytes")));
    }
    let token = Token::read(text).map_err(|why| Denied::Unauthenticated(format!("{why}: get a new one")))?;
    if !matches!(token.role, Role::User | Role::Admin) {
        let why = format!("a token of the role {} cannot be used here, only that of a user", token.role);
        return Err(Denied::Unauthenticated(why));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if token.expires <= now {
        return Err(Denied::Unauthenticated("the token has expired: get a new one".into()));
    }
    if let Some(named) = named.filter(|named| *named != token.name) {
        let name = &token.name;
        return Err(Denied::Forbidden(format!(
            "the token is of {name}, but user.name={named}: omit user.name"
        )));
    }
    Ok(token)
}

impl Session {
    fn last_use(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request of this identity.
    fn count_request(&self, per_second: u32) -> Result<OwnedSemaphorePermit, Denied> {
        let who = self.token.as_ref().map_or("all callers together", |token| token.name.as_str());
        if per_second > 0 {
            let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
            if !rate.take(per_second, Instant::now()) {
                return Err(Denied::Limit(format!(
                    "more than {per_second} requests per second of {who} (gateway.user_request_rate)"
                )));
            }
        }
        self.requests.clone().try_acquire_owned().map_err(|_| {
            Denied::Limit(format!("too many concurrent requests of {who} (gateway.user_requests_max)"))
        })
    }
}

impl Caller {
    /// Returns the connection to the JobTracker.
    pub(crate) async fn jobs(&self) -> client::Result<JobTracker> {
        let connect = || async {
            let connected =
                JobTracker::connect(&self.jobtracker, None, self.session.credentials.clone()).await;
            connected.inspect_err(|error| tracing::debug!(%error, "cannot connect to the JobTracker"))
        };
        let jobs = self.session.jobs.get_or_try_init(connect).await?;
        match &self.acts_for {
            Some(user) => jobs.acting_for(user),
            None => Ok(jobs.clone()),
        }
    }
}

/// How many requests may still be sent in this second.
#[derive(Debug)]
struct Rate {
    left: f64,
    at: Instant,
}

impl Rate {
    fn full(per_second: u32) -> Self {
        Self { left: per_second.into(), at: Instant::now() }
    }

    fn take(&mut self, per_second: u32, now: Instant) -> bool {
        let most = f64::from(per_second);
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + passed * most).min(most);
        self.at = now;
        let fits = self.left >= 1.0;
        if fits {
            self.left -= 1.0;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use security::Keyring;

    fn token(role: Role, lifetime: Duration) -> String {
        let keys = Keyring::from_secret(b"a secret that cannot be guessed");
        Token::new(role, "ann", None, lifetime).sign(&keys).unwrap()
    }

    #[test]
    fn token_is_in_the_header_or_in_the_query() {
        let query = Params::parse(Some("delegation=f1%3Auser"));
        assert_eq!(shown_token(&HeaderMap::new(), &query), Ok("f1:user".into()));
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, "bearer f2:user".parse().unwrap());
        assert_eq!(shown_token(&headers, &query), Ok("f2:user".into()));
        headers.insert(AUTHORIZATION, "Basic eDp5".parse().unwrap());
        let missing = shown_token(&headers, &Params::default());
        assert!(matches!(missing, Err(Denied::Unauthenticated(why)) if why.contains("gateway.token")));
    }

    #[test]
    fn only_valid_tokens_of_users_are_accepted() {
        let hour = Duration::from_hours(1);
        for role in [Role::User, Role::Admin] {
            let text = token(role, hour);
            assert_eq!(check_token(&text, None).unwrap().name, "ann");
            assert!(check_token(&text, Some("ann")).is_ok());
            assert!(matches!(check_token(&text, Some("bob")), Err(Denied::Forbidden(_))));
        }
        for role in [Role::JobTracker, Role::Task, Role::NameNode] {
            assert!(matches!(check_token(&token(role, hour), None), Err(Denied::Unauthenticated(_))));
        }
        for bad in ["", "x", "f1:user:ann:-:1:00", &"f1:".repeat(1000), &token(Role::User, Duration::ZERO)] {
            assert!(matches!(check_token(bad, None), Err(Denied::Unauthenticated(_))), "{bad}");
        }
    }

    #[test]
    fn rate_allows_a_burst_of_one_second() {
        let mut rate = Rate::full(10);
        let now = rate.at;
        assert_eq!((0..20).filter(|_| rate.take(10, now)).count(), 10);
        let later = now + Duration::from_millis(500);
        assert_eq!((0..20).filter(|_| rate.take(10, later)).count(), 5);
        assert_eq!((0..20).filter(|_| rate.take(10, later + Duration::from_hours(1))).count(), 10);
    }
}
