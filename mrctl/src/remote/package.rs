//! What is copied to a machine, and how it travels: as a tar archive through the machine's shell.

use super::{hosts::Part, shell::Shell};
use crate::output::Usage;
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::UNIX_EPOCH,
};

/// Root's tar would give what it unpacks to the account that has our number there, with the rights that it has here.
const UNPACK: [&str; 6] = ["tar", "--no-same-owner", "--no-same-permissions", "-xzf", "-", "-C"];

/// The programs that daemons and tasks are.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    folder: PathBuf,
}

fn of_part(part: Part) -> &'static [&'static str] {
    match part {
        Part::Master => &["namenode", "jobtracker"],
        Part::Node => &["datanode", "tasktracker", "mrtask"],
    }
}

impl Programs {
    /// Those beside this program.
    pub(crate) fn own() -> Result<Self> {
        let own = std::env::current_exe().context("cannot determine the path of this program")?;
        let folder = own.parent().unwrap_or(Path::new("/")).to_owned();
        let programs = Self { folder };
        for part in [Part::Master, Part::Node] {
            programs.stamp(part)?;
        }
        Ok(programs)
    }

    /// Those in a folder.
    #[cfg(test)]
    pub(crate) fn of(folder: &Path) -> Self {
        Self { folder: folder.into() }
    }

    /// Tells one build from another.
    pub(crate) fn stamp(&self, part: Part) -> Result<String> {
        let mut arguments = Vec::new();
        for name in of_part(part) {
            let path = self.folder.join(name);
            let about = path.metadata().map_err(|error| {
                Usage(format!("{}: {error}: build it, `cargo build --release` makes all", path.display()))
            })?;
            let changed = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            arguments.push(format!("{name}:{}:{}", about.len(), changed.unwrap_or_default().as_millis()));
        }
        Ok(arguments.join(" "))
    }

    /// Copies them to `dir` of a machine.
    pub(crate) fn send(&self, shell: &Shell, host: &str, part: Part, dir: &str) -> Result<()> {
        let names: Vec<PathBuf> = of_part(part).iter().map(PathBuf::from).collect();
        send(shell, host, &self.folder, &names, dir)
    }
}

/// A cluster's settings and credentials.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    /// As `mrctl cluster init` makes it.
    folder: PathBuf,
}

impl Package {
    pub(crate) fn of(folder: &Path) -> Result<Self> {
        let file = folder.join("fermata.toml");
        match fs::metadata(&file) {
            Ok(_) => Ok(Self { folder: folder.to_owned() }),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Err(Usage(format!(
                    "{} has no fermata.toml: make a cluster's folder with `mrctl cluster init`, and name it with --cluster",
                    folder.display()
                ))
                .into())
            }
            Err(error) => Err(error).with_context(|| format!("cannot inspect {}", file.display())),
        }
    }

    /// What a machine's daemons read when they start, below the cluster's folder.
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

    /// Tells one state of that from another.
    pub(crate) fn stamp(&self, part: Part) -> Result<String> {
        let mut all = Vec::new();
        for file in self.files(part) {
            let path = self.folder.join(&file);
            let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            all.extend(format!("{} {}\n", file.display(), bytes.len()).bytes());
            all.extend(bytes);
        }
        Ok(security::digest(&all))
    }

    /// What a machine's daemons need, and no more.
    pub(crate) fn files_for(&self, part: Part) -> Vec<PathBuf> {
        let mut files = self.files(part);
        let revoked = revoked_list(&self.folder);
        files.extend(Some(revoked).filter(|list| self.folder.join(list).is_file()));
        files
    }

    /// Copies files of it to `dir` of a machine.
    pub(crate) fn send(&self, shell: &Shell, host: &str, files: &[PathBuf], dir: &str) -> Result<()> {
        send(shell, host, &self.folder, files, dir)
    }
}

/// Where the list of what is revoked is, below a cluster's folder.
pub(crate) fn revoked_list(cluster: &Path) -> PathBuf {
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
    let archive = tar.stdout.take().expect("asked for");
    let sent = shell.copy(host, &UNPACK.into_iter().chain([dir]).collect::<Vec<_>>(), archive);
    let packed = tar.wait().context("cannot wait for tar")?;
    sent?;
    ensure!(packed.success(), "tar could not read all of {}", from.display());
    Ok(())
}
