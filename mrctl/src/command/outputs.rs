//! The files and folders that experiments write: checks before a run, which takes long, and the writes
//! after it.
//!
//! An output is written beside its place and renamed when it is complete. So a full disk, an error or
//! the end of the process leaves what was there before.

use crate::output::Usage;
use anyhow::{Context, Result, bail};
use sim::{report, workload::history};
use std::{
    collections::BTreeSet,
    fs::{File, TryLockError},
    io::{self, Write as _},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Returns what identifies a file or folder that exists: its device and its number on it. Links to a
/// file have the same.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|of| (of.dev(), of.ino()))
}

/// Returns the folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// What a command writes. A command fills this before it runs anything, and checks it.
#[derive(Default)]
pub(crate) struct Outputs<'a> {
    /// The files, each with its flag.
    files: Vec<(&'a str, PathBuf)>,
    /// Folders of the program's own, each with its flag: no other output may be in them.
    own_folders: Vec<(&'a str, &'a Path)>,
    /// Files and folders that are read.
    inputs: &'a [PathBuf],
}

impl<'a> Outputs<'a> {
    /// `inputs` are the files and folders that the command reads.
    pub(crate) fn new(inputs: &'a [PathBuf]) -> Self {
        Self { inputs, ..Self::default() }
    }

    /// Adds files that were requested, each with its flag.
    #[must_use]
    pub(crate) fn files(mut self, files: &[(&'a str, &Option<PathBuf>)]) -> Self {
        self.files.extend(files.iter().filter_map(|(flag, path)| Some((*flag, (*path).clone()?))));
        self
    }

    /// Adds files with these names in a folder, if it was requested.
    #[must_use]
    pub(crate) fn in_folder(
        mut self,
        flag: &'a str,
        folder: Option<&Path>,
        names: impl IntoIterator<Item = String>,
    ) -> Self {
        let named = |folder: &Path| names.into_iter().map(|name| (flag, folder.join(name))).collect();
        self.files.extend(folder.map_or_else(Vec::new, named));
        self
    }

    /// Adds a folder, if it was requested, that no other output may be in.
    #[must_use]
    pub(crate) fn own_folder(mut self, flag: &'a str, folder: Option<&'a Path>) -> Self {
        self.own_folders.extend(folder.map(|folder| (flag, folder)));
        self
    }

    /// Checks that all outputs can be written, each to a file of its own, and neither to an input nor
    /// into a folder that is one, nor into a folder of the program's own. Call this before a
    /// simulation, which takes long.
    pub(crate) fn check(&self) -> Result<()> {
        let mut read = BTreeSet::new();
        for input in self.inputs {
            read.extend(identity(input));
            let inside = std::fs::read_dir(input).into_iter().flatten().flatten();
            read.extend(inside.filter_map(|entry| identity(&entry.path())));
        }
        let own_folders: Vec<(&str, PathBuf)> =
            self.own_folders.iter().map(|(flag, folder)| (*flag, resolved(folder))).collect();
        let (mut seen, mut seen_files) = (BTreeSet::new(), BTreeSet::new());
        for (flag, path) in &self.files {
            let refuse = |why: &str| Err(Usage(format!("{flag} {}: {why}", path.display())).into());
            can_write(flag, path)?;
            let file = resolved(path);
            not_into_input(folder_of(&file), path, self.inputs)?;
            if identity(path).is_some_and(|file| read.contains(&file)) {
                return refuse("this file is read by the same command: write to another file");
            }
            if let Some((folder, _)) = own_folders.iter().find(|(_, folder)| file.starts_with(folder)) {
                return refuse(&format!("this is in the folder of {folder}: write to another folder"));
            }
            if !seen.insert(file) || identity(path).is_some_and(|file| !seen_files.insert(file)) {
                return refuse("two results would be written to this file: give each a file of its own");
            }
        }
        Ok(())
    }
}

/// Returns the path of a file or folder without links, because it may have several paths. It need not
/// exist.
fn resolved(path: &Path) -> PathBuf {
    let folder = std::fs::canonicalize(folder_of(path));
    let name = path.file_name().unwrap_or_default();
    std::fs::canonicalize(path).unwrap_or_else(|_| folder.unwrap_or_default().join(name))
}

/// Refuses an output below a folder that is an input: it would become a part of the input.
fn not_into_input(folder: &Path, output: &Path, inputs: &[PathBuf]) -> Result<()> {
    let inside = |input: &&PathBuf| input.is_dir() && identity(input) == identity(folder);
    match inputs.iter().find(inside) {
        Some(input) => Err(Usage(format!(
            "{}: all files of the folder {} are read by the same command: write to another folder",
            output.display(),
            input.display()
        ))
        .into()),
        None => Ok(()),
    }
}

/// Checks that the file that a flag names can be written, without changing it.
fn can_write(flag: &str, path: &Path) -> Result<()> {
    let named = format!("{flag} {}", path.display());
    if path == Path::new("-") {
        return Err(Usage(format!("{named}: this cannot be standard output: give a file")).into());
    }
    if path.is_dir() {
        return Err(Usage(format!("{named}: this is a folder: give a file")).into());
    }
    if !folder_of(path).is_dir() {
        let folder = folder_of(path).display();
        return Err(
            Usage(format!("{named}: there is no folder {folder}: create it, or give another file")).into()
        );
    }
    let cannot = || format!("{named}: the file cannot be written");
    if path.exists() {
        std::fs::OpenOptions::new().append(true).open(path).with_context(cannot)?;
    }
    if !is_special(path) {
        Unfinished::file(&resolved(path)).with_context(cannot)?;
    }
    Ok(())
}

/// Whether something exists that is no file and no folder, such as a pipe or a device.
fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

/// The unfinished outputs of this process.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn all_unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the unfinished outputs of this process, which ends while it has the result: no other can be
/// created.
pub(crate) fn remove_unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    let unfinished = all_unfinished();
    unfinished.iter().for_each(|path| remove(path));
    unfinished
}

fn remove(path: &Path) {
    // One of the two fails, and both if it was removed before.
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_dir_all(path);
}

/// A file or folder beside an output, with a hidden name that ends with `.partial`, which takes the
/// place of the output when it is complete. Dropping it removes it. What a killed process has left is
/// removed when the same output is written again.
pub(crate) struct Unfinished {
    path: PathBuf,
    /// The open file or folder. It is locked, so that another process that writes the same output does
    /// not take it for a left one.
    file: File,
}

impl Unfinished {
    /// Creates a file beside an output.
    fn file(output: &Path) -> Result<Self> {
        Self::create(output, |path| File::create_new(path))
    }

