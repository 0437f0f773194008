//! Stores the list of all data folders of a daemon in each of these folders, to detect disks that
//! are not mounted.
//!
//! If a disk is not mounted, its mount point is an empty folder. A daemon that used this as a new
//! folder would fill the root file system, and would later find only a part of its data. Therefore
//! each data folder has a file `VOLUMES` with the paths of all data folders. A folder that is in
//! the list of another folder, and has no such file itself, is [vanished](vanished_dirs). After
//! replacing a disk, the operator creates a file `NEW` in its folder, to declare the folder new.
//!
//! Not detected here: the case that all folders are empty, which looks like a first start. `mrctl
//! cluster up` detects it, and so does the NameNode for a DataNode that it knows.

use crate::files::{USUAL, replace};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

const LIST_FILE: &str = "VOLUMES";
const NEW_FILE: &str = "NEW";

fn path_of(dir: &Path) -> String {
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()).to_string_lossy().into_owned()
}

/// Returns the folders among `dirs` that were in use at the last start and are empty now. Changes
/// nothing.
pub fn vanished_dirs(dirs: &[PathBuf]) -> Vec<PathBuf> {
    let lists = dirs.iter().filter_map(|dir| fs::read_to_string(dir.join(LIST_FILE)).ok());
    let known: BTreeSet<String> =
        lists.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let is_gone = |dir: &&PathBuf| {
        known.contains(&path_of(dir)) && !dir.join(LIST_FILE).exists() && !is_declared_new(dir)
    };
    dirs.iter().filter(is_gone).cloned().collect()
}

/// Declares a folder new, and creates it if needed.
pub fn declare_new(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join(NEW_FILE), "")
}

/// Returns whether a folder is declared new. [`forget_declared_new`] removes the declaration.
pub fn is_declared_new(dir: &Path) -> bool {
    dir.join(NEW_FILE).exists()
}

/// Returns the error for a vanished folder, with instructions.
pub fn vanished_error(dir: &Path) -> io::Error {
    let dir = dir.display();
    io::Error::other(format!(
        "it was in use at the last start and is empty now: mount its disk, or create the file {dir}/{NEW_FILE} if the \
         disk was replaced by an empty one"
    ))
}

/// Writes the list `dirs` to each folder in `usable`. If a folder cannot be written, logs a
/// warning; the next start finds the list in the other folders.
///
/// A DataNode calls [`forget_declared_new`] only after the NameNode has accepted it.
pub fn write_list<'a>(dirs: &[PathBuf], usable: impl IntoIterator<Item = &'a Path>) {
    let list: String = dirs.iter().map(|dir| path_of(dir) + "\n").collect();
    for folder in usable {
        let path = folder.join(LIST_FILE);
        let is_current = fs::read_to_string(&path).is_ok_and(|text| text == list);
        if !is_current && let Err(error) = replace(&path, list.as_bytes(), USUAL, true) {
            tracing::warn!(path = %path.display(), %error, "cannot write the list of data folders");
        }
    }
}

/// Removes the file `NEW` from each folder that has a list: from now on the folder is in use.
pub fn forget_declared_new<'a>(folders: impl IntoIterator<Item = &'a Path>) {
    for folder in folders.into_iter().filter(|folder| folder.join(LIST_FILE).exists()) {
        match fs::remove_file(folder.join(NEW_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %folder.display(), %error, "cannot remove the file {NEW_FILE}: remove it by hand");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_folder_that_is_empty_is_vanished_until_declared_new() {
        let space = tempfile::tempdir().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| space.path().join(name));
        for dir in [&a, &b] {
            fs::create_dir(dir).unwrap();
        }
        let two = [a.clone(), b.clone()];
        assert_eq!(vanished_dirs(&two), Vec::<PathBuf>::new(), "a first start");
        write_list(&two, two.iter().map(PathBuf::as_path));
        assert_eq!(vanished_dirs(&two), Vec::<PathBuf>::new());
        // A folder that was never used is new, not vanished.
        assert_eq!(vanished_dirs(&[a.clone(), b.clone(), c]), Vec::<PathBuf>::new());
        fs::remove_file(b.join(LIST_FILE)).unwrap();
        assert_eq!(vanished_dirs(&two), std::slice::from_ref(&b));
        // The folder is also vanished if it does not exist, and after a start without it.
        fs::remove_dir(&b).unwrap();
        assert_eq!(vanished_dirs(&two), std::slice::from_ref(&b));
        write_list(&two, [a.as_path()]);
        assert_eq!(vanished_dirs(&two), std::slice::from_ref(&b));
        declare_new(&b).unwrap();
        assert_eq!(vanished_dirs(&two), Vec::<PathBuf>::new());
        forget_declared_new([b.as_path()]);
        assert!(is_declared_new(&b), "b has no list, so it would be reported as vanished again");
        write_list(&two, two.iter().map(PathBuf::as_path));
        assert!(is_declared_new(&b) && b.join(LIST_FILE).exists());
        forget_declared_new([b.as_path()]);
        assert!(!is_declared_new(&b));
        // A folder that is no longer configured is ignored.
        fs::remove_file(b.join(LIST_FILE)).unwrap();
        assert_eq!(vanished_dirs(&[a]), Vec::<PathBuf>::new());
    }
}
