//! Why a task failed, in words that its user can act on.

use std::io;

/// A task's end, when it is not a good one. Shown to the user as it is.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The program's own words.
    #[error("{0}")]
    Program(String),
    /// A record could not be processed: where it is, and why.
    #[error("record at {}: {why}", place(source_path, *offset, *line))]
    Record {
        /// The file.
        source_path: String,
        /// Of its first byte.
        offset: u64,
        /// Its line, counted from 1, where the input has lines and they could be counted.
        line: Option<u64>,
        /// What is wrong.
        why: String,
    },
    /// Every attempt would end like this one: the job fails at once.
    #[error("{0}")]
    Fatal(String),
    /// A streaming program ended with a failure.
    #[error("{program}: {why}")]
    Crashed {
        /// The setting and its command.
        program: String,
        /// Its exit status and its last lines.
        why: String,
    },
    /// A local disk or socket.
    #[error("{what}: {source}")]
    Io {
        /// What was tried, and on what.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// The file system.
    #[error(transparent)]
    Dfs(#[from] dfs::client::ClientError),
    /// Bytes that are not what was written.
    #[error("{file} is damaged at offset {offset}: {why}")]
    Damaged {
        /// Which file.
        file: String,
        /// Where.
        offset: u64,
        /// What does not add up.
        why: &'static str,
    },
    /// The state of a paused attempt, to be taken up, is gone or not the checkpoint.
    #[error("the checkpoint is corrupt: {0}")]
    CheckpointCorrupt(String),
    /// The node that has the state of a paused attempt, to be taken up, does not answer; the state is as it was.
    #[error("the checkpoint is unreachable: {0}")]
    CheckpointUnreachable(String),
    /// Told to pause before it had begun: the state of the attempt before it is as it was.
    #[error("it was asked to pause before it had resumed; the checkpoint is unchanged")]
    NotResumed,
    /// The tracker said stop.
    #[error("stopped: {0}")]
    Stopped(String),
}

/// The place of a record, as editors and compilers write it where there are lines.
fn place(path: &str, offset: u64, line: Option<u64>) -> String {
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

/// The last line that is not empty. A traceback ends with the exception.
pub fn last_line(text: &str) -> &str {
    text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

/// Bytes as they are shown in an error: in quotes, escaped, and only the first of many.
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