    /// Creates a folder beside an output.
    pub(crate) fn folder(output: &Path) -> Result<Self> {
        Self::create(output, |path| {
            std::fs::create_dir(path)?;
            File::open(path)
        })
    }

    fn create(output: &Path, make: impl FnOnce(&Path) -> io::Result<File>) -> Result<Self> {
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let path = folder_of(output).join(format!(".{name}.{}", history::PARTIAL));
        let mut all = all_unfinished();
        if let Ok(left) = File::open(&path) {
            // On a file system without locks, it counts as left.
            if matches!(left.try_lock(), Err(TryLockError::WouldBlock)) {
                bail!("another process is writing it ({}): wait until it has ended", path.display());
            }
            remove(&path);
        }
        let file = make(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let _ = file.try_lock();
        all.insert(path.clone());
        Ok(Self { path, file })
    }

    /// Returns where it is until it is complete.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Moves it to its place.
    pub(crate) fn publish(&self, output: &Path) -> Result<()> {
        std::fs::rename(&self.path, output)
            .with_context(|| format!("cannot rename {} to {}", self.path.display(), output.display()))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mut all = all_unfinished();
        // It is gone if it was published, unless another process has made it again.
        let is_ours = |about: std::fs::Metadata| {
            self.file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (about.dev(), about.ino()))
        };
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            remove(&self.path);
        }
        all.remove(&self.path);
    }
}

/// Creates the folder that a flag names, unless it exists.
pub(crate) fn create_folder(flag: &str, path: &Path) -> Result<()> {
    let named = format!("{flag} {}", path.display());
    if path.exists() && !path.is_dir() {
        return Err(Usage(format!("{named}: this is a file: give a folder")).into());
    }
    std::fs::create_dir_all(path)
        .with_context(|| format!("{named}: the folder cannot be created: give another folder"))
}

/// A folder for histories that appears when the run is complete. Until then they are in a folder
/// beside it, whose name ends with `.partial`.
pub(crate) struct NewHistories {
    folder: PathBuf,
    unfinished: Unfinished,
}

impl NewHistories {
    /// Refuses a folder that is not empty, because a history is of one run.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let cannot =
            || format!("--history {}: the folder cannot be written: give another one", folder.display());
        if folder.exists() {
            let refuse = |why| Err(Usage(format!("--history {}: {why}", folder.display())).into());
            if !folder.is_dir() {
                return refuse("this is a file: give a new folder");
            }
            if std::fs::read_dir(folder).with_context(cannot)?.next().is_some() {
                return refuse("the folder is not empty: give a new one");
            }
        } else {
            std::fs::create_dir_all(folder).with_context(cannot)?;
        }
        let folder = std::fs::canonicalize(folder).with_context(cannot)?;
        let unfinished = Unfinished::folder(&folder).with_context(cannot)?;
        Ok(Self { folder, unfinished })
    }

    /// Returns the folder of the histories before they are complete.
    pub(crate) fn unfinished(&self) -> &Path {
        &self.unfinished.path
    }

    /// Moves the histories to their folder.
    pub(crate) fn publish(self) -> Result<()> {
        self.unfinished.publish(&self.folder)
    }
}

