//! The folder of a backup: a subfolder for each master with its files, and `manifest.json`, which
//! is written last. A folder without it is not a complete backup.

use crate::command::demo::hex;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Component, Path, PathBuf},
};

/// The version of this format.
const FORMAT: u64 = 1;
const FILE: &str = "manifest.json";

/// What a backup contains.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u64,
    /// The version of the mrctl that wrote it.
    pub(crate) version: String,
    /// When the backup was begun: milliseconds since 1970.
    pub(crate) time_ms: u64,
    pub(crate) masters: Vec<MasterBackup>,
}

/// The backup of a master.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MasterBackup {
    /// `jobtracker` or `namenode`: also the subfolder in the backup.
    pub(crate) daemon: String,
    /// The ID of the cluster in the `VERSION` file of the master.
    pub(crate) cluster_id: String,
    /// The layout in that file.
    pub(crate) layout: u32,
    /// The subfolder of the journal.
    pub(crate) journal: String,
    pub(crate) last_record: u64,
    pub(crate) files: Vec<BackupFile>,
}

/// A file of a backup.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupFile {
    /// The path in the folder of the master.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

impl MasterBackup {
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the name of the daemon in texts.
    pub(crate) fn title(&self) -> &'static str {
        if self.daemon == "namenode" { "NameNode" } else { "JobTracker" }
    }
}

impl Manifest {
    pub(crate) fn new(time_ms: u64, masters: Vec<MasterBackup>) -> Self {
        Self { format: FORMAT, version: env!("CARGO_PKG_VERSION").into(), time_ms, masters }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.masters.iter().map(MasterBackup::bytes).sum()
    }

    pub(crate) fn files(&self) -> usize {
        self.masters.iter().map(|master| master.files.len()).sum()
    }

    /// Completes a backup, whose files are durable.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let manifest = json!(self);
        let whole = json!({ "sha256": checksum(&manifest), "manifest": manifest });
        let text = serde_json::to_string_pretty(&whole).expect("plain data") + "\n";
        let path = folder.join(FILE);
        daemon::files::replace(&path, text.as_bytes(), daemon::files::PRIVATE, true)
            .map_err(|error| cannot_write(&path, error))
    }

    /// Reads the manifest of a backup. Refuses one that is damaged, or that this build cannot
    /// restore.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let shown = path.display();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && folder.is_dir() => bail!(
                "{} is not a complete backup: it has no {FILE}, which `mrctl backup` writes last; use another one",
                folder.display()
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("there is no folder {}: name the folder of a backup", folder.display())
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
        };
        let damaged = |why: &str| anyhow::anyhow!("{shown} is damaged ({why}): use another backup");
        let whole: Value = serde_json::from_str(&text).map_err(|error| damaged(&error.to_string()))?;
        let manifest = &whole["manifest"];
        if whole["sha256"] != checksum(manifest) {
            return Err(damaged("its checksum is wrong"));
        }
        if manifest["format"] != FORMAT {
            bail!(
                "{shown} has format {}, this build knows format {FORMAT}: use mrctl {}, which wrote it",
                manifest["format"],
                manifest["version"].as_str().unwrap_or("of the version")
            );
        }
        let manifest = Self::deserialize(manifest).map_err(|error| damaged(&error.to_string()))?;
        for master in &manifest.masters {
            let (layout, known) = (master.layout, journal::home::LAYOUT);
            if layout != known {
                bail!(
                    "{shown} has folders of layout {layout}, this build knows layout {known}: restore it with the build \
                     that wrote it ({})",
                    manifest.version
                );
            }
            let mut names = vec![&master.daemon, &master.journal];
            names.extend(master.files.iter().map(|file| &file.path));
            if let Some(name) = names.into_iter().find(|name| !is_inside(name)) {
                return Err(damaged(&format!("{name:?} is not a path in the backup")));
            }
        }
        Ok(manifest)
    }

    /// Reads all files of the backup and compares them with the manifest. `advance` gets the number
    /// of bytes that were read.
    pub(crate) fn verify(&self, folder: &Path, mut advance: impl FnMut(u64)) -> Result<()> {
        for master in &self.masters {
            let folder = folder.join(&master.daemon);
            for file in &master.files {
                read(file, &folder, |bytes| {
                    advance(bytes.len() as u64);
                    Ok(())
                })?;
            }
            let path = folder.join(&master.journal);
            verify_snapshot(&path)?;
        }
        Ok(())
    }
}

