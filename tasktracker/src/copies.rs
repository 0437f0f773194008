//! Copies the files of an attempt from a tracker that is being drained: a map output, or the
//! checkpoint of a paused reduce.
//!
//! They are fetched by the shuffle protocol and verified. Afterwards they are treated as if made
//! here: found after a restart, served, and deleted with their job. A copy is complete or does not
//! exist.

use crate::{
    checkpoints,
    disks::Disks,
    shuffle_store::ShuffleStore,
    task_runner::TaskRunner,
    task_session::Command,
    wire::{Copied, CopySource, Event},
};
use engine::{
    checkpoint::{self, CheckpointSource},
    fetch::{RemoteCheckpoint, copy_output},
    scratch::Scratch,
    segment::Index,
};
use mrlib_api::{Liveness, TaskControl, TaskError, limits::truncate_failure};
use proto::mr::CheckpointInfo;
use security::Connector;
use std::sync::Arc;
use tokio::{sync::mpsc, task::JoinHandle};
use types::{AttemptId, Phase};

impl TaskRunner {
    /// Starts a copy as soon as its name is free; dropping the sender stops it.
    pub(crate) fn take(
        self: &Arc<Self>,
        attempt: AttemptId,
        source: CopySource,
        after: Vec<JoinHandle<()>>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, mut receiver) = mpsc::unbounded_channel();
        let task_runner = self.clone();
        tokio::spawn(async move {
            let stop = TaskControl::default();
            let copying = task_runner.copy(attempt, source, stop.clone(), after);
            tokio::pin!(copying);
            let result = loop {
                tokio::select! {
                    result = &mut copying => break result,
                    Some(command) = receiver.recv() => {
                        if let Command::Kill(why) = command {
                            stop.kill(why);
                        }
                    }
                }
            };
            task_runner.events.send(Event::Copied(attempt, result.map_err(truncate_failure))).await.ok();
        });
        commands
    }

    async fn copy(
        &self,
        attempt: AttemptId,
        source: CopySource,
        stop: TaskControl,
        after: Vec<JoinHandle<()>>,
    ) -> Result<Copied, String> {
        let bug = |error: &dyn std::error::Error| format!("internal error of the tracker: {error}");
        for dropping in after {
            dropping.await.map_err(|error| bug(&error))?;
        }
        let _turn = self.copying.acquire().await.map_err(|error| bug(&error))?;
        let (disks, shuffle_store, connector) =
            (self.disks.clone(), self.shuffle_store.clone(), self.connector.clone());
        let copying = tokio::task::spawn_blocking(move || {
            copy_from(attempt, &source, stop, connector, &disks, &shuffle_store)
        });
        copying.await.unwrap_or_else(|error| Err(bug(&error)))
    }
}

fn output(bytes: u64) -> Copied {
    Copied { bytes, checkpoint: None }
}

fn paused(state: CheckpointInfo) -> Copied {
    Copied { bytes: state.bytes, checkpoint: Some(state) }
}

/// Copies the files, unless they are here already.
fn copy_from(
    attempt: AttemptId,
    source: &CopySource,
    stop: TaskControl,
    connector: Connector,
    disks: &Disks,
    shuffle_store: &ShuffleStore,
) -> Result<Copied, String> {
    let text = |error: TaskError| error.to_string();
    stop.check().map_err(text)?;
    if let Some(path) = shuffle_store.output(attempt) {
        return Index::read(&path).map(|index| output(index.stored())).map_err(text);
    }
    if let Some(dirs) = shuffle_store.checkpoint(attempt) {
        return checkpoint::read(&dirs).map(|state| paused(checkpoint::info(&state))).map_err(text);
    }
    shuffle_store.add_token(attempt.job(), source.token.bytes(), disks);
    let places = disks.make_copy_targets(attempt).map_err(|error| error.to_string())?;
    let name = attempt.to_string();
    let job = attempt.job().to_string();
    let token = |partition: u32| security::partition_token(source.token.bytes(), &job, partition);
    let mut remote =
        RemoteCheckpoint::new(&source.addr, &token(attempt.task.index), &name, stop, Liveness::default());
    remote.connector = connector;
    // The copy must be durable now, because its source is deleted after it was reported.
    let in_place = || disks.hand_over_copy(&places).map_err(TaskError::io("hand over a copy"));
    let brought = match attempt.phase() {
        Phase::Map => {
            copy_output(&mut remote, source.partitions, &token, &places.outputs()).and_then(|copied| {
                in_place()?;
                let dir = copied.0.parent().unwrap_or(&copied.0).to_path_buf();
                checkpoints::settle(attempt, &[dir], disks, shuffle_store)?;
                let bytes = copied.1.stored();
                shuffle_store.add(attempt, copied.0, copied.1);
                Ok(output(bytes))
            })
        }
        Phase::Reduce => {
            let scratch = Scratch::new(places.scratch.clone());
            let origin =
                CheckpointSource { attempt: name.clone(), dirs: Vec::new(), addr: source.addr.clone() };
            let state = checkpoint::restore(&origin, attempt.task.index, &scratch, &mut remote);
            let kept =
                state.and_then(|state| checkpoint::save(&places.results, &name, attempt.task.index, &state));
            let safe = || checkpoints::settle(attempt, &places.results, disks, shuffle_store);
            let kept = kept.and_then(|_| in_place()).and_then(|()| safe());
            kept.and_then(|()| checkpoint::read(&places.results)).map(|state| {
                shuffle_store.add_checkpoint(attempt, places.results.clone());
                paused(checkpoint::info(&state))
            })
        }
    };
    places.end(brought.is_ok());
    brought.map_err(text)
}
