//! What attempts wrote on stdout and stderr: kept for the newest, and served to whoever asks.

use crate::{
    disks::Disks,
    ids::{Attempt, Job},
};
use bytes::BytesMut;
use parking_lot::Mutex;
use proto::mr::{LogChunk, LogRequest, tracker_logs_server::TrackerLogs};
use security::Identity;
use std::{
    collections::{BTreeMap, VecDeque},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    sync::Arc,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

const CHUNK_BYTES: u64 = 64 << 10;
/// Chunks read ahead of a slow reader.
const AHEAD: usize = 4;

/// The last `bytes` of a file.
pub(crate) fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut read = Vec::new();
    file.take(bytes).read_to_end(&mut read)?;
    Ok(read)
}

/// Keeps the logs of so many attempts. Where there are more, the oldest of the job that has the most goes: a large job
/// does not take those of others.
#[derive(Debug, Clone)]
pub(crate) struct Retention {
    kept: usize,
    ended: Arc<Mutex<VecDeque<Attempt>>>,
}

impl Retention {
    /// With the logs that an earlier start left.
    pub(crate) fn new(kept: usize, disks: &Disks) -> Self {
        let retention = Self { kept, ended: Arc::new(Mutex::new(disks.logs().into())) };
        retention.trim(disks);
        retention
    }

    /// One more has ended.
    pub(crate) fn add(&self, attempt: Attempt, disks: &Disks) {
        self.ended.lock().push_back(attempt);
        self.trim(disks);
    }

    fn trim(&self, disks: &Disks) {
        loop {
            let mut ended = self.ended.lock();
            if ended.len() <= self.kept {
                return;
            }
            let surplus = surplus(&ended).and_then(|at| ended.remove(at));
            drop(ended);
            if let Some(surplus) = surplus {
                disks.remove_log(surplus);
            }
        }
    }
}

/// The first attempt of the job with the most; of several such jobs, the one that comes first.
fn surplus(ended: &VecDeque<Attempt>) -> Option<usize> {
    let mut jobs: BTreeMap<Job, (usize, usize)> = BTreeMap::new();
    for (at, attempt) in ended.iter().enumerate() {
        jobs.entry(attempt.job).or_insert((0, at)).0 += 1;
    }
    jobs.into_values()
        .max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first)))
        .map(|(_, first)| first)
}

/// The service.
#[derive(Debug)]
pub(crate) struct Logs(pub(crate) Arc<Disks>);

#[tonic::async_trait]
impl TrackerLogs for Logs {
    type LogStream = ReceiverStream<Result<LogChunk, Status>>;

    async fn log(&self, request: Request<LogRequest>) -> Result<Response<Self::LogStream>, Status> {
        let who = request.extensions().get::<Identity>().cloned();
        let who = who.ok_or_else(|| Status::permission_denied("nobody has said who asks"))?;
        let LogRequest { attempt, stderr, tail_bytes } = request.into_inner();
        let id: Attempt = attempt
            .parse()
            .map_err(|error: crate::ids::IdError| Status::invalid_argument(error.to_string()))?;
        let disks = self.0.clone();
        let (chunks, stream) = mpsc::channel(AHEAD);
        let name = if stderr { "stderr" } else { "stdout" };
        let opening = tokio::task::spawn_blocking(move || {
            let path = disks.log(id, name)?;
            if !who.superuser && disks.log_owner(id).is_none_or(|owner| !who.owns(&owner)) {
                return Some(Err(Status::permission_denied(format!(
                    "the logs of {id} are not {}'s",
                    who.name
                ))));
            }
            // It may move to its last place between the two steps.
            File::open(path).ok().or_else(|| File::open(disks.log(id, name)?).ok()).map(Ok)
        });
        let file = opening.await.map_err(|error| Status::internal(error.to_string()))?;
        let file = file.ok_or_else(|| {
            Status::not_found(format!(
                "no logs of {id} here: it did not run on this tracker, or its logs had to make room for others \
                 (tasktracker.logs_kept)"
            ))
        })??;
        tokio::task::spawn_blocking(move || {
            if let Err(error) = send(file, tail_bytes, &chunks) {
                chunks
                    .blocking_send(Err(Status::internal(format!("cannot read {name} of {id}: {error}"))))
                    .ok();
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// As far as it had been written when we began: a running task may write faster than we read.
fn send(mut file: File, tail_bytes: u64, chunks: &mpsc::Sender<Result<LogChunk, Status>>) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut left = if tail_bytes == 0 { length } else { tail_bytes.min(length) };
    file.seek(SeekFrom::Start(length - left))?;
    while left > 0 {
        let mut chunk = BytesMut::zeroed(left.min(CHUNK_BYTES) as usize);
        let read = file.read(&mut chunk)?;
        if read == 0 {
            break;
        }
        chunk.truncate(read);
        left -= read as u64;
        if chunks.blocking_send(Ok(LogChunk { data: chunk.to_vec() })).is_err() {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_job_makes_room_for_others() {
        let attempts =
            |words: &[&str]| words.iter().map(|word| word.parse().unwrap()).collect::<VecDeque<Attempt>>();
        assert_eq!(surplus(&attempts(&["job_1.m0.0", "job_2.m0.0", "job_2.m1.0", "job_3.m0.0"])), Some(1));
        assert_eq!(surplus(&attempts(&["job_1.m0.0", "job_2.m0.0"])), Some(0));
        assert_eq!(surplus(&VecDeque::new()), None);
    }
}