/// Creates the folder for charts with these names. It must not be one of the inputs, and must have no
/// charts that would stay: they are of other runs.
pub(crate) fn create_figures_folder(folder: &Path, inputs: &[PathBuf], names: &[String]) -> Result<()> {
    create_folder("--figures", folder)?;
    not_into_input(folder, folder, inputs)?;
    let unreadable = || format!("--figures {}: the folder cannot be read", folder.display());
    let found = std::fs::read_dir(folder).with_context(unreadable)?.flatten();
    let would_stay = |path: &PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        path.extension().is_some_and(|kind| kind == "svg") && !names.iter().any(|name| *name == stem)
    };
    let mut others: Vec<PathBuf> = found.map(|entry| entry.path()).filter(would_stay).collect();
    others.sort();
    if let Some(other) = others.first() {
        let name = other.file_name().unwrap_or_default().display();
        let why = format!("the folder has {name}, a chart of other runs: give another folder, or remove it");
        return Err(Usage(format!("--figures {}: {why}", folder.display())).into());
    }
    Ok(())
}

/// Returns the names of the files of charts.
pub(crate) fn svg_names(charts: &[String]) -> impl Iterator<Item = String> {
    charts.iter().map(|name| format!("{name}.svg"))
}

/// Writes charts, given by the names of their files without a suffix, with a description of how they
/// were made.
pub(crate) fn write_figures(
    folder: &Path,
    made_by: &str,
    charts: impl IntoIterator<Item = (String, String)>,
) -> Result<()> {
    for (name, chart) in charts {
        write(&folder.join(format!("{name}.svg")), &report::svg::file(&chart, made_by))?;
    }
    Ok(())
}

/// Writes a result. If that fails, the file is as it was.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    write_with(path, |file| Ok(file.write_all(text.as_bytes())?))
}

