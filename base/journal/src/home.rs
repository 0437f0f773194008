//! The data folder of a daemon with a journal: the file `VERSION`, and the journal.
//!
//! `VERSION` contains the ID of the cluster and is written once, before the journal. From then on
//! the journal must exist: a missing journal is an error, because an empty journal would look like
//! a cluster without files or jobs. A file `NEW` exists next to `VERSION` until the journal is
//! created, so that a crash before that is not reported as a lost journal.
//!
//! The daemon locks the folder, and only the daemon knows the meaning of records.

use crate::{
    Content, Log, LogError, Opened, Recovery, Replay, backup,
    disk::{Disk, RealDisk},
    format::Name,
};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Version of the folder layout. Increase it when the encoding of any record of a daemon changes,
/// so that a build refuses the folders that it cannot read.
pub const LAYOUT: u32 = 5;
const VERSION_FILE: &str = "VERSION";
const NEW_FILE: &str = "NEW";
/// File that marks a loss of records. It is written before anything is cut or dropped, and removed
/// when the loss has been handled. If the daemon crashes in between, the next start finds the file.
const RECOVERING_FILE: &str = "RECOVERING";
/// Content of [`RECOVERING_FILE`] if an operator requested recovery. If only an unfinished write
/// was cut, the file is empty.
const RECOVERY_REQUESTED: &str = "recover\n";
/// Start of the content of [`RECOVERING_FILE`] if the folder was restored from a backup. The rest of
/// the line describes the backup. Recovery counts as requested.
const RESTORED: &str = "restored from ";
/// Second line of that content if the operator gives up what was written since the backup.
const DROP_NEWER: &str = "drop newer\n";
/// Suffix of the subfolder of a journal that is to replace another one, and is not complete.
const UNFINISHED: &str = "unfinished";
/// Suffix of the subfolder of a journal that is complete and is to replace another one.
const COMPLETE: &str = "complete";

/// The daemon that owns a data folder with a journal.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    /// Name of the daemon, e.g. `NameNode`.
    pub name: &'static str,
    /// Name of its journal in messages, e.g. `edit log`.
    pub log: &'static str,
    /// Name of the subfolder that contains the journal.
    pub folder: &'static str,
}

/// Why a data folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataFolderError {
    /// The operating system returned an error.
    #[error("cannot use {path}: {source}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The folder contains files that do not belong to the daemon.
    #[error(
        "folder {folder} is not empty and has no VERSION file, so it is not a folder of a {owner}: use an empty folder"
    )]
    Foreign {
        /// Name of the daemon.
        owner: &'static str,
        /// Path of the folder.
        folder: PathBuf,
    },
    /// The folder has a journal but no `VERSION`.
    #[error(
        "folder {folder} has a {log}, but its VERSION file with the ID of the cluster is missing: restore that \
         file from a copy"
    )]
    VersionMissing {
        /// Path of the folder.
        folder: PathBuf,
        /// Name of the journal.
        log: &'static str,
    },
    /// The folder was not restored completely.
    #[error(
        "folder {folder} was being {restore} and is not complete: run `mrctl restore` again with --replace"
    )]
    Unrestored {
        /// Path of the folder.
        folder: PathBuf,
        /// The backup.
        restore: String,
    },
    /// `VERSION`, or another file of text in the folder, cannot be parsed.
    #[error("{path} cannot be parsed: {why}")]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another version of Fermata wrote the folder.
    #[error(
        "{path} has layout {found}, this build knows layout {LAYOUT}: another build wrote the folder; use that build, \
         or an empty folder"
    )]
    Layout {
        /// Path of the file.
        path: PathBuf,
        /// Layout of the folder.
        found: u32,
    },
    /// The journal is missing.
    #[error(
        "{folder} has no {log}, although its VERSION file belongs to cluster {cluster_id}, which had one: \
         restore it from a copy, or start once with --recover to start empty (it drops all data of the {log})"
    )]
    Missing {
        /// Folder of the journal.
        folder: PathBuf,
        /// Name of the journal.
        log: &'static str,
        /// ID of the cluster.
        cluster_id: String,
    },
    /// The journal is damaged.
    #[error(
        "{log} in {folder}: {source}; to continue without the unreadable part, start once with --recover \
         (it logs what it drops, and keeps the damaged file)"
    )]
    Damaged {
        /// Folder of the journal.
        folder: PathBuf,
        /// Name of the journal.
        log: &'static str,
        /// The damage, with file and offset.
        source: LogError,
    },
    /// The journal cannot be opened for another reason.
    #[error("{log}: {source}")]
    Log {
        /// Name of the journal.
        log: &'static str,
        /// Cause.
        source: LogError,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    layout: u32,
    cluster_id: String,
}

