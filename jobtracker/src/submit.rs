//! Turns a submission into a job: checks paths and settings, and cuts the input into splits.
//!
//! Every error that can be found in a submission is reported here in one line, before the job is
//! accepted.

use crate::{
    driver::Driver,
    error::Refusal,
    leftovers,
    splits::{self, SplitOptions},
    wire::Submission,
};
use daemon::config::JobTrackerConfig;
use dfs_client::{Client, Inputs, error::Kind, path::DfsPath};
use engine::registry;
use journal::{codec, log::RECORD_BYTES_MAX};
use mrcore::{
    ids::JobId,
    job::{JobSpec, Payload, Program, Secret},
};
use mrlib_api::{
    Conf, InputFormat,
    codec::Codec,
    settings::{self, Kind as Values, SPLIT_KEYS, Setting},
};
use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::Display,
    str::FromStr,
    time::{Duration, Instant},
};

/// Time limit for the checks of a submission. It is enough for some hundred thousand input files.
const CHECKS_TIMEOUT: Duration = Duration::from_mins(5);
/// Bytes in a journal record that the description of a job must leave free for the other fields.
const RECORD_SLACK_BYTES: usize = 64 << 10;
const SHUFFLE_TOKEN_BYTES: usize = 16;
/// The output folder is checked again if the last check is older than this when the job is
/// accepted.
const OUTPUT_CHECK_AGE_MAX: Duration = Duration::from_millis(100);
/// Name of the setting that disables the splitting of slow maps if its value is `false`.
const SPLIT_SLOW: &str = "speculation.split";
/// Name of the setting with the number of replicas of the output.
const REPLICATION: &str = "output.replication";
/// Approximate length of the path of a piece (an output file of an attempt), not counting the path
/// of the output folder.
const PIECE_NAME_BYTES: usize = 48;

/// The settings of a job that the JobTracker reads.
#[derive(Debug, PartialEq)]
struct JobSettings {
    slow_start: f64,
    speculation: bool,
    /// Whether slow maps may be split.
    split_slow: bool,
    attempts_max: u32,
    split_options: SplitOptions,
}

/// Creates a job from a submission. Returns the existing job if the request was sent before.
pub(crate) async fn submit(driver: &Driver, submission: Submission) -> Result<JobId, Refusal> {
    if let Some(job) = driver.job_of_request(submission.request).await? {
        return Ok(job);
    }
    // The limits are checked again when the job is accepted. This first check avoids listing files
    // and computing splits for a job that is refused.
    driver.check_capacity(submission.request, &submission.user)?;
    let request = submission.request;
    let spec = with_timeout(CHECKS_TIMEOUT, check_job(driver, submission)).await?;
    driver.check_accepted().await?;
    driver.submit(request, spec).await
}

/// Refuses a job whose checks take longer than `limit`, so that a few large submissions cannot
/// occupy the places of all others.
async fn with_timeout<T>(
    limit: Duration,
    checks: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    tokio::time::timeout(limit, checks).await.unwrap_or_else(|_| {
        Err(Refusal::overloaded(format!(
            "job cannot be submitted: its files could not be checked within {} s; name fewer input files, or try \
             again when the NameNode is less busy",
            limit.as_secs()
        )))
    })
}

/// Checks a submission and returns the job. Changes nothing.
async fn check_job(driver: &Driver, submission: Submission) -> Result<JobSpec, Refusal> {
    let declared = check_settings(&submission)?;
    let settings = JobSettings::of(&submission.conf, declared, driver.config())?;
    let staging = leftovers::check_staging(&submission.staging)?;
    let client = driver.files().client().await.and_then(|client| client.acting_for(&submission.user));
    let client = client.map_err(|error| Refusal::dfs("job cannot be submitted", &error))?;
    check_program_files(&client, &submission).await?;
    // Read the outputs of active jobs before and after the input files are listed, so that a job
    // that starts or ends in between is in one of the two lists.
    let mut active_outputs = driver.active_outputs();
    let input = splits::find_inputs(&client, &submission.inputs, settings.split_options).await?;
    active_outputs.extend(driver.active_outputs());
    check_inputs_complete(&input, &active_outputs, settings.split_options.recursive)?;
    // All checks run at the same time, because their latency decides how soon a small job starts.
    let checking = splits::check_codecs(&client, &input, settings.split_options);
    let planning = async {
        let splits = splits::split_inputs(&client, &input, settings.split_options).await?;
        let output = check_output_free(driver, &client, &submission, &input, splits.len()).await?;
        Ok((splits, output, Instant::now()))
    };
    let ((), (splits, output, output_checked_at), ()) =
        tokio::try_join!(checking, planning, check_writable(&client, &submission))?;
    if output_checked_at.elapsed() > OUTPUT_CHECK_AGE_MAX {
        check_output_free(driver, &client, &submission, &input, splits.len()).await?;
    }
    let spec = job_spec(submission, &settings, staging, output, splits);
    let bytes = codec::encode(&spec).len();
    if bytes > RECORD_BYTES_MAX - RECORD_SLACK_BYTES {
        return Err(Refusal::refused(format!(
            "job with {} maps takes {bytes} bytes to describe, the limit is {}: use larger splits",
            spec.splits.len(),
            RECORD_BYTES_MAX - RECORD_SLACK_BYTES
        )));
    }
    check_commit_size(&spec, driver.config().reduces_max)?;
    Ok(spec)
}

