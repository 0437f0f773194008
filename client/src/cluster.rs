//! Reads the addresses of the masters, and the credentials for them, from a `fermata.toml`.

use crate::{Error, JobTracker, Result};
use daemon::config::{ClientConfig, Config, SecurityConfig};
use dfs_client::{Client, ClientError, ClientOptions};
use security::{Credentials, SecurityError};
use std::path::Path;

/// The addresses of the masters of a cluster, and the credentials for them. Not a connection.
#[derive(Debug, Clone)]
pub struct Cluster {
    namenode: String,
    jobtracker: String,
    client: ClientConfig,
    credentials: Credentials,
}

impl Cluster {
    /// Reads the configuration file of a cluster, and the credentials that the file names. `mrctl
    /// up`, `mrctl cluster init` and `mrctl cluster user` write this file to their folders.
    pub fn load(file: &Path) -> Result<Self> {
        let config = Config::load(Some(file)).map_err(|error| Error::Invalid(error.to_string()))?;
        let Config { cluster, client, security, .. } = config;
        let credentials = credentials(&security).map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(Self { namenode: cluster.namenode, jobtracker: cluster.jobtracker, client, credentials })
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
