//! A value that tasks can wait for, like `tokio::sync::watch`, which wakes its waiters in the order in
//! which they began to wait. tokio wakes them in a random order, so a simulation could not be repeated.

use openraft::{
    OptionalSend, OptionalSync,
    async_runtime::watch::{self, RecvError, SendError, WatchReceiver, WatchSender},
};
use std::{pin::pin, sync::Arc};
use tokio::sync::{
    Notify,
    watch::{self as tokio_watch, Ref},
};

/// This kind of channel, for openraft.
pub struct Watch;

/// Changes the value. Clones change the same value.
pub struct Sender<T> {
    // It is dropped before `waiters`, which wake up when the last one is gone.
    value: tokio_watch::Sender<T>,
    waiters: Arc<Waiters>,
}

/// Waits for changes.
pub struct Receiver<T> {
    value: tokio_watch::Receiver<T>,
    changed: Arc<Notify>,
}

/// Belongs to all senders, and wakes the waiters when there is none left.
struct Waiters(Arc<Notify>);

impl Drop for Waiters {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

impl<T> Sender<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: tokio_watch::Sender::new(value), waiters: Arc::new(Waiters(Arc::default())) }
    }

    pub(crate) fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.value.send_modify(change);
        self.waiters.0.notify_waiters();
    }

    pub(crate) fn borrow(&self) -> Ref<'_, T> {
        self.value.borrow()
    }

    /// Waits until the value fulfils `condition`, and returns it.
    pub(crate) async fn wait_for(&self, condition: impl Fn(&T) -> bool) -> T
    where
        T: Clone,
    {
        loop {
            let mut changed = pin!(self.waiters.0.notified());
            changed.as_mut().enable();
            let value = Some(self.value.borrow()).filter(|value| condition(value)).map(|value| value.clone());
            match value {
                Some(value) => return value,
                None => changed.await,
            }
        }
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), waiters: Arc::clone(&self.waiters) }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), changed: Arc::clone(&self.changed) }
    }
}

impl watch::Watch for Watch {
    type Sender<T: OptionalSend + OptionalSync> = Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Sender<T>, Receiver<T>) {
        let sender = Sender::new(init);
        let receiver = sender.subscribe();
        (sender, receiver)
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<Watch, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.value.send(value).map_err(|error| SendError(error.0))?;
        self.waiters.0.notify_waiters();
        Ok(())
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        let is_modified = self.value.send_if_modified(modify);
        if is_modified {
            self.waiters.0.notify_waiters();
        }
        is_modified
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.value.borrow()
    }

    fn subscribe(&self) -> Receiver<T> {
        Receiver { value: self.value.subscribe(), changed: Arc::clone(&self.waiters.0) }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<Watch, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            // A value that the last sender has sent is received before its end.
            let is_closed = self.value.has_changed().is_err();
            if self.value.borrow_and_update().has_changed() {
                return Ok(());
            }
            if is_closed {
                return Err(RecvError(()));
            }
            changed.await;
        }
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.value.borrow()
    }

    fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.value.borrow_and_update()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use watch::Watch as _;

    #[tokio::test]
    async fn waiters_wake_in_their_order() {
        let (sender, receiver) = Watch::channel(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|waiter| {
                let (mut receiver, woken) = (receiver.clone(), woken.clone());
                tokio::spawn(async move {
                    receiver.changed().await.unwrap();
                    woken.lock().unwrap().push(waiter);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        sender.send(1).unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*woken.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_waiter_gets_the_last_value_and_then_the_end() {
        let (sender, mut receiver) = Watch::channel(0);
        let other = sender.clone();
        drop(sender);
        let waiting = tokio::spawn(async move {
            receiver.changed().await.unwrap();
            assert_eq!(*receiver.borrow_watched(), 1);
            receiver.changed().await.unwrap_err();
        });
        tokio::task::yield_now().await;
        other.send(1).unwrap();
        drop(other);
        waiting.await.unwrap();
    }
}
