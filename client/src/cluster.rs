//! Reads the addresses of the masters, and the credentials for them, from a `fermata.toml`.

use crate::{Error, JobTracker, Result};
use daemon::{
    MasterAddrs,
    config::{ClientConfig, Config, SecurityConfig},
};
use dfs_client::{Client, ClientError, ClientOptions};
use security::{Credentials, SecurityError};
use std::path::Path;

/// The addresses of the masters of a cluster, and the credentials for them. Not a connection.
#[derive(Debug, Clone)]
pub struct Cluster {
    pub(crate) namenode: MasterAddrs,
    jobtracker: MasterAddrs,
    pub(crate) client: ClientConfig,
    #[cfg_attr(not(feature = "programs"), expect(dead_code, reason = "only `Program` reads it"))]
    pub(crate) security: SecurityConfig,
    credentials: Credentials,
}

impl Cluster {
    /// Reads the configuration file of a cluster, and the credentials that the file names. `mrctl
    /// up`, `mrctl cluster init` and `mrctl cluster user` write this file to their folders.
    pub fn load(file: &Path) -> Result<Self> {
        let config = Config::load(Some(file)).map_err(|error| Error::Invalid(error.to_string()))?;
        let Config { cluster, client, security, .. } = config;
        let loaded = Self::new(cluster.namenode, cluster.jobtracker, client, security);
        loaded.map_err(|error| Error::Invalid(error.to_string()))
    }

    /// Names the addresses of the masters, and reads the credentials that `security` names.
    pub fn new(
        namenode: MasterAddrs,
        jobtracker: MasterAddrs,
        client: ClientConfig,
        security: SecurityConfig,
    ) -> Result<Self, SecurityError> {
        let credentials = credentials(&security)?;
        Ok(Self { namenode, jobtracker, client, security, credentials })
    }

    /// Connects to the JobTracker.
    pub async fn jobtracker(&self) -> Result<JobTracker> {
        JobTracker::connect(&self.jobtracker, None, self.credentials.clone()).await
    }

    /// Connects to the file system.
    pub async fn files(&self) -> Result<Client, ClientError> {
        let options = ClientOptions::new(&self.namenode, self.client.clone());
        Client::connect(options.with(self.credentials.clone())).await
    }
}

/// Reads the credentials that the `[security]` settings name, for the account of this process.
pub fn credentials(security: &SecurityConfig) -> Result<Credentials, SecurityError> {
    Credentials::of_client(security, &daemon::account::user())
}
