//! Access control for the pages. Every account of the machine and every page in a browser can reach
//! a port on loopback.
//!
//! - The server of a foreign page can let its host name resolve to 127.0.0.1 (DNS rebinding). The
//!   page could then read the responses. Therefore requests with a host name other than those of
//!   this machine are refused.
//! - In a closed cluster (one that authenticates its users), the address contains a token that is
//!   valid once. The first browser that opens the address gets a cookie. Other accounts may see the
//!   address (in the history of a shell or a browser, in a list of processes), but not the cookie.
//! - Only GET and HEAD are allowed, so a foreign page cannot change anything.

use axum::http::{HeaderMap, Method, Uri, header};
use sha2::{Digest, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest number of unused tokens. The oldest tokens are dropped.
const TOKENS_MAX: usize = 16;
/// The largest number of sessions. The oldest sessions are dropped.
const SESSIONS_MAX: usize = 64;

/// The decision about a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// The address had a valid token, which is used up now. The response sets this cookie and
    /// redirects to the address without the token.
    SetCookie {
        cookie: String,
    },
    WrongOrigin,
    NoToken,
    NotGet,
}

/// Decides which requests are allowed. Has tokens and sessions only in a closed cluster.
#[derive(Debug)]
pub(super) struct Guard {
    port: u16,
    access: Option<Mutex<TokensAndSessions>>,
}

#[derive(Debug, Default)]
struct TokensAndSessions {
    /// Tokens that are valid once.
    tokens: Vec<String>,
    /// The values of the cookies that browsers got.
    sessions: Vec<String>,
}

impl TokensAndSessions {
    fn is_session(&self, shown: &str) -> bool {
        self.sessions.iter().any(|session| equal_by_hash(shown, session))
    }

    /// Exchanges a valid token for a new session. Returns the value of its cookie.
    fn exchange(&mut self, shown: &str) -> Option<String> {
        let at = self.tokens.iter().position(|token| equal_by_hash(shown, token))?;
        self.tokens.remove(at);
        Some(add_random(&mut self.sessions, SESSIONS_MAX))
    }
}

/// Adds a random string to a list and returns it. Drops the oldest string if there are too many.
fn add_random(to: &mut Vec<String>, most: usize) -> String {
    if to.len() >= most {
        to.remove(0);
    }
    let random = uuid::Uuid::new_v4().simple().to_string();
    to.push(random.clone());
    random
}

impl Guard {
    /// Creates the guard. If `closed`, every request needs a token or a session.
    pub(super) fn new(port: u16, closed: bool) -> Self {
        Self { port, access: closed.then(Mutex::default) }
    }

    fn access(&self) -> Option<MutexGuard<'_, TokensAndSessions>> {
        Some(self.access.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the address to open, with a new token if one is needed.
    pub(super) fn address(&self) -> String {
        let token = self.access().map(|mut access| add_random(&mut access.tokens, TOKENS_MAX));
        let token = token.map_or_else(String::new, |token| format!("?token={token}"));
        format!("http://127.0.0.1:{}/{token}", self.port)
    }

    /// Returns whether requests need a token or a session.
    pub(super) fn is_closed(&self) -> bool {
        self.access.is_some()
    }

    /// Decides whether a request is allowed. A `public` file contains no data of the cluster, so it
    /// needs no token.
    pub(super) fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap, public: bool) -> Verdict {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let one = hosts.next().is_none() && host.is_some_and(|host| self.is_own_host(host));
        if !one || uri.authority().is_some_and(|name| !self.is_own_host(name.as_str())) {
            return Verdict::WrongOrigin;
        }
        if method != Method::GET && method != Method::HEAD {
            return Verdict::NotGet;
        }
        let Some(mut access) = self.access() else { return Verdict::Allowed };
        let name = format!("fermata_{}", self.port);
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
        let mut pairs = cookies.flat_map(|all| all.split(';')).filter_map(|one| one.trim().split_once('='));
        if pairs.any(|(key, value)| key == name && access.is_session(value)) || public {
            return Verdict::Allowed;
        }
        let token = query_parameter(uri, "token").filter(|_| method == Method::GET);
        match token.and_then(|shown| access.exchange(&shown)) {
            Some(session) => {
                Verdict::SetCookie { cookie: format!("{name}={session}; Path=/; HttpOnly; SameSite=Strict") }
            }
            None => Verdict::NoToken,
        }
    }

    fn is_own_host(&self, host: &str) -> bool {
        is_own_host(host, self.port)
    }
}

