//! Limits health calls. They need no credential, and therefore get few resources.
//!
//! Health calls have their own slots. If all slots are in use, a new call evicts the oldest one. A
//! supervisor sends its request at once and is answered at once, so a check that stays open is not
//! from a supervisor. A watch ends after a few minutes, and its caller starts another one.

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
pub(crate) const CONNECTION_CALLS_MAX: usize = 8;
/// Maximum length of a request, which contains the name of a service.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 10;
/// Timeout of a check, and of a watch until it is answered.
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
    /// ID of the newest call.
    last_id: u64,
    /// IDs of the calls in progress, oldest first. Dropping a sender ends its call.
    occupied: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl Health {
    /// Returns a slot for a health call; takes that of the oldest call if no other is free. Fails
    /// if the connection has too many health calls.
    pub(crate) fn enter(
        &self,
        method: &str,
        connection: Option<Arc<Connection>>,
    ) -> Result<HealthSlot, Status> {
        let count = HealthCallCount::new(connection).ok_or_else(|| {
            Status::unavailable(format!(
                "this connection has {CONNECTION_CALLS_MAX} health calls in progress, which is the maximum: wait for their answers"
            ))
        })?;
        let is_watch = method == WATCH;
        let (slots, max) = if is_watch { (&self.watches, WATCHES_MAX) } else { (&self.checks, CHECKS_MAX) };
        let (sender, evicted) = oneshot::channel();
        let mut table = slots.lock();
        if table.occupied.len() >= max {
            table.occupied.pop_front();
        }
        table.last_id += 1;
        let id = table.last_id;
        table.occupied.push_back((id, sender));
        Ok(HealthSlot { slots: slots.clone(), id, is_watch, answered: false, evicted, timeout: None, count })
    }
}

#[cfg(test)]
impl Health {
    pub(crate) fn is_unused(&self) -> bool {
        [&self.checks, &self.watches].iter().all(|slots| slots.lock().occupied.is_empty())
    }
}

/// Counts a health call of a connection until this value is dropped.
#[derive(Debug)]
struct HealthCallCount(Option<Arc<Connection>>);

impl HealthCallCount {
    fn new(connection: Option<Arc<Connection>>) -> Option<Self> {
        let before =
            connection.as_ref().map_or(0, |connection| connection.health_calls.fetch_add(1, Relaxed));
        let count = Self(connection);
        (before < CONNECTION_CALLS_MAX).then_some(count)
    }
}

impl Drop for HealthCallCount {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.health_calls.fetch_sub(1, Relaxed);
        }
    }
}

/// The slot of one health call. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct HealthSlot {
    slots: Arc<Mutex<HealthSlots>>,
    id: u64,
    is_watch: bool,
    /// Whether the service has answered the call.
    answered: bool,
    /// Completes when a newer call has taken the slot.
    evicted: oneshot::Receiver<()>,
    /// The timeout of the call; set when a poll first has to wait.
    timeout: Option<Pin<Box<Sleep>>>,
    count: HealthCallCount,
}

impl HealthSlot {
    /// Is ready, with the reason, when the call must end.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let why = if Pin::new(&mut self.evicted).poll(context).is_ready() {
            Status::unavailable(
                "this server accepts few health calls at a time, and newer ones replaced this one: try again",
            )
        } else {
            let until = self.timeout.get_or_insert_with(|| Box::pin(sleep(CHECK_TIMEOUT)));
            ready!(until.as_mut().poll(context));
            Status::deadline_exceeded("a health check is limited to 2 s and a watch to 5 min: call again")
        };
        if let Some(connection) = self.count.0.as_ref().filter(|_| !self.answered) {
            // The call is not answered because its request has not arrived completely.
            connection.count_late_request();
        }
        Poll::Ready(why)
    }

    /// Returns the address of the caller.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.count.0.as_ref().and_then(|connection| connection.address())
    }

    /// Marks the call as answered. A watch gets its full duration from now on.
    pub(crate) fn mark_answered(&mut self) {
        self.answered = true;
        if self.is_watch {
            let until = Instant::now() + WATCH_TIMEOUT;
            match &mut self.timeout {
                Some(sleep) => sleep.as_mut().reset(until),
                None => self.timeout = Some(Box::pin(tokio::time::sleep_until(until))),
            }
        }
    }
}

impl Drop for HealthSlot {
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
    async fn a_new_health_call_evicts_the_oldest_if_all_slots_are_used() {
        let health = Health::default();
        let check = || health.enter("/grpc.health.v1.Health/Check", None).unwrap();
        let mut first = check();
        let mut watch = health.enter(WATCH, None).unwrap();
        let mut others: Vec<_> = (1..CHECKS_MAX).map(|_| check()).collect();
        assert!(poll_fn(|cx| Poll::Ready(first.poll_end(cx).is_pending())).await, "the check has its slot");
        others.push(check());
        let why = poll_fn(|cx| first.poll_end(cx)).await;
        assert!(why.message().contains("newer ones replaced"), "{why}");
        // Watches have separate slots.
        watch.mark_answered();
        assert!(poll_fn(|cx| Poll::Ready(watch.poll_end(cx).is_pending())).await, "the watch has its slot");
        assert_eq!(poll_fn(|cx| watch.poll_end(cx)).await.code(), tonic::Code::DeadlineExceeded);
        drop((first, others, watch));
        assert!(health.is_unused());
    }

    #[tokio::test]
    async fn a_check_whose_request_does_not_arrive_is_ended() {
        let health = Health::default();
        let check = || health.enter("/grpc.health.v1.Health/Check", None).unwrap();
        let mut check = check();
        let begin = Instant::now();
        assert_eq!(poll_fn(|cx| check.poll_end(cx)).await.code(), tonic::Code::DeadlineExceeded);
        assert!(begin.elapsed() >= CHECK_TIMEOUT, "{:?}", begin.elapsed());
    }
}
