//! Ranges of keys for a job that is sorted as a whole: a sample of its input, mapped here, cut into equal parts.

use super::wire::Submission;
use anyhow::{Context, Result};
use dfs::{
    client::{Client, FileStatus},
    path::DfsPath,
};
use mrlib::{Conf, engine::sample_keys, input::DfsFile, partition::encode_splits, registry};

/// Keys looked at for each reduce: enough for parts of about the same size.
const KEYS_PER_REDUCE: usize = 1000;
const KEYS_MAX: usize = 200_000;

/// The contents of a file of split keys for this job. Empty input gives empty ranges.
pub(super) async fn splits(client: &Client, submission: &Submission, program: &str) -> Result<Vec<u8>> {
    let conf: Conf = submission.conf.clone().into_iter().collect();
    let job = registry::job(program, &conf).context(
        "a program of your own that sorts as a whole brings its split keys: --conf total.order.splits=PATH",
    )?;
    let mut files: Vec<FileStatus> = Vec::new();
    for input in &submission.inputs {
        for found in client.glob(input).await? {
            files.extend(client.walk(&found.path).await?);
        }
    }
    let files: Vec<(String, u64)> = files.iter().map(|file| (file.path.to_string(), file.length)).collect();
    let (client, runtime, reduces) = (client.clone(), tokio::runtime::Handle::current(), submission.reduces);
    let keys = (reduces as usize * KEYS_PER_REDUCE).min(KEYS_MAX);
    let order = job.order;
    let sampled = tokio::task::spawn_blocking(move || {
        let mut open = |path: &str| {
            let path = DfsPath::parse(path).map_err(|error| error.to_string())?;
            Ok(Box::new(DfsFile::open(client.clone(), runtime.clone(), path)?) as _)
        };
        sample_keys(&job, &conf, &files, keys, &mut open)
    });
    Ok(encode_splits(sampled.await??, reduces, order))
}
