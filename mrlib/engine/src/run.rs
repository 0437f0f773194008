//! The main function of a job binary.
//!
//! Started by a tracker, the binary is a task process. Started by a user, it describes the job
//! (`--describe`), runs it on local files (`--local`), or prints how to submit it. For `mrctl
//! submit` it also samples its input (`--sample`).

use crate::{
    local::{LocalRun, run_local},
    process::shim,
    ranges,
    settings::Settings,
    task,
};
use clap::Parser;
use mrlib_api::{
    Conf, Job, OutputFormat, TaskError,
    settings::{self, Setting},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io::Write as _,
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::Arc,
};

/// What the function passed to [`run`] may return: a job or an error.
pub trait IntoJob {
    /// Returns the job, or the error.
    fn into_job(self) -> Result<Job, TaskError>;
}

impl IntoJob for Job {
    fn into_job(self) -> Result<Job, TaskError> {
        Ok(self)
    }
}

impl IntoJob for Result<Job, TaskError> {
    fn into_job(self) -> Result<Job, TaskError> {
        self
    }
}

/// The JSON that `--describe` prints: what the cluster needs to know about a job before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// `lines`, `keyvalue`, `fixed:RECORD:KEY` or `whole`.
    pub input: String,
    /// `text`, `keyvalue` or `raw`.
    pub output: String,
    /// Whether the job has a reducer.
    pub reducer: bool,
    /// Whether the job has a combiner.
    pub combiner: bool,
    /// Whether reduces get ranges of keys.
    pub total_order: bool,
    /// Whether the input may be divided at any record.
    #[serde(default)]
    pub divisible: bool,
    /// The version of mrlib that the binary was built with.
    pub mrlib: String,
    /// Settings that the program declares, in addition to those of the engine.
    #[serde(default)]
    pub settings: Vec<Setting>,
}

impl Description {
    /// Describes a job after checking its settings, so that errors do not show first in a task.
    pub fn checked(job: &Job, conf: &Conf) -> Result<Self, TaskError> {
        settings::check(conf.iter(), &job.settings)?;
        Settings::new(job, conf)?;
        Ok(Self::of(job))
    }

    /// Describes a job.
    pub fn of(job: &Job) -> Self {
        let output = match job.output {
            OutputFormat::Text => "text",
            OutputFormat::KeyValue => "keyvalue",
            OutputFormat::Raw => "raw",
        };
        Self {
            input: job.input.to_string(),
            output: output.into(),
            reducer: job.reducer.is_some(),
            combiner: job.combiner.is_some(),
            total_order: job.total_order,
            divisible: job.divisible,
            mrlib: env!("CARGO_PKG_VERSION").into(),
            settings: job.settings.clone(),
        }
    }
}

/// The JSON that `--describe` prints if the job is not valid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescribeError {
    pub error: String,
}

/// A Fermata job
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
struct Args {
    /// Print a description of the job, as JSON
    #[arg(long, conflicts_with = "local")]
    describe: bool,
    /// For mrctl: write the split keys of a job with total order; the request comes on stdin
    #[arg(long, hide = true, conflicts_with_all = ["describe", "local"])]
    sample: bool,
    /// Run in this process on local files: one or more inputs, then the output folder, which must
    /// not exist
    #[arg(long, num_args = 2.., value_names = ["IN", "OUT"])]
    local: Option<Vec<PathBuf>>,
    /// Number of reduces; 0 for none [default: 1, or 0 for a job without a reducer]
    #[arg(long, value_name = "N")]
    reduces: Option<u32>,
    /// Number of tasks that run at the same time [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Setting of the job; can be repeated
    #[arg(long = "conf", value_name = "KEY=VALUE", value_parser = parse_setting)]
    conf: Vec<(String, String)>,
}

