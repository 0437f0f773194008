//! Finds the input files of a job. The JobTracker and the programs that sample the input use this
//! code, so that they select the same files.
//!
//! A folder stands for the files in it, except files whose names start with `_` or `.` (unfinished
//! output, hidden files). Subfolders are included only on request. A file that is given by name is
//! always included. A file that several inputs stand for is included once.

use super::{Client, ClientError, FileStatus};
use crate::error::Kind;
use crate::ids::FileId;
use crate::path::{DfsPath, PathError};
use std::collections::HashSet;

/// The input of a job.
#[derive(Debug, Default)]
pub struct Inputs {
    /// The given files and folders, with patterns expanded, without those that an earlier one
    /// includes.
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
    /// There are more than this many files.
    #[error("the input has more than {0} files")]
    TooMany(usize),
    /// A call to the file system failed.
    #[error("input {0}: {1}")]
    Dfs(String, ClientError),
}

fn is_hidden(name: &str) -> bool {
    name.starts_with(['_', '.'])
}

/// The input that was found so far.
struct Search {
    found: Inputs,
    /// The files and folders that were found. Each is listed once, whatever the number of inputs
    /// that stand for it.
    seen: HashSet<FileId>,
    files_max: usize,
}

impl Search {
    /// Adds a file, unless it was found before.
    fn add_file(&mut self, file: FileStatus) -> Result<(), InputError> {
        if self.seen.insert(file.file_id) {
            self.found.files.push(file);
        }
        self.check_count(self.found.files.len())
    }

    fn check_count(&self, count: usize) -> Result<(), InputError> {
        if count > self.files_max { Err(InputError::TooMany(self.files_max)) } else { Ok(()) }
    }
}

impl Client {
    /// Finds all input files of a job. Fails if there are more than `files_max`, empty files
    /// included.
    pub async fn find_inputs(
        &self,
        inputs: &[String],
        recursive: bool,
        files_max: usize,
    ) -> Result<Inputs, InputError> {
        let mut search = Search { found: Inputs::default(), seen: HashSet::new(), files_max };
        let mut texts = HashSet::new();
        for text in inputs.iter().filter(|text| texts.insert(text.as_str())) {
            for status in self.named_input(text, files_max).await? {
                if search.seen.contains(&status.file_id) {
                    continue;
                }
                search.found.named.push(status.path.clone());
                search.check_count(search.found.named.len())?;
                if status.is_dir {
                    self.add_folder(status, recursive, &mut search).await?;
                } else {
                    search.add_file(status)?;
                }
            }
        }
        Ok(search.found)
    }

    /// Returns the file or folder with the path `text`. If there is none, returns all matches of
    /// `text` as a pattern.
    async fn named_input(&self, text: &str, files_max: usize) -> Result<Vec<FileStatus>, InputError> {
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
        let found = self.glob_at_most(text, files_max).await;
        let found = found.map_err(|error| InputError::Dfs(text.into(), error))?;
        let mut found = found.ok_or(InputError::TooMany(files_max))?;
        found.retain(|status| wants_hidden || !is_hidden(status.path.name()));
        if found.is_empty() {
            return Err(InputError::NoMatch(text.into()));
        }
        Ok(found)
    }

    /// Adds the files of a folder, unless it was found before.
    async fn add_folder(
        &self,
        folder: FileStatus,
        recursive: bool,
        search: &mut Search,
    ) -> Result<(), InputError> {
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            if !search.seen.insert(folder.file_id) {
                continue;
            }
            let mut subfolders = Vec::new();
            let mut pages = self.pages(&folder.path);
            let failed = |error| InputError::Dfs(folder.path.to_string(), error);
            while let Some(page) = pages.next().await.map_err(failed)? {
                for entry in page.into_iter().filter(|entry| !is_hidden(entry.path.name())) {
                    if !entry.is_dir {
                        search.add_file(entry)?;
                    } else if recursive {
                        subfolders.push(entry);
                        search.check_count(folders.len() + subfolders.len())?;
                    }
                }
            }
            folders.extend(subfolders.into_iter().rev());
        }
        Ok(())
    }
}
