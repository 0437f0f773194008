//! `[security]`: what callers must show, and what a client shows.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// `[security]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecurityConfig {
    /// Folder with certificates and keys, as `mrctl cluster init` makes it: TLS on every connection. Relative to the
    /// file that says so.
    pub dir: PathBuf,
    /// File with the cluster's secret: whoever has it may be anybody in the cluster. Relative to the file that says so.
    pub secret: PathBuf,
    /// Clients: file with a token, as `mrctl cluster user` makes it.
    pub token: PathBuf,
    /// Clients: whose certificate in `dir` to show.
    pub identity: String,
    /// Whether the owners and modes of files, and the owners of jobs, bind those who are no admins: `auto` if callers
    /// must prove who they are.
    pub permissions: Choice,
    /// Users who may do everything.
    pub admins: Vec<String>,
    /// The users in each group.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// Yes, no, or as fits the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// If callers must prove who they are.
    #[default]
    Auto,
    /// In any case.
    On,
    /// In no case.
    Off,
}

impl Choice {
    /// What it comes to in a cluster where callers must prove who they are, or need not.
    pub fn is_on(self, closed: bool) -> bool {
        match self {
            Self::Auto => closed,
            Self::On => true,
            Self::Off => false,
        }
    }
}

impl SecurityConfig {
    /// Whether callers must prove who they are.
    pub fn is_closed(&self) -> bool {
        [&self.dir, &self.secret].iter().any(|path| !path.as_os_str().is_empty())
    }

    /// Paths in a file are meant from where the file is.
    pub(crate) fn anchor(&mut self, file: &Path) {
        let Some(folder) = std::path::absolute(file).ok().and_then(|file| file.parent().map(Path::to_owned))
        else {
            return;
        };
        for path in [&mut self.dir, &mut self.secret, &mut self.token] {
            if !path.as_os_str().is_empty() {
                *path = folder.join(&*path);
            }
        }
    }
}

/// Flags that say what to show and to ask for.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SecurityArgs {
    /// Folder with certificates and keys (security.dir)
    #[arg(long, value_name = "DIR")]
    pub security_dir: Option<PathBuf>,
    /// File with the cluster's secret (security.secret)
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
}

impl SecurityArgs {
    /// Lays them over the settings.
    pub fn over(&self, settings: &mut SecurityConfig) {
        if let Some(dir) = &self.security_dir {
            settings.dir.clone_from(dir);
        }
        if let Some(secret) = &self.secret {
            settings.secret.clone_from(secret);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_resolve_from_the_config_file() {
        let mut settings =
            SecurityConfig { dir: "keys".into(), secret: "/etc/secret".into(), ..SecurityConfig::default() };
        settings.anchor(Path::new("/srv/cluster/fermata.toml"));
        assert_eq!(settings.dir, Path::new("/srv/cluster/keys"));
        assert_eq!(settings.secret, Path::new("/etc/secret"));
        assert_eq!(settings.token, Path::new(""));
        assert!(settings.is_closed() && !SecurityConfig::default().is_closed());
    }
}
