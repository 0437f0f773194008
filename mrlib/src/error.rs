//! Errors of tasks, with messages for users.

use std::io;

/// Why a task ended without success. The message is shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// An error of the program.
    #[error("{0}")]
    Program(String),
    /// A record could not be processed.
    #[error("record at {}: {why}", location(source_path, *offset, *line))]
    Record {
        /// The path of the file.
        source_path: String,
        /// Offset of its first byte.
        offset: u64,
        /// Line number, starting at 1, if the input has lines and they could be counted.
        line: Option<u64>,
        /// What is wrong.
        why: String,
    },
    /// An error that every attempt would have: the job fails at once.
    #[error("{0}")]
    Fatal(String),
    /// A streaming program crashed.
    #[error("{program}: {why}")]
    Crashed {
        /// The setting and its command.
        program: String,
        /// Exit status and last lines of output.
        why: String,
    },
    /// An error of a local disk or socket.
    #[error("{what}: {source}")]
    Io {
        /// The operation and its object.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An error of the distributed file system.
    #[error(transparent)]
    Dfs(#[from] dfs_client::ClientError),
    /// A file does not contain what was written.
    #[error("{file} is damaged at offset {offset}: {why}")]
    Damaged {
        /// The path of the file.
        file: String,
        /// The offset of the damage.
        offset: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// The checkpoint to resume from is missing or damaged.
    #[error("the checkpoint is corrupt: {0}")]
    CheckpointCorrupt(String),
    /// The node with the checkpoint to resume from does not answer. The checkpoint is unchanged.
    #[error("the checkpoint is unreachable: {0}")]
    CheckpointUnreachable(String),
    /// A pause was requested before the checkpoint was restored. The checkpoint is unchanged.
    #[error("a pause was requested before the attempt had resumed; the checkpoint is unchanged")]
    NotResumed,
    /// The tracker has killed the task.
    #[error("stopped: {0}")]
    Stopped(String),
}

/// The location of a record, in the format of compilers if there are lines.
fn location(path: &str, offset: u64, line: Option<u64>) -> String {
    match line {
        Some(line) => format!("{path}:{line}"),
        None => format!("{path} @ byte {offset}"),
    }
}

impl TaskError {
    /// For `map_err` on an I/O operation.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: what.into(), source }
    }
}

impl From<String> for TaskError {
    fn from(text: String) -> Self {
        Self::Program(text)
    }
}

impl From<&str> for TaskError {
    fn from(text: &str) -> Self {
        Self::Program(text.into())
    }
}

/// The last line that is not empty. In a traceback this is the exception.
pub fn last_line(text: &str) -> &str {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

/// Quotes bytes for an error message: escaped, and shortened if there are many.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    const QUOTED_BYTES_MAX: usize = 64;
    match bytes.get(..QUOTED_BYTES_MAX) {
        Some(start) if bytes.len() > QUOTED_BYTES_MAX => {
            format!("\"{}...\" ({} bytes)", start.escape_ascii(), bytes.len())
        }
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::{last_line, quoted};

    #[test]
    fn the_last_line_that_is_not_empty_names_the_exception() {
        assert_eq!(last_line("Traceback:\n  line 7\nValueError: seven\n\n"), "ValueError: seven");
        assert_eq!(last_line(" \n"), "");
    }

    #[test]
    fn long_bytes_are_shown_by_their_start() {
        assert_eq!(quoted(b"a\n"), "\"a\\n\"");
        let long = quoted(&vec![b'x'; 10 << 20]);
        assert!(long.len() < 100 && long.ends_with("xxx...\" (10485760 bytes)"), "{long}");
    }
}
