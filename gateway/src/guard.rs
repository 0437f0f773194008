//! Access control for the pages. Every account of the machine and every page in a browser can reach
//! a port on loopback.
//!
//! - A foreign page can let its own host name resolve to 127.0.0.1 (DNS rebinding) and would then
//!   be able to read the responses. Therefore requests for other host names than those of this
//!   machine are refused.
//! - In a closed cluster the address contains a token that is valid once. The first browser that
//!   opens the address gets a cookie. Other accounts can see addresses (in the history of a shell
//!   or a browser, in a list of processes), but not cookies.
//! - Only GET and HEAD are allowed, so a foreign page cannot change anything.

use hyper::{HeaderMap, Method, Uri, header};
use sha2::{Digest, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The largest numbers of unused tokens and of sessions. The oldest are dropped.
const TOKENS_MAX: usize = 16;
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

/// The port and, in a closed cluster, the tokens and sessions.
#[derive(Debug)]
pub(super) struct Guard {
    port: u16,
    admitted: Option<Mutex<Admitted>>,
}

#[derive(Debug, Default)]
struct Admitted {
    /// Tokens that are valid once.
    tokens: Vec<String>,
    /// The cookies of browsers.
    sessions: Vec<String>,
}

impl Admitted {
    fn is_session(&self, shown: &str) -> bool {
        self.sessions.iter().any(|session| same(shown, session))
    }

    /// Exchanges a token for a new session.
    fn exchange(&mut self, shown: &str) -> Option<String> {
        let at = self.tokens.iter().position(|token| same(shown, token))?;
        self.tokens.remove(at);
        Some(add(&mut self.sessions, SESSIONS_MAX))
    }
}

/// Adds a random string. Drops the oldest if there are too many.
fn add(to: &mut Vec<String>, most: usize) -> String {
    if to.len() >= most {
        to.remove(0);
    }
    let random = uuid::Uuid::new_v4().simple().to_string();
    to.push(random.clone());
    random
}

impl Guard {
    /// `closed`: every request needs a token or a session.
    pub(super) fn new(port: u16, closed: bool) -> Self {
        Self { port, admitted: closed.then(Mutex::default) }
    }

    fn admitted(&self) -> Option<MutexGuard<'_, Admitted>> {
        Some(self.admitted.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The address to open, with a new token if one is needed.
    pub(super) fn address(&self) -> String {
        let token = self.admitted().map(|mut admitted| add(&mut admitted.tokens, TOKENS_MAX));
        let token = token.map_or_else(String::new, |token| format!("?token={token}"));
        format!("http://127.0.0.1:{}/{token}", self.port)
    }

    /// Whether requests need a token or a session.
    pub(super) fn is_closed(&self) -> bool {
        self.admitted.is_some()
    }

    /// Decides about a request. `public`: the file contains no data of the cluster, so no token is
    /// needed.
    pub(super) fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap, public: bool) -> Verdict {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let one = hosts.next().is_none() && host.is_some_and(|host| self.is_ours(host));
        if !one || uri.authority().is_some_and(|name| !self.is_ours(name.as_str())) {
            return Verdict::WrongOrigin;
        }
        if method != Method::GET && method != Method::HEAD {
            return Verdict::NotGet;
        }
        let Some(mut admitted) = self.admitted() else { return Verdict::Allowed };
        let name = format!("fermata_{}", self.port);
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
        let mut pairs = cookies.flat_map(|all| all.split(';')).filter_map(|one| one.trim().split_once('='));
        if pairs.any(|(key, value)| key == name && admitted.is_session(value)) || public {
            return Verdict::Allowed;
        }
        let token = asked(uri, "token").filter(|_| method == Method::GET);
        match token.and_then(|shown| admitted.exchange(&shown)) {
            Some(session) => {
                Verdict::SetCookie { cookie: format!("{name}={session}; Path=/; HttpOnly; SameSite=Strict") }
            }
            None => Verdict::NoToken,
        }
    }

    fn is_ours(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, port.parse().ok()),
            _ => (host, Some(80)),
        };
        let here = ["127.0.0.1", "localhost", "[::1]"].iter().any(|own| name.eq_ignore_ascii_case(own));
        here && port == Some(self.port)
    }
}

/// Compares the hashes, so that the duration of the comparison reveals nothing.
fn same(one: &str, other: &str) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

/// The value of a query parameter. Values are not percent-decoded, because those of our own links
/// contain no special characters.
pub(super) fn asked(uri: &Uri, name: &str) -> Option<String> {
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
        assert!(!cookie.contains(&token), "the cookie is another secret");
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let pair = cookie.split(';').next().unwrap();
        let shown = format!("other=1; {pair}");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, ("cookie", &shown)]), Verdict::Allowed);
        let wrong = ("cookie", "fermata_81=x");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, wrong]), Verdict::NoToken);
        // A new token admits another browser; the first one stays signed in.
        let fresh = guard.address();
        let (_, path) = fresh.split_once(":81").unwrap();
        assert!(matches!(judge(&guard, &Method::GET, path, &[host]), Verdict::SetCookie { .. }));
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, ("cookie", pair)]), Verdict::Allowed);
        for _ in 0..2 * TOKENS_MAX {
            guard.address();
        }
        assert_eq!(guard.admitted().unwrap().tokens.len(), TOKENS_MAX);
    }
}