/// An open data folder. The caller reads `replay` first.
pub struct DataFolder {
    /// The log. It accepts records immediately.
    pub log: Log,
    /// Contents of the journal.
    pub replay: Replay,
    /// ID of the cluster.
    pub cluster_id: String,
    /// Describes, for the operator, a possible loss of records at this start, or at an earlier
    /// start that ended before [`Recovering::done`].
    pub lost: Option<String>,
    /// Whether an operator requested recovery at this start, or at an earlier start that ended
    /// before [`Recovering::done`].
    pub recovery_requested: bool,
    /// Whether the folder was restored from a backup, and the operator gives up what was written
    /// since then.
    pub drop_newer: bool,
    /// The marker of the loss. Call [`Recovering::done`] when the loss has been handled durably.
    pub recovering: Recovering,
}

/// The marker of a loss of records that has not been handled yet.
#[must_use = "without `done` the next start reports the loss again"]
pub struct Recovering(PathBuf);

impl Recovering {
    /// Removes the marker, after the loss was handled.
    pub fn done(self) -> Result<(), DataFolderError> {
        remove(&self.0)
    }
}

impl DataFolder {
    /// Opens the folder, and initialises it if it is empty. The caller must have locked the folder.
    pub fn open(owner: Owner, folder: &Path, recovery: Recovery) -> Result<Self, DataFolderError> {
        finish_replacement(owner, folder)?;
        let cluster_id = read_or_create_cluster_id(owner, folder)?;
        let marker = folder.join(RECOVERING_FILE);
        let interrupted = exists(&marker)?;
        let before =
            if interrupted { fs::read_to_string(&marker).map_err(io_error(&marker))? } else { String::new() };
        let restored = before.starts_with(RESTORED);
        let requested_before = before == RECOVERY_REQUESTED || restored;
        let recovery_requested = recovery == Recovery::DropDamaged || requested_before;
        if recovery == Recovery::DropDamaged {
            write_durably(folder, RECOVERING_FILE, RECOVERY_REQUESTED)?;
        }
        let path = folder.join(owner.folder);
        let disk = RealDisk::open(&path).map_err(io_error(&path))?;
        let new = folder.join(NEW_FILE);
        let has_journal = has_journal(&disk);
        let has_journal = has_journal.map_err(|source| DataFolderError::Log { log: owner.log, source })?;
        let vanished = !exists(&new)? && !has_journal;
        if vanished && recovery == Recovery::Refuse {
            return Err(DataFolderError::Missing { folder: path, log: owner.log, cluster_id });
        }
        if vanished {
            let (log, folder) = (owner.log, path.display());
            tracing::error!(%folder, "the {log} is missing: starting empty, as --recover requested");
        }
        let cause = if recovery_requested { RECOVERY_REQUESTED } else { "" };
        let before_loss = || write_durably(folder, RECOVERING_FILE, cause).map_err(io::Error::other);
        let opened = open_with_loss_hook(owner, Arc::new(disk), recovery, before_loss).map_err(|source| {
            let log = owner.log;
            if source.is_damage() {
                DataFolderError::Damaged { folder: path.clone(), log, source }
            } else {
                DataFolderError::Log { log, source }
            }
        })?;
        remove(&new)?;
        let mut lost = opened.loss(owner.log);
        if vanished {
            lost = Some(format!("the {} was missing from {}", owner.log, path.display()));
        } else if restored && lost.is_none() {
            lost = before.lines().next().map(str::to_owned);
        } else if interrupted && lost.is_none() {
            lost = Some(format!("an earlier start lost part of the {} and did not finish", owner.log));
        }
        let Opened { log, replay, .. } = opened;
        let drop_newer = restored && before.ends_with(DROP_NEWER);
        let recovering = Recovering(marker);
        Ok(Self { log, replay, cluster_id, lost, recovery_requested, drop_newer, recovering })
    }
}

