//! Which cluster a command is for.

use crate::{cluster::ClusterState, job::wire::JobTracker};
use anyhow::{Context, Result, bail};
use daemon::config::{ClientConfig, Config};
use dfs::client::{Client, ClientOptions};
use std::path::{Path, PathBuf};

/// The folder that `mrctl up` makes when not told otherwise.
pub(crate) const FOLDER: &str = ".fermata";

/// Global flags that name a cluster.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Target {
    /// Address of the namenode
    #[arg(long, global = true, value_name = "HOST:PORT", env = "FERMATA_NAMENODE")]
    namenode: Option<String>,
    /// Address of the jobtracker
    #[arg(long, global = true, value_name = "HOST:PORT", env = "FERMATA_JOBTRACKER")]
    jobtracker: Option<String>,
    /// Configuration file of the cluster
    #[arg(long, global = true, value_name = "FILE", env = "FERMATA_CONFIG")]
    config: Option<PathBuf>,
}

/// A cluster that was found.
#[derive(Debug, PartialEq)]
struct Found {
    namenode: String,
    jobtracker: String,
    client: ClientConfig,
}

impl Target {
    /// The configuration file, if one was named.
    pub(crate) fn config_file(&self) -> Option<PathBuf> {
        self.config.clone()
    }

    /// Connects to the cluster that is meant.
    pub(crate) async fn connect(&self) -> Result<Client> {
        let cwd = std::env::current_dir().context("cannot tell the current folder")?;
        let found = self.find(&cwd)?;
        Ok(Client::connect(ClientOptions::new(found.namenode, found.client)).await?)
    }

    /// Connects to the JobTracker of the cluster that is meant.
    pub(crate) async fn jobtracker(&self) -> Result<JobTracker> {
        self.jobtracker_as(None).await
    }

    /// The same, as another user.
    pub(crate) async fn jobtracker_as(&self, user: Option<&str>) -> Result<JobTracker> {
        let cwd = std::env::current_dir().context("cannot tell the current folder")?;
        let addr = match &self.jobtracker {
            Some(addr) => addr.clone(),
            None => self.find(&cwd)?.jobtracker,
        };
        check_addr("jobtracker", &addr)?;
        JobTracker::connect(&addr, user).await
    }

    fn find(&self, cwd: &Path) -> Result<Found> {
        let file = self.config.clone().or_else(|| {
            let here = cwd.join("fermata.toml");
            here.is_file().then_some(here)
        });
        if let Some(namenode) = &self.namenode {
            check_addr("namenode", namenode)?;
            let Config { cluster, client, .. } = Config::load(file.as_deref())?;
            return Ok(Found { namenode: namenode.clone(), jobtracker: cluster.jobtracker, client });
        }
        if let Some(file) = file {
            return Ok(Config::load(Some(&file))?.into());
        }
        let Some(folder) = nearest(cwd) else {
            bail!("no cluster found: start one here with `mrctl up`, or name one with --namenode HOST:PORT");
        };
        Ok(Config::load(Some(&folder.join("fermata.toml")))?.into())
    }
}

impl From<Config> for Found {
    fn from(config: Config) -> Self {
        let Config { cluster, client, .. } = config;
        Self { namenode: cluster.namenode, jobtracker: cluster.jobtracker, client }
    }
}

fn check_addr(what: &str, addr: &str) -> Result<()> {
    let parts = addr.rsplit_once(':');
    if parts.is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
        bail!("{what} address {addr:?} is not host:port (a port is a number up to 65535)");
    }
    Ok(())
}

/// The nearest state folder from `from` upwards that has a running cluster's file.
fn nearest(from: &Path) -> Option<PathBuf> {
    let mut folders = from.ancestors().map(|folder| folder.join(FOLDER));
    folders.find(|folder| ClusterState::path(folder).is_file())
}

/// The state folder a local command is for: the one named, else the nearest, else where it would be.
pub(crate) fn state_folder(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let cwd = std::env::current_dir().context("cannot tell the current folder")?;
    Ok(nearest(&cwd).unwrap_or_else(|| PathBuf::from(FOLDER)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn with_file(folder: &Path, namenode: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("fermata.toml"), format!("[cluster]\nnamenode = \"{namenode}\"\n")).unwrap();
    }

    fn found(target: &Target, cwd: &Path) -> String {
        target.find(cwd).unwrap().namenode
    }

    #[test]
    fn the_nearer_word_wins() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        let none = Target::default();
        let error = none.find(&deep).unwrap_err().to_string();
        assert!(error.starts_with("no cluster found: start one"), "{error}");

        // A folder whose cluster is down does not count.
        let folder = root.path().join(FOLDER);
        with_file(&folder, "up:1");
        assert!(none.find(&deep).is_err());
        ClusterState::default().save(&folder).unwrap();
        assert_eq!(found(&none, &deep), "up:1");

        with_file(&deep, "here:2");
        assert_eq!(found(&none, &deep), "here:2");

        with_file(root.path(), "named:3");
        let config = Some(root.path().join("fermata.toml"));
        assert_eq!(found(&Target { config: config.clone(), ..Target::default() }, &deep), "named:3");
        assert_eq!(
            found(&Target { config, namenode: Some("flag:4".into()), ..Target::default() }, &deep),
            "flag:4"
        );
    }

    #[test]
    fn bad_names_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for addr in ["localhost", "localhost:70000", ":1", "x:y"] {
            let target = Target { namenode: Some(addr.into()), ..Target::default() };
            assert!(target.find(root.path()).unwrap_err().to_string().contains("is not host:port"));
        }
        let target = Target { config: Some(root.path().join("absent.toml")), ..Target::default() };
        assert!(target.find(root.path()).unwrap_err().to_string().starts_with("cannot read "));
    }
}
