//! Who is let in. A port on loopback is open to every account of the machine, and to every page that a browser shows.
//!
//! - A page of somebody else's can have its own name lead to 127.0.0.1 (DNS rebinding) and would then read our answers as its own: what
//!   is asked for under another name than this machine's is refused.
//! - In a closed cluster the address carries a token, which becomes a cookie: other accounts do not know it.
//! - Nothing but GET and HEAD, so that there is nothing to do in somebody's name.

use hyper::{HeaderMap, Method, Uri, header};
use sha2::{Digest, Sha256};

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Answer it.
    Welcome,
    /// It showed the token in its address: keep it in this cookie, and go to the address without it.
    Keep {
        cookie: String,
    },
    NotFromHere,
    NoToken,
    NotARead,
}

/// Knows the port, and the token if there is one.
#[derive(Debug)]
pub(super) struct Guard {
    port: u16,
    token: Option<String>,
}

impl Guard {
    /// With a token of its own, if one is needed.
    pub(super) fn new(port: u16, closed: bool) -> Self {
        Self { port, token: closed.then(|| uuid::Uuid::new_v4().simple().to_string()) }
    }

    /// What to open.
    pub(super) fn address(&self) -> String {
        let token = self.token.as_ref().map_or_else(String::new, |token| format!("?token={token}"));
        format!("http://127.0.0.1:{}/{token}", self.port)
    }

    /// Whether only who has the token is let in.
    pub(super) fn is_closed(&self) -> bool {
        self.token.is_some()
    }

    /// Judges a request. `public`: what is asked for tells nothing, so that no token is needed.
    pub(super) fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap, public: bool) -> Verdict {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok());
        let one = hosts.next().is_none() && host.is_some_and(|host| self.is_ours(host));
        if !one || uri.authority().is_some_and(|name| !self.is_ours(name.as_str())) {
            return Verdict::NotFromHere;
        }
        if method != Method::GET && method != Method::HEAD {
            return Verdict::NotARead;
        }
        let Some(token) = &self.token else { return Verdict::Welcome };
        let name = format!("fermata_{}", self.port);
        if asked(uri, "token").is_some_and(|shown| same(&shown, token)) {
            return Verdict::Keep { cookie: format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict") };
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
        let mut pairs = cookies.flat_map(|all| all.split(';')).filter_map(|one| one.trim().split_once('='));
        let shown = pairs.any(|(key, value)| key == name && same(value, token));
        if shown || public { Verdict::Welcome } else { Verdict::NoToken }
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
    fn only_this_machine_s_names_are_ours() {
        let guard = Guard { port: 81, token: None };
        for host in ["127.0.0.1:81", "localhost:81", "LOCALHOST:81", "[::1]:81"] {
            assert_eq!(judge(&guard, &Method::GET, "/", &[("host", host)]), Verdict::Welcome, "{host}");
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
            assert_eq!(judge(&guard, &Method::GET, "/", &[("host", host)]), Verdict::NotFromHere, "{host}");
        }
        assert_eq!(judge(&guard, &Method::GET, "/", &[]), Verdict::NotFromHere);
        let two = [("host", "localhost:81"), ("host", "evil:81")];
        assert_eq!(judge(&guard, &Method::GET, "/", &two), Verdict::NotFromHere);
        let named = judge(&guard, &Method::GET, "http://evil:81/", &[("host", "localhost:81")]);
        assert_eq!(named, Verdict::NotFromHere);
        let plain = Guard { port: 80, token: None };
        assert_eq!(judge(&plain, &Method::GET, "/", &[("host", "localhost")]), Verdict::Welcome);
        assert_eq!(judge(&plain, &Method::GET, "/", &[("host", "[::1]")]), Verdict::Welcome);
    }

    #[test]
    fn only_reads() {
        let guard = Guard { port: 81, token: None };
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS, Method::CONNECT] {
            assert_eq!(judge(&guard, &method, "/", &[("host", "localhost:81")]), Verdict::NotARead);
        }
        assert_eq!(judge(&guard, &Method::HEAD, "/", &[("host", "localhost:81")]), Verdict::Welcome);
    }

    #[test]
    fn a_closed_cluster_s_pages_need_the_token() {
        let guard = Guard::new(81, true);
        let token = guard.token.clone().unwrap();
        assert!(token.len() == 32 && guard.address().ends_with(&token));
        let host = ("host", "127.0.0.1:81");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host]), Verdict::NoToken);
        assert_eq!(judge(&guard, &Method::GET, "/?token=x", &[host]), Verdict::NoToken);
        let Verdict::Keep { cookie } =
            judge(&guard, &Method::GET, &format!("/job/job_1?x=1&token={token}"), &[host])
        else {
            panic!("the token counts");
        };
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
        let pair = cookie.split(';').next().unwrap();
        let shown = format!("other=1; {pair}");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, ("cookie", &shown)]), Verdict::Welcome);
        let wrong = ("cookie", "fermata_81=x");
        assert_eq!(judge(&guard, &Method::GET, "/", &[host, wrong]), Verdict::NoToken);
        assert_ne!(Guard::new(81, true).token, guard.token);
    }
}
