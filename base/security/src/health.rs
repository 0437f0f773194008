//! Health checks: calls without credentials, which therefore get few resources.
//!
//! They have their own slots. When these are in use, the oldest call is evicted: a check whose
//! request has arrived is answered at once, so a call that stays open is not that of a supervisor.
//! A watch ends after a while, and its caller watches again.

use crate::incoming::Connection;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    sync::oneshot,
    time::{Instant, Sleep, sleep},
};
use tonic::Status;

/// Prefix of the methods of the health service.
pub(crate) const SERVICE: &str = "/grpc.health.v1.Health/";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Maximum number of concurrent checks of a server.
const CHECKS_MAX: usize = 32;
/// Maximum number of concurrent watches of a server.
const WATCHES_MAX: usize = 16;
/// Maximum number of health calls per connection.
pub(crate) const OF_CONNECTION_MAX: usize = 8;
/// Maximum length of a request, which contains the name of a service.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 10;
/// Timeout of a check, and of the start of a watch.
const CHECK_TIMEOUT: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(2) };
/// Maximum duration of a watch.
const WATCH_TIMEOUT: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_mins(5) };

/// The health calls of one server.
#[derive(Debug, Default)]
pub(crate) struct Health {
    checks: Arc<Mutex<HealthSlots>>,
    watches: Arc<Mutex<HealthSlots>>,
}

#[derive(Debug, Default)]
struct HealthSlots {
    next: u64,
    /// Oldest first. Dropping a sender ends its call.
    occupied: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl Health {
    /// Returns a slot, if necessary that of the oldest call; fails if the connection has too many.
    pub(crate) fn enter(&self, method: &str, connection: Option<Arc<Connection>>) -> Result<Ticket, Status> {
        let count = Count::new(connection).ok_or_else(|| {
            Status::unavailable(format!(
                "this connection has {OF_CONNECTION_MAX} health calls in progress, which is the maximum: wait for their answers"
            ))
        })?;
        let watches = method == WATCH;
        let (slots, max) = if watches { (&self.watches, WATCHES_MAX) } else { (&self.checks, CHECKS_MAX) };
        let (sender, evicted) = oneshot::channel();
        let mut table = slots.lock();
        if table.occupied.len() >= max {
            table.occupied.pop_front();
        }
        table.next += 1;
        let id = table.next;
        table.occupied.push_back((id, sender));
        Ok(Ticket { slots: slots.clone(), id, watches, answered: false, evicted, until: None, count })
    }
}

#[cfg(test)]
impl Health {
    pub(crate) fn is_unused(&self) -> bool {
        [&self.checks, &self.watches].iter().all(|slots| slots.lock().occupied.is_empty())
    }
}

/// Counts a health call of a connection until dropped.
#[derive(Debug)]
struct Count(Option<Arc<Connection>>);

impl Count {
    fn new(connection: Option<Arc<Connection>>) -> Option<Self> {
        let before = connection.as_ref().map_or(0, |connection| connection.health.fetch_add(1, Relaxed));
        let count = Self(connection);
        (before < OF_CONNECTION_MAX).then_some(count)
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.health.fetch_sub(1, Relaxed);
        }
    }
}

/// A slot for one health call until dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    slots: Arc<Mutex<HealthSlots>>,
    id: u64,
    watches: bool,
    answered: bool,
    evicted: oneshot::Receiver<()>,
    /// Set when a poll had to wait.
    until: Option<Pin<Box<Sleep>>>,
    count: Count,
}

impl Ticket {
    /// Ready, with the reason, when the call must end.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let why = if Pin::new(&mut self.evicted).poll(context).is_ready() {
            Status::unavailable(
                "this server accepts few health calls at a time, and newer ones replaced this one: try again",
            )
        } else {
            let until = self.until.get_or_insert_with(|| Box::pin(sleep(CHECK_TIMEOUT)));
            ready!(until.as_mut().poll(context));
            Status::deadline_exceeded("a health check is limited to 2 s and a watch to 5 min: call again")
        };
        if let Some(connection) = self.count.0.as_ref().filter(|_| !self.answered) {
            // Its request had not arrived.
            connection.late();
        }
        Poll::Ready(why)
    }

    /// Returns the address of the caller.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.count.0.as_ref().and_then(|connection| connection.address())
    }

    /// Marks the call as answered: a watch has its full time from now on.
    pub(crate) fn answered(&mut self) {
        self.answered = true;
        if self.watches {
            let until = Instant::now() + WATCH_TIMEOUT;
            match &mut self.until {
                Some(sleep) => sleep.as_mut().reset(until),
                None => self.until = Some(Box::pin(tokio::time::sleep_until(until))),
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut table = self.slots.lock();
        if let Some(at) = table.occupied.iter().position(|(id, _)| *id == self.id) {
            table.occupied.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test]
    async fn oldest_health_call_makes_room_for_the_next() {
        let health = Health::default();
        let check = || health.enter("/grpc.health.v1.Health/Check", None).unwrap();
        let mut first = check();
        let mut watch = health.enter(WATCH, None).unwrap();
        let mut others: Vec<_> = (1..CHECKS_MAX).map(|_| check()).collect();
        assert!(poll_fn(|cx| Poll::Ready(first.poll_end(cx).is_pending())).await, "it has its slot");
        others.push(check());
        let why = poll_fn(|cx| first.poll_end(cx)).await;
        assert!(why.message().contains("newer ones replaced"), "{why}");
        // Watches have separate slots.
        watch.answered();
        assert!(poll_fn(|cx| Poll::Ready(watch.poll_end(cx).is_pending())).await, "it has its slot");
        assert_eq!(poll_fn(|cx| watch.poll_end(cx)).await.code(), tonic::Code::DeadlineExceeded);
        drop((first, others, watch));
        assert!(health.is_unused());
    }

    #[tokio::test]
    async fn check_that_does_not_arrive_ends() {
        let health = Health::default();
        let check = || health.enter("/grpc.health.v1.Health/Check", None).unwrap();
        let mut check = check();
        let begin = Instant::now();
        assert_eq!(poll_fn(|cx| check.poll_end(cx)).await.code(), tonic::Code::DeadlineExceeded);
        assert!(begin.elapsed() >= CHECK_TIMEOUT, "{:?}", begin.elapsed());
    }
}
