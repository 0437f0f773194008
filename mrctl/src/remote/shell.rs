//! A shell on another machine: `ssh {host}`, or whatever else runs a command there.
//!
//! The command's words go through as they are, whether the way there is a shell (ssh joins words) or none (`ip netns
//! exec`): they hold no characters that a shell would change. Scripts go over standard input.

use crate::output::Usage;
use anyhow::{Context, Result, bail, ensure};
use std::{
    io::{Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const HOST: &str = "{host}";
/// A command takes no longer than this: what it waits for itself, it waits for less. A machine that hangs holds up nobody.
const WITHIN: Duration = Duration::from_mins(10);
/// Between two looks whether a command has ended.
const NAP: Duration = Duration::from_millis(5);

/// How to run a command on a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shell {
    words: Vec<String>,
}

impl std::str::FromStr for Shell {
    type Err = String;

    fn from_str(template: &str) -> Result<Self, String> {
        let words: Vec<String> = template.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err("it is empty: write a command such as 'ssh {host}'".into());
        }
        if !words.iter().any(|word| word.contains(HOST)) {
            return Err(format!("it does not say where: write {HOST} for the machine, as in 'ssh {{host}}'"));
        }
        Ok(Self { words })
    }
}

impl std::fmt::Display for Shell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words.join(" "))
    }
}

impl Default for Shell {
    fn default() -> Self {
        "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}".parse().expect("a good template")
    }
}

impl Shell {
    /// Runs a script; what it printed. If it fails, the last line of its error output says why.
    pub(crate) fn script(&self, host: &str, script: &str) -> Result<String> {
        self.run(host, &["sh", "-s"], &mut script.as_bytes())
    }

    /// Runs a command with this input; what it printed.
    pub(crate) fn run(&self, host: &str, command: &[&str], input: &mut (dyn Read + Send)) -> Result<String> {
        self.run_within(WITHIN, host, command, input)
    }

    fn run_within(
        &self,
        limit: Duration,
        host: &str,
        command: &[&str],
        input: &mut (dyn Read + Send),
    ) -> Result<String> {
        let words: Vec<String> = self.words.iter().map(|word| word.replace(HOST, host)).collect();
        let (program, args) = words.split_first().expect("not empty");
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
        let mut stdin = child.stdin.take().expect("asked for");
        let (out, err) = (child.stdout.take().expect("asked for"), child.stderr.take().expect("asked for"));
        let (status, fed, said, words) = thread::scope(|scope| {
            // If it does not read to the end, how it ended says more.
            let fed = scope.spawn(move || feed(input, &mut stdin));
            let (said, words) = (scope.spawn(|| read_all(out)), scope.spawn(|| read_all(err)));
            let status = wait(&mut child, limit);
            (status, fed.join(), said.join().unwrap_or_default(), words.join().unwrap_or_default())
        });
        let status = status.with_context(|| format!("cannot wait for {program}"))?;
        let Some(status) = status else { bail!("no answer within {} s", limit.as_secs()) };
        if let Ok(Err(error)) = fed {
            bail!("cannot read what is to be copied: {error}");
        }
        let last = words.lines().map(str::trim).rfind(|line| !line.is_empty());
        ensure!(
            status.success(),
            "{}",
            last.map_or_else(|| format!("{program} ended with {status}"), str::to_owned)
        );
        Ok(said)
    }
}

/// How it ended; None if it took too long, and was ended.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(NAP);
    }
}

fn read_all(mut from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What has come until then is what there is.
    from.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Copies; an error only if the source fails.
fn feed(input: &mut (dyn Read + Send), to: &mut impl Write) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = input.read(&mut buffer)?;
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A "remote" machine that is this one; the host's name is a variable of the shell.
    fn here() -> Shell {
        "env WHERE={host}".parse().unwrap()
    }

    #[test]
    fn scripts_and_input_go_through() {
        let said = here().script("n1", "echo \"at $WHERE: it's 'fine' & $((1+1))\"").unwrap();
        assert_eq!(said, "at n1: it's 'fine' & 2\n");
        let long = vec![b'x'; 3 << 20];
        let counted = here().run("n1", &["wc", "-c"], &mut &long[..]).unwrap();
        assert_eq!(counted.trim(), (3 << 20).to_string());
        // One that does not read its input.
        assert_eq!(here().run("n1", &["true"], &mut &long[..]).unwrap(), "");
    }

    #[test]
    fn a_machine_that_hangs_is_given_up() {
        let hung = here().run_within(Duration::from_millis(300), "n1", &["sleep", "1000"], &mut &b""[..]);
        assert_eq!(hung.unwrap_err().to_string(), "no answer within 0 s");
    }

    #[test]
    fn what_fails_says_why() {
        let error = here().script("n1", "echo first >&2; echo 'no room here' >&2; exit 3").unwrap_err();
        assert_eq!(error.to_string(), "no room here");
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
}
