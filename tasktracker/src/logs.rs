//! What attempts wrote on stdout and stderr: kept for the newest, and served to whoever asks.

use crate::{disks::Disks, ids::Attempt};
use bytes::BytesMut;
use parking_lot::Mutex;
use proto::mr::{LogChunk, LogRequest, tracker_logs_server::TrackerLogs};
use security::Identity;
use std::{
    collections::VecDeque,
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

/// Keeps the logs of the newest attempts, and deletes older ones.
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
            let oldest = ended.pop_front();
            drop(ended);
            if let Some(oldest) = oldest {
                disks.remove_log(oldest);
            }
        }
    }
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
                "no logs of {id} here: it did not run on this tracker, or they are too old"
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