/// Returns the ID of the cluster in the `VERSION` file of a folder; `None` if there is no such file.
pub fn cluster_id(folder: &Path) -> Result<Option<String>, DataFolderError> {
    let path = folder.join(VERSION_FILE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(DataFolderError::Io { path, source }),
    };
    let version: Version = toml::from_str(&text)
        .map_err(|error| DataFolderError::Version { path: path.clone(), why: error.message().into() })?;
    if version.layout != LAYOUT {
        return Err(DataFolderError::Layout { path, found: version.layout });
    }
    Ok(Some(version.cluster_id))
}

/// Refuses a folder without `VERSION` that was not restored completely, or has other files than a
/// folder that is being made, and those in `also`.
pub fn check_new(owner: Owner, folder: &Path, also: &[&str]) -> Result<(), DataFolderError> {
    check_restored(folder)?;
    let entries = fs::read_dir(folder).map_err(io_error(folder))?.flatten();
    let ours = ["LOCK", "VERSION.tmp", NEW_FILE, "NEW.tmp"];
    let mut names = entries.map(|entry| entry.file_name());
    if names.any(|name| !ours.iter().chain(also).any(|own| name == *own)) {
        return Err(DataFolderError::Foreign { owner: owner.name, folder: folder.into() });
    }
    Ok(())
}

fn check_restored(folder: &Path) -> Result<(), DataFolderError> {
    if let Ok(marker) = fs::read_to_string(folder.join(RECOVERING_FILE))
        && marker.starts_with(RESTORED)
    {
        let restore = marker.lines().next().unwrap_or_default().to_owned();
        return Err(DataFolderError::Unrestored { folder: folder.into(), restore });
    }
    Ok(())
}

/// Returns whether an operator has requested recovery of a folder, or has restored it, and no start
/// has handled that.
pub fn is_recovery_requested(folder: &Path) -> Result<bool, DataFolderError> {
    let marker = folder.join(RECOVERING_FILE);
    match fs::read_to_string(&marker) {
        Ok(text) => Ok(text == RECOVERY_REQUESTED || text.starts_with(RESTORED)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io_error(&marker)(error)),
    }
}

/// Returns whether a folder has no journal because it was not created yet.
pub fn is_new(folder: &Path) -> Result<bool, DataFolderError> {
    Ok(cluster_id(folder)?.is_none() || exists(&folder.join(NEW_FILE))?)
}

/// Requests recovery: the next start accepts the folder, like one with `--recover`.
pub fn request_recovery(folder: &Path) -> Result<(), DataFolderError> {
    write_durably(folder, RECOVERING_FILE, RECOVERY_REQUESTED)
}

