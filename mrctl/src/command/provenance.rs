//! How a result of a simulation was made: part of every JSON, CSV and HTML file.

use anyhow::{Context, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
};

/// A file or folder that a result depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct InputFile {
    /// The path as it was given.
    pub(crate) path: String,
    /// Of the content of a file. Of a folder, it is that of the output of `LC_ALL=C sha256sum *` in it.
    pub(crate) sha256: String,
}

/// The command, the version and the files that a result was made with.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Provenance {
    /// The command line.
    pub(crate) command: String,
    /// The version of `mrctl`.
    pub(crate) version: &'static str,
    /// The commit that `mrctl` was built from: `unknown` without a repository, and with the suffix
    /// `+changes` if there were changes that were not committed.
    pub(crate) commit: &'static str,
    /// The files that were read: workload, cluster, profiles and faults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<InputFile>,
    /// How the bytes of traces were scaled. JSON has it as numbers, with the size of the workload.
    #[serde(skip)]
    pub(crate) scales: Vec<String>,
}

impl Provenance {
    pub(crate) fn of_this_process() -> Self {
        let words: Vec<String> = std::env::args_os()
            .skip(1)
            .map(|word| crate::output::shell(std::path::Path::new(&word)))
            .collect();
        Self {
            command: format!("mrctl {}", words.join(" ")),
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("FERMATA_COMMIT"),
            files: Vec::new(),
            scales: Vec::new(),
        }
    }

    /// Adds files and folders with their checksums; each path once.
    pub(crate) fn with_files<'a>(mut self, paths: impl IntoIterator<Item = &'a Path>) -> Result<Self> {
        for path in paths {
            let name = path.display().to_string();
            if self.files.iter().all(|file| file.path != name) {
                let sha256 = sha256(path).with_context(|| format!("cannot read {name}"))?;
                self.files.push(InputFile { path: name, sha256 });
            }
        }
        Ok(self)
    }

    /// Whether the code was exactly that of a commit.
    pub(crate) fn is_of_commit(&self) -> bool {
        self.commit != "unknown" && !self.commit.ends_with("+changes")
    }

    /// Identifies the code: the commit, and the checksum of this executable if the commit does not
    /// determine the code.
    pub(crate) fn code(&self) -> Result<String> {
        if self.is_of_commit() {
            return Ok(self.commit.to_owned());
        }
        let sum = std::env::current_exe().and_then(|path| sha256(&path));
        let sum = sum.context("cannot read the executable of mrctl, which identifies its results")?;
        Ok(format!("{} (executable {})", self.commit, &sum[..12]))
    }

    /// Describes the provenance in one line.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{} (version {}, commit {})", self.command, self.version, self.commit);
        for InputFile { path, sha256 } in &self.files {
            let _ = write!(line, "; SHA-256 of {path}: {sha256}");
        }
        for scale in &self.scales {
            let _ = write!(line, "; {scale}");
        }
        // A command or a name may contain line breaks, but this is a line of a comment.
        line.replace('\n', "\\n").replace('\r', "\\r")
    }
}

/// Returns the checksum of a file or folder in hex.
fn sha256(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    if path.is_dir() {
        let files =
            fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
        let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut files: Vec<(String, PathBuf)> = files.into_iter().map(|file| (name(&file), file)).collect();
        files.retain(|(name, file)| file.is_file() && !name.starts_with('.'));
        files.sort();
        for (name, file) in files {
            hash.update(format!("{}  {name}\n", sha256(&file)?));
        }
    } else {
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        loop {
            let bytes = file.fill_buf()?;
            if bytes.is_empty() {
                break;
            }
            hash.update(bytes);
            let count = bytes.len();
            file.consume(count);
        }
    }
    Ok(hash.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_have_the_checksums_of_sha256sum() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, two) = (folder.path().join("b"), folder.path().join("a"));
        fs::write(&one, "abc").expect("a working disk");
        fs::write(&two, "").expect("a working disk");
        fs::write(folder.path().join(".hidden"), "x").expect("a working disk");
        let made = Provenance::of_this_process();
        let paths = [&*one, folder.path(), &*one];
        let made = made.with_files(paths).expect("they can be read");
        let sums: Vec<&str> = made.files.iter().map(|file| file.sha256.as_str()).collect();
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        // printf abc > b; : > a; sha256sum * | sha256sum
        let of_folder = "bf6e2103d6cbead28abb7d3fec372bc25d03a35b1647e83e090248eb08d0adae";
        assert_eq!(sums, [of_abc, of_folder]);
        assert!(
            made.line().contains(&format!("; SHA-256 of {}: {of_abc}", one.display())),
            "{}",
            made.line()
        );
        // A name with a line break must not end the line of a comment.
        let named = folder.path().join("two\nlines");
        fs::write(&named, "").expect("a working disk");
        let line = Provenance::of_this_process().with_files([&*named]).expect("it can be read").line();
        assert!(line.contains("two\\nlines: ") && line.lines().count() == 1, "{line}");
        let missing = Provenance::of_this_process().with_files([Path::new("missing.tsv")]);
        assert_eq!(missing.expect_err("no such file").to_string(), "cannot read missing.tsv");
    }
}