/// Like [`write()`], with a function that writes the content.
pub(crate) fn write_with(path: &Path, content: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let replace = || {
        if is_special(path) {
            return content(&mut std::fs::OpenOptions::new().append(true).open(path)?);
        }
        // A link remains one.
        let output = resolved(path);
        let mut unfinished = Unfinished::file(&output)?;
        content(&mut unfinished.file)?;
        if let Ok(before) = std::fs::metadata(&output) {
            unfinished.file.set_permissions(before.permissions())?;
        }
        unfinished.file.sync_all()?;
        unfinished.publish(&output)
    };
    replace().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_different_files_and_not_inputs() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [trace, csv, swf] = ["t.tsv", "c.csv", "s.swf"].map(|name| folder.path().join(name));
        std::fs::write(&trace, "1").expect("a working disk");
        let alias = folder.path().join(".").join("t.tsv");
        let [histories, link] = ["hh", "link"].map(|name| folder.path().join(name));
        let [one, new] = ["job_1.jsonl", "job_2.jsonl"].map(|name| histories.join(name));
        std::fs::create_dir(&histories).expect("a working disk");
        std::fs::write(&one, "1").expect("a working disk");
        let check = |outputs: &[&PathBuf]| {
            let outputs: Vec<Option<PathBuf>> = outputs.iter().map(|path| Some((*path).clone())).collect();
            let outputs: Vec<(&str, &Option<PathBuf>)> = outputs.iter().map(|path| ("--csv", path)).collect();
            let inputs = [trace.clone(), histories.clone()];
            Outputs::new(&inputs).files(&outputs).check().map_err(|error| error.to_string())
        };
        assert_eq!(check(&[&csv, &swf]), Ok(()));
        assert!(check(&[&alias]).unwrap_err().contains("is read by the same command"));
        assert!(check(&[&csv, &csv]).unwrap_err().contains("two results would be written"));
        let named = |path: &Path| format!("--csv {}: ", path.display());
        assert_eq!(check(&[&histories]), Err(named(&histories) + "this is a folder: give a file"));
        let nowhere = folder.path().join("no").join("c.csv");
        assert!(check(&[&nowhere]).unwrap_err().starts_with(&(named(&nowhere) + "there is no folder ")));
        for inside in [&one, &new] {
            assert!(check(&[inside]).unwrap_err().contains("are read by the same command"));
        }
        assert!(one.exists() && !new.exists());
        for input in [&trace, &one] {
            std::fs::hard_link(input, &link).expect("a working disk");
            assert!(check(&[&link]).unwrap_err().contains("is read by the same command"));
            std::fs::remove_file(&link).expect("a working disk");
        }
        let charts = create_figures_folder(&histories, std::slice::from_ref(&histories), &[]);
        assert!(charts.unwrap_err().to_string().contains("write to another folder"));
        assert_eq!(std::fs::read_to_string(&trace).expect("it is there"), "1");
    }

    #[test]
    fn outputs_of_all_kinds_are_compared_and_kept_out_of_folders_of_results() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("results/sub")).expect("a working disk");
        std::fs::create_dir(path("paper")).expect("a working disk");
        let (results, paper) = (path("results"), path("paper"));
        let check = |csv: &str| {
            let csv = Some(path(csv));
            let names = svg_names(&["completion".to_owned()]).collect::<Vec<_>>();
            let outputs = Outputs::new(&[]).files(&[("--csv", &csv)]);
            let outputs = outputs.in_folder("--figures", Some(&paper), names);
            outputs.own_folder("--dir", Some(&results)).check().map_err(|error| error.to_string())
        };
        assert_eq!(check("a.csv"), Ok(()));
        assert!(check("paper/./completion.svg").unwrap_err().contains("two results would be written to"));
        for inside in ["results/a.csv", "results/sub/a.csv", "paper/../results/a.csv"] {
            assert!(
                check(inside)
                    .unwrap_err()
                    .ends_with("this is in the folder of --dir: write to another folder")
            );
        }
        std::os::unix::fs::symlink(&results, path("link")).expect("a working disk");
        assert!(check("link/a.csv").is_err());
        let count = |folder: &Path| std::fs::read_dir(folder).expect("a folder").count();
        assert_eq!((count(&results), count(&paper)), (1, 0), "checks leave nothing");
    }

    #[test]
    fn result_replaces_the_file_only_when_it_is_complete() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [file, link, left] = ["f.csv", "link", ".f.csv.partial"].map(|name| folder.path().join(name));
        std::fs::write(&file, "before").expect("a working disk");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).expect("our own file");
        std::os::unix::fs::symlink(&file, &link).expect("a working disk");
        // As on a full disk.
        let half = |file: &mut File| {
            file.write_all(b"half")?;
            bail!("no space")
        };
        let error = write_with(&file, half).expect_err("it fails");
        assert_eq!(format!("{error:#}"), format!("cannot write {}: no space", file.display()));
        let text = || std::fs::read_to_string(&file).expect("it is there");
        assert_eq!((text().as_str(), left.exists()), ("before", false));
        // A killed process has left the beginning of a result.
        std::fs::write(&left, "half").expect("a working disk");
        write(&link, "after").expect("a working disk");
        assert_eq!((text().as_str(), left.exists()), ("after", false));
        assert!(link.is_symlink());
        assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o640);
        // Another process writes the same file.
        let other = Unfinished::file(&file).expect("a working disk");
        let error = format!("{:#}", write(&file, "x").expect_err("in use"));
        assert!(error.contains("another process is writing it") && left.exists(), "{error}");
        drop(other);
        assert_eq!((text().as_str(), left.exists()), ("after", false));
        // A pipe is written to.
        write(Path::new("/dev/null"), "x").expect("it takes everything");
    }

    #[test]
    fn histories_of_a_run_that_ends_early_do_not_appear() {
        let folder = tempfile::tempdir().expect("a folder");
        let (new, file) = (folder.path().join("new"), folder.path().join("file"));
        let names = |folder: &Path| std::fs::read_dir(folder).expect("a folder").count();
        let histories = NewHistories::create(&new).expect("a new folder");
        std::fs::write(histories.unfinished().join("job_1.jsonl"), "x").expect("a working disk");
        assert_eq!((names(&new), names(folder.path())), (0, 2), "the unfinished ones are beside it");
        drop(histories);
        assert_eq!((names(&new), names(folder.path())), (0, 1));
        let histories = NewHistories::create(&new).expect("an empty folder");
        std::fs::write(histories.unfinished().join("job_1.jsonl"), "x").expect("a working disk");
        histories.publish().expect("a working disk");
        assert_eq!((names(&new), names(folder.path())), (1, 1));
        std::fs::write(&file, "x").expect("a working disk");
        let error = NewHistories::create(&file).err().expect("a file").to_string();
        assert!(error.ends_with(": this is a file: give a new folder"), "{error}");
    }
}
