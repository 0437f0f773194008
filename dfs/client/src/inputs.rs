//! Finds the input files of a job. The JobTracker and the programs that sample the input use this
//! code, so that they select the same files.
//!
//! A folder stands for the files in it, except files whose names start with `_` or `.` (unfinished
//! output, hidden files). Subfolders are included only on request. A file that is given by name is
//! always included.

use super::{Client, ClientError, FileStatus};
use crate::error::Kind;
use crate::path::{DfsPath, PathError};

/// The input of a job.
#[derive(Debug, Default)]
pub struct Inputs {
    /// The given files and folders, with patterns expanded.
    pub named: Vec<DfsPath>,
    /// All files to read, in the order of the given names. The files of a folder are sorted by
    /// name.
    pub files: Vec<FileStatus>,
}

/// Why an input cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The input is not a valid path.
    #[error("input {0:?}: {1}")]
    Path(String, PathError),
    /// The file or folder does not exist.
    #[error("input {0} does not exist in the file system")]
    Missing(String),
    /// The pattern matches no file.
    #[error("input pattern {0} matches no file in the file system")]
    NoMatch(String),
    /// A call to the file system failed.
    #[error("input {0}: {1}")]
    Dfs(String, ClientError),
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['_', '.'])
}

impl Client {
    /// Finds all input files of a job.
    pub async fn find_inputs(&self, inputs: &[String], recursive: bool) -> Result<Inputs, InputError> {
        let mut found = Inputs::default();
        for text in inputs {
            for status in self.named_input(text).await? {
                found.named.push(status.path.clone());
                if status.is_dir {
                    self.files_in(&status.path, recursive, &mut found.files).await?;
                } else {
                    found.files.push(status);
                }
            }
        }
        Ok(found)
    }

    /// Returns the file or folder with the path `text`. If there is none, returns all matches of
    /// `text` as a pattern.
    async fn named_input(&self, text: &str) -> Result<Vec<FileStatus>, InputError> {
        let path = DfsPath::parse(text).map_err(|error| InputError::Path(text.into(), error))?;
        match self.stat(&path).await {
            Ok(status) => return Ok(vec![status]),
            Err(error) if error.is(Kind::NotFound) || error.is(Kind::NotDirectory) => {}
            Err(error) => return Err(InputError::Dfs(text.into(), error)),
        }
        if !text.contains(['*', '?', '[', '{']) {
            return Err(InputError::Missing(text.into()));
        }
        let wants_hidden = is_hidden(path.name());
        let found = self.glob(text).await;
        let mut found = found.map_err(|error| InputError::Dfs(text.into(), error))?;
        found.retain(|status| wants_hidden || !is_hidden(status.path.name()));
        if found.is_empty() {
            return Err(InputError::NoMatch(text.into()));
        }
        Ok(found)
    }

    async fn files_in(
        &self,
        folder: &DfsPath,
        recursive: bool,
        files: &mut Vec<FileStatus>,
    ) -> Result<(), InputError> {
        let mut folders = vec![folder.clone()];
        while let Some(folder) = folders.pop() {
            let entries = self.list(&folder).await;
            let entries = entries.map_err(|error| InputError::Dfs(folder.to_string(), error))?;
            let mut subfolders = Vec::new();
            for entry in entries.into_iter().filter(|entry| !is_hidden(entry.path.name())) {
                if !entry.is_dir {
                    files.push(entry);
                } else if recursive {
                    subfolders.push(entry.path);
                }
            }
            folders.extend(subfolders.into_iter().rev());
        }
        Ok(())
    }
}
