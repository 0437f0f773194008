//! A shell on another machine: `ssh {host}`, or whatever else runs a command there.
//!
//! The command's words go through as they are, whether the way there is a shell (ssh joins words) or none (`ip netns
//! exec`): they hold no characters that a shell would change. Scripts go over standard input, and say a word first:
//! what comes before it is a greeting of the machine, and a machine that does not say it runs no scripts.
//!
//! A machine may be slow, but not silent: each command has a time within which something must move. Nobody waits for
//! one that was given up, nor for what it has left behind.

use crate::output::Usage;
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

const HOST: &str = "{host}";
/// What a script says first; in the script it is written in two parts, so that an echo of it is not taken for it.
const HERE: &str = "fermata-is-here";
const PRINT_HERE: &str = "printf '%s\\n' \"fermata-\"\"is-here\"\n";
/// Between two looks whether a command has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// What a command has printed is there this long after its end.
const TAIL: Duration = Duration::from_secs(2);
/// Lines of its error output that are shown.
const ERROR_LINES: usize = 3;

/// How long a machine may be silent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ScriptTimeouts {
    /// Before it says a word.
    first: Duration,
    /// Between two signs of life.
    then: Duration,
}

impl ScriptTimeouts {
    /// A script: its first word comes at once, and what it waits for itself, it waits for less.
    const SCRIPT: Self = Self { first: Duration::from_secs(20), then: Duration::from_mins(2) };
    /// Copying: bytes move.
    const COPY: Self = Self { first: Duration::from_mins(1), then: Duration::from_mins(1) };

    /// A script that takes this long by itself.
    pub(crate) fn of_script(takes: Duration) -> Self {
        Self { then: takes + Self::SCRIPT.then, ..Self::SCRIPT }
    }
}

/// How to run a command on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shell {
    arguments: Vec<String>,
}

impl std::str::FromStr for Shell {
    type Err = String;

