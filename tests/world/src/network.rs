//! The network: delays, loss, and cuts in each direction. Messages overtake each other, because each
//! has a delay of its own.

use crate::simulation::Simulation;
use std::{
    collections::BTreeSet,
    future::{Future, pending},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::time::sleep;

/// A process on the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    NameNode(u64),
    DataNode(u64),
    Client(u64),
}

impl Host {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::NameNode(id) => id,
            Self::DataNode(id) => 100 + id,
            Self::Client(id) => 200 + id,
        }
    }
}

/// The network between all processes. Clones share it.
#[derive(Clone)]
pub(crate) struct Network {
    simulation: Simulation,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    cut: BTreeSet<(Host, Host)>,
    /// Messages of 1,000 that are lost.
    loss: u64,
    /// Maximum delay in microseconds.
    delay: u64,
    /// Whether faults are allowed.
    has_faults: bool,
}

impl Network {
    pub(crate) fn new(simulation: Simulation) -> Self {
        let network = Self { simulation, state: Arc::default() };
        network.heal();
        network
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the present faults.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        *state = State { cut: BTreeSet::new(), loss: 0, delay: 2_000, has_faults: state.has_faults };
    }

    /// Allows faults from now on.
    pub(crate) fn allow_faults(&self) {
        self.state().has_faults = true;
    }

    /// Ends all faults, and allows no more.
    pub(crate) fn end_faults(&self) {
        self.heal();
        self.state().has_faults = false;
    }

    /// Cuts links in one direction.
    pub(crate) fn cut(&self, links: impl IntoIterator<Item = (Host, Host)>) {
        let mut state = self.state();
        if state.has_faults {
            state.cut.extend(links);
        }
    }

    /// Cuts the links between `host` and `others`.
    pub(crate) fn isolate(&self, host: Host, others: impl Iterator<Item = Host>) {
        self.cut(others.flat_map(|other| [(host, other), (other, host)]));
    }

    /// Loses `loss` of 1,000 messages, and delays the others by up to `delay` microseconds.
    pub(crate) fn disturb(&self, loss: u64, delay: u64) {
        let mut state = self.state();
        (state.loss, state.delay) = (loss, delay);
    }

    pub(crate) fn has_faults(&self) -> bool {
        self.state().has_faults
    }

    pub(crate) fn is_cut(&self, from: Host, to: Host) -> bool {
        self.state().cut.contains(&(from, to))
    }

    /// Carries a message. Returns when it arrives; never if it is lost.
    pub(crate) async fn carry(&self, from: Host, to: Host, what: &'static str) {
        let (loss, delay) = {
            let state = self.state();
            (state.loss, state.delay)
        };
        let (is_lost, delay) = (self.simulation.chance(loss), self.simulation.micros(50, delay));
        sleep(delay).await;
        if is_lost || self.is_cut(from, to) {
            self.simulation.note("lost", [from.number(), to.number()]);
            self.simulation.count("message lost");
            return pending().await;
        }
        self.simulation.note(what, [from.number(), to.number()]);
    }

    /// Sends a request and returns the answer. The receiver handles the request to its end, also if
    /// the sender gives up. Never returns if the request or the answer is lost.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        from: Host,
        to: Host,
        what: &'static str,
        handle: impl Future<Output = Option<T>> + Send + 'static,
    ) -> T {
        self.carry(from, to, what).await;
        // A receiver that has died meanwhile answers nothing.
        let Some(answer) = tokio::spawn(handle).await.ok().flatten() else { return pending().await };
        self.carry(to, from, "answer").await;
        answer
    }
}
