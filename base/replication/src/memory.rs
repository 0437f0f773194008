//! Groups of masters in one process: a network in memory that can be cut in each direction.
//!
//! For tests of this crate and of the masters. It is not behind a feature, for the reason of
//! `journal::crash`.

use crate::{
    machine::ReplicatedState,
    member::{Member, StartError, Timing},
    network::{AnswerFuture, Message, Transport},
};
use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// How long [`wait_for`] waits.
const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

/// A master that runs in a test.
pub trait Master: Send + Sync + 'static {
    /// Returns its member.
    fn member(&self) -> &Member;
    /// Returns whether it believes to lead.
    fn is_leader(&self) -> bool;
}

/// Returns whether a message is lost.
type IsLost = Box<dyn Fn(&Message) -> bool + Send + Sync>;

/// The network, and the masters on it. Clones share it.
pub struct MemoryNetwork<M>(Arc<Wires<M>>);

struct Wires<M> {
    running: RwLock<BTreeMap<u64, Arc<M>>>,
    cut: RwLock<HashSet<(u64, u64)>>,
    is_lost: RwLock<IsLost>,
}

impl<M> Clone for MemoryNetwork<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M> Default for MemoryNetwork<M> {
    fn default() -> Self {
        let is_lost: IsLost = Box::new(|_| false);
        Self(Arc::new(Wires {
            running: RwLock::default(),
            cut: RwLock::default(),
            is_lost: RwLock::new(is_lost),
        }))
    }
}

/// Returns the address of a member.
pub fn address(id: u64) -> String {
    format!("m{id}:9400")
}

/// Short, so that many leaders change in a short test.
pub fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(40),
        election: Duration::from_millis(150)..=Duration::from_millis(300),
    }
}

/// Waits until `condition` returns a value. Panics with `what` if it does not in time.
pub async fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "waited for {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

impl<M: Master> MemoryNetwork<M> {
    fn is_cut(&self, from: u64, to: u64) -> bool {
        self.0.cut.read().unwrap_or_else(PoisonError::into_inner).contains(&(from, to))
    }

    /// Cuts links, each in one direction.
    pub fn cut(&self, links: impl IntoIterator<Item = (u64, u64)>) {
        self.0.cut.write().unwrap_or_else(PoisonError::into_inner).extend(links);
    }

    /// Cuts all links of a member.
    pub fn isolate(&self, id: u64) {
        self.cut((1..=9).flat_map(|other| [(id, other), (other, id)]));
    }

    /// Connects all links again.
    pub fn heal(&self) {
        self.0.cut.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Loses messages for which this returns true from now on.
    pub fn lose_if(&self, is_lost: impl Fn(&Message) -> bool + Send + Sync + 'static) {
        *self.0.is_lost.write().unwrap_or_else(PoisonError::into_inner) = Box::new(is_lost);
    }

    /// Returns the masters that run.
    pub fn all(&self) -> BTreeMap<u64, Arc<M>> {
        self.0.running.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a master that leads, if there is one. A deposed one may not know it yet.
    pub fn leader(&self) -> Option<(u64, Arc<M>)> {
        self.all().into_iter().rev().find(|(_, master)| master.is_leader())
    }

    /// Waits until a master leads.
    pub async fn wait_for_leader(&self) -> (u64, Arc<M>) {
        wait_for("a leader", || self.leader()).await
    }

    /// Starts the member of `master`, which the others reach as `id`.
    pub async fn start(
        &self,
        id: u64,
        master: Arc<M>,
        state: Arc<dyn ReplicatedState>,
    ) -> Result<(), StartError> {
        self.0.running.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&master));
        let transport = Arc::new(Sender { network: self.clone(), from: id });
        master.member().start(&timing(), state, &address(id), transport).await
    }

    /// Removes a master that stops. Panics if it does not run.
    pub fn remove(&self, id: u64) -> Arc<M> {
        let mut running = self.0.running.write().unwrap_or_else(PoisonError::into_inner);
        running.remove(&id).expect("the master runs")
    }
}

/// What a member sends with.
struct Sender<M> {
    network: MemoryNetwork<M>,
    from: u64,
}

impl<M: Master> Transport for Sender<M> {
    fn call<'a>(&'a self, to: u64, at: &'a str, message: Message, limit: Duration) -> AnswerFuture<'a> {
        Box::pin(async move {
            assert_eq!(at, address(to), "the address of the member");
            let silence = || async {
                sleep(limit).await;
                Err("no answer".to_owned())
            };
            if self.network.is_cut(self.from, to) {
                return silence().await;
            }
            if self.network.0.is_lost.read().unwrap_or_else(PoisonError::into_inner)(&message) {
                return Err("connection reset".to_owned());
            }
            let target = self.network.all().remove(&to).ok_or("connection refused")?;
            let answer = timeout(limit, target.member().handle(message)).await;
            if self.network.is_cut(to, self.from) {
                return silence().await;
            }
            answer.unwrap_or_else(|_| Err("no answer".to_owned()))
        })
    }
}
