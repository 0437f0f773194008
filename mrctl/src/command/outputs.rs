//! The files and folders that experiments write: checks before a run, which takes long, and the writes
//! after it.

use crate::output::Usage;
use anyhow::{Context, Result};
use sim::{report, workload::history};
use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
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

/// Checks that all outputs can be written, each to a file of its own, and neither to an input nor
/// into a folder that is one. Call this before a simulation, which takes long.
/// Each output has its flag.
pub(crate) fn can_write_all(outputs: &[(&str, &Option<PathBuf>)], inputs: &[PathBuf]) -> Result<()> {
    // The same file may have several paths.
    let resolved = |path: &Path| {
        let folder = std::fs::canonicalize(folder_of(path));
        let name = path.file_name().unwrap_or_default();
        std::fs::canonicalize(path).unwrap_or_else(|_| folder.unwrap_or_default().join(name))
    };
    let mut read = BTreeSet::new();
    for input in inputs {
        read.extend(identity(input));
        let inside = std::fs::read_dir(input).into_iter().flatten().flatten();
        read.extend(inside.filter_map(|entry| identity(&entry.path())));
    }
    let (mut seen, mut seen_files) = (BTreeSet::new(), BTreeSet::new());
    let given = outputs.iter().filter_map(|(flag, path)| Some((flag, path.as_ref()?)));
    for (flag, path) in given {
        can_write(flag, path)?;
        let file = resolved(path);
        not_into_input(folder_of(&file), path, inputs)?;
        if identity(path).is_some_and(|file| read.contains(&file)) {
            let why = "this file is read by the same command: write to another file";
            return Err(Usage(format!("{flag} {}: {why}", path.display())).into());
        }
        if !seen.insert(file) || identity(path).is_some_and(|file| !seen_files.insert(file)) {
            let why = "two results would be written to this file: give each a file of its own";
            return Err(Usage(format!("{flag} {}: {why}", path.display())).into());
        }
    }
    Ok(())
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
    let was_there = path.exists();
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("{named}: the file cannot be written"))?;
    if !was_there {
        std::fs::remove_file(path).with_context(|| format!("{named}: the file cannot be removed"))?;
    }
    Ok(())
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
/// beside it, whose name ends with `.partial`, and which is removed unless the process is killed.
pub(crate) struct NewHistories {
    folder: PathBuf,
    unfinished: PathBuf,
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
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let name = format!(".{name}.{}.{}", std::process::id(), history::PARTIAL);
        let unfinished = folder_of(&folder).join(name);
        std::fs::create_dir(&unfinished).with_context(|| format!("cannot write {}", unfinished.display()))?;
        Ok(Self { folder, unfinished })
    }

    /// Returns the folder of the histories before they are complete.
    pub(crate) fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    /// Moves the histories to their folder.
    pub(crate) fn publish(self) -> Result<()> {
        std::fs::rename(&self.unfinished, &self.folder)
            .with_context(|| format!("cannot write {}", self.folder.display()))
    }
}

impl Drop for NewHistories {
    fn drop(&mut self) {
        // It is gone if it was published.
        let _ = std::fs::remove_dir_all(&self.unfinished);
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

pub(crate) fn write(path: &PathBuf, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
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
            let checked = can_write_all(&outputs, &[trace.clone(), histories.clone()]);
            checked.map_err(|error| error.to_string())
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
