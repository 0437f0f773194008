//! The Unix socket between the tracker and its task processes: frames of mrlib with a little-endian
//! u32 length and one message. The limit is 16 MiB to a task; from a task, the maximum that the
//! JobTracker accepts for an attempt.
//!
//! A process is identified by the PID that the kernel reports for its end of the connection, so
//! that no other process can connect; it may connect once. Invalid input can end at most its own
//! attempt: messages that are too long are rejected here, invalid contents in `task_session`.

use crate::{
    account::{Account, hand_over},
    process::{ProcessMessage, Spawner},
};
use agent::ENDED_BYTES;
use daemon::logging::RateLimit;
use engine::{frame::write_frame, task::PROTOCOL};
use prost::Message;
use proto::mr::{FromTask, ToTask, from_task};
use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        net::UnixListener as StdListener,
    },
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
};

/// Maximum length of a message from a task, so that it can be reported to the JobTracker.
const MESSAGE_BYTES_MAX: u32 = ENDED_BYTES as u32;
/// Maximum number of messages that a task has not read, which is more than an hour of map events. A
/// task with more does not read.
const UNREAD_MAX: usize = 4096;
/// A socket address has 108 bytes, some of them reserved for the system.
const PATH_BYTES_MAX: usize = 100;

/// The listening socket; its file is removed when dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Path of the socket.
    pub(crate) path: PathBuf,
    /// A folder created only for the socket.
    made: Option<PathBuf>,
}

impl Socket {
    /// Binds in `folder`, or, if that path is too long, in the temporary folder of the system. The
    /// caller has the lock on `folder`. Processes of `account` can connect.
    pub(crate) fn bind(folder: &Path, account: Option<Account>) -> io::Result<(StdListener, Self)> {
        let mut path = folder.join("umbilical.sock");
        let mut made = None;
        if path.as_os_str().len() > PATH_BYTES_MAX {
            let private = std::env::temp_dir().join(format!("fermata-{}", uuid::Uuid::new_v4().simple()));
            DirBuilder::new().mode(0o700).create(&private)?;
            if account.is_some() {
                fs::set_permissions(&private, Permissions::from_mode(0o711))?;
            }
            path = private.join("umbilical.sock");
            made = Some(private);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = StdListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        hand_over(&path, account)?;
        listener.set_nonblocking(true)?;
        Ok((listener, Self { path, made }))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
        if let Some(made) = &self.made {
            fs::remove_dir(made).ok();
        }
    }
}

/// Rate limit of log lines, because a task can connect as often as it likes.
const UNKNOWN_LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Accepts connections until dropped.
pub(crate) async fn serve(listener: UnixListener, spawner: Spawner) {
    let mut unknown = RateLimit::new(UNKNOWN_LOG_INTERVAL);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Probably out of descriptors: wait until some are free.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let peer = stream.peer_cred().ok();
        let (pid, user) = (peer.and_then(|peer| peer.pid()), peer.map(|peer| peer.uid()));
        // A task process changes its account before it connects. Otherwise it gets no task.
        let has_account = spawner.account().is_none_or(|account| user == Some(account.user));
        let Some(message_sender) = pid.filter(|_| has_account).and_then(|pid| spawner.claim(pid)) else {
            if let Some(times) = unknown.due() {
                let why = if has_account { "not a task process" } else { "not of the tasks' account" };
                tracing::warn!(?pid, ?user, times, why, "refused a connection to the umbilical");
            }
            continue;
        };
        tokio::spawn(serve_connection(stream, message_sender));
    }
}

async fn serve_connection(stream: UnixStream, message_sender: mpsc::Sender<ProcessMessage>) {
    let (mut input, output) = stream.into_split();
    let why = exchange(&mut input, output, &message_sender).await.err();
    message_sender.send(ProcessMessage::Closed(why)).await.ok();
}

async fn exchange(
    input: &mut OwnedReadHalf,
    output: OwnedWriteHalf,
    message_sender: &mpsc::Sender<ProcessMessage>,
) -> Result<(), String> {
    let Some(first) = read(input).await? else { return Ok(()) };
    match first.kind {
        Some(from_task::Kind::Hello(hello)) if hello.protocol == PROTOCOL => {}
        Some(from_task::Kind::Hello(hello)) => {
            return Err(format!(
                "the task uses protocol {} (mrlib {}), this tracker uses {PROTOCOL}: build it with this release",
                hello.protocol, hello.version
            ));
        }
        _ => return Err("the first message of the task was not Hello".into()),
    }
    let (to_task, orders) = mpsc::channel(UNREAD_MAX);
    if message_sender.send(ProcessMessage::Hello(to_task)).await.is_err() {
        return Ok(());
    }
    // Ends when the owner drops its sender, or the process closes its end.
    tokio::spawn(write_all(output, orders));
    while let Some(message) = read(input).await? {
        if message_sender.send(ProcessMessage::Message(message)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Reads one message; `None` at the end, also at an abrupt one, because the exit status is more
/// informative.
pub(crate) async fn read(input: &mut (impl AsyncRead + Unpin)) -> Result<Option<FromTask>, String> {
    let Ok(length) = input.read_u32_le().await else { return Ok(None) };
    if length > MESSAGE_BYTES_MAX {
        return Err(format!("the task sent a message of {length} bytes, the maximum is {MESSAGE_BYTES_MAX}"));
    }
    let mut body = vec![0; length as usize];
    if input.read_exact(&mut body).await.is_err() {
        return Ok(None);
    }
    let message = FromTask::decode(&body[..]);
    message.map(Some).map_err(|error| format!("the task sent an invalid message: {error}"))
}

async fn write_all(mut output: OwnedWriteHalf, mut orders: mpsc::Receiver<ToTask>) {
    while let Some(message) = orders.recv().await {
        let mut frame = Vec::new();
        // Too long for the task to read: the connection is closed, and the task ends.
        if let Err(error) = write_frame(&mut frame, &message) {
            tracing::warn!(%error, "cannot send a message to a task");
            return;
        }
        if output.write_all(&frame).await.is_err() {
            return;
        }
    }
}
