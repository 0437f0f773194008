//! Copies the files of an attempt from a tracker that is being drained: a map output, or the
//! checkpoint of a paused reduce.
//!
//! The files are fetched by the shuffle protocol and verified. Afterwards they are treated like
//! files that were made on this tracker: they are found after a restart, served, and deleted with
//! their job. A copy that is not complete is removed.

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
    /// Starts a copy. It first waits for the tasks in `after`, which rename old folders with the
    /// names that the copy needs. The returned sender passes commands to the copy.
    pub(crate) fn start_copy(
        self: &Arc<Self>,
        attempt: AttemptId,
        source: CopySource,
        after: Vec<JoinHandle<()>>,
    ) -> mpsc::UnboundedSender<Command> {
        let (commands, mut receiver) = mpsc::unbounded_channel();
        let task_runner = self.clone();
        tokio::spawn(async move {
            let control = TaskControl::default();
            let copying = task_runner.copy(attempt, source, control.clone(), after);
            tokio::pin!(copying);
            let result = loop {
                tokio::select! {
                    result = &mut copying => break result,
                    Some(command) = receiver.recv() => {
                        if let Command::Kill(why) = command {
                            control.kill(why);
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
        control: TaskControl,
        after: Vec<JoinHandle<()>>,
    ) -> Result<Copied, String> {
        let internal_error =
            |error: &dyn std::error::Error| format!("internal error of the tracker: {error}");
        for earlier in after {
            earlier.await.map_err(|error| internal_error(&error))?;
        }
        let _permit = self.copying.acquire().await.map_err(|error| internal_error(&error))?;
        let (disks, shuffle_store, connector) =
            (self.disks.clone(), self.shuffle_store.clone(), self.connector.clone());
        let copying = tokio::task::spawn_blocking(move || {
            copy_from(attempt, &source, control, connector, &disks, &shuffle_store)
        });
        copying.await.unwrap_or_else(|error| Err(internal_error(&error)))
    }
}

fn copied_output(bytes: u64) -> Copied {
    Copied { bytes, checkpoint: None }
}

fn copied_checkpoint(info: CheckpointInfo) -> Copied {
    Copied { bytes: info.bytes, checkpoint: Some(info) }
}

/// Copies the files of an attempt, unless this tracker already has them.
fn copy_from(
    attempt: AttemptId,
    source: &CopySource,
    control: TaskControl,
    connector: Connector,
    disks: &Disks,
    shuffle_store: &ShuffleStore,
) -> Result<Copied, String> {
    let text = |error: TaskError| error.to_string();
    control.check().map_err(text)?;
    if let Some(path) = shuffle_store.output(attempt) {
        return Index::read(&path).map(|index| copied_output(index.stored())).map_err(text);
    }
    if let Some(dirs) = shuffle_store.checkpoint(attempt) {
        return checkpoint::read(&dirs)
            .map(|state| copied_checkpoint(checkpoint::info(&state)))
            .map_err(text);
    }
    shuffle_store.add_token(attempt.job(), source.token.bytes(), disks);
    let targets = disks.make_copy_targets(attempt).map_err(|error| error.to_string())?;
    let name = attempt.to_string();
    let job = attempt.job().to_string();
    let token = |partition: u32| security::partition_token(source.token.bytes(), &job, partition);
    let mut remote =
        RemoteCheckpoint::new(&source.addr, &token(attempt.task.index), &name, control, Liveness::default());
    remote.connector = connector;
    // The copy must be durable before it is reported, because its source is deleted after that.
    let sync_files = || disks.hand_over_copy(&targets).map_err(TaskError::io("hand over a copy"));
    let result = match attempt.phase() {
        Phase::Map => {
            copy_output(&mut remote, source.partitions, &token, &targets.outputs()).and_then(|copied| {
                sync_files()?;
                let dir = copied.0.parent().unwrap_or(&copied.0).to_path_buf();
                checkpoints::make_durable(attempt, &[dir], disks, shuffle_store)?;
                let bytes = copied.1.stored();
                shuffle_store.add_output(attempt, copied.0, copied.1);
                Ok(copied_output(bytes))
            })
        }
        Phase::Reduce => {
            let scratch = Scratch::new(targets.scratch.clone());
            let source =
                CheckpointSource { attempt: name.clone(), dirs: Vec::new(), addr: source.addr.clone() };
            let state = checkpoint::restore(&source, attempt.task.index, &scratch, &mut remote);
            let saved =
                state.and_then(|state| checkpoint::save(&targets.results, &name, attempt.task.index, &state));
            let sync_parents = || checkpoints::make_durable(attempt, &targets.results, disks, shuffle_store);
            let durable = saved.and_then(|_| sync_files()).and_then(|()| sync_parents());
            durable.and_then(|()| checkpoint::read(&targets.results)).map(|state| {
                shuffle_store.add_checkpoint(attempt, targets.results.clone());
                copied_checkpoint(checkpoint::info(&state))
            })
        }
    };
    targets.finish(result.is_ok());
    result.map_err(text)
}