/// Replaces the journal by one that `make` makes of it: the first disk is the present journal, which
/// must not be changed, the second one is empty. The present journal is renamed and kept; returns
/// where. After a crash, the folder has one of both, or [`finish_replacement`] completes it.
pub fn replace_journal<E: From<DataFolderError>>(
    owner: Owner,
    folder: &Path,
    make: impl FnOnce(Arc<dyn Disk>, &Arc<dyn Disk>) -> Result<(), E>,
) -> Result<PathBuf, E> {
    let (present, unfinished, complete) = journal_folders(owner, folder);
    // An earlier attempt was interrupted.
    for left in [&unfinished, &complete] {
        if exists(left)? {
            fs::remove_dir_all(left).map_err(io_error(left))?;
        }
    }
    let open = |path: &PathBuf| -> Result<Arc<dyn Disk>, DataFolderError> {
        Ok(Arc::new(RealDisk::open(path).map_err(io_error(path))?))
    };
    make(open(&present)?, &open(&unfinished)?)?;
    rename(&unfinished, &complete)?;
    let names = (1..).map(|number| folder.join(format!("{}.replaced-{number}", owner.folder)));
    let kept = names.into_iter().find(|path| !path.exists()).expect("a number is not in use");
    rename(&present, &kept)?;
    rename(&complete, &present)?;
    Ok(kept)
}

/// Completes [`replace_journal`] if a crash has interrupted it when the new journal was complete.
pub fn finish_replacement(owner: Owner, folder: &Path) -> Result<(), DataFolderError> {
    let (present, _, complete) = journal_folders(owner, folder);
    if exists(&present)? || !exists(&complete)? {
        return Ok(());
    }
    rename(&complete, &present)
}

fn journal_folders(owner: Owner, folder: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let with = |suffix: &str| folder.join(format!("{}.{suffix}", owner.folder));
    (folder.join(owner.folder), with(UNFINISHED), with(COMPLETE))
}

/// Renames a file or folder durably, within its folder.
fn rename(from: &Path, to: &Path) -> Result<(), DataFolderError> {
    fs::rename(from, to).map_err(io_error(from))?;
    sync_folder(to.parent().unwrap_or(to)).map_err(io_error(to))
}

/// Writes the ID of the cluster into the folder of a master that has joined a group. Its journal
/// exists already.
pub fn set_cluster_id(folder: &Path, cluster_id: &str) -> Result<(), DataFolderError> {
    write_version(folder, cluster_id.to_owned())
}

/// Starts to restore an empty folder from a backup, which `from` describes in one line. No daemon
/// starts with the folder before [`finish_restore`]. Its first start then accepts the folder, like
/// one that is started with `--recover`. `drop_newer` is for [`DataFolder::drop_newer`].
pub fn begin_restore(folder: &Path, from: &str, drop_newer: bool) -> Result<(), DataFolderError> {
    let second_line = if drop_newer { DROP_NEWER } else { "" };
    write_durably(folder, RECOVERING_FILE, &format!("{RESTORED}{from}\n{second_line}"))
}

/// Completes a folder whose files were restored durably: makes the journal from the snapshot in the
/// subfolder `journal`, and writes the ID of the cluster.
pub fn finish_restore(folder: &Path, journal: &str, cluster_id: &str) -> Result<(), DataFolderError> {
    let path = folder.join(journal);
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&path).map_err(io_error(&path))?);
    backup::complete_journal(&disk).map_err(|source| DataFolderError::Log { log: "backup", source })?;
    write_version(folder, cluster_id.to_owned())
}

fn write_version(folder: &Path, cluster_id: String) -> Result<(), DataFolderError> {
    let version = Version { layout: LAYOUT, cluster_id };
    write_durably(folder, VERSION_FILE, &toml::to_string(&version).expect("a plain table"))
}

/// Opens a journal on any disk, and logs what was cut or dropped.
pub fn open_log(owner: Owner, disk: Arc<dyn Disk>, recovery: Recovery) -> Result<Opened, LogError> {
    open_with_loss_hook(owner, disk, recovery, || Ok(()))
}

fn open_with_loss_hook(
    owner: Owner,
    disk: Arc<dyn Disk>,
    recovery: Recovery,
    before_loss: impl FnOnce() -> io::Result<()>,
) -> Result<Opened, LogError> {
    let opened = Log::open_with_loss_hook(disk, Content::Records, recovery, before_loss)?;
    opened.report(owner.log);
    Ok(opened)
}