fn parse_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("use KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// Runs a job binary: call it in the main function, as in `fn main() { mrlib::run(|conf|
/// Job::map(...)) }`. Does not return.
pub fn run<J: IntoJob>(program: impl Fn(&Conf) -> J + Send + Sync + 'static) -> ! {
    shim::enter();
    let make = move |conf: &Conf| program(conf).into_job();
    let code = match task::umbilical_path() {
        Some(socket) => {
            let served = task::serve(&socket, Arc::new(move |_, conf| make(conf)));
            i32::from(served != ExitCode::SUCCESS)
        }
        None => run_locally(&daemon::usage::parse(), &make),
    };
    // A tracker reads the exit code. Threads that still run have no work left.
    process::exit(code)
}

/// Runs a command of the job binary. Returns the exit code: 0 for success, 1 for a failure, 2 for a
/// usage error.
fn run_locally(args: &Args, make: &dyn Fn(&Conf) -> Result<Job, TaskError>) -> i32 {
    match try_run_locally(args, make) {
        Ok(text) => {
            // Ignore a closed pipe.
            let _ = std::io::stdout().write_all(&text);
            0
        }
        Err(failure) => {
            if args.describe {
                let error = DescribeError { error: failure.to_string() };
                let _ = writeln!(std::io::stdout(), "{}", to_json(&error));
            }
            eprintln!("{}: {failure}", daemon::usage::program_name());
            if matches!(failure, Failure::Usage(_)) { daemon::usage::EXIT_CODE } else { 1 }
        }
    }
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a plain structure")
}

/// Why a command of a job binary failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// A setting or an argument is not valid.
    #[error("{0}")]
    Usage(TaskError),
    #[error("{0}")]
    Run(#[from] TaskError),
}

/// Refuses an input that does not exist and an output that exists.
fn check_paths(inputs: &[PathBuf], output: &Path) -> Result<(), Failure> {
    let refuse = |why: String| Err(Failure::Usage(why.into()));
    if let Some(input) = inputs.iter().find(|input| !input.exists()) {
        return refuse(format!("{}: there is no such local file", input.display()));
    }
    if output.exists() {
        return refuse(format!("output folder {} already exists: choose another folder", output.display()));
    }
    Ok(())
}

fn try_run_locally(args: &Args, make: &dyn Fn(&Conf) -> Result<Job, TaskError>) -> Result<Vec<u8>, Failure> {
    let conf: Conf = args.conf.iter().cloned().collect();
    if args.sample {
        let request: ranges::SampleRequest = serde_json::from_reader(std::io::stdin().lock())
            .map_err(|error| TaskError::from(format!("malformed sample request: {error}")))?;
        return Ok(ranges::split_keys(&make(&request.conf.clone().into_iter().collect())?, &request)?);
    }
    if args.describe {
        let described = make(&conf).and_then(|job| Description::checked(&job, &conf));
        let description = described.map_err(Failure::Usage)?;
        return Ok((to_json(&description) + "\n").into_bytes());
    }
    let Some([inputs @ .., output]) = args.local.as_deref() else { return Ok(how_to_submit().into_bytes()) };
    let job = make(&conf).map_err(Failure::Usage)?;
    settings::check(conf.iter(), &job.settings).map_err(|why| Failure::Usage(why.into()))?;
    check_paths(inputs, output)?;
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let run = LocalRun {
        inputs: inputs.to_vec(),
        output: output.clone(),
        reduces: args.reduces.unwrap_or(u32::from(job.reducer.is_some())),
        threads: args.threads.map_or_else(cores, |threads| threads as usize),
        conf,
    };
    Ok(counter_table(&run_local(&job, &run)?).into_bytes())
}

/// Formats counters as a table.
fn counter_table(counters: &BTreeMap<String, u64>) -> String {
    let width = counters.keys().map(String::len).max().unwrap_or(0);
    let lines: Vec<String> =
        counters.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect();
    lines.concat()
}

fn how_to_submit() -> String {
    let path = std::env::args().next().unwrap_or_else(|| "my-job".into());
    format!(
        "This is a Fermata job. To run it on a cluster:\n  mrctl submit {path} --input IN --output OUT --reduces 2\n\
         To try it here, on local files:\n  {path} --local IN OUT\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    fn output_of(args: &[&str]) -> Result<String, Failure> {
        let args = Args::try_parse_from([&["job"], args].concat());
        let args = args.map_err(|error| Failure::Usage(error.to_string().into()))?;
        let text =
            try_run_locally(&args, &|conf| registry::job(conf.get("program").unwrap_or("wordcount"), conf));
        text.map(|text| String::from_utf8(text).expect("text"))
    }

    #[test]
    fn describe_prints_the_job_or_names_the_invalid_setting() {
        let description: Description =
            serde_json::from_str(&output_of(&["--describe"]).expect("a job")).expect("sound JSON");
        assert_eq!((description.input.as_str(), description.output.as_str()), ("lines", "text"));
        assert!(description.reducer && description.combiner && !description.total_order);
        assert!(output_of(&["--describe", "--conf", "program=none"]).is_err());
        for setting in ["pace.map=xyz", "output.replication=0", "record.bytes.max=-1", "input.format=xml"] {
            let why = output_of(&["--describe", "--conf", setting]).expect_err(setting).to_string();
            assert!(why.contains(setting.split('=').next().expect("a key")), "{why}");
        }
    }

    #[test]
    fn local_option_runs_the_job_on_local_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(at("a"), "x y x\n").expect("a working disk");
        std::fs::write(at("b"), "y x\n").expect("a working disk");
        let text =
            output_of(&["--local", &at("a"), &at("b"), &at("out"), "--threads", "2"]).expect("a good job");
        assert!(text.lines().any(|line| line.split_whitespace().eq(["MAP_INPUT_RECORDS", "2"])), "{text}");
        let part = std::fs::read_to_string(at("out/part-r-00000")).expect("a part");
        assert_eq!(part, "x\t3\ny\t2\n");
    }

    #[test]
    fn usage_errors_exit_with_2_and_failures_with_1() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(at("a"), "x\n").expect("a working disk");
        let code_of = |program: &str, args: &[&str]| {
            let args = Args::try_parse_from([&["job"], args].concat()).expect("valid arguments");
            run_locally(&args, &|conf| registry::job(program, conf))
        };
        let code = |args: &[&str]| code_of("wordcount", args);
        assert_eq!(code(&["--local", &at("none"), &at("out")]), 2);
        assert_eq!(code(&["--local", &at("a"), &at("a")]), 2);
        assert_eq!(code(&["--local", &at("a"), &at("out"), "--conf", "no.such=1"]), 2);
        assert_eq!(code_of("none", &["--describe"]), 2);
        assert_eq!(
            code_of("streaming", &["--local", &at("a"), &at("out"), "--conf", "stream.mapper=false"]),
            1
        );
        assert_eq!(code(&["--local", &at("a"), &at("out")]), 0);
    }

    #[test]
    fn job_without_arguments_prints_how_to_submit_it() {
        assert!(output_of(&[]).expect("text").contains("mrctl submit"));
        for bad in [["--local", "in"].as_slice(), &["--conf", "x"], &["--reduces", "-1"], &["--threads", "0"]]
        {
            assert!(output_of(bad).is_err(), "{bad:?}");
        }
    }
}
