//! Programs of jobs: their check before submission, and the files that they need in the cluster.
//!
//! Only with the feature `programs`, because the built-in programs are in the task engine.

use crate::{Cluster, Error, Result, StagingFolder, Submission};
use engine::{
    programs::Builtin,
    ranges::{SampleRequest, split_keys},
    registry,
    run::{DescribeError, Description},
};
use mrlib_api::{
    Conf,
    error::one_line,
    settings::{self, SPLIT_KEYS},
};
use std::{
    collections::BTreeMap,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

const TERAGEN: &str = "teragen";
const TERAGEN_MAPS_MAX: u64 = 10_000;

/// A program that can be submitted: a built-in program, or an executable on this machine that is
/// built on `mrlib`.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use fermata_client::{Cluster, Program, StagingFolder, Submission};
///
/// let cluster = Cluster::load(".fermata/fermata.toml".as_ref())?;
/// let (jobs, files) = (cluster.jobtracker().await?, cluster.files().await?);
/// let mut submission = Submission {
///     inputs: vec!["/books".into()],
///     output: "/counts".into(),
///     reduces: 2,
///     ..Submission::default()
/// };
/// let program = Program::check("./target/release/my-job", &submission)?;
/// let mut staging = StagingFolder::new(&files);
/// program.stage(&mut submission, &mut staging, &cluster).await?;
/// staging.add_to(&mut submission);
/// let id = jobs.submit(submission).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Program {
    name: String,
    description: Description,
}

impl Program {
    /// Checks the program and the settings of the submission without a cluster. `program` is the
    /// name of a built-in program or the path of an executable, which is started with `--describe`.
    pub fn check(program: &str, submission: &Submission) -> Result<Self> {
        let conf = &submission.conf;
        let description = match registry::find(program) {
            Some(builtin) => describe_builtin(builtin, conf)?,
            None => describe_executable(program, conf)?,
        };
        if program == TERAGEN && submission.inputs.is_empty() {
            rows_and_maps(conf)?;
        }
        Ok(Self { name: program.into(), description })
    }

    /// Returns the formats of the program, and whether it has a reducer.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Adds the program to the submission, and uploads the files that it needs: the executable, the
    /// input of teragen, and the split keys of a job with total order, for which it samples the
    /// input.
    pub async fn stage(
        &self,
        submission: &mut Submission,
        staging: &mut StagingFolder<'_>,
        cluster: &Cluster,
    ) -> Result<()> {
        let Description { input, divisible, total_order, settings, .. } = &self.description;
        if registry::find(&self.name).is_some() {
            submission.builtin = Some(self.name.clone());
        } else {
            submission.executable = Some(staging.put(Path::new(&self.name)).await?);
            submission.declared = settings.iter().map(|setting| setting.name.to_string()).collect();
        }
        submission.divisible = *divisible;
        if input != "lines" {
            submission.conf.entry("input.format".into()).or_insert_with(|| input.clone());
        }
        if self.name == TERAGEN && submission.inputs.is_empty() {
            submission.inputs = write_range_files(staging, &submission.conf).await?;
        }
        if *total_order && submission.reduces > 1 && !submission.conf.contains_key(SPLIT_KEYS) {
            let keys = self.sample(submission, staging, cluster).await?;
            let path = staging.put_bytes("split-keys", keys).await?;
            submission.conf.insert(SPLIT_KEYS.into(), path);
        }
        Ok(())
    }