/// Checks that the output folder does not exist and that no active job writes to it. Returns its
/// path. The active jobs are checked before the folder, and again when the job is accepted, so that
/// a job that commits its output in between is noticed.
async fn check_output_free(
    driver: &Driver,
    client: &Client,
    submission: &Submission,
    input: &Inputs,
    splits: usize,
) -> Result<String, Refusal> {
    driver.check_output_unused(submission.request, &submission.output)?;
    let parts = if submission.reduces > 0 { submission.reduces as usize } else { splits };
    check_output(client, &submission.output, input, parts as u64).await
}

/// Refuses a job with output while the NameNode is in safemode, in which no output can be written,
/// and a job that requests more replicas of its output than there are DataNodes.
async fn check_writable(
    client: &Client,
    Submission { output, conf, .. }: &Submission,
) -> Result<(), Refusal> {
    if output.is_empty() {
        return Ok(());
    }
    let report = client.report().await.map_err(|error| Refusal::dfs("job cannot be submitted", &error))?;
    if report.safemode.on {
        return Err(Refusal::refused(format!(
            "job cannot be submitted: output {output} cannot be written while the NameNode is in safemode: {}",
            report.safemode.cause()
        )));
    }
    let replicas: Option<usize> = conf.get(REPLICATION).and_then(|text| text.trim().parse::<usize>().ok());
    if let Some(replicas) = replicas.filter(|replicas| *replicas > report.nodes.len()) {
        let nodes = daemon::count(report.nodes.len() as u64, "DataNode");
        return Err(Refusal::refused(format!(
            "setting {REPLICATION} = {replicas} is too high for {nodes}: request fewer replicas"
        )));
    }
    Ok(())
}

/// Refuses a job whose commit does not fit in one record of the NameNode's log. A quarter of the
/// record is kept for the additional pieces of maps that are split.
fn check_commit_size(spec: &JobSpec, reduces_max: u32) -> Result<(), Refusal> {
    if spec.output.is_empty() {
        return Ok(());
    }
    check_part_count(&spec.output, spec.reduces, spec.splits.len(), reduces_max)
}

fn check_part_count(output: &str, reduces: u32, maps: usize, reduces_max: u32) -> Result<(), Refusal> {
    let parts = if reduces > 0 { reduces as usize } else { maps };
    // The commit contains two paths for each part: the path of a piece and the path of the part.
    let max = (RECORD_BYTES_MAX - RECORD_BYTES_MAX / 4) / (2 * (output.len() + PIECE_NAME_BYTES));
    // More reduces than `reduces_max` are refused later, with the smaller limit in the message.
    if parts <= max || (reduces > reduces_max && reduces_max as usize <= max) {
        return Ok(());
    }
    let instead = match reduces {
        0 => "use larger splits (split.size), or reduces".to_owned(),
        _ => format!("use --reduces {max} or less"),
    };
    Err(Refusal::refused(format!(
        "job with {parts} parts of output cannot be committed, the limit for {output} is {max}: {instead}"
    )))
}

fn job_spec(
    submission: Submission,
    settings: &JobSettings,
    staging: Option<DfsPath>,
    output: String,
    splits: Vec<mrcore::job::Split>,
) -> JobSpec {
    let Submission { name, user, queue, priority, program, files, inputs, reduces, conf, .. } = submission;
    JobSpec {
        name,
        user,
        queue,
        priority,
        program,
        splits,
        reduces,
        output,
        slow_start: settings.slow_start,
        speculation: settings.speculation,
        split_slow: settings.split_slow,
        attempts_max: settings.attempts_max,
        conf,
        payload: Payload {
            inputs,
            files,
            staging: staging.map(|path| path.to_string()),
            whole_files: settings.split_options.format == InputFormat::WholeFile,
            shuffle_token: Secret::new(rand::random::<[u8; SHUFFLE_TOKEN_BYTES]>().to_vec()),
        },
    }
}

