//! The files that are copied to a machine, as a tar archive through its remote shell.

use super::{hosts::Part, shell::Shell};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::UNIX_EPOCH,
};
use view::output::Usage;

/// As root, tar would by default keep the numeric owner and the permissions from the archive.
const UNPACK: [&str; 6] = ["tar", "--no-same-owner", "--no-same-permissions", "-xzf", "-", "-C"];

/// The programs of daemons and tasks.
#[derive(Debug, Clone)]
pub struct Programs {
    folder: PathBuf,
}

fn of_part(part: Part) -> &'static [&'static str] {
    match part {
        Part::Master => &["namenode", "jobtracker"],
        Part::Node => &["datanode", "tasktracker", "mrtask"],
    }
}

impl Programs {
    /// The programs in the folder of mrctl.
    pub fn own() -> Result<Self> {
        let own = std::env::current_exe().context("cannot determine the path of this program")?;
        let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
        let programs = Self { folder };
        for part in [Part::Master, Part::Node] {
            programs.stamp(part)?;
        }
        Ok(programs)
    }

    /// The programs in a folder.
    #[cfg(test)]
    pub fn of(folder: &Path) -> Self {
        Self { folder: folder.into() }
    }

    /// A stamp that identifies the build: names, sizes and times.
    pub fn stamp(&self, part: Part) -> Result<String> {
        let mut arguments = Vec::new();
        for name in of_part(part) {
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
    pub fn send(&self, shell: &Shell, host: &str, part: Part, dir: &str) -> Result<()> {
        let names: Vec<PathBuf> = of_part(part).iter().map(PathBuf::from).collect();
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
    /// The package of the cluster in this folder.
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

    /// The files that the daemons of a machine read at their start, relative to the cluster folder.
    fn files(&self, part: Part) -> Vec<PathBuf> {
        let mut files = vec![PathBuf::from("fermata.toml")];
        if self.folder.join("security").is_dir() {
            files.push("security/ca.pem".into());
            for role in part.daemons() {
                files.extend(["pem", "keys"].map(|kind| PathBuf::from(format!("security/{role}.{kind}"))));
            }
        } else if self.folder.join("secret").is_file() {
            files.push("secret".into());
        }
        files
    }

    /// A stamp that identifies the contents of these files.
    pub fn stamp(&self, part: Part) -> Result<String> {
        let mut all = Vec::new();
        for file in self.files(part) {
            let path = self.folder.join(&file);
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            all.extend(format!("{} {}\n", file.display(), bytes.len()).bytes());
            all.extend(bytes);
        }
        Ok(security::digest(&all))
    }

    /// All files that a machine needs.
    pub(super) fn files_for(&self, part: Part) -> Vec<PathBuf> {
        let mut files = self.files(part);
        let revoked = revoked_list(&self.folder);
        files.extend(Some(revoked).filter(|list| self.folder.join(list).is_file()));
        files
    }

    /// Copies files to `dir` on a machine.
    pub fn send(&self, shell: &Shell, host: &str, files: &[PathBuf], dir: &str) -> Result<()> {
        send(shell, host, &self.folder, files, dir)
    }
}

/// The path of the revocation list, relative to the cluster folder.
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
    let sent = shell.copy(host, &UNPACK.into_iter().chain([dir]).collect::<Vec<_>>(), archive);
    let packed = tar.wait().context("cannot wait for tar")?;
    sent?;
    ensure!(packed.success(), "tar could not read all of {}", from.display());
    Ok(())
}