    /// Returns the contents of the file that lists the first key of each reduce.
    async fn sample(
        &self,
        submission: &Submission,
        staging: &StagingFolder<'_>,
        cluster: &Cluster,
    ) -> Result<Vec<u8>> {
        // The JobTracker interprets this setting in the same way, or refuses the job.
        let recursive = submission.conf.get("input.recursive").is_none_or(|value| value.trim() != "false");
        let found = staging.client().find_inputs(&submission.inputs, recursive, usize::MAX).await;
        let files = found.map_err(|error| Error::Sample(error.to_string()))?.files;
        let request = SampleRequest {
            namenode: cluster.namenode.clone(),
            client: cluster.client.clone(),
            files: files.into_iter().map(|file| (file.path.to_string(), file.length)).collect(),
            reduces: submission.reduces,
            conf: submission.conf.clone(),
            security: cluster.security.clone(),
        };
        let program = self.name.clone();
        let sampling = tokio::task::spawn_blocking(move || match registry::find(&program) {
            Some(_) => registry::job(&program, &request.conf.clone().into_iter().collect())
                .and_then(|job| split_keys(&job, &request))
                .map_err(|error| error.to_string()),
            None => sample_with_program(&program, &request),
        });
        sampling.await.unwrap_or_else(|error| Err(error.to_string())).map_err(Error::Sample)
    }
}

fn describe_builtin(builtin: &Builtin, conf: &BTreeMap<String, String>) -> Result<Description> {
    let conf: Conf = conf.clone().into_iter().collect();
    // Check the names of settings first: if a name is misspelt, the program would report that a
    // setting is missing.
    settings::check(conf.iter(), builtin.settings)
        .map_err(Into::into)
        .and_then(|()| registry::job(builtin.name, &conf))
        .and_then(|job| Description::checked(&job, &conf))
        .map_err(|error| Error::Invalid(error.to_string()))
}

fn describe_executable(program: &str, conf: &BTreeMap<String, String>) -> Result<Description> {
    check_file(program)?;
    let cannot_run = |error| {
        Error::NotAJob(format!("cannot run {program} ({error}): it may be built for another machine"))
    };
    let mut asking = Command::new(std::path::absolute(program).map_err(cannot_run)?);
    asking.arg("--describe");
    for (key, value) in conf {
        asking.arg("--conf").arg(format!("{key}={value}"));
    }
    let asked = asking.output().map_err(cannot_run)?;
    let text = String::from_utf8_lossy(&asked.stdout);
    if let Ok(description) = serde_json::from_str(&text)
        && asked.status.success()
    {
        return Ok(description);
    }
    // An error from the program itself is more precise than a guess.
    if let Ok(DescribeError { error }) = serde_json::from_str(&text) {
        return Err(Error::Invalid(format!("{program}: {error}")));
    }
    let words = String::from_utf8_lossy(&asked.stderr);
    let printed = words.lines().next().unwrap_or("it printed no description");
    Err(Error::NotAJob(format!(
        "{program} is not a job built on mrlib: unexpected answer to --describe ({printed})"
    )))
}

/// Refuses a path that cannot be executed on any machine.
fn check_file(program: &str) -> Result<()> {
    let path = Path::new(program);
    if !path.exists() {
        let names: Vec<&str> = registry::builtins().map(|builtin| builtin.name).collect();
        let near = settings::nearest(program, names.iter().copied());
        let near = near.map_or_else(String::new, |near| format!(": did you mean {near}?"));
        let names = names.join(", ");
        return Err(Error::Invalid(format!(
            "there is no program {program:?}{near}; it is not a local file, and the built-in programs are {names}"
        )));
    }
    if !path.is_file() {
        return Err(Error::Invalid(format!(
            "{program} is not a file: name an executable, or a built-in program (`mrctl programs`)"
        )));
    }
    if rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_err() {
        return Err(Error::NotAJob(format!("{program} is not executable (use `chmod +x {program}`)")));
    }
    Ok(())
}

