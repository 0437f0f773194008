//! Who is let in. A port on loopback is open to every account of the machine, and to every page that a browser shows.
//!
//! - A page of somebody else's can have its own name lead to 127.0.0.1 (DNS rebinding) and would then read our answers as its own: what
//!   is asked for under another name than this machine's is refused.
//! - In a closed cluster the address carries a token that is good once: the browser that shows it first gets a cookie for
//!   it. Addresses are seen by others (in a shell's history, a browser's history, a list of processes), cookies are not.
//! - Nothing but GET and HEAD, so that there is nothing to do in somebody's name.

use hyper::{HeaderMap, Method, Uri, header};
use sha2::{Digest, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tokens that nobody has shown yet, and browsers that have. The oldest make room.
const TOKENS_MAX: usize = 16;
const SESSIONS_MAX: usize = 64;

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Answer it.
    Allowed,
    /// It showed a token in its address, which is void from now on: keep this cookie, and go to the address without it.
    SetCookie {
        cookie: String,
    },
    WrongOrigin,
    NoToken,
    NotGet,
}

/// Knows the port, and who has been let in if that is not everybody.
#[derive(Debug)]
pub(super) struct Guard {
    port: u16,
    admitted: Option<Mutex<Admitted>>,
}

#[derive(Debug, Default)]
struct Admitted {
    /// Good once.
    tokens: Vec<String>,
    /// Of browsers.
    sessions: Vec<String>,
}

impl Admitted {
    fn is_session(&self, shown: &str) -> bool {
        self.sessions.iter().any(|session| same(shown, session))
    }

    /// Exchanges a token for a session.
    fn exchange(&mut self, shown: &str) -> Option<String> {
        let at = self.tokens.iter().position(|token| same(shown, token))?;
        self.tokens.remove(at);
        Some(add(&mut self.sessions, SESSIONS_MAX))
    }
}

/// Adds a random text; the oldest goes if there are too many.
fn add(to: &mut Vec<String>, most: usize) -> String {
    if to.len() >= most {
        to.remove(0);
    }
    let random = uuid::Uuid::new_v4().simple().to_string();
    to.push(random.clone());
    random
}

impl Guard {
    /// `closed`: only who shows a token is let in.
    pub(super) fn new(port: u16, closed: bool) -> Self {
        Self { port, admitted: closed.then(Mutex::default) }
    }

    fn admitted(&self) -> Option<MutexGuard<'_, Admitted>> {
        Some(self.admitted.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What to open: with a new token, if one is needed.
    pub(super) fn address(&self) -> String {
        let token = self.admitted().map(|mut admitted| add(&mut admitted.tokens, TOKENS_MAX));
        let token = token.map_or_else(String::new, |token| format!("?token={token}"));
        format!("http://127.0.0.1:{}/{token}", self.port)
    }

    /// Whether only who has shown a token is let in.
    pub(super) fn is_closed(&self) -> bool {
        self.admitted.is_some()
    }

    /// Judges a request. `public`: what is asked for tells nothing, so that no token is needed.
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

/// Compared by what they hash to, so that the time it takes tells nothing.
fn same(one: &str, other: &str) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

/// What an address asks for by this name. Our own words need no decoding; others are not ours.
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
    fn only_reads() {
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
        assert_eq!(judge(&guard, &Method::HEAD, &shown, &[host]), Verdict::NoToken, "only looked at");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host]), Verdict::NoToken);
        assert_eq!(judge(&guard, &Method::GET, "/?token=x", &[host]), Verdict::NoToken);
        let Verdict::SetCookie { cookie } = judge(&guard, &Method::GET, &shown, &[host]) else {
            panic!("the token counts");
        };
        assert_eq!(judge(&guard, &Method::GET, &shown, &[host]), Verdict::NoToken, "it counts once");
        assert!(!cookie.contains(&token), "the cookie is another secret");
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let pair = cookie.split(';').next().unwrap();
        let shown = format!("other=1; {pair}");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, ("cookie", &shown)]), Verdict::Allowed);
        let wrong = ("cookie", "fermata_81=x");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, wrong]), Verdict::NoToken);
        // A fresh one lets in another browser, and the first stays in.
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
