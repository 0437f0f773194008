//! The jobs of a soak: a few programs whose correct output is known from undisturbed runs. They are
//! submitted by the `mrctl` command.

use super::super::{observer::ClusterView, target::ChaosTarget};
use anyhow::{Context, Result, ensure};
use client::credentials;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    io::{Read, Write},
    path::PathBuf,
    process::{Command, Stdio},
};

const SOAK_FOLDER: &str = "/soak";
/// The number of lines of the text.
const LINES: u32 = 20_000;
/// The number of different words in the text.
const WORDS: u32 = 3_000;

/// A program, its input, and rate limits that make it slow enough to be disturbed by faults.
struct Program {
    name: &'static str,
    input: &'static str,
    pace_map: &'static str,
    pace_reduce: &'static str,
}

const PROGRAMS: [Program; 4] = [
    Program { name: "terasort", input: "gen", pace_map: "400KiB", pace_reduce: "600KiB" },
    Program { name: "wordcount", input: "text", pace_map: "150KiB", pace_reduce: "40KiB" },
    Program { name: "invertedindex", input: "text", pace_map: "150KiB", pace_reduce: "80KiB" },
    Program { name: "identity", input: "text", pace_map: "200KiB", pace_reduce: "300KiB" },
];

/// A submitted job.
#[derive(Debug, Clone)]
pub(super) struct SoakJob {
    pub(super) id: String,
    program: usize,
    output: String,
}

/// The programs, and the hashes of their output without faults.
pub(super) struct SoakJobs {
    mrctl: PathBuf,
    config: PathBuf,
    expected: Vec<String>,
    pub(super) files: u64,
}