/// Runs the executable with `--sample`, which samples its own input.
fn sample_with_program(program: &str, request: &SampleRequest) -> Result<Vec<u8>, String> {
    let cannot_run = |error| format!("cannot run {program}: {error}");
    let mut command = Command::new(std::path::absolute(program).map_err(cannot_run)?);
    command.arg("--sample").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(cannot_run)?;
    let input = serde_json::to_vec(request).expect("a plain structure");
    // Ignore a write error: the exit status and the messages of the program explain more.
    let _ = child.stdin.take().expect("stdin is piped").write_all(&input);
    let ended = child.wait_with_output().map_err(|error| format!("cannot wait for {program}: {error}"))?;
    if ended.status.success() {
        return Ok(ended.stdout);
    }
    let text = one_line(&String::from_utf8_lossy(&ended.stderr));
    let why = if text.is_empty() { "it printed no error" } else { &text };
    Err(format!("{program} cannot sample its input for a total order: {why}"))
}

/// Returns the number of records and the number of maps of teragen, from the settings `rows` and
/// `maps`. Refuses values out of range.
fn rows_and_maps(conf: &BTreeMap<String, String>) -> Result<(u64, u64)> {
    let number = |key: &str, default: Option<u64>| match (conf.get(key), default) {
        (Some(text), _) => {
            text.parse().map_err(|_| Error::Invalid(format!("--conf {key}={text}: must be a whole number")))
        }
        (None, Some(default)) => Ok(default),
        (None, None) => Err(Error::Invalid(format!(
            "teragen needs --conf {key}=N: the number of 100-byte records to generate"
        ))),
    };
    let (rows, maps) = (number("rows", None)?, number("maps", Some(2))?);
    if !(1..=TERAGEN_MAPS_MAX).contains(&maps) {
        return Err(Error::Invalid(format!("--conf maps={maps}: must be from 1 to {TERAGEN_MAPS_MAX}")));
    }
    if rows.checked_mul(maps).is_none() {
        return Err(Error::Invalid(format!("--conf rows={rows}: the number is too large")));
    }
    Ok((rows, maps))
}

/// Writes the input of teragen and returns its paths: one small file per map, which says which
/// records to generate.
async fn write_range_files(
    staging: &mut StagingFolder<'_>,
    conf: &BTreeMap<String, String>,
) -> Result<Vec<String>> {
    let (rows, maps) = rows_and_maps(conf)?;
    let mut paths = Vec::new();
    for map in 0..maps {
        let (first, end) = (rows * map / maps, rows * (map + 1) / maps);
        let line = format!("{first} {}\n", end - first);
        paths.push(staging.put_bytes(&format!("range-{map:05}"), line.into_bytes()).await?);
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(program: &str, conf: &[(&str, &str)]) -> Result<Program> {
        let conf = conf.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Program::check(program, &Submission { conf, ..Submission::default() })
    }

    #[test]
    fn invalid_settings_are_rejected_before_submission() {
        let refusal = |key: &str, value: &str| check("wordcount", &[(key, value)]).unwrap_err().to_string();
        for (key, value) in [("pace.map", "xyz"), ("merge.factor", "1"), ("output.replication", "two")] {
            assert!(refusal(key, value).contains(key), "{key}");
        }
        assert!(refusal("my.own", "xyz").contains("my.own is unknown"));
        assert!(check("wordcount", &[("user.own", "xyz")]).is_ok());
    }

    #[test]
    fn teragen_without_input_needs_rows_in_range() {
        assert!(check("teragen", &[]).unwrap_err().to_string().contains("rows=N"));
        for (key, value) in [("rows", "many"), ("maps", "0"), ("maps", "10001")] {
            let refused = check("teragen", &[("rows", "1"), (key, value)]).unwrap_err();
            assert!(refused.is_usage() && refused.to_string().contains(key), "{refused}");
        }
        let large = [("rows", "18446744073709551615")];
        assert!(check("teragen", &large).unwrap_err().to_string().contains("too large"));
        assert!(check("teragen", &[("rows", "10"), ("maps", "3")]).is_ok());
        let with_input = Submission { inputs: vec!["/ranges".into()], ..Submission::default() };
        assert!(Program::check("teragen", &with_input).is_ok());
    }
}