impl JobSettings {
    fn of(
        conf: &BTreeMap<String, String>,
        ProgramDeclaration { divisible, format }: ProgramDeclaration,
        defaults: &JobTrackerConfig,
    ) -> Result<Self, Refusal> {
        let conf: Conf = conf.clone().into_iter().collect();
        let format = setting(&conf, "input.format", format)?;
        Ok(Self {
            slow_start: setting(&conf, "slow.start", defaults.slow_start)?,
            speculation: setting(&conf, "speculation", defaults.speculation)?,
            split_slow: setting(&conf, SPLIT_SLOW, true)? && divisible,
            attempts_max: setting(&conf, "attempts.max", defaults.attempts_max.max(1))?,
            split_options: SplitOptions {
                size: setting(&conf, "split.size", defaults.split_size)?.0,
                format,
                codec: setting(&conf, "input.codec", Codec::Auto)?,
                divisible,
                recursive: setting(&conf, "input.recursive", true)?,
                splits_max: defaults.maps_max as usize,
            },
        })
    }
}

fn setting<T: FromStr<Err: Display>>(conf: &Conf, key: &str, default: T) -> Result<T, Refusal> {
    conf.parse(key, default).map_err(Refusal::invalid)
}

/// What a program declares about its job.
#[derive(Debug, Clone, Copy)]
struct ProgramDeclaration {
    /// Whether maps may be split. A mapper that, for example, numbers its lines is not divisible:
    /// splitting it would change the output.
    divisible: bool,
    /// The input format, unless the user sets a different one.
    format: InputFormat,
}

/// Refuses unknown settings and invalid values. A built-in program defines its settings and whether
/// it is divisible; an executable declares both in the submission.
fn check_settings(submission: &Submission) -> Result<ProgramDeclaration, Refusal> {
    let declared =
        |name: &String| Setting { name: name.clone().into(), kind: Values::Text, help: Cow::default() };
    let mut known: Vec<Setting> = submission.declared.iter().map(declared).collect();
    let builtin = match &submission.program {
        Program::Executable(_) => None,
        Program::Builtin(name) => Some(registry::find(name).ok_or_else(|| {
            Refusal::not_found(format!("there is no built-in program {name}: `mrctl programs` lists them"))
        })?),
    };
    known.extend(builtin.into_iter().flat_map(|builtin| builtin.settings.iter().cloned()));
    let pairs = submission.conf.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    settings::check(pairs, &known).map_err(Refusal::invalid)?;
    let conf: Conf = submission.conf.clone().into_iter().collect();
    let Some(builtin) = builtin else {
        return Ok(ProgramDeclaration { divisible: submission.divisible, format: InputFormat::Lines });
    };
    let job = registry::job(builtin.name, &conf).map_err(|error| Refusal::invalid(error.to_string()))?;
    if submission.reduces == 0 && job.reducer.is_some() {
        return Err(Refusal::invalid(format!(
            "program {} needs at least one reduce: use --reduces 1 or more",
            builtin.name
        )));
    }
    check_side_file(builtin.name, &conf, &submission.files)?;
    Ok(ProgramDeclaration { divisible: job.divisible, format: job.input })
}

/// Refuses a built-in program that needs a side file which is not sent with the job. An absolute
/// path is accepted, because it names a file that exists on the nodes.
fn check_side_file(program: &str, conf: &Conf, sent: &[String]) -> Result<(), Refusal> {
    let Some((key, file)) = registry::side_file(program, conf) else { return Ok(()) };
    let name = file.trim_start_matches("./");
    let is_sent = sent.iter().any(|path| path.rsplit('/').next() == Some(name));
    if is_sent || file.starts_with('/') {
        return Ok(());
    }
    Err(Refusal::invalid(format!(
        "program {program} needs the side file {file}: send it with --file {file}, or send another file and set --conf \
         {key}=NAME"
    )))
}

/// Refuses a job whose executable, side files or split keys do not exist in the file system.
async fn check_program_files(client: &Client, submission: &Submission) -> Result<(), Refusal> {
    let executable = match &submission.program {
        Program::Executable(path) => Some(("program", path)),
        Program::Builtin(_) => None,
    };
    let files = submission.files.iter().map(|path| ("side file", path));
    let split_keys = submission.conf.get(SPLIT_KEYS).map(|path| ("setting total.order.splits: file", path));
    for (what, text) in executable.into_iter().chain(files).chain(split_keys) {
        let what = format!("{what} {text}");
        let path = DfsPath::parse(text).map_err(|error| Refusal::invalid(format!("{what}: {error}")))?;
        match client.stat(&path).await {
            Ok(status) if status.is_dir => {
                return Err(Refusal::refused(format!("{what} is a folder: name a file")));
            }
            Ok(_) => {}
            Err(error) if error.is(Kind::NotFound) || error.is(Kind::NotDirectory) => {
                return Err(Refusal::not_found(format!("{what} does not exist in the file system")));
            }
            Err(error) => return Err(Refusal::dfs(&what, &error)),
        }
    }
    Ok(())
}

