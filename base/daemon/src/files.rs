//! Replaces files atomically: writes a temporary file, then renames it.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Suffix of the temporary file.
const TEMPORARY_SUFFIX: &str = ".new";

/// Mode of files that only the owner may read.
pub const PRIVATE: u32 = 0o600;
/// Default mode of files, restricted by the umask.
pub const USUAL: u32 = 0o666;

/// Replaces the file at `path` atomically. The mode is restricted by the umask. Concurrent readers
/// see the old or the new content; with `durable`, so does the next start after a power loss. There
/// must be only one writer at a time.
pub fn replace(path: &Path, bytes: &[u8], mode: u32, durable: bool) -> io::Result<()> {
    let temporary = temporary_path(path);
    // A temporary file that an interrupted write has left may have a different mode, or be a link.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| if durable { file.sync_all() } else { Ok(()) });
    written.and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    match path.parent() {
        Some(folder) if durable && folder.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(folder) if durable => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(TEMPORARY_SUFFIX);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn replaced_file_has_the_new_content_and_no_temporary_file_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("ann.pem"), dir.path().join("ann.pem.new"));
        let left = || fs::read_dir(dir.path()).unwrap().count();
        fs::write(&path, "old").unwrap();
        // An interrupted write has left a temporary file, which is a link.
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "another's").unwrap();
        symlink(&elsewhere, &temporary).unwrap();
        for durable in [false, true] {
            replace(&path, b"new", PRIVATE, durable).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE);
        }
        assert_eq!(fs::read(&elsewhere).unwrap(), b"another's");
        assert_eq!(left(), 2);
        // A failed replacement changes nothing.
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        assert!(replace(&folder, b"x", USUAL, true).is_err());
        assert_eq!(left(), 3);
    }
}