    fn from_str(template: &str) -> Result<Self, String> {
        let arguments: Vec<String> = template.split_whitespace().map(str::to_owned).collect();
        if arguments.is_empty() {
            return Err("it is empty: write a command such as 'ssh {host}'".into());
        }
        if !arguments.iter().any(|word| word.contains(HOST)) {
            return Err(format!("it does not say where: write {HOST} for the machine, as in 'ssh {{host}}'"));
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

impl Shell {
    /// Runs a script; what it printed. If it fails, the end of its error output says why.
    pub(crate) fn script(&self, host: &str, script: &str) -> Result<String> {
        self.script_with_timeout(ScriptTimeouts::SCRIPT, host, script)
    }

    /// The same, of one that takes long.
    pub(crate) fn script_with_timeout(
        &self,
        timeout: ScriptTimeouts,
        host: &str,
        script: &str,
    ) -> Result<String> {
        let text = std::io::Cursor::new(format!("{PRINT_HERE}{script}").into_bytes());
        let paper_figures = self.run(timeout, host, &["sh", "-s"], text, false)?;
        match paper_figures.split_once(&format!("{HERE}\n")) {
            Some((_, paper_figures)) => Ok(paper_figures.to_owned()),
            None => bail!(
                "`{self}` runs no scripts there: it said {:?}",
                paper_figures.lines().next().unwrap_or("")
            ),
        }
    }

    /// Runs a command that reads all of this.
    pub(crate) fn copy(
        &self,
        host: &str,
        command: &[&str],
        input: impl Read + Send + 'static,
    ) -> Result<String> {
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
        let arguments: Vec<String> = self.arguments.iter().map(|word| word.replace(HOST, host)).collect();
        let (program, args) = arguments.split_first().expect("not empty");
        let mut child = Command::new(program)
            .args(args)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                Usage(format!("cannot run {program}: {error} (--shell says how to reach machines)"))
            })?;
        let stdin = child.stdin.take().expect("asked for");
        let (out, err) = (child.stdout.take().expect("asked for"), child.stderr.take().expect("asked for"));
        let pulse = Arc::new(AtomicU64::new(0));
        let (paper_figures, why) = (OutputBuffer::of(out, &pulse), OutputBuffer::of(err, &pulse));
        // What a pipe takes is no sign of life; what goes through it is.
        let moved = if copies { pulse.clone() } else { Arc::default() };
        let feeding = thread::spawn(move || feed(input, stdin, &moved));
        let ended =
            wait(&mut child, timeout, &pulse).with_context(|| format!("cannot wait for {program}"))?;
        let status = match ended {
            Ended::Exited(status) => status,
            Ended::NoOutput => bail!("no answer after {} s", timeout.first.as_secs()),
            Ended::Silent => bail!("it answered, and then was silent for {} s", timeout.then.as_secs()),
        };
        // If it did not read to the end, how it ended says more.
        if let Some(Err(error)) = finished(feeding) {
            bail!("cannot read what is to be copied: {error}");
        }
        let (paper_figures, why) = (paper_figures.text(), why.text());
        if !status.success() {
            let lines: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let last = &lines[lines.len().saturating_sub(ERROR_LINES)..];
            match last {
                [] => bail!("{program} ended with {status}"),
                _ => bail!("{}", last.join("; ")),
            }
        }
        Ok(paper_figures)
    }
}

/// How a command came to its end.
enum Ended {
    Exited(ExitStatus),
    /// It said nothing at all, and was ended.
    NoOutput,
    /// It said no more, and was ended.
    Silent,
}

fn wait(child: &mut Child, timeout: ScriptTimeouts, pulse: &AtomicU64) -> std::io::Result<Ended> {
    let (mut since, mut before) = (Instant::now(), 0);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Exited(status));
        }
        let now = pulse.load(Relaxed);
        if now != before {
            (since, before) = (Instant::now(), now);
        }
        let (limit, ended) =
            if now == 0 { (timeout.first, Ended::NoOutput) } else { (timeout.then, Ended::Silent) };
        if since.elapsed() >= limit {
            // One that runs as another account (oarsh is set-user-ID) may not be killed; it is left to end by itself.
            if child.kill().is_ok() {
                child.wait()?;
            }
            return Ok(ended);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// What a thread came to that ends soon, if it does: something may be left behind that holds its pipe open.
fn finished<T>(thread: JoinHandle<T>) -> Option<T> {
    let until = Instant::now() + TAIL;
    while !thread.is_finished() {
        if Instant::now() >= until {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
    thread.join().ok()
}

/// Copies; an error only if the source fails.
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

/// What is printed, read by a thread that nobody has to wait for.
struct OutputBuffer {
    bytes: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl OutputBuffer {
    fn of(mut from: impl Read + Send + 'static, pulse: &Arc<AtomicU64>) -> Self {
        let bytes: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (to, pulse) = (bytes.clone(), pulse.clone());
        let reading = thread::spawn(move || {
            let mut buffer = vec![0; 16 << 10];
            // What has come until an error is what there is.
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                to.lock().unwrap_or_else(PoisonError::into_inner).extend(&buffer[..read]);
                pulse.fetch_add(1, Relaxed);
            }
        });
        Self { bytes, reading }
    }

    fn text(self) -> String {
        finished(self.reading);
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A "remote" machine that is this one; the host's name is a variable of the shell.
    fn here() -> Shell {
        "env WHERE={host}".parse().unwrap()
    }

    /// One that does this whatever it is told.
    fn stubborn(does: &str) -> (tempfile::NamedTempFile, Shell) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(does.as_bytes()).unwrap();
        let shell = format!("sh {} {{host}}", file.path().display()).parse().unwrap();
        (file, shell)
    }

    #[test]
    fn scripts_and_input_go_through() {
        let paper_figures = here().script("n1", "echo \"at $WHERE: it's 'fine' & $((1+1))\"").unwrap();
        assert_eq!(paper_figures, "at n1: it's 'fine' & 2\n");
        let long = || std::io::Cursor::new(vec![b'x'; 3 << 20]);
        let counted = here().copy("n1", &["wc", "-c"], long()).unwrap();
        assert_eq!(counted.trim(), (3 << 20).to_string());
        // One that does not read its input.
        assert_eq!(here().copy("n1", &["true"], long()).unwrap(), "");
    }

    #[test]
    fn hung_machine_is_abandoned_and_its_processes_killed() {
        let began = Instant::now();
        let short = ScriptTimeouts { first: Duration::from_millis(300), then: Duration::from_millis(900) };
        // Never a word; and what holds its output open is not waited for.
        let (_file, hangs) = stubborn("sleep 100 & sleep 100");
        let error = hangs.script_with_timeout(short, "n1", "").unwrap_err();
        assert_eq!(error.to_string(), "no answer after 0 s");
        let error = here().script_with_timeout(short, "n1", "sleep 100 & sleep 100").unwrap_err();
        assert_eq!(error.to_string(), "it answered, and then was silent for 0 s");
        // Long, but never silent for long.
        let busy = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done";
        assert_eq!(here().script_with_timeout(short, "n1", busy).unwrap().lines().count(), 6);
        assert!(began.elapsed() < Duration::from_mins(1));
    }

    #[test]
    fn failures_include_the_reason() {
        let error = here().script("n1", "for i in 1 2 3 4; do echo line $i >&2; done; exit 3").unwrap_err();
        assert_eq!(error.to_string(), "line 2; line 3; line 4");
        let error = here().script("n1", "exit 3").unwrap_err();
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
        for (does, paper_figures) in [("echo $*", "n1 sh -s"), ("cat", "printf")] {
            let (_file, shell) = stubborn(does);
            let error = shell.script("n1", "echo fine").unwrap_err().to_string();
            assert!(error.contains("runs no scripts there") && error.contains(paper_figures), "{error}");
        }
    }
}