impl SoakJobs {
    /// Creates the inputs and runs each program undisturbed.
    pub(super) fn prepare(target: &ChaosTarget) -> Result<Self> {
        let mrctl = std::env::current_exe().context("cannot determine the path of this program")?;
        let mut jobs = Self { mrctl, config: target.config_file(), expected: Vec::new(), files: 0 };
        jobs.run(&["fs", "rm", "-rf", SOAK_FOLDER])?;
        jobs.run(&["fs", "mkdir", SOAK_FOLDER])?;
        if let Some(name) = credentials(&target.config()?.security)?.name() {
            jobs.run(&["fs", "chown", name, SOAK_FOLDER])?;
        }
        jobs.put(&text(), &format!("{SOAK_FOLDER}/text"))?;
        let gen_to = format!("{SOAK_FOLDER}/gen");
        jobs.run(&["submit", "teragen", "--output", &gen_to, "--conf", "rows=20000", "--conf", "maps=2"])?;
        for (number, program) in PROGRAMS.iter().enumerate() {
            let output = format!("{SOAK_FOLDER}/calm-{}", program.name);
            jobs.submit(number, &output, &[])?;
            jobs.expected.push(jobs.hash(&output)?);
        }
        jobs.files = jobs.count_files()?;
        Ok(jobs)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.mrctl);
        command.arg("--config").arg(&self.config).args(args).stdin(Stdio::null());
        for key in ["FERMATA_NAMENODE", "FERMATA_JOBTRACKER", "FERMATA_CONFIG"] {
            command.env_remove(key);
        }
        command
    }

    /// Runs `mrctl`, which must succeed, and returns its standard output.
    pub(super) fn run(&self, args: &[&str]) -> Result<String> {
        let ran = tokio::task::block_in_place(|| self.command(args).output()).context("cannot run mrctl")?;
        let output = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "mrctl {}: {}", args.join(" "), output.trim());
        Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
    }

    fn put(&self, bytes: &[u8], path: &str) -> Result<()> {
        let mut child = self
            .command(&["fs", "put", "--quiet", "-", path])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot run mrctl")?;
        child.stdin.take().expect("stdin is piped").write_all(bytes).context("cannot write to mrctl")?;
        ensure!(child.wait()?.success(), "mrctl fs put {path} failed");
        Ok(())
    }

    fn submit(&self, program: usize, output: &str, extra: &[&str]) -> Result<String> {
        let Program { name, input, .. } = &PROGRAMS[program];
        let input = format!("{SOAK_FOLDER}/{input}");
        let args = ["submit", name, "--input", &input, "--output", output, "--reduces", "3", "--json"];
        let output = self.run(&[&args[..], extra].concat())?;
        let job: Value = serde_json::from_str(&output)
            .with_context(|| format!("cannot parse the output of mrctl submit: {output:?}"))?;
        Ok(job["job"].as_str().unwrap_or_default().to_owned())
    }

    /// Submits a few random jobs, slow enough to be disturbed.
    pub(super) fn submit_random(&self, round: u32, rng: &mut SmallRng) -> Result<Vec<SoakJob>> {
        let count = rng.random_range(2..=5);
        let one = |number: u32| {
            let program = rng.random_range(0..PROGRAMS.len());
            let output = format!("{SOAK_FOLDER}/out-{round}-{number}");
            let (map, reduce) = (PROGRAMS[program].pace_map, PROGRAMS[program].pace_reduce);
            let paces = [format!("pace.map={map}"), format!("pace.reduce={reduce}")];
            let start = if rng.random_bool(0.5) { "slow.start=0" } else { "slow.start=0.5" };
            let extra = ["--conf", &paces[0], "--conf", &paces[1], "--conf", start, "--detach"];
            let id = self.submit(program, &output, &extra)?;
            Ok(SoakJob { id, program, output })
        };
        (0..count).map(one).collect()
    }

    /// Returns the hash of all output parts of a job.
    fn hash(&self, output: &str) -> Result<String> {
        let parts = format!("{output}/part-*");
        let mut child = self
            .command(&["fs", "cat", &parts])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run mrctl")?;
        let mut out = child.stdout.take().expect("stdout is piped");
        let (mut hash, mut buffer) = (Sha256::new(), vec![0; 64 << 10]);
        loop {
            let read = out.read(&mut buffer).context("cannot read from mrctl")?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
        }
        let ended = child.wait_with_output()?;
        ensure!(
            ended.status.success(),
            "cannot read {output}: {}",
            String::from_utf8_lossy(&ended.stderr).trim()
        );
        Ok(hash.finalize().iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        }))
    }

    /// Describes the jobs that did not succeed and the outputs that differ from the expected
    /// output.
    pub(super) fn check_outputs(&self, jobs: &[SoakJob], view: &ClusterView) -> Vec<String> {
        let mut problems = Vec::new();
        for work in jobs {
            let name = PROGRAMS[work.program].name;
            let state = view.jobs.iter().find(|job| job.job == work.id);
            match state {
                Some(job) if job.state == "succeeded" => {}
                Some(job) => {
                    problems.push(format!("{} ({name}) {}: {}", work.id, job.state, job.why));
                    continue;
                }
                None => {
                    problems.push(format!("{} ({name}) is no longer known", work.id));
                    continue;
                }
            }
            match tokio::task::block_in_place(|| self.hash(&work.output)) {
                Ok(hash) if hash == self.expected[work.program] => {}
                Ok(_) => {
                    problems
                        .push(format!("{} ({name}): its output differs from an undisturbed run", work.id));
                }
                Err(error) => problems.push(format!("{} ({name}): {error:#}", work.id)),
            }
        }
        problems
    }

    /// Deletes the outputs of jobs.
    pub(super) fn remove(&self, jobs: &[SoakJob]) -> Result<()> {
        for work in jobs {
            self.run(&["fs", "rm", "-rf", &work.output])?;
        }
        Ok(())
    }

    /// Returns the paths of all files in the file system.
    pub(super) fn list(&self) -> Result<Vec<String>> {
        let output = self.run(&["fs", "ls", "-R", "--json", "/"])?;
        let all: Value = serde_json::from_str(&output).context("mrctl fs ls")?;
        let paths = all.as_array().into_iter().flatten().filter_map(|entry| entry["path"].as_str());
        Ok(paths.map(str::to_owned).collect())
    }

    fn count_files(&self) -> Result<u64> {
        Ok(self.list()?.len() as u64)
    }

    /// Removes all files of the soak.
    pub(super) fn clear(&self) -> Result<()> {
        self.run(&["fs", "rm", "-rf", SOAK_FOLDER]).map(drop)
    }
}

/// Returns a text of words with different frequencies.
fn text() -> Vec<u8> {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut text = String::new();
    for _ in 0..LINES {
        for _ in 0..8 {
            let word = rng.random_range(0..WORDS).min(rng.random_range(0..WORDS));
            let _ = write!(text, "w{word} ");
        }
        text.push('\n');
    }
    text.into_bytes()
}