/// Returns whether `host` is a name of this machine with this port.
pub(super) fn is_own_host(host: &str, own_port: u16) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port.parse().ok()),
        _ => (host, Some(80)),
    };
    let here = ["127.0.0.1", "localhost", "[::1]"].iter().any(|own| name.eq_ignore_ascii_case(own));
    here && port == Some(own_port)
}

/// Compares two secrets by their hashes, so that the duration of the comparison reveals nothing
/// about them.
fn equal_by_hash(one: &str, other: &str) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

/// Returns the value of a query parameter. Values are not percent-decoded, because the links of the
/// pages contain no special characters.
pub(super) fn query_parameter(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(guard: &Guard, method: &Method, uri: &str, headers: &[(&'static str, &str)]) -> Verdict {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        guard.judge(method, &uri.parse().unwrap(), &map, false)
    }

    #[test]
    fn only_local_host_names_are_accepted() {
        let guard = Guard::new(81, false);
        for host in ["127.0.0.1:81", "localhost:81", "LOCALHOST:81", "[::1]:81"] {
            assert_eq!(judge(&guard, &Method::GET, "/", &[("host", host)]), Verdict::Allowed, "{host}");
        }
        for host in [
            "evil.example:81",
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost.evil:81",
            "",
            "[::1]",
            "x@localhost:81",
        ] {
            assert_eq!(judge(&guard, &Method::GET, "/", &[("host", host)]), Verdict::WrongOrigin, "{host}");
        }
        assert_eq!(judge(&guard, &Method::GET, "/", &[]), Verdict::WrongOrigin);
        let two = [("host", "localhost:81"), ("host", "evil:81")];
        assert_eq!(judge(&guard, &Method::GET, "/", &two), Verdict::WrongOrigin);
        let named = judge(&guard, &Method::GET, "http://evil:81/", &[("host", "localhost:81")]);
        assert_eq!(named, Verdict::WrongOrigin);
        let plain = Guard::new(80, false);
        assert_eq!(judge(&plain, &Method::GET, "/", &[("host", "localhost")]), Verdict::Allowed);
        assert_eq!(judge(&plain, &Method::GET, "/", &[("host", "[::1]")]), Verdict::Allowed);
    }

    #[test]
    fn only_get_and_head_are_allowed() {
        let guard = Guard::new(81, false);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::CONNECT] {
            assert_eq!(judge(&guard, &method, "/", &[("host", "localhost:81")]), Verdict::NotGet);
        }
        assert_eq!(judge(&guard, &Method::HEAD, "/", &[("host", "localhost:81")]), Verdict::Allowed);
    }

    #[test]
    fn pages_of_a_closed_cluster_need_a_one_time_token() {
        let guard = Guard::new(81, true);
        let address = guard.address();
        let token = address.strip_prefix("http://127.0.0.1:81/?token=").unwrap().to_owned();
        assert_eq!(token.len(), 32);
        let host = ("host", "127.0.0.1:81");
        let shown = format!("/job/job_1?x=1&token={token}");
        assert_eq!(judge(&guard, &Method::HEAD, &shown, &[host]), Verdict::NoToken, "HEAD uses up no token");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host]), Verdict::NoToken);
        assert_eq!(judge(&guard, &Method::GET, "/?token=x", &[host]), Verdict::NoToken);
        let Verdict::SetCookie { cookie } = judge(&guard, &Method::GET, &shown, &[host]) else {
            panic!("the token is valid");
        };
        assert_eq!(judge(&guard, &Method::GET, &shown, &[host]), Verdict::NoToken, "the token is valid once");
        assert!(!cookie.contains(&token), "the cookie contains the token");
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let pair = cookie.split(';').next().unwrap();
        let shown = format!("other=1; {pair}");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, ("cookie", &shown)]), Verdict::Allowed);
        let wrong = ("cookie", "fermata_81=x");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, wrong]), Verdict::NoToken);
        // A new token admits a second browser; the first browser stays signed in.
        let fresh = guard.address();
        let (_, path) = fresh.split_once(":81").unwrap();
        assert!(matches!(judge(&guard, &Method::GET, path, &[host]), Verdict::SetCookie { .. }));
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, ("cookie", pair)]), Verdict::Allowed);
        for _ in 0..2 * TOKENS_MAX {
            guard.address();
        }
        assert_eq!(guard.access().unwrap().tokens.len(), TOKENS_MAX);
    }
}
