//! Files that are there whole, or as they were before: written aside, then renamed.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// What follows a file's name while it is being written.
const TEMPORARY_SUFFIX: &str = ".new";

/// For its owner alone.
pub const PRIVATE: u32 = 0o600;
/// As any file: the umask says who may read it.
pub const USUAL: u32 = 0o666;

/// Puts a file of these bytes and this mode, as far as the umask lets it, in the place of `path`. Who reads meanwhile sees
/// the old one or the new one; so does, if it is `durable`, the next start after a power cut. For one writer at a time.
pub fn replace(path: &Path, bytes: &[u8], mode: u32, durable: bool) -> io::Result<()> {
    let temporary = temporary_path(path);
    // What an end in the middle has left may have another mode, or be a link.
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
    fn replace_is_atomic_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, temporary) = (dir.path().join("ann.pem"), dir.path().join("ann.pem.new"));
        let left = || fs::read_dir(dir.path()).unwrap().count();
        fs::write(&path, "old").unwrap();
        // Somebody died here, and somebody else has laid a link.
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
        // One that cannot take its place leaves all as it was.
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        assert!(replace(&folder, b"x", USUAL, true).is_err());
        assert_eq!(left(), 3);
    }
}
