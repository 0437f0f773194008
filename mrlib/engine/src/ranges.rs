//! Split keys for a job with total order: samples input in the file system with the mapper of the
//! job, and divides the keys evenly.
//!
//! This happens before the submission. The client does it for a built-in program; for other
//! programs the job binary does it (`--sample`), because only it has the mapper.

use crate::{dfs_error::dfs_error, execution::sample_keys, input::DfsFile, partition::encode_splits};
use daemon::{
    MasterAddrs,
    config::{ClientConfig, SecurityConfig},
};
use dfs_client::{Client, ClientOptions, path::DfsPath};
use mrlib_api::{Conf, Job, TaskError};
use security::Credentials;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokio::runtime::Builder;

/// Number of sampled keys per reduce: enough for parts of similar size.
const KEYS_PER_REDUCE: usize = 1000;
/// Maximum number of sampled keys.
const KEYS_MAX: usize = 200_000;

/// The JSON that a job binary with `--sample` reads from stdin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// Address of the NameNode, `host:port`, or a list of addresses.
    pub namenode: MasterAddrs,
    /// Options of the file system client.
    #[serde(default)]
    pub client: ClientConfig,
    /// The input files and their lengths.
    pub files: Vec<(String, u64)>,
    /// Number of ranges.
    pub reduces: u32,
    /// The settings of the job.
    pub conf: BTreeMap<String, String>,
    /// Where to find the credentials for the file system.
    #[serde(default)]
    pub security: SecurityConfig,
}

/// Samples the input and returns the contents of a file of split keys for this job. If the input is
/// empty, all ranges but the last are empty.
pub fn split_keys(job: &Job, request: &SampleRequest) -> Result<Vec<u8>, TaskError> {
    let SampleRequest { namenode, client, files, reduces, conf, security } = request;
    let conf: Conf = conf.clone().into_iter().collect();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(TaskError::io("start the threads of the client"))?;
    let credentials = Credentials::of_client(security, &daemon::account::user())
        .map_err(|error| TaskError::Program(error.to_string()))?;
    let options = ClientOptions::new(namenode, client.clone()).with(credentials);
    let client = runtime.block_on(Client::connect(options)).map_err(dfs_error)?;
    let mut open = |path: &str| {
        let path = DfsPath::parse(path).map_err(|error| error.to_string())?;
        Ok(Box::new(DfsFile::open(client.clone(), runtime.handle().clone(), path)?) as _)
    };
    let keys = (*reduces as usize * KEYS_PER_REDUCE).min(KEYS_MAX);
    let sample = sample_keys(job, &conf, files, keys, &mut open)?;
    Ok(encode_splits(sample, *reduces, job.order))
}
