//! Errors of tasks, with messages for users.

use std::{error::Error, io};

/// Approximate length of a failure message in a table, in characters. `mrctl logs` and `--json`
/// show the complete message.
pub const SHORT_CHARS: usize = 120;
/// Maximum length of the cause in a shortened message that also has a last line, in characters.
const CAUSE_CHARS: usize = 80;

/// Why a task ended without success. The message is shown to the user.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// An error of the program.
    #[error("{0}")]
    Program(String),
    /// A record could not be processed.
    #[error("record at {}: {why}", location(source_path, *offset, *line))]
    Record {
        /// The path of the input file.
        source_path: String,
        /// The offset in the file of the first byte of the record.
        offset: u64,
        /// Line number, starting at 1, if the input has lines and they could be counted.
        line: Option<u64>,
        /// What is wrong.
        why: String,
        /// Whether the record cannot be read, so that every attempt would have this error.
        unreadable: bool,
    },
    /// An error that every attempt would have: the job fails at once.
    #[error("{0}")]
    Fatal(String),
    /// A streaming program crashed.
    #[error("{}", with_stderr(&format!("{program} {how}"), stderr))]
    Crashed {
        /// The setting that names the program, and its command.
        program: String,
        /// How the program ended.
        how: String,
        /// The last lines that the program wrote to stderr.
        stderr: String,
    },
    /// An error of a local disk or socket.
    #[error("{what}: {source}")]
    Io {
        /// The operation and the file or address that it failed for.
        what: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// An error of the distributed file system.
    #[error(transparent)]
    Dfs(Box<dyn Error + Send + Sync>),
    /// The distributed file system does not answer.
    #[error(transparent)]
    DfsUnavailable(Box<dyn Error + Send + Sync>),
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
    #[error("killed: {0}")]
    Killed(String),
}

/// Returns the location of a record: `path:line`, as compilers print it, or the byte offset if the
/// input has no lines.
fn location(path: &str, offset: u64, line: Option<u64>) -> String {
    match line {
        Some(line) => format!("{path}:{line}"),
        None => format!("{path} @ byte {offset}"),
    }
}

impl TaskError {
    /// Returns whether every attempt would have this error, so that the job fails at once.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Fatal(_) => true,
            Self::Record { unreadable, .. } => *unreadable,
            _ => false,
        }
    }

    /// Returns a function for `map_err` that adds the failed operation to an I/O error.
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

/// Returns the message of a failed program: the cause, then the last lines of its stderr.
pub fn with_stderr(cause: &str, last_lines: &str) -> String {
    if last_lines.is_empty() { cause.into() } else { format!("{cause}:\n{last_lines}") }
}

/// Returns a failure message as one line: its first line, which is the cause, and its last line,
/// which is the exception if the message ends with a traceback. Notes after it, as after the panic
/// of a Rust program, are left out. If there are only two short lines after the cause, both are
/// shown: no traceback is as short, and either may have the reason.
pub fn one_line(failure: &str) -> String {
    let (first, last) = first_and_last_line(failure);
    join_lines((first, &last))
}

/// Returns the same as [`one_line`], shortened to about [`SHORT_CHARS`] characters. The cause keeps
/// up to `CAUSE_CHARS` characters, and the last line gets the rest.
pub fn shortened(failure: &str) -> String {
    let (first, last) = first_and_last_line(failure);
    if last.is_empty() {
        return without_middle(first, SHORT_CHARS);
    }
    let cause = without_middle(first, CAUSE_CHARS);
    let remaining_chars = SHORT_CHARS.saturating_sub(cause.chars().count());
    join_lines((&cause, &without_middle(&last, remaining_chars)))
}

fn join_lines((first, last): (&str, &str)) -> String {
    if last.is_empty() { first.into() } else { format!("{}: {last}", first.trim_end_matches(':')) }
}

/// Returns the first and the last line that are not empty, as [`one_line`] describes. The last line
/// is "" if there is only one.
fn first_and_last_line(text: &str) -> (&str, String) {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let mut rest: Vec<&str> = lines.collect();
    while rest.len() > 1 && rest.last().is_some_and(|line| line.starts_with("note: ")) {
        rest.pop();
    }
    let last = match rest[..] {
        [one, other] if one.len() + other.len() <= SHORT_CHARS => match one.strip_suffix(':') {
            Some(one) => format!("{one}: {other}"),
            None => format!("{one}; {other}"),
        },
        [.., last] => last.to_owned(),
        [] => String::new(),
    };
    (first, last)
}

