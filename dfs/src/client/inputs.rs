//! What the names of a job's input stand for. Whoever samples the input and whoever cuts it must agree on that.
//!
//! A folder stands for the files in it, without those whose names begin with `_` or `.` (output that is not
//! finished, hidden files); folders in it only if that is asked for. A file that is named is taken whatever it is
//! called.

use super::{Client, ClientError, FileStatus};
use crate::error::Kind;
use crate::path::{DfsPath, PathError};

/// What the names stand for: as found, and every file to read.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Files and folders, after patterns have been expanded.
    pub named: Vec<DfsPath>,
    /// In the order of the names, and in a folder by name.
    pub files: Vec<FileStatus>,
}

/// Why a name stands for nothing.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// Not a path.
    #[error("input {0:?}: {1}")]
    Path(String, PathError),
    /// There is no such file or folder.
    #[error("input {0} does not exist in the file system")]
    Missing(String),
    /// A pattern that matches nothing.
    #[error("input pattern {0} matches nothing in the file system")]
    NoMatch(String),
    /// The file system would not say.
    #[error("input {0}: {1}")]
    Dfs(String, ClientError),
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['_', '.'])
}

impl Client {
    /// Finds every file of a job's input.
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

    /// The file or folder of this name, or what matches it as a pattern.
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
            let mut downstream = Vec::new();
            for entry in entries.into_iter().filter(|entry| !is_hidden(entry.path.name())) {
                if !entry.is_dir {
                    files.push(entry);
                } else if recursive {
                    downstream.push(entry.path);
                }
            }
            folders.extend(downstream.into_iter().rev());
        }
        Ok(())
    }
}
