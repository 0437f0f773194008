//! The umbilical: the Unix socket between the tracker and its task processes. Messages are sent in
//! the frames of mrlib: a little-endian u32 length and one message. A message to a task has at most
//! 16 MiB; a message from a task has at most the size that the JobTracker accepts for an attempt.
//!
//! A process is identified by the PID that the kernel reports for the other side of the connection,
//! so that no other process can connect in its place. A process may connect once. Invalid messages
//! can end at most the attempt of the process: this module rejects messages that are too long, and
//! `task_session` rejects invalid contents.

use crate::{
    account::{Account, hand_over},
    process::{ProcessMessage, Spawner},
};
use agent::ENDED_BYTES_MAX;
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
const MESSAGE_BYTES_MAX: u32 = ENDED_BYTES_MAX as u32;
/// Maximum number of messages that a task has not read, which is more than an hour of map events. A
/// task with more unread messages is killed.
const UNREAD_MESSAGES_MAX: usize = 4096;
/// Maximum length of the path of a socket. The system allows 108 bytes, some of which it needs
/// itself.
const SOCKET_PATH_BYTES_MAX: usize = 100;

/// The path of the listening socket. The file is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    /// Path of the socket.
    pub(crate) path: PathBuf,
    /// The folder that was created only for the socket, if any.
    private_folder: Option<PathBuf>,
}

impl Socket {
    /// Creates the socket in `folder`, or in the temporary folder of the system if the path would
    /// be too long. The caller must have the lock of `folder`. Processes of `account` can connect.
    pub(crate) fn bind(folder: &Path, account: Option<Account>) -> io::Result<(StdListener, Self)> {
        let mut path = folder.join("umbilical.sock");
        let mut private_folder = None;
        if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let private = std::env::temp_dir().join(format!("fermata-{}", uuid::Uuid::new_v4().simple()));
            DirBuilder::new().mode(0o700).create(&private)?;
            if account.is_some() {
                fs::set_permissions(&private, Permissions::from_mode(0o711))?;
            }
            path = private.join("umbilical.sock");
            private_folder = Some(private);
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = StdListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        hand_over(&path, account)?;
        listener.set_nonblocking(true)?;
        Ok((listener, Self { path, private_folder }))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
        if let Some(folder) = &self.private_folder {
            fs::remove_dir(folder).ok();
        }
    }
}

/// Minimum time between two log lines about refused connections, because a task can connect as
/// often as it likes.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Accepts connections. Never returns.
pub(crate) async fn serve(listener: UnixListener, spawner: Spawner) {
    let mut refusals = RateLimit::new(REFUSAL_LOG_INTERVAL);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The process has probably run out of file descriptors. Wait until some are free.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let peer = stream.peer_cred().ok();
        let (pid, user) = (peer.and_then(|peer| peer.pid()), peer.map(|peer| peer.uid()));
        // A task process must change to the account of tasks before it connects. Otherwise its
        // connection is refused.
        let has_account = spawner.account().is_none_or(|account| user == Some(account.user));
        let Some(message_sender) = pid.filter(|_| has_account).and_then(|pid| spawner.claim(pid)) else {
            if let Some(times) = refusals.count_event() {
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
    let why = exchange_messages(&mut input, output, &message_sender).await.err();
    message_sender.send(ProcessMessage::Closed(why)).await.ok();
}

/// Passes messages in both directions until the connection is closed. The error says how the
/// process has violated the protocol.
async fn exchange_messages(
    input: &mut OwnedReadHalf,
    output: OwnedWriteHalf,
    message_sender: &mpsc::Sender<ProcessMessage>,
) -> Result<(), String> {
    let Some(first) = read_message(input).await? else { return Ok(()) };
    match first.kind {
        Some(from_task::Kind::Hello(hello)) if hello.protocol == PROTOCOL => {}
        Some(from_task::Kind::Hello(hello)) => {
            return Err(format!(
                "the task uses protocol {} (mrlib {}), this tracker uses {PROTOCOL}: rebuild the job's program with the mrlib of \
                 this release",
                hello.protocol, hello.version
            ));
        }
        _ => return Err("the first message of the task was not Hello".into()),
    }
    let (to_task, messages) = mpsc::channel(UNREAD_MESSAGES_MAX);
    if message_sender.send(ProcessMessage::Hello(to_task)).await.is_err() {
        return Ok(());
    }
    // This task ends when the sender is dropped, or when the process closes the connection.
    tokio::spawn(write_messages(output, messages));
    while let Some(message) = read_message(input).await? {
        if message_sender.send(ProcessMessage::Message(message)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Reads one message. Returns `None` when the connection is closed, also in the middle of a
/// message: the exit status of the process then says more than an error here.
pub(crate) async fn read_message(input: &mut (impl AsyncRead + Unpin)) -> Result<Option<FromTask>, String> {
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

async fn write_messages(mut output: OwnedWriteHalf, mut messages: mpsc::Receiver<ToTask>) {
    while let Some(message) = messages.recv().await {
        let mut frame = Vec::new();
        // If the message is too long for the task to read, the connection is closed, and the task
        // ends.
        if let Err(error) = write_frame(&mut frame, &message) {
            tracing::warn!(%error, "cannot send a message to a task");
            return;
        }
        if output.write_all(&frame).await.is_err() {
            return;
        }
    }
}
