//! Samples the input of a job whose output must be in total order, and computes the range of keys
//! of each reduce. mrctl samples for built-in programs; an executable samples its own input.

use anyhow::{Context, Result, ensure};
use client::Submission;
use clusters::locate::Target;
use dfs_client::Client;
use engine::{
    ranges::{SampleRequest, split_keys},
    registry,
};
use mrlib_api::error::one_line;
use std::{
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

/// Returns the contents of the file that lists the first key of each reduce.
pub(super) async fn split_key_file(
    client: &Client,
    target: &Target,
    submission: &Submission,
    program: &str,
) -> Result<Vec<u8>> {
    // The JobTracker interprets this setting in the same way, or refuses the job.
    let recursive = submission.conf.get("input.recursive").is_none_or(|value| value.trim() != "false");
    let found = client.find_inputs(&submission.inputs, recursive, usize::MAX).await?;
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
        None => sample_with_program(&program, &request),
    });
    sampling.await?
}

/// Runs the executable with `--sample`, which samples its own input.
fn sample_with_program(program: &str, request: &SampleRequest) -> Result<Vec<u8>> {
    let mut command = Command::new(std::path::absolute(Path::new(program))?);
    command.arg("--sample").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let input = serde_json::to_vec(request).context("a plain structure")?;
    // Ignore a write error: the exit status and the messages of the program explain more.
    let _ = child.stdin.take().expect("stdin is piped").write_all(&input);
    let ended = child.wait_with_output().with_context(|| format!("cannot wait for {program}"))?;
    let text = one_line(&String::from_utf8_lossy(&ended.stderr));
    let why = if text.is_empty() { "it printed no error" } else { &text };
    ensure!(ended.status.success(), "{program} cannot sample its input for a total order: {why}");
    Ok(ended.stdout)
}
