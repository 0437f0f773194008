//! Copies what an attempt left on a tracker that is emptied: a map's output, or what a paused reduce put aside.
//!
//! It comes by the shuffle protocol, verified, and lies here as if it had been made here: found again after a restart,
//! served, and deleted with its job. A copy is whole or not there.

use crate::{
    agent::{Copied, Event, Source},
    aside,
    child::{Command, Nursery},
    disks::Disks,
    held::Held,
    ids::{Attempt, Phase},
};
use mrlib::{
    TaskError,
    checkpoint::{self, Origin},
    engine::{Pulse, Scratch, StopFlag},
    fetch::{Ship, copy_output},
    segment::Index,
    task::limits::short_failure,
};
use security::Connector;
use std::sync::Arc;
use tokio::{sync::mpsc, task::JoinHandle};

impl Nursery {
    /// Begins a copy, when the name that it gets is free; the sender stops it.
    pub(crate) fn take(
        self: &Arc<Self>,
        attempt: Attempt,
        source: Source,
        after: Vec<JoinHandle<()>>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, mut receiver) = mpsc::unbounded_channel();
        let nursery = self.clone();
        tokio::spawn(async move {
            let stop = StopFlag::default();
            let copying = nursery.copy(attempt, source, stop.clone(), after);
            tokio::pin!(copying);
            let result = loop {
                tokio::select! {
                    result = &mut copying => break result,
                    Some(command) = receiver.recv() => {
                        if let Command::Kill(why) = command {
                            stop.set(why);
                        }
                    }
                }
            };
            nursery.events.send(Event::Took(attempt, result.map_err(short_failure))).await.ok();
        });
        commands
    }

    async fn copy(
        &self,
        attempt: Attempt,
        source: Source,
        stop: StopFlag,
        after: Vec<JoinHandle<()>>,
    ) -> Result<Copied, String> {
        let bug = |error: &dyn std::error::Error| format!("a bug of the tracker: {error}");
        for dropping in after {
            dropping.await.map_err(|error| bug(&error))?;
        }
        let _turn = self.copying.acquire().await.map_err(|error| bug(&error))?;
        let (disks, held, connector) = (self.disks.clone(), self.held.clone(), self.connector.clone());
        let copying =
            tokio::task::spawn_blocking(move || bring(attempt, &source, stop, connector, &disks, &held));
        copying.await.unwrap_or_else(|error| Err(bug(&error)))
    }
}

/// Copies it, if it is not here already.
fn bring(
    attempt: Attempt,
    source: &Source,
    stop: StopFlag,
    connector: Connector,
    disks: &Disks,
    held: &Held,
) -> Result<Copied, String> {
    let words = |error: TaskError| error.to_string();
    stop.check().map_err(words)?;
    if let Some(path) = held.output(attempt) {
        return Index::read(&path).map(|index| Copied::Output(index.stored())).map_err(words);
    }
    if let Some(dirs) = held.checkpoint(attempt) {
        return checkpoint::read(&dirs).map(|state| Copied::State(checkpoint::told(&state))).map_err(words);
    }
    held.learn_token(attempt.job, &source.token, disks);
    let places = disks.make_places(attempt).map_err(|error| error.to_string())?;
    let name = attempt.to_string();
    let job = attempt.job.to_string();
    let token = |partition: u32| security::partition_token(&source.token, &job, partition);
    let mut ship = Ship::new(&source.addr, &token(attempt.index), &name, stop, Pulse::default());
    ship.connector = connector;
    // Once it is said to be here, and safe, where it came from is deleted.
    let in_place = || disks.hand_over_copy(&places).map_err(TaskError::io("hand over a copy"));
    let brought = match attempt.phase {
        Phase::Map => {
            copy_output(&mut ship, source.partitions, &token, &places.outputs()).and_then(|copied| {
                in_place()?;
                let dir = copied.0.parent().unwrap_or(&copied.0).to_path_buf();
                aside::settle(attempt, &[dir], disks, held)?;
                let bytes = copied.1.stored();
                held.add(attempt, copied.0, copied.1);
                Ok(Copied::Output(bytes))
            })
        }
        Phase::Reduce => {
            let scratch = Scratch::new(places.scratch.clone());
            let origin = Origin { attempt: name.clone(), dirs: Vec::new(), addr: source.addr.clone() };
            let state = checkpoint::take_up(&origin, attempt.index, &scratch, &mut ship);
            let kept =
                state.and_then(|state| checkpoint::keep(&places.results, &name, attempt.index, &state));
            let safe = || aside::settle(attempt, &places.results, disks, held);
            let kept = kept.and_then(|_| in_place()).and_then(|()| safe());
            kept.and_then(|()| checkpoint::read(&places.results)).map(|state| {
                held.add_checkpoint(attempt, places.results.clone());
                Copied::State(checkpoint::told(&state))
            })
        }
    };
    places.end(brought.is_ok());
    brought.map_err(words)
}
