//! Logs refused requests: the first at once, then at most one per second and kind, with their
//! number. Tokens are never logged, because only the path of a request is.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The shortest time between two log lines of the same kind.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A host name of another machine, or a request of a foreign page.
    Origin,
    /// No valid credential.
    Authentication,
    /// The caller has no permission.
    Permission,
    /// A limit on requests.
    Limit,
}

/// A refused request.
#[derive(Debug)]
pub(crate) struct Refused<'a> {
    pub(crate) kind: Kind,
    pub(crate) peer: Option<SocketAddr>,
    /// The name of the caller, or empty if it is not known.
    pub(crate) name: &'a str,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) why: &'a str,
}

#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<Kind, Count>>);

#[derive(Debug)]
struct Count {
    logged: Instant,
    since: u64,
}

impl Refusals {
    pub(crate) fn log(&self, refused: &Refused<'_>) {
        let Some(times) = self.count(refused.kind, Instant::now()) else { return };
        let Refused { kind, peer, name, method, path, why } = refused;
        let peer = peer.map_or_else(String::new, |peer| peer.to_string());
        let path: String = path.chars().take(200).collect();
        tracing::warn!(?kind, peer, name, method, path, why, times, "refused a request");
    }

    /// Counts a refusal. Returns the number since the last log line if it is to be logged.
    fn count(&self, kind: Kind, now: Instant) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&kind) {
            Some(count) if now.saturating_duration_since(count.logged) < LOG_INTERVAL => {
                count.since += 1;
                None
            }
            Some(count) => {
                count.logged = now;
                Some(std::mem::take(&mut count.since) + 1)
            }
            None => {
                all.insert(kind, Count { logged: now, since: 0 });
                Some(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_once_per_second_with_its_number() {
        let refusals = Refusals::default();
        let now = Instant::now();
        assert_eq!(refusals.count(Kind::Limit, now), Some(1));
        for _ in 0..9 {
            assert_eq!(refusals.count(Kind::Limit, now), None);
        }
        assert_eq!(refusals.count(Kind::Permission, now), Some(1));
        assert_eq!(refusals.count(Kind::Limit, now + LOG_INTERVAL), Some(10));
    }
}
