//! A shell on another machine: `ssh {host}`, or another command that runs commands there.
//!
//! The words of a command contain no special characters, so they pass unchanged through a shell
//! (ssh joins words) and without one (`ip netns exec`). Scripts are sent over standard input. A
//! script first prints a marker: output before it is a greeting of the machine, and a machine that
//! never prints it runs no scripts.
//!
//! A machine may be slow but must not be silent: each command has a timeout for its next output. A
//! command that exceeds the timeout is abandoned, with all processes that it has left behind.

use anyhow::{Context, Result, bail};
use std::{
    io::{Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use view::output::Usage;

const HOST_PLACEHOLDER: &str = "{host}";
/// The marker that a script prints first. The script contains it only in two parts, so that an echo
/// of the script is not mistaken for the marker.
const START_MARKER: &str = "fermata-is-here";
/// The shell command that prints the marker, which it contains in two parts.
const PRINT_START_MARKER: &str = "printf '%s\\n' \"fermata-\"\"is-here\"\n";
/// The interval between checks whether a command has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How long to wait for the remaining output after a command has ended.
const REMAINING_OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of lines of error output in a message.
const ERROR_LINES: usize = 3;

/// How long a machine may be silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScriptTimeouts {
    /// How long it may be silent before its first output.
    first: Duration,
    /// How long it may be silent between two outputs.
    then: Duration,
}

impl ScriptTimeouts {
    /// The timeouts for a script, which prints its marker at once and whose own timeouts are
    /// shorter.
    const SCRIPT: Self = Self { first: Duration::from_secs(20), then: Duration::from_mins(2) };
    /// The timeouts for a copy, which moves bytes continuously.
    const COPY: Self = Self { first: Duration::from_mins(1), then: Duration::from_mins(1) };

    /// Returns the timeouts for a script that takes this long.
    pub(super) fn of_script(takes: Duration) -> Self {
        Self { then: takes + Self::SCRIPT.then, ..Self::SCRIPT }
    }
}

/// The command that runs other commands on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shell {
    arguments: Vec<String>,
}

impl std::str::FromStr for Shell {
    type Err = String;

    fn from_str(template: &str) -> Result<Self, String> {
        let arguments: Vec<String> = template.split_whitespace().map(str::to_owned).collect();
        if arguments.is_empty() {
            return Err("it is empty: write a command such as 'ssh {host}'".into());
        }
        if !arguments.iter().any(|word| word.contains(HOST_PLACEHOLDER)) {
            return Err(format!(
                "it does not name the machine: write {HOST_PLACEHOLDER}, as in 'ssh {{host}}'"
            ));
        }
        Ok(Self { arguments })
    }
}

impl std::fmt::Display for Shell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.arguments.join(" "))
    }
}

impl Default for Shell {
    fn default() -> Self {
        "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}".parse().expect("a good template")
    }
}

/// Checks a remote path, which must be safe as an unquoted word of a shell.
pub(super) fn check_remote_path(path: &str) -> Result<String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | '{' | '}');
    let plain = path.replace(HOST_PLACEHOLDER, "x");
    if !path.starts_with('/')
        || !plain.chars().all(fits)
        || plain.contains(['{', '}'])
        || plain.contains("..")
        || plain.trim_matches('/').is_empty()
    {
        bail!(Usage(format!(
            "{path:?} is not a folder for machines: use an absolute path of letters, digits, . - _ (and {{host}}), not /"
        )));
    }
    Ok(path.trim_end_matches('/').to_owned())
}

impl Shell {
    /// Runs a script and returns its output. If it fails, the error is the end of its error output.
    pub fn script(&self, host: &str, script: &str) -> Result<String> {
        self.script_with_timeout(ScriptTimeouts::SCRIPT, host, script)
    }

