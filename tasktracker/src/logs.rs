//! Keeps the logs (stdout and stderr) of the newest attempts, and serves them.

use crate::disks::Disks;
use daemon::serve::stream_chunks;
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
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use types::{AttemptId, JobId};

const CHUNK_BYTES: u64 = 64 << 10;
/// Number of chunks that are read before the client has received them.
const PREFETCHED_CHUNKS: usize = 4;
/// Maximum number of logs that are read at the same time.
const LOG_READERS_MAX: usize = 64;

/// Returns the last `bytes` of a file.
pub(crate) fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut read = Vec::new();
    file.take(bytes).read_to_end(&mut read)?;
    Ok(read)
}

/// Keeps the logs of a limited number of ended attempts. If there are more, removes the oldest logs
/// of the job with the most logs, so that a large job does not displace the logs of other jobs.
#[derive(Debug, Clone)]
pub(crate) struct LogRetention {
    /// Maximum number of ended attempts whose logs are kept.
    attempts_max: usize,
    /// Ended attempts with logs, oldest first.
    ended: Arc<Mutex<VecDeque<AttemptId>>>,
}

impl LogRetention {
    /// Creates it with the logs that earlier starts have left on the disks.
    pub(crate) fn new(attempts_max: usize, disks: &Disks) -> Self {
        let retention = Self { attempts_max, ended: Arc::new(Mutex::new(disks.attempts_with_logs().into())) };
        retention.trim(disks);
        retention
    }

    /// Adds an attempt that has ended, and removes logs of other attempts if there are too many.
    pub(crate) fn add(&self, attempt: AttemptId, disks: &Disks) {
        self.ended.lock().push_back(attempt);
        self.trim(disks);
    }

    fn trim(&self, disks: &Disks) {
        loop {
            let mut ended = self.ended.lock();
            if ended.len() <= self.attempts_max {
                return;
            }
            let surplus = surplus_index(&ended).and_then(|at| ended.remove(at));
            drop(ended);
            if let Some(surplus) = surplus {
                disks.remove_logs(surplus);
            }
        }
    }
}

/// Returns the index of the oldest attempt of the job with the most attempts. If several jobs have
/// the most attempts, returns the oldest attempt of all of them.
fn surplus_index(ended: &VecDeque<AttemptId>) -> Option<usize> {
    let mut jobs: BTreeMap<JobId, (usize, usize)> = BTreeMap::new();
    for (at, attempt) in ended.iter().enumerate() {
        jobs.entry(attempt.job()).or_insert((0, at)).0 += 1;
    }
    jobs.into_values()
        .max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first)))
        .map(|(_, first)| first)
}

/// The gRPC service that serves logs.
#[derive(Debug)]
pub(crate) struct Logs {
    disks: Arc<Disks>,
    /// Permits for reading logs.
    permits: Arc<Semaphore>,
}

impl Logs {
    /// Creates a service for the logs on these disks.
    pub(crate) fn new(disks: Arc<Disks>) -> Self {
        Self { disks, permits: Arc::new(Semaphore::new(LOG_READERS_MAX)) }
    }
}

#[tonic::async_trait]
impl TrackerLogs for Logs {
    type LogStream = ReceiverStream<Result<LogChunk, Status>>;

    async fn log(&self, request: Request<LogRequest>) -> Result<Response<Self::LogStream>, Status> {
        let who = Identity::of(request.extensions())?.clone();
        let LogRequest { attempt, stderr, tail_bytes } = request.into_inner();
        let id: AttemptId = attempt
            .parse()
            .map_err(|error: types::ids::IdError| Status::invalid_argument(error.to_string()))?;
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| {
            Status::unavailable(format!(
                "{LOG_READERS_MAX} logs are being read on this tracker: try again later"
            ))
        })?;
        let disks = self.disks.clone();
        let name = if stderr { "stderr" } else { "stdout" };
        let opening = tokio::task::spawn_blocking(move || {
            let path = disks.log_path(id, name)?;
            if !who.superuser && disks.log_owner(id).is_none_or(|owner| !who.owns(&owner)) {
                return Some(Err(Status::permission_denied(format!(
                    "the logs of {id} do not belong to {}",
                    who.name
                ))));
            }
            File::open(path).ok().map(Ok)
        });
        let file = opening.await.map_err(|error| Status::internal(error.to_string()))?;
        let file = file.ok_or_else(|| {
            Status::not_found(format!(
                "this tracker has no logs of {id}: it did not run here, or its logs were removed for newer ones \
                 (tasktracker.logs_kept)"
            ))
        })??;
        let unreadable =
            move |error: io::Error| Status::internal(format!("cannot read {name} of {id}: {error}"));
        let mut log_chunks = LogChunks::new(file, tail_bytes).map_err(unreadable)?;
        let (chunks, stream) = mpsc::channel(PREFETCHED_CHUNKS);
        tokio::spawn(async move {
            let _permit = permit;
            stream_chunks(chunks, move || log_chunks.next().map(|chunk| chunk.map_err(unreadable))).await;
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Reads a log in chunks, up to the length that the file has at the beginning, because a running
/// task may write faster than a client reads.
struct LogChunks {
    file: File,
    remaining_bytes: u64,
}

impl LogChunks {
    /// Starts `tail_bytes` before the end of the file; 0 for the whole file.
    fn new(mut file: File, tail_bytes: u64) -> io::Result<Self> {
        let length = file.metadata()?.len();
        let remaining_bytes = if tail_bytes == 0 { length } else { tail_bytes.min(length) };
        file.seek(SeekFrom::Start(length - remaining_bytes))?;
        Ok(Self { file, remaining_bytes })
    }
}

impl Iterator for LogChunks {
    type Item = io::Result<LogChunk>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut data = vec![0; self.remaining_bytes.min(CHUNK_BYTES) as usize];
        match self.file.read(&mut data) {
            Ok(0) => None,
            Ok(read) => {
                data.truncate(read);
                self.remaining_bytes -= read as u64;
                Some(Ok(LogChunk { data }))
            }
            Err(error) => {
                self.remaining_bytes = 0;
                Some(Err(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_logs_of_the_job_with_the_most_logs_are_removed_first() {
        let attempts =
            |text: &[&str]| text.iter().map(|word| word.parse().unwrap()).collect::<VecDeque<AttemptId>>();
        assert_eq!(
            surplus_index(&attempts(&["job_1.m0.0", "job_2.m0.0", "job_2.m1.0", "job_3.m0.0"])),
            Some(1)
        );
        assert_eq!(surplus_index(&attempts(&["job_1.m0.0", "job_2.m0.0"])), Some(0));
        assert_eq!(surplus_index(&VecDeque::new()), None);
    }
}