impl Opened {
    /// Logs what was cut, replaced or dropped. `log` is the name of the journal.
    pub fn report(&self, log: &str) {
        if let Some(torn) = &self.torn {
            tracing::warn!(
                file = torn.file,
                offset = torn.offset,
                bytes = torn.bytes,
                saved_as = torn.saved_as,
                "cut an unfinished write from the end of the {log}: a crash interrupted it, so it was not \
                 acknowledged; if the disk is not to be trusted, treat it as a loss"
            );
        }
        for part in &self.replaced {
            tracing::error!(
                file = part.file,
                offset = part.offset,
                saved_as = part.saved_as.as_deref().unwrap_or("-"),
                why = part.why,
                "a snapshot of the {log} is damaged: started from the older one and the records after it, nothing is lost; \
                 check the disk"
            );
        }
        for part in &self.dropped {
            tracing::error!(
                file = part.file,
                offset = part.offset,
                bytes = part.bytes,
                records_known = part.records_known,
                saved_as = part.saved_as.as_deref().unwrap_or("-"),
                why = part.why,
                "dropped a damaged part of the {log}, as --recover requested"
            );
        }
    }

    /// Returns one line for the operator about what was cut or dropped, if anything was.
    pub fn loss(&self, log: &str) -> Option<String> {
        let saved = |name: Option<&str>| name.map_or(String::new(), |name| format!(", kept as {name}"));
        if let Some(part) = self.dropped.first() {
            let more = self.dropped.len() - 1;
            let others = if more > 0 { format!(" (and {more} more, see the log)") } else { String::new() };
            let saved = saved(part.saved_as.as_deref());
            return Some(format!(
                "--recover dropped a damaged part of the {log}: {}{saved}{others}",
                part.why
            ));
        }
        let torn = self.torn.as_ref()?;
        let (bytes, file, saved) = (torn.bytes, &torn.file, saved(Some(&torn.saved_as)));
        Some(format!("{bytes} bytes of an unfinished write were cut from {file} of the {log}{saved}"))
    }
}

/// Returns whether there are segments or snapshots on a disk.
pub fn has_journal(disk: &dyn Disk) -> Result<bool, LogError> {
    let names = disk.list().map_err(LogError::io("list", "the journal folder"))?;
    Ok(names.iter().any(|name| matches!(Name::parse(name), Name::File(..))))
}

/// Like [`has_journal`], but takes a folder that may not exist.
fn has_journal_in(folder: &Path) -> bool {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| matches!(Name::parse(&name.to_string_lossy()), Name::File(..)))
}

