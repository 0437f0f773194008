//! `[security]`: credentials of daemons and clients.

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// `[security]`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecurityConfig {
    /// Folder with certificates and keys, as `mrctl cluster init` makes it; enables TLS on every
    /// connection. Relative to the configuration file.
    pub dir: PathBuf,
    /// File with the secret of the cluster; a client that has it can act as any user. Relative to
    /// the configuration file.
    pub secret: PathBuf,
    /// For clients: file with a token, as `mrctl cluster user` makes it.
    pub token: PathBuf,
    /// For clients: name of their certificate in `dir`.
    pub identity: String,
    /// Whether permissions of files and owners of jobs are enforced for users who are not admins.
    /// With `auto`, they are enforced if callers must prove their identity.
    pub permissions: Choice,
    /// Users with all rights.
    pub admins: Vec<String>,
    /// Members of each group.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// A setting that is on, off, or on only if callers must prove their identity (a closed cluster).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// On if callers must prove their identity.
    #[default]
    Auto,
    /// Always on.
    On,
    /// Always off.
    Off,
}

impl Choice {
    /// Returns whether the setting is on. `closed` tells whether callers must prove their identity.
    pub fn is_on(self, closed: bool) -> bool {
        match self {
            Self::Auto => closed,
            Self::On => true,
            Self::Off => false,
        }
    }
}

impl SecurityConfig {
    /// Returns whether callers must prove their identity.
    pub fn is_closed(&self) -> bool {
        [&self.dir, &self.secret].iter().any(|path| !path.as_os_str().is_empty())
    }

    /// Makes the paths absolute. Relative paths start at the folder of the configuration file
    /// `file`.
    pub(crate) fn make_paths_absolute(&mut self, file: &Path) {
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

/// Command-line flags for the credentials of daemons.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SecurityArgs {
    /// Folder with certificates and keys (security.dir)
    #[arg(long, value_name = "DIR")]
    pub security_dir: Option<PathBuf>,
    /// File with the secret of the cluster (security.secret)
    #[arg(long, value_name = "FILE")]
    pub secret: Option<PathBuf>,
}

impl SecurityArgs {
    /// Overrides settings with the flags that are set.
    pub fn override_settings(&self, settings: &mut SecurityConfig) {
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
        settings.make_paths_absolute(Path::new("/srv/cluster/fermata.toml"));
        assert_eq!(settings.dir, Path::new("/srv/cluster/keys"));
        assert_eq!(settings.secret, Path::new("/etc/secret"));
        assert_eq!(settings.token, Path::new(""));
        assert!(settings.is_closed() && !SecurityConfig::default().is_closed());
    }
}
