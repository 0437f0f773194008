//! Ranges of keys for a job that is sorted as a whole: a sample of its input in the file system, mapped by the job's
//! own mapper, cut into equal parts.
//!
//! Done before the job is submitted: by `mrctl` for a built-in program, by the job binary itself (`--sample`) for
//! any other, because only it has the mapper.

use crate::{
    conf::Conf, engine::sample_keys, error::TaskError, input::DfsFile, job::Job, partition::encode_splits,
};
use daemon::config::{ClientConfig, SecurityConfig};
use dfs::{
    client::{Client, ClientOptions},
    path::DfsPath,
};
use security::Credentials;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokio::runtime::Builder;

/// Keys looked at for each reduce: enough for parts of about the same size.
const KEYS_PER_REDUCE: usize = 1000;
const KEYS_MAX: usize = 200_000;

/// What a job binary started with `--sample` reads on its stdin, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// Where the NameNode is, `host:port`.
    pub namenode: String,
    /// How to talk with it.
    #[serde(default)]
    pub client: ClientConfig,
    /// The input's files and their lengths.
    pub files: Vec<(String, u64)>,
    /// How many ranges.
    pub reduces: u32,
    /// The job's settings.
    pub conf: BTreeMap<String, String>,
    /// Where to find what to show to the file system.
    #[serde(default)]
    pub security: SecurityConfig,
}

/// The contents of a file of split keys for this job. Empty input gives empty ranges.
pub fn split_keys(job: &Job, request: &SampleRequest) -> Result<Vec<u8>, TaskError> {
    let SampleRequest { namenode, client, files, reduces, conf, security } = request;
    let conf: Conf = conf.clone().into_iter().collect();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(TaskError::io("start the client's threads"))?;
    let credentials = Credentials::of_client(security, &daemon::account::user())
        .map_err(|error| TaskError::Program(error.to_string()))?;
    let options = ClientOptions::new(namenode, client.clone()).with(credentials);
    let client = runtime.block_on(Client::connect(options))?;
    let mut open = |path: &str| {
        let path = DfsPath::parse(path).map_err(|error| error.to_string())?;
        Ok(Box::new(DfsFile::open(client.clone(), runtime.handle().clone(), path)?) as _)
    };
    let keys = (*reduces as usize * KEYS_PER_REDUCE).min(KEYS_MAX);
    let sample = sample_keys(job, &conf, files, keys, &mut open)?;
    Ok(encode_splits(sample, *reduces, job.order))
}