/// Returns the cluster ID in the `VERSION` file. Creates the file, with a new ID, if the folder is
/// empty.
fn read_or_create_cluster_id(owner: Owner, folder: &Path) -> Result<String, DataFolderError> {
    if let Some(cluster_id) = cluster_id(folder)? {
        return Ok(cluster_id);
    }
    check_restored(folder)?;
    if has_journal_in(&folder.join(owner.folder)) {
        return Err(DataFolderError::VersionMissing { folder: folder.into(), log: owner.log });
    }
    check_new(owner, folder, &[])?;
    write_durably(folder, NEW_FILE, "")?;
    let cluster_id = uuid::Uuid::new_v4().to_string();
    write_version(folder, cluster_id.clone())?;
    Ok(cluster_id)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DataFolderError {
    let path = path.to_path_buf();
    move |source| DataFolderError::Io { path, source }
}

fn exists(path: &Path) -> Result<bool, DataFolderError> {
    path.try_exists().map_err(io_error(path))
}

fn remove(path: &Path) -> Result<(), DataFolderError> {
    match fs::remove_file(path) {
        // Sync the folder, so that a removed marker does not reappear after a power loss: it would
        // mean a first start, or a loss that was already handled.
        Ok(()) => sync_folder(path.parent().unwrap_or(path)).map_err(io_error(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io_error(path)(error)),
    }
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

/// Replaces a file of the folder: after a crash it has the old or the new text.
pub fn write_durably(folder: &Path, name: &str, text: &str) -> Result<(), DataFolderError> {
    let temporary = folder.join(format!("{name}.tmp"));
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, folder.join(name))?;
        sync_folder(folder)
    };
    write().map_err(io_error(&folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { name: "TestDaemon", log: "ledger", folder: "pages" };

    fn open(folder: &Path, recovery: Recovery) -> Result<DataFolder, DataFolderError> {
        DataFolder::open(OWNER, folder, recovery)
    }

    /// Returns a folder whose journal has a record, and its cluster ID.
    fn folder_with_record() -> (tempfile::TempDir, String) {
        let folder = tempfile::tempdir().unwrap();
        let home = open(folder.path(), Recovery::Refuse).unwrap();
        let seq = home.log.append(b"x").unwrap();
        home.log.sync(seq).unwrap();
        let cluster = home.cluster_id.clone();
        (folder, cluster)
    }

    #[test]
    fn missing_journal_is_refused_until_recovery_is_requested() {
        let (folder, cluster) = folder_with_record();
        assert!(!folder.path().join(NEW_FILE).exists());
        fs::remove_dir_all(folder.path().join("pages")).unwrap();
        let refused = open(folder.path(), Recovery::Refuse).err().unwrap().to_string();
        for word in ["pages has no ledger", &cluster, "restore", "--recover", "drops all"] {
            assert!(refused.contains(word), "{refused}");
        }
        assert!(!refused.contains('\n'));
        // The refusal must not have created the missing journal.
        let again = open(folder.path(), Recovery::Refuse).err().unwrap();
        assert!(matches!(again, DataFolderError::Missing { .. }), "{again}");

        let home = open(folder.path(), Recovery::DropDamaged).unwrap();
        assert!(home.lost.is_some() && home.log.last_seq() == 0);
        assert_eq!(home.cluster_id, cluster);
        drop(home);
        let home = open(folder.path(), Recovery::Refuse).unwrap();
        assert!(home.lost.is_some(), "the loss is reported until it is marked as handled");
        home.recovering.done().unwrap();
        drop(home.log);
        assert!(open(folder.path(), Recovery::Refuse).unwrap().lost.is_none());
    }

    #[test]
    fn a_torn_tail_is_reported_as_a_possible_loss_until_it_is_handled() {
        let (folder, _) = folder_with_record();
        let pages = folder.path().join("pages");
        // Make the files look as after a power loss: the commit point is older than the last batch,
        // and the file contains only a part of that batch.
        let commit = fs::read(pages.join("COMMIT")).unwrap();
        let home = open(folder.path(), Recovery::Refuse).unwrap();
        assert!(home.lost.is_none());
        home.log.sync(home.log.append(&[7; 100]).unwrap()).unwrap();
        drop(home);
        let segment = pages.join("edits-00000000000000000001.log");
        let mut bytes = fs::read(&segment).unwrap();
        bytes.truncate(bytes.len() - 70);
        fs::write(&segment, &bytes).unwrap();
        // The log was closed cleanly and the commit point is sealed, so the short batch is damage.
        let refused = open(folder.path(), Recovery::Refuse).err().unwrap().to_string();
        assert!(
            refused.contains("edits-00000000000000000001.log") && refused.contains("--recover"),
            "{refused}"
        );
        let mut unsealed = commit;
        for at in [0, 4096] {
            unsealed[at + 11] &= 0x7f;
            let crc = crc32c::crc32c(&unsealed[at..at + 28]);
            unsealed[at + 28..at + 32].copy_from_slice(&crc.to_le_bytes());
        }
        fs::write(pages.join("COMMIT"), unsealed).unwrap();
        for _ in 0..2 {
            let home = open(folder.path(), Recovery::Refuse).unwrap();
            let lost = home.lost.expect("a possible loss, until it is handled");
            assert!(lost.contains("ledger"), "{lost}");
        }
        assert!(pages.join("edits-00000000000000000001.log.torn-1").exists());
        open(folder.path(), Recovery::Refuse).unwrap().recovering.done().unwrap();
        assert!(open(folder.path(), Recovery::Refuse).unwrap().lost.is_none());
    }

    #[test]
    fn journal_without_version_file_is_refused_with_its_own_message() {
        let (folder, _) = folder_with_record();
        fs::remove_file(folder.path().join(VERSION_FILE)).unwrap();
        for recovery in [Recovery::Refuse, Recovery::DropDamaged] {
            let refused = open(folder.path(), recovery).err().unwrap().to_string();
            assert!(refused.contains("has a ledger, but its VERSION file"), "{refused}");
        }
    }

    #[test]
    fn restored_folder_opens_only_when_it_is_complete_and_counts_as_recovered() {
        let (source, cluster) = folder_with_record();
        let home = open(source.path(), Recovery::Refuse).unwrap();
        let upto = home.log.rotate().unwrap();
        let mut writer = home.log.snapshot_writer(upto).unwrap();
        writer.push(b"x").unwrap();
        writer.finish().unwrap();
        let target = tempfile::tempdir().unwrap();
        let folder = target.path();
        fs::write(folder.join("LOCK"), "").unwrap();
        begin_restore(folder, "the backup of today", true).unwrap();
        let refuse = || {
            for recovery in [Recovery::Refuse, Recovery::DropDamaged] {
                let refused = open(folder, recovery).err().unwrap().to_string();
                assert!(
                    refused.contains("restored from the backup of today and is not complete"),
                    "{refused}"
                );
            }
        };
        refuse();
        fs::create_dir(folder.join("pages")).unwrap();
        let snapshot = format!("pages/snapshot-{upto:020}.snap");
        fs::copy(source.path().join(&snapshot), folder.join(&snapshot)).unwrap();
        refuse();
        finish_restore(folder, "pages", &cluster).unwrap();
        // The first start may end before it has handled the restore.
        for _ in 0..2 {
            let home = open(folder, Recovery::Refuse).unwrap();
            assert_eq!(home.lost.as_deref(), Some("restored from the backup of today"));
            assert!(home.recovery_requested && home.drop_newer);
            assert_eq!((&home.cluster_id, home.log.last_seq()), (&cluster, upto));
        }
        open(folder, Recovery::Refuse).unwrap().recovering.done().unwrap();
        let home = open(folder, Recovery::Refuse).unwrap();
        assert!(home.lost.is_none() && !home.recovery_requested && !home.drop_newer);
    }

    #[test]
    fn interrupted_first_start_is_not_a_loss() {
        let folder = tempfile::tempdir().unwrap();
        read_or_create_cluster_id(OWNER, folder.path()).unwrap();
        let home = open(folder.path(), Recovery::Refuse).unwrap();
        assert!(home.lost.is_none());
    }

    #[test]
    fn only_an_empty_or_own_folder_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("letter"), "").unwrap();
        let refused = open(folder.path(), Recovery::Refuse).err().unwrap().to_string();
        assert!(refused.contains("is not empty and has no VERSION file"), "{refused}");
        let (folder, _) = folder_with_record();
        for layout in [LAYOUT - 1, LAYOUT + 1] {
            let version = format!("layout = {layout}\ncluster_id = \"x\"\n");
            fs::write(folder.path().join(VERSION_FILE), version).unwrap();
            let refused = open(folder.path(), Recovery::Refuse).err().unwrap().to_string();
            let expected =
                format!("has layout {layout}, this build knows layout {LAYOUT}: another build wrote");
            assert!(refused.contains(&expected), "{refused}");
        }
    }
}
