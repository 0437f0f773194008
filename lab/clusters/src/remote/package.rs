//! The files that are copied to a machine, as a tar archive through its remote shell.

use super::{hosts::MachineRole, shell::Shell};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::UNIX_EPOCH,
};
use view::output::Usage;

/// The command that unpacks an archive. Without these flags, tar run by root would keep the numeric
/// owner and the permissions from the archive.
const UNPACK_COMMAND: [&str; 6] = ["tar", "--no-same-owner", "--no-same-permissions", "-xzf", "-", "-C"];

/// The programs of daemons and tasks.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

fn programs_of(role: MachineRole) -> &'static [&'static str] {
    match role {
        MachineRole::Master => &["namenode", "jobtracker"],
        MachineRole::Node => &["datanode", "tasktracker", "mrtask"],
    }
}

impl Programs {
    /// Returns the programs in the folder of mrctl. It is an error if one of them is missing.
    pub fn own() -> Result<Self> {
        let own = std::env::current_exe().context("cannot determine the path of this program")?;
        let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
        let programs = Self { folder };
        for role in [MachineRole::Master, MachineRole::Node] {
            programs.stamp(role)?;
        }
        Ok(programs)
    }

    /// Returns the programs in a folder.
    #[cfg(test)]
    pub fn of(folder: &Path) -> Self {
        Self { folder: folder.into() }
    }

    /// Returns a stamp that identifies the build, made of the names, sizes and modification times
    /// of the programs.
    pub fn stamp(&self, role: MachineRole) -> Result<String> {
        let mut arguments = Vec::new();
        for name in programs_of(role) {
            let path = self.folder.join(name);
            let about = path.metadata().map_err(|error| {
                Usage(format!("{}: {error}: build it with `cargo build --release`", path.display()))
            })?;
            let changed = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            arguments.push(format!("{name}:{}:{}", about.len(), changed.unwrap_or_default().as_millis()));
        }
        Ok(arguments.join(" "))
    }

    /// Copies the programs to `dir` on a machine.
    pub fn send(&self, shell: &Shell, host: &str, role: MachineRole, dir: &str) -> Result<()> {
        let names: Vec<PathBuf> = programs_of(role).iter().map(PathBuf::from).collect();
        send(shell, host, &self.folder, &names, dir)
    }
}

/// The settings and credentials of a cluster.
#[derive(Debug, Clone)]
pub struct Package {
    /// The folder that `mrctl cluster init` created.
    folder: PathBuf,
}

impl Package {
    /// Returns the package of the cluster in this folder.
    pub fn of(folder: &Path) -> Result<Self> {
        let file = folder.join("fermata.toml");
        match fs::metadata(&file) {
            Ok(_) => Ok(Self { folder: folder.to_owned() }),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(Usage(format!(
                    "{} has no fermata.toml: create a cluster with `mrctl cluster init`, and name its folder with --cluster",
                    folder.display()
                ))
                .into())
            }
            Err(error) => Err(error).with_context(|| format!("cannot inspect {}", file.display())),
        }
    }

    /// Returns the files that the daemons of a machine read at their start, relative to the cluster
    /// folder.
    fn files(&self, role: MachineRole) -> Vec<PathBuf> {
        let mut files = vec![PathBuf::from("fermata.toml")];
        if self.folder.join("security").is_dir() {
            files.push("security/ca.pem".into());
            for daemon in role.daemons() {
                files.extend(["pem", "keys"].map(|kind| PathBuf::from(format!("security/{daemon}.{kind}"))));
            }
        } else if self.folder.join("secret").is_file() {
            files.push("secret".into());
        }
        files
    }

    /// Returns a stamp that identifies the contents of these files.
    pub fn stamp(&self, role: MachineRole) -> Result<String> {
        let mut all = Vec::new();
        for file in self.files(role) {
            let path = self.folder.join(&file);
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            all.extend(format!("{} {}\n", file.display(), bytes.len()).bytes());
            all.extend(bytes);
        }
        Ok(security::digest(&all))
    }

    /// Returns all files that a machine needs.
    pub(super) fn files_for(&self, role: MachineRole) -> Vec<PathBuf> {
        let mut files = self.files(role);
        let revoked = revoked_list(&self.folder);
        files.extend(Some(revoked).filter(|list| self.folder.join(list).is_file()));
        files
    }

    /// Copies files to `dir` on a machine.
    pub fn send(&self, shell: &Shell, host: &str, files: &[PathBuf], dir: &str) -> Result<()> {
        send(shell, host, &self.folder, files, dir)
    }
}

/// Returns the path of the revocation list, relative to the cluster folder.
pub fn revoked_list(cluster: &Path) -> PathBuf {
    let beside = if cluster.join("security").is_dir() { "security" } else { "" };
    Path::new(beside).join(security::REVOKED_FILE)
}

fn send(shell: &Shell, host: &str, from: &Path, files: &[PathBuf], dir: &str) -> Result<()> {
    let mut tar = Command::new("tar")
        .arg("-C")
        .arg(from)
        .args(["-czf", "-", "--"])
        .args(files)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run tar")?;
    let archive = tar.stdout.take().expect("stdout is piped");
    let sent = shell.copy(host, &UNPACK_COMMAND.into_iter().chain([dir]).collect::<Vec<_>>(), archive);
    let packed = tar.wait().context("cannot wait for tar")?;
    sent?;
    ensure!(packed.success(), "tar could not read all of {}", from.display());
    Ok(())
}