/// Verifies the snapshot in a folder.
pub(crate) fn verify_snapshot(folder: &Path) -> Result<()> {
    let disk = journal::disk::RealDisk::open(folder);
    let disk = disk.with_context(|| format!("cannot open {}", folder.display()))?;
    journal::backup::verify_snapshot(&disk).with_context(|| {
        format!("the snapshot in {} cannot be used: use another backup", folder.display())
    })?;
    Ok(())
}

/// Reads a file of a backup from the folder of its master, passes its bytes to `sink`, and compares
/// it with the manifest.
pub(crate) fn read(
    file: &BackupFile,
    folder: &Path,
    mut sink: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let path = folder.join(&file.path);
    let shown = path.display();
    let mut from = match File::open(&path) {
        Ok(from) => from,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("{shown} is missing, and the manifest has it: use another backup")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    let (mut sum, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let read = from.read(&mut buffer).with_context(|| format!("cannot read {shown}"))?;
        if read == 0 {
            break;
        }
        sum.update(&buffer[..read]);
        sink(&buffer[..read])?;
        bytes += read as u64;
    }
    if (bytes, hex(&sum.finalize())) != (file.bytes, file.sha256.clone()) {
        bail!("{shown} is damaged: its length or checksum is not that in the manifest; use another backup");
    }
    Ok(())
}

/// A file that is being written into a backup or into the folder of a master.
pub(crate) struct NewFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    sum: Sha256,
}

impl NewFile {
    /// Creates a file, and the folders above it, that only the own account can read.
    pub(crate) fn create(path: PathBuf) -> Result<Self> {
        if let Some(parent) = path.parent() {
            create_folder(parent)?;
        }
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = opened.map_err(|error| cannot_write(&path, error))?;
        Ok(Self { path, file, bytes: 0, sum: Sha256::new() })
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| cannot_write(&self.path, error))?;
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Makes the file durable, with its name. Returns its length and checksum.
    pub(crate) fn finish(self) -> Result<(u64, String)> {
        let synced =
            self.file.sync_all().and_then(|()| sync_folder(self.path.parent().unwrap_or(&self.path)));
        synced.map_err(|error| cannot_write(&self.path, error))?;
        Ok((self.bytes, hex(&self.sum.finalize())))
    }
}

/// Creates a folder and its parents durably. Only the own account can read the new ones.
pub(crate) fn create_folder(folder: &Path) -> Result<()> {
    let missing: Vec<_> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    let create = || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        missing.iter().filter_map(|made| made.parent()).try_for_each(sync_folder)
    };
    create().map_err(|error| cannot_write(folder, error))
}

pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

fn cannot_write(path: &Path, error: io::Error) -> anyhow::Error {
    let advice =
        if daemon::lock::is_full(&error) { "; free space on that disk, or use another one" } else { "" };
    anyhow::anyhow!("cannot write {}: {error}{advice}", path.display())
}

/// Returns whether a path stays inside the folder that it is joined to.
pub(crate) fn is_inside(path: &str) -> bool {
    let mut parts = Path::new(path).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn checksum(manifest: &Value) -> String {
    hex(&Sha256::digest(manifest.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let file = BackupFile { path: "edits/x".into(), bytes: 1, sha256: String::new() };
        let namenode = MasterBackup {
            daemon: "namenode".into(),
            cluster_id: "c".into(),
            layout: journal::home::LAYOUT,
            journal: "edits".into(),
            last_record: 7,
            files: vec![file],
        };
        Manifest::new(1_800_000_000_000, vec![namenode])
    }

    #[test]
    fn manifest_of_another_version_or_with_paths_outside_the_backup_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refusal = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = manifest();
            change(&mut manifest);
            manifest.write(folder.path()).unwrap();
            Manifest::load(folder.path()).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(refusal(&|_| {}).unwrap(), manifest());
        let refused = Manifest::load(Path::new("/no/backup")).unwrap_err().to_string();
        assert_eq!(refused, "there is no folder /no/backup: name the folder of a backup");
        let refused = refusal(&|manifest| manifest.format = 2).unwrap_err();
        assert!(refused.contains("has format 2, this build knows format 1: use mrctl"), "{refused}");
        let refused = refusal(&|manifest| manifest.masters[0].layout -= 1).unwrap_err();
        assert!(refused.contains("has folders of layout") && refused.contains("with the build"), "{refused}");
        for path in ["../x", "/x", "", "a/../../x", "./"] {
            let refused = refusal(&|manifest| manifest.masters[0].files[0].path = path.into()).unwrap_err();
            assert!(refused.contains("is not a path in the backup"), "{refused}");
        }
    }
}
