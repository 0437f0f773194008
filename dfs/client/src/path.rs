//! A path in the file system: absolute and normalised. It is checked once, when it is parsed.
//!
//! There are no relative paths and no working folder. `.` and `..` are refused and not resolved, so
//! that every file has exactly one path.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum length of a name between two slashes, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a path, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;

/// An absolute path: `/`, or `/name/name` without empty, `.` or `..` names and without a final
/// slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DfsPath(Box<str>);

/// Why a string is not a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path does not start with a slash.
    #[error("path {0:?} is relative: paths in the file system start with /")]
    Relative(String),
    /// The path has `.` or `..` between slashes.
    #[error("path {0:?} contains \"{1}\": give the path without it")]
    Dots(String, &'static str),
    /// The path has a NUL byte or another control character.
    #[error("path {0:?} contains a control character: choose a name without line ends, tabs and the like")]
    Control(String),
    /// A name in the path is too long.
    #[error("path {0:?} has a name of {1} bytes: the limit is {NAME_BYTES_MAX}")]
    NameTooLong(String, usize),
    /// The path is too long.
    #[error("path of {0} bytes is too long: the limit is {PATH_BYTES_MAX}")]
    TooLong(usize),
}

impl DfsPath {
    /// Returns the path of the root folder.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// Checks and normalises a path. Repeated and trailing slashes are removed.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        if text.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong(text.len()));
        }
        if !text.starts_with('/') {
            return Err(PathError::Relative(text.into()));
        }
        let mut clean = String::with_capacity(text.len());
        for name in text.split('/').filter(|name| !name.is_empty()) {
            check_name(text, name)?;
            clean.push('/');
            clean.push_str(name);
        }
        if clean.is_empty() {
            clean.push('/');
        }
        Ok(Self(clean.into()))
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is `/`.
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// Returns the names in the path from the root down. The root itself has none.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// Returns the parent folder and the last name, or `None` for the root.
    pub fn split_last(&self) -> Option<(DfsPath, &str)> {
        if self.is_root() {
            return None;
        }
        let at = self.0.rfind('/')?;
        let parent = if at == 0 { Self::root() } else { Self(self.0[..at].into()) };
        Some((parent, &self.0[at + 1..]))
    }

    /// Returns the last name, or an empty string for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or("")
    }

    /// Returns the path of the entry `name` of this folder.
    pub fn join(&self, name: &str) -> Result<Self, PathError> {
        let path = if self.is_root() { format!("/{name}") } else { format!("{}/{name}", self.0) };
        Self::parse(&path)
    }

    /// Returns whether `self` is `other` or is below it.
    pub fn is_within(&self, other: &DfsPath) -> bool {
        other.is_root()
            || self.0.strip_prefix(&*other.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

fn check_name(text: &str, name: &str) -> Result<(), PathError> {
    match name {
        "." => return Err(PathError::Dots(text.into(), ".")),
        ".." => return Err(PathError::Dots(text.into(), "..")),
        _ => {}
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(PathError::NameTooLong(text.into(), name.len()));
    }
    if name.chars().any(char::is_control) {
        return Err(PathError::Control(text.into()));
    }
    Ok(())
}

impl fmt::Display for DfsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for DfsPath {
    type Err = PathError;
    fn from_str(text: &str) -> Result<Self, PathError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_normalises_slashes() {
        assert_eq!(DfsPath::parse("//a///b/").unwrap().as_str(), "/a/b");
        assert_eq!(DfsPath::parse("///").unwrap(), DfsPath::root());
    }

    #[test]
    fn parse_refuses_invalid_paths() {
        assert!(matches!(DfsPath::parse("a/b"), Err(PathError::Relative(_))));
        assert!(matches!(DfsPath::parse(""), Err(PathError::Relative(_))));
        assert!(matches!(DfsPath::parse("/a/../b"), Err(PathError::Dots(_, ".."))));
        assert!(matches!(DfsPath::parse("/./b"), Err(PathError::Dots(_, "."))));
        assert!(matches!(DfsPath::parse("/a\0b"), Err(PathError::Control(_))));
        let refusal = DfsPath::parse("/a\nb").unwrap_err().to_string();
        assert!(refusal.contains("control character: choose a name without"), "{refusal}");
        assert!(matches!(
            DfsPath::parse(&format!("/{}", "x".repeat(256))),
            Err(PathError::NameTooLong(_, 256))
        ));
        assert!(matches!(DfsPath::parse(&"/x".repeat(3000)), Err(PathError::TooLong(6000))));
    }

    #[test]
    fn path_splits_into_parent_and_name_and_joins_names() {
        let path = DfsPath::parse("/a/b").unwrap();
        let (parent, name) = path.split_last().unwrap();
        assert_eq!((parent.as_str(), name), ("/a", "b"));
        assert_eq!(parent.join("c").unwrap().as_str(), "/a/c");
        assert!(parent.join("../c").is_err());
        assert_eq!(DfsPath::root().split_last(), None);
        assert_eq!(DfsPath::root().names().count(), 0);
    }

    #[test]
    fn is_within_compares_complete_names() {
        let path = |text| DfsPath::parse(text).unwrap();
        assert!(path("/a/b").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/a")));
        assert!(path("/a").is_within(&path("/")));
        assert!(!path("/ab").is_within(&path("/a")));
    }
}