/// Refuses inputs that are in the output folder of an active job, because they are not complete.
fn check_inputs_complete(
    input: &Inputs,
    active_outputs: &[(JobId, DfsPath)],
    recursive: bool,
) -> Result<(), Refusal> {
    for (job, output) in active_outputs {
        let reads = |named: &&DfsPath| {
            *named == output || named.is_within(output) || (recursive && output.is_within(named))
        };
        if let Some(named) = input.named.iter().find(reads) {
            return Err(Refusal::refused(format!(
                "input {named}: {job} is still writing to {output}; wait for it (`mrctl job --follow {job}`)"
            )));
        }
    }
    Ok(())
}

/// Checks the output folder of a job and returns its path. The folder must not exist or be inside
/// the input, all its parents must be folders, the user must have permission to create it, and the
/// quotas must allow its parts.
async fn check_output(client: &Client, text: &str, input: &Inputs, parts: u64) -> Result<String, Refusal> {
    if text.is_empty() {
        return Ok(String::new());
    }
    let output =
        DfsPath::parse(text).map_err(|error| Refusal::invalid(format!("output {text:?}: {error}")))?;
    if input.named.contains(&output) {
        return Err(Refusal::invalid(format!("output {output} is also an input: choose another folder")));
    }
    if let Some(around) = input.named.iter().find(|named| output.is_within(named)) {
        return Err(Refusal::invalid(format!(
            "output {output} is inside the input {around}: choose another folder"
        )));
    }
    // The quota must allow the parts, the folder itself and `_SUCCESS`.
    match client.stat_for_create(&output, parts + 2).await {
        Ok(_) => Err(Refusal::exists(format!(
            "output {output} already exists: choose another folder, or delete it first"
        ))),
        Err(error) if error.is(Kind::NotFound) => Ok(output.to_string()),
        Err(error) => Err(Refusal::dfs(&format!("output {output}"), &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::streaming;
    use mrcore::{ids::RequestId, job::Priority};

    fn job_settings(key: &str, value: &str) -> Result<JobSettings, Refusal> {
        let conf = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let declared = ProgramDeclaration { divisible: false, format: InputFormat::Lines };
        JobSettings::of(&conf, declared, &JobTrackerConfig::default())
    }

    #[test]
    fn job_settings_override_the_defaults() {
        assert_eq!(job_settings("slow.start", "0.5").unwrap().slow_start.to_bits(), 0.5f64.to_bits());
        assert!(!job_settings("speculation", "false").unwrap().speculation);
        assert_eq!(job_settings("attempts.max", "7").unwrap().attempts_max, 7);
        assert_eq!(job_settings("split.size", "1MiB").unwrap().split_options.size, 1 << 20);
        assert_eq!(
            job_settings("input.format", "whole").unwrap().split_options.format,
            InputFormat::WholeFile
        );
        assert!(job_settings("split.size", "1MiB").unwrap().split_options.recursive);
        assert!(!job_settings("input.recursive", "false").unwrap().split_options.recursive);
    }

    fn submission(program: Program, pairs: &[(&str, &str)]) -> Submission {
        Submission {
            request: RequestId(1),
            name: "job".into(),
            user: "ann".into(),
            queue: "default".into(),
            priority: Priority::Normal,
            program,
            files: Vec::new(),
            declared: Vec::new(),
            inputs: Vec::new(),
            output: String::new(),
            reduces: 1,
            conf: pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
            staging: String::new(),
            divisible: false,
        }
    }

    #[tokio::test]
    async fn submission_is_refused_when_its_checks_take_too_long() {
        let checks = std::future::pending::<Result<(), Refusal>>();
        let refused = tonic::Status::from(with_timeout(Duration::ZERO, checks).await.unwrap_err());
        assert!(refused.message().contains("could not be checked within 0 s"), "{refused}");
        // The client does not repeat a submission that is refused with this code.
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert_eq!(with_timeout(CHECKS_TIMEOUT, async { Ok(7) }).await, Ok(7));
    }

    #[test]
    fn refusal_of_a_job_with_too_many_parts_names_the_limit() {
        let why = check_part_count("/out", 99_999_999, 1, u32::MAX).unwrap_err().to_string();
        let max: u32 =
            why.split("use --reduces ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(check_part_count("/out", max, 1, u32::MAX), Ok(()));
        assert!(check_part_count("/out", max + 1, 1, u32::MAX).is_err());
        assert_eq!(check_part_count("/out", max + 1, 1, max), Ok(()), "the core refuses it");
        assert!(check_part_count("/out", max + 1, 1, max + 1).is_err());
        let why = check_part_count("/out", 0, 99_999_999, 10).unwrap_err().to_string();
        assert!(why.contains("split.size"), "{why}");
    }

    #[test]
    fn kmeans_without_its_centroids_file_is_refused() {
        let with = |files: &[&str], pairs: &[(&str, &str)]| {
            let mut submission = submission(Program::Builtin("kmeans".into()), pairs);
            submission.files = files.iter().map(|file| (*file).to_owned()).collect();
            check_settings(&submission).map(|_| ()).map_err(|refusal| refusal.to_string())
        };
        let why = with(&[], &[]).unwrap_err();
        assert!(why.contains("--file centroids") && why.contains("kmeans.centroids"), "{why}");
        assert!(with(&["/tmp/stage/start"], &[]).is_err());
        assert_eq!(with(&["/tmp/stage/centroids"], &[]), Ok(()));
        assert_eq!(with(&["/tmp/stage/start"], &[("kmeans.centroids", "./start")]), Ok(()));
        assert_eq!(with(&[], &[("kmeans.centroids", "/data/start")]), Ok(()));
    }

    #[test]
    fn builtin_program_with_a_reducer_and_no_reduces_is_refused() {
        let without_reduces = |name: &str, pairs: &[(&str, &str)]| {
            let mut submission = submission(Program::Builtin(name.into()), pairs);
            submission.reduces = 0;
            check_settings(&submission).map(|_| ()).map_err(|refusal| refusal.to_string())
        };
        for name in ["wordcount", "sort", "terasort", "invertedindex"] {
            let why = without_reduces(name, &[]).unwrap_err();
            assert!(why.contains(name) && why.contains("--reduces 1"), "{why}");
        }
        assert_eq!(without_reduces("identity", &[]), Ok(()));
        assert_eq!(without_reduces("grep", &[("grep.pattern", "a")]), Ok(()));
        assert_eq!(without_reduces("streaming", &[("stream.mapper", "cat")]), Ok(()));
    }

    #[test]
    fn maps_may_be_split_only_if_the_program_is_divisible() {
        let settings_of = |submission: Submission| {
            let declared = check_settings(&submission)?;
            let settings = JobSettings::of(&submission.conf, declared, &JobTrackerConfig::default())?;
            Ok::<_, Refusal>((settings.split_slow, settings.split_options.divisible))
        };
        let split_settings =
            |program: Program, pairs: &[(&str, &str)]| settings_of(submission(program, pairs));
        let executable = |divisible: bool, pairs: &[(&str, &str)]| {
            let program = Program::Executable("/job".into());
            settings_of(Submission { divisible, ..submission(program, pairs) })
        };
        assert_eq!(executable(false, &[]), Ok((false, false)));
        assert_eq!(executable(false, &[(SPLIT_SLOW, "true")]), Ok((false, false)));
        assert_eq!(executable(true, &[]), Ok((true, true)));
        assert_eq!(executable(true, &[(SPLIT_SLOW, "false")]), Ok((false, true)));
        let builtin = |name: &str| Program::Builtin(name.into());
        let claimed = submission(builtin("streaming"), &[("stream.mapper", "cat")]);
        assert_eq!(
            settings_of(Submission { divisible: true, ..claimed }),
            Ok((false, false)),
            "what a submission says about a built-in program counts"
        );
        assert_eq!(
            split_settings(builtin("wordcount"), &[]),
            Ok((true, true)),
            "wordcount declares that it is divisible"
        );
        let (stream, mapper) = (|| builtin("streaming"), ("stream.mapper", "./number-lines"));
        assert_eq!(split_settings(stream(), &[mapper]), Ok((false, false)));
        assert_eq!(split_settings(stream(), &[mapper, (streaming::DIVISIBLE, "true")]), Ok((true, true)));
        assert_eq!(split_settings(stream(), &[mapper, (streaming::DIVISIBLE, "false")]), Ok((false, false)));
        assert!(split_settings(stream(), &[mapper, (streaming::DIVISIBLE, "perhaps")]).is_err());
    }
}
