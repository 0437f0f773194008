//! Logging with `tracing` to standard error: text for terminals, or JSON lines. `FERMATA_LOG`
//! filters by level and crate, e.g. `FERMATA_LOG=debug` or `FERMATA_LOG=warn,fermata_dfs=trace`;
//! the default level is `info`.
//!
//! If standard error is a file, its size is limited: a large file is renamed with the suffix `.1`,
//! replacing the previous file of that name, and a new file is started. Other output to standard
//! error goes to the new file too, because the descriptor is replaced. Log lines that a client can
//! cause at will are [rate-limited](RateLimit).

use crate::Bytes;
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, IsTerminal, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text per event, coloured on a terminal.
    Human,
    /// One JSON object per event.
    Json,
}

/// Starts logging. Call once, at the start of the process.
pub fn init(format: LogFormat) {
    init_with_rotation(format, Bytes(0));
}

/// Like [`init`], but rotates the log file when it has `max` bytes; 0 for never.
pub fn init_with_rotation(format: LogFormat, max: Bytes) {
    let text = std::env::var("FERMATA_LOG").unwrap_or_default();
    let (filter, error) = match filter(&text) {
        Ok(filter) => (filter, None),
        Err(error) => (Targets::new().with_default(LevelFilter::INFO), Some(error)),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(Mutex::new(Log::new(max.0)));
    match format {
        LogFormat::Human => registry.with(layer.with_ansi(io::stderr().is_terminal())).init(),
        LogFormat::Json => registry.with(layer.json()).init(),
    }
    if let Some(error) = error {
        tracing::warn!(%error, value = text, "FERMATA_LOG is not a filter and is ignored: use e.g. warn,fermata_dfs=trace");
    }
}

/// Parses `FERMATA_LOG`. The level of crates that it does not name is `info`. Uses `Targets` and
/// not `EnvFilter`, because filters on spans and fields are not needed and `EnvFilter` depends on a
/// regular expression engine.
fn filter(text: &str) -> Result<Targets, tracing_subscriber::filter::ParseError> {
    let targets = if text.trim().is_empty() { Targets::new() } else { text.parse()? };
    let default = targets.default_level().unwrap_or(LevelFilter::INFO);
    Ok(targets.with_default(default))
}

/// Writes to standard error, and rotates its file when it is too large.
struct Log {
    /// Size at which the file is rotated; 0 for never.
    max_bytes: u64,
    /// Bytes in the file, as counted by this process.
    length: u64,
}

impl Log {
    fn new(max: u64) -> Self {
        Self { max_bytes: max, length: stderr_length() }
    }
}

fn stderr_length() -> u64 {
    rustix::fs::fstat(rustix::stdio::stderr()).map_or(0, |about| u64::try_from(about.st_size).unwrap_or(0))
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.max_bytes > 0 && self.length >= self.max_bytes {
            // If rotation fails, logging continues in the old file, and rotation is tried again
            // after `max` more bytes.
            rotate().ok();
            self.length = 0;
        }
        let written = io::stderr().write(line)?;
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Returns the path of the file that is standard error. `None` if standard error is not a regular
/// file, is not opened for appending, or no longer has that path.
fn log_file_path() -> Option<PathBuf> {
    let about = rustix::fs::fstat(rustix::stdio::stderr()).ok()?;
    let appends = rustix::fs::fcntl_getfl(rustix::stdio::stderr()).ok()?.contains(rustix::fs::OFlags::APPEND);
    let path = fs::read_link("/proc/self/fd/2").ok()?;
    let named = fs::symlink_metadata(&path).ok()?;
    let same = named.is_file() && (named.dev(), named.ino()) == (about.st_dev, about.st_ino);
    (appends && same).then_some(path)
}

fn rotate() -> io::Result<()> {
    let Some(path) = log_file_path() else { return Ok(()) };
    // Create the new file before the rename: if that fails, the old file keeps its name.
    let temporary = with_suffix(&path, ".new");
    let new_file = create_log_file(&temporary)?;
    fs::rename(&path, with_suffix(&path, ".1"))?;
    fs::rename(&temporary, &path)?;
    let (one, other) = (rustix::stdio::stdout(), rustix::stdio::stderr());
    let is_same_file = rustix::fs::fstat(one).and_then(|one| {
        rustix::fs::fstat(other).map(|other| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
    });
    if is_same_file.unwrap_or(false) {
        rustix::stdio::dup2_stdout(&new_file)?;
    }
    Ok(rustix::stdio::dup2_stderr(&new_file)?)
}

fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

fn create_log_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Limits how often a line is logged, for events that others can cause at will.
#[derive(Debug)]
pub struct RateLimit {
    /// Minimum time between two logged lines.
    interval: Duration,
    last_logged: Option<Instant>,
    /// Number of events since the last logged line.
    events: u64,
}

impl RateLimit {
    /// Allows at most one line per `interval`.
    pub fn new(interval: Duration) -> Self {
        Self { interval, last_logged: None, events: 0 }
    }

    /// Counts an event. If a line is to be logged now, returns the number of events since the last
    /// logged line.
    pub fn count_event(&mut self) -> Option<u64> {
        self.events += 1;
        if self.last_logged.is_some_and(|last| last.elapsed() < self.interval) {
            return None;
        }
        self.last_logged = Some(Instant::now());
        Some(std::mem::take(&mut self.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const CHILD_VAR: &str = "FERMATA_TEST_LOG_CHILD";

    #[test]
    fn log_filter_sets_levels_of_named_crates_and_info_for_others() {
        use tracing::Level;
        let shows =
            |text: &str, target: &str, level: Level| filter(text).unwrap().would_enable(target, &level);
        assert!(shows("", "fermata_dfs", Level::INFO) && !shows("", "fermata_dfs", Level::DEBUG));
        assert!(shows("debug", "fermata_dfs", Level::DEBUG));
        assert!(shows("fermata_dfs=trace", "fermata_dfs::datanode", Level::TRACE));
        assert!(shows("fermata_dfs=trace", "mrcore", Level::INFO));
        assert!(!shows("warn,fermata_dfs=trace", "mrcore", Level::INFO));
        assert!(filter("fermata_dfs=loudly").is_err());
    }

    #[test]
    fn rate_limit_allows_one_line_per_interval_and_counts_events() {
        let mut rate_limit = RateLimit::new(Duration::from_millis(50));
        assert_eq!(rate_limit.count_event(), Some(1));
        assert_eq!((0..9).filter_map(|_| rate_limit.count_event()).count(), 0);
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(rate_limit.count_event(), Some(10));
    }

    /// Runs this test again in a process whose standard output and error are a file.
    #[test]
    fn log_size_is_bounded() {
        if std::env::var_os(CHILD_VAR).is_some() {
            let mut log = Log::new(1000);
            for number in 0..100 {
                // Each line is one write, as in daemons.
                let line = format!("line {number:03} {}\n", "x".repeat(90));
                log.write_all(line.as_bytes()).unwrap();
            }
            // Other output to standard error goes to the same file.
            writeln!(io::stderr(), "the end").unwrap();
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.log");
        let name = "logging::tests::log_size_is_bounded";
        let script = "exec \"$0\" --exact \"$1\" --nocapture --test-threads=1 >>\"$2\" 2>&1";
        let own = std::env::current_exe().unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", script]).arg(own).arg(name).arg(&path).env(CHILD_VAR, "1");
        assert!(child.status().unwrap().success());
        let (now, before) =
            (fs::read_to_string(&path).unwrap(), fs::read_to_string(with_suffix(&path, ".1")).unwrap());
        assert!(now.contains("line 099") && now.contains("the end"), "{now}");
        assert!(now.len() < 1500 && before.len() < 1500, "{} {}", now.len(), before.len());
        // No line is lost during rotation.
        let lines = |text: &str| text.lines().filter(|line| line.starts_with("line")).count();
        let first: usize = before.lines().find_map(|line| line.get(5..8)?.parse().ok()).unwrap();
        assert_eq!(lines(&now) + lines(&before), 100 - first);
    }
}