/// Removes the middle of a long line, because the start and the end of an error are the most useful
/// parts. Cuts between words if possible.
fn without_middle(line: &str, chars_max: usize) -> String {
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= chars_max {
        return line.to_owned();
    }
    let half = chars_max / 2;
    let (mut start, mut end) = (&letters[..half], &letters[letters.len() - half..]);
    let is_space = |letter: &char| *letter == ' ';
    if let Some(at) = start.iter().rposition(is_space).filter(|at| *at > half / 2) {
        start = &start[..at];
    }
    if let Some(at) = end.iter().position(is_space).filter(|at| *at < half / 2) {
        end = &end[at + 1..];
    }
    let part = |letters: &[char]| letters.iter().collect::<String>();
    format!("{} ... {}", part(start), part(end))
}

/// Quotes bytes for an error message: escaped, and shortened if there are many.
pub fn quoted(bytes: &[u8]) -> String {
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
    use super::{SHORT_CHARS, TaskError, one_line, quoted, shortened};

    fn crash_message(command: &str, stderr: &str) -> String {
        let program = format!("stream.mapper `{command}`");
        TaskError::Crashed { program, how: "ended with exit status 1".into(), stderr: stderr.into() }
            .to_string()
    }

    #[test]
    fn one_line_has_the_cause_and_the_exception() {
        let failure = crash_message("x.py", "Traceback:\n  line 7\nValueError: seven\n");
        assert_eq!(one_line(&failure), "stream.mapper `x.py` ended with exit status 1: ValueError: seven");
        assert_eq!(shortened(&failure), one_line(&failure));
        assert_eq!(one_line(&crash_message("false", "")), "stream.mapper `false` ended with exit status 1");
        let env = "/usr/bin/env: 'python3\\r': No such file or directory\n\
            /usr/bin/env: use -[v]S to pass options in shebang lines\n";
        let line = one_line(&crash_message("x.py", env));
        assert!(line.contains("'python3\\r': No such file or directory; /usr/bin/env: use"), "{line}");
        let panic = "thread 'main' panicked at src/main.rs:2:5:\nseven\n\
            note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n";
        let line = one_line(&crash_message("x", panic));
        assert!(line.ends_with("1: thread 'main' panicked at src/main.rs:2:5: seven"), "{line}");
        assert_eq!(one_line(" \n"), "");
        assert_eq!(one_line("\nonly\n\n"), "only");
    }

    #[test]
    fn shortened_message_keeps_the_cause() {
        let stderr = format!("warning\n{}end", "noise ".repeat(200));
        let short = shortened(&format!("job_1.m0 failed 4 times: {}", crash_message("x.py", &stderr)));
        assert!(
            short
                .starts_with("job_1.m0 failed 4 times: stream.mapper `x.py` ended with exit status 1: noise"),
            "{short}"
        );
        assert!(short.ends_with("noise end") && short.len() <= SHORT_CHARS + 10, "{short}");
        let short = shortened(&crash_message(&"--flag ".repeat(100), &stderr));
        assert!(short.starts_with("stream.mapper `") && short.len() <= SHORT_CHARS + 20, "{short}");
        assert!(short.contains("ended with exit status 1: "), "{short}");
    }

    #[test]
    fn a_long_line_is_cut_between_words() {
        let text = "word ".repeat(40);
        let short = shortened(text.trim());
        assert!(short.split(" ... ").count() == 2 && short.len() <= SHORT_CHARS + 5, "{short}");
        assert!(short.split_whitespace().all(|word| word == "word" || word == "..."), "{short}");
        assert_eq!(shortened(&"x".repeat(150)).matches('x').count(), SHORT_CHARS);
    }

    #[test]
    fn long_bytes_are_quoted_by_their_start() {
        assert_eq!(quoted(b"a\n"), "\"a\\n\"");
        let long = quoted(&vec![b'x'; 10 << 20]);
        assert!(long.len() < 100 && long.ends_with("xxx...\" (10485760 bytes)"), "{long}");
    }
}