    /// Runs a script with these timeouts.
    pub(super) fn script_with_timeout(
        &self,
        timeout: ScriptTimeouts,
        host: &str,
        script: &str,
    ) -> Result<String> {
        let text = std::io::Cursor::new(format!("{PRINT_START_MARKER}{script}").into_bytes());
        let output = self.run(timeout, host, &["sh", "-s"], text, false)?;
        match output.split_once(&format!("{START_MARKER}\n")) {
            Some((_, output)) => Ok(output.to_owned()),
            None => {
                bail!("`{self}` runs no scripts there: it printed {:?}", output.lines().next().unwrap_or(""))
            }
        }
    }

    /// Runs a command with `input` as its standard input.
    pub fn copy(&self, host: &str, command: &[&str], input: impl Read + Send + 'static) -> Result<String> {
        self.run(ScriptTimeouts::COPY, host, command, input, true)
    }

    fn run(
        &self,
        timeout: ScriptTimeouts,
        host: &str,
        command: &[&str],
        input: impl Read + Send + 'static,
        copies: bool,
    ) -> Result<String> {
        let arguments: Vec<String> =
            self.arguments.iter().map(|word| word.replace(HOST_PLACEHOLDER, host)).collect();
        let (program, args) = arguments.split_first().expect("not empty");
        let mut child = Command::new(program)
            .args(args)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Usage(format!("cannot run {program}: {error} (--shell sets the command)")))?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let out = child.stdout.take().expect("stdout is piped");
        let err = child.stderr.take().expect("stderr is piped");
        let activity = Arc::new(AtomicU64::new(0));
        let (output, why) = (OutputBuffer::of(out, &activity), OutputBuffer::of(err, &activity));
        // For a copy, accepted input counts as activity. For a script it does not, because the pipe
        // alone can accept it.
        let moved = if copies { activity.clone() } else { Arc::default() };
        let feeding = thread::spawn(move || feed(input, stdin, &moved));
        let ended =
            wait(&mut child, timeout, &activity).with_context(|| format!("cannot wait for {program}"))?;
        let status = match ended {
            CommandEnd::Exited(status) => status,
            CommandEnd::NoOutput => bail!("no answer after {} s", timeout.first.as_secs()),
            CommandEnd::Silent => bail!("no further output for {} s", timeout.then.as_secs()),
        };
        // Ignore a write error: the exit status of the command explains more.
        if let Some(Err(error)) = join_with_timeout(feeding) {
            bail!("cannot read the files to copy: {error}");
        }
        let (output, why) = (output.text(), why.text());
        if !status.success() {
            let lines: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let last = &lines[lines.len().saturating_sub(ERROR_LINES)..];
            match last {
                [] => bail!("{program} ended with {status}"),
                _ => bail!("{}", last.join("; ")),
            }
        }
        Ok(output)
    }
}

/// How a command ended.
enum CommandEnd {
    Exited(ExitStatus),
    /// It printed nothing within the timeout.
    NoOutput,
    /// It stopped printing for longer than the timeout.
    Silent,
}

fn wait(child: &mut Child, timeout: ScriptTimeouts, activity: &AtomicU64) -> std::io::Result<CommandEnd> {
    let (mut since, mut before) = (Instant::now(), 0);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(CommandEnd::Exited(status));
        }
        let now = activity.load(Relaxed);
        if now != before {
            (since, before) = (Instant::now(), now);
        }
        let (limit, ended) =
            if now == 0 { (timeout.first, CommandEnd::NoOutput) } else { (timeout.then, CommandEnd::Silent) };
        if since.elapsed() >= limit {
            // A process of another account (oarsh is set-user-ID) cannot be killed. It is left to
            // end by itself.
            if child.kill().is_ok() {
                child.wait()?;
            }
            return Ok(ended);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the result of a thread if it ends within `REMAINING_OUTPUT_TIMEOUT`. The thread does not
/// end if a process that the command left behind keeps its pipe open.
fn join_with_timeout<T>(thread: JoinHandle<T>) -> Option<T> {
    let until = Instant::now() + REMAINING_OUTPUT_TIMEOUT;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
    thread.join().ok()
}

/// Copies `input` to `to`. Returns only errors of the source.
fn feed(mut input: impl Read, mut to: impl Write, moved: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = input.read(&mut buffer)?;
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            return Ok(());
        }
        moved.fetch_add(1, Relaxed);
    }
}

