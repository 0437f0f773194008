//! Health checks: calls that need no credential, and therefore get very little.
//!
//! They have places of their own. When these are taken, the oldest call makes room for the next: a check whose request
//! has arrived is answered at once, so whoever is still there after a while is not a supervisor. A watch ends after a
//! while, and its caller watches again.

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

/// What methods of the health service begin with.
pub(crate) const SERVICE: &str = "/grpc.health.v1.Health/";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Checks under way in a server.
const CHECKS_MAX: usize = 32;
/// Watches under way in a server.
const WATCHES_MAX: usize = 16;
/// Health calls of either kind on one connection.
pub(crate) const OF_CONNECTION_MAX: usize = 8;
/// The longest request: it holds the name of a service.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 10;
/// A check is answered, and a watch begun, within this.
const CHECK_TIMEOUT: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(2) };
/// A watch ends after this.
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
    /// From the oldest on. Dropping a sender ends its call.
    occupied: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl Health {
    /// A place, if need be that of the oldest; the reason if the connection has enough of them.
    pub(crate) fn enter(&self, method: &str, connection: Option<Arc<Connection>>) -> Result<Ticket, Status> {
        let count = Count::new(connection).ok_or_else(|| {
            Status::unavailable(format!(
                "{OF_CONNECTION_MAX} health calls are under way on this connection, the most: wait for their answers"
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

/// One of a connection's health calls, until dropped.
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

/// A place for one health call, until dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    slots: Arc<Mutex<HealthSlots>>,
    id: u64,
    watches: bool,
    answered: bool,
    evicted: oneshot::Receiver<()>,
    /// None as long as nobody has had to wait.
    until: Option<Pin<Box<Sleep>>>,
    count: Count,
}

impl Ticket {
    /// Ready, with the reason, when the call must end.
    pub(crate) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        let why = if Pin::new(&mut self.evicted).poll(context).is_ready() {
            Status::unavailable(
                "this server has places for few health calls, and others came after this one: try again",
            )
        } else {
            let until = self.until.get_or_insert_with(|| Box::pin(sleep(CHECK_TIMEOUT)));
            ready!(until.as_mut().poll(context));
            Status::deadline_exceeded("a health check may take 2 s, and a watch 5 min: call again")
        };
        if let Some(connection) = self.count.0.as_ref().filter(|_| !self.answered) {
            // Its request had not even arrived.
            connection.late();
        }
        Poll::Ready(why)
    }

    /// Who waits.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.count.0.as_ref().and_then(|connection| connection.address())
    }

    /// The call has an answer: a watch has its whole time from now on.
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
        assert!(poll_fn(|cx| Poll::Ready(first.poll_end(cx).is_pending())).await, "it has its place");
        others.push(check());
        let why = poll_fn(|cx| first.poll_end(cx)).await;
        assert!(why.message().contains("others came after"), "{why}");
        // Watches have places of their own.
        watch.answered();
        assert!(poll_fn(|cx| Poll::Ready(watch.poll_end(cx).is_pending())).await, "it has its place");
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
