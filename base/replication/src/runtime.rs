//! The runtime of openraft: tokio, with two differences, without which a simulation could not be
//! repeated. Waiters wake in order (`watch`), and the random numbers of a thread can have a
//! seed.

use crate::watch::Watch;
use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::{cell::RefCell, future::Future, io, time::Duration};

thread_local! {
    static SEEDED: RefCell<Option<SmallRng>> = const { RefCell::new(None) };
}

/// Lets all random times of members that run in this thread follow from `seed`, for simulations.
pub fn seed_thread(seed: u64) {
    SEEDED.set(Some(SmallRng::seed_from_u64(seed)));
}

type Tokio = TokioRuntime;

/// The runtime of a member.
#[derive(Debug)]
pub struct Runtime(Tokio);

impl AsyncRuntime for Runtime {
    type JoinError = <Tokio as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <Tokio as AsyncRuntime>::Sleep;
    type Instant = <Tokio as AsyncRuntime>::Instant;
    type TimeoutError = <Tokio as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <Tokio as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = SmallRng;
    type Mpsc = <Tokio as AsyncRuntime>::Mpsc;
    type Watch = Watch;
    type Oneshot = <Tokio as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <Tokio as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        Tokio::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Tokio::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Tokio::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Tokio::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        Tokio::timeout_at(deadline, future)
    }

    fn is_panic(error: &Self::JoinError) -> bool {
        Tokio::is_panic(error)
    }

    fn thread_rng() -> SmallRng {
        let seeded = SEEDED.with_borrow_mut(|seeded| seeded.as_mut().map(Rng::next_u64));
        SmallRng::seed_from_u64(seeded.unwrap_or_else(rand::random))
    }

    fn new(threads: usize) -> Self {
        Self(Tokio::new(threads))
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn_blocking<F, T>(work: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Tokio::spawn_blocking(work)
    }
}