/// The output of a command, read by a separate thread.
struct OutputBuffer {
    bytes: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl OutputBuffer {
    fn of(mut from: impl Read + Send + 'static, activity: &Arc<AtomicU64>) -> Self {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (to, activity) = (bytes.clone(), activity.clone());
        let reading = thread::spawn(move || {
            let mut buffer = vec![0; 16 << 10];
            // After a read error, the output so far is kept.
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                to.lock().unwrap_or_else(PoisonError::into_inner).extend(&buffer[..read]);
                activity.fetch_add(1, Relaxed);
            }
        });
        Self { bytes, reading }
    }

    fn text(self) -> String {
        join_with_timeout(self.reading);
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a shell on this machine. The name of the host is in the variable `WHERE`.
    fn local_shell() -> Shell {
        "env WHERE={host}".parse().unwrap()
    }

    /// Returns a shell that runs this script instead of the command.
    fn shell_that_runs(does: &str) -> (tempfile::NamedTempFile, Shell) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(does.as_bytes()).unwrap();
        let shell = format!("sh {} {{host}}", file.path().display()).parse().unwrap();
        (file, shell)
    }

    #[test]
    fn script_output_and_copied_input_are_complete() {
        let output = local_shell().script("n1", "echo \"at $WHERE: it's 'fine' & $((1+1))\"").unwrap();
        assert_eq!(output, "at n1: it's 'fine' & 2\n");
        let long = || std::io::Cursor::new(vec![b'x'; 3 << 20]);
        let counted = local_shell().copy("n1", &["wc", "-c"], long()).unwrap();
        assert_eq!(counted.trim(), (3 << 20).to_string());
        // A command that does not read its input.
        assert_eq!(local_shell().copy("n1", &["true"], long()).unwrap(), "");
    }

    #[test]
    fn hung_machine_is_abandoned_and_its_processes_killed() {
        let began = Instant::now();
        let short = ScriptTimeouts { first: Duration::from_millis(300), then: Duration::from_millis(900) };
        // No output at all; a process that keeps the output open is not waited for.
        let (_file, hangs) = shell_that_runs("sleep 100 & sleep 100");
        let error = hangs.script_with_timeout(short, "n1", "").unwrap_err();
        assert_eq!(error.to_string(), "no answer after 0 s");
        let error = local_shell().script_with_timeout(short, "n1", "sleep 100 & sleep 100").unwrap_err();
        assert_eq!(error.to_string(), "no further output for 0 s");
        // A script that runs longer than the timeout but is never silent for that long.
        let busy = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done";
        assert_eq!(local_shell().script_with_timeout(short, "n1", busy).unwrap().lines().count(), 6);
        assert!(began.elapsed() < Duration::from_mins(1));
    }

    #[test]
    fn error_of_a_failed_command_includes_its_output() {
        let error =
            local_shell().script("n1", "for i in 1 2 3 4; do echo line $i >&2; done; exit 3").unwrap_err();
        assert_eq!(error.to_string(), "line 2; line 3; line 4");
        let error = local_shell().script("n1", "exit 3").unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        let nowhere: Shell = "no-such-program-at-all {host}".parse().unwrap();
        assert!(
            nowhere
                .script("n1", "")
                .unwrap_err()
                .to_string()
                .starts_with("cannot run no-such-program-at-all")
        );
        assert!("ssh n1".parse::<Shell>().is_err() && " ".parse::<Shell>().is_err());
    }

    #[test]
    fn shell_that_runs_no_script_is_rejected() {
        for (does, output) in [("echo $*", "n1 sh -s"), ("cat", "printf")] {
            let (_file, shell) = shell_that_runs(does);
            let error = shell.script("n1", "echo fine").unwrap_err().to_string();
            assert!(error.contains("runs no scripts there") && error.contains(output), "{error}");
        }
    }
}
