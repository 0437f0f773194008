//! Ranges of keys for a job that is sorted as a whole. A built-in program is sampled here, any other samples itself.

use super::wire::Submission;
use crate::locate::Target;
use anyhow::{Context, Result, ensure};
use dfs::client::Client;
use mrlib::{
    ranges::{SampleRequest, split_keys},
    registry,
};
use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// The contents of a file of split keys for this job.
pub(super) async fn splits(
    client: &Client,
    target: &Target,
    submission: &Submission,
    program: &str,
) -> Result<Vec<u8>> {
    // What the JobTracker makes of the word is the same, or it refuses the job.
    let recursive = submission.conf.get("input.recursive").is_none_or(|value| value.trim() != "false");
    let found = client.find_inputs(&submission.inputs, recursive).await?;
    let files = found.files.into_iter().map(|file| (file.path.to_string(), file.length)).collect();
    let (namenode, settings, security) = target.namenode()?;
    let (reduces, conf) = (submission.reduces, submission.conf.clone());
    let request = SampleRequest { namenode, client: settings, files, reduces, conf, security };
    let program = program.to_owned();
    let sampling = tokio::task::spawn_blocking(move || match registry::find(&program) {
        Some(_) => {
            let job = registry::job(&program, &request.conf.clone().into_iter().collect())?;
            Ok(split_keys(&job, &request)?)
        }
        None => by_itself(&program, &request),
    });
    sampling.await?
}

/// Has a program sample its own input.
fn by_itself(program: &str, request: &SampleRequest) -> Result<Vec<u8>> {
    let mut command = Command::new(std::path::absolute(Path::new(program))?);
    command.arg("--sample").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let told = serde_json::to_vec(request).context("a plain structure")?;
    // If it does not read, how it ends says more.
    let _ = child.stdin.take().expect("asked for").write_all(&told);
    let ended = child.wait_with_output().with_context(|| format!("cannot wait for {program}"))?;
    let text = String::from_utf8_lossy(&ended.stderr);
    ensure!(
        ended.status.success(),
        "{program} cannot sample its input for a total order: {}",
        text.lines().last().unwrap_or("it says nothing")
    );
    Ok(ended.stdout)
}
