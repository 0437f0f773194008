//! Paths as the commands of Hadoop write them: URIs, absolute paths, and paths relative to the home
//! folder `/user/NAME`.
//!
//! A URI of the cluster begins with `hdfs:`. Its authority is ignored, because the folder of
//! `mrctl hadoop-home` belongs to one cluster. A URI of this machine begins with `file:`.

use crate::output::Usage;
use anyhow::{Result, bail};
use dfs_client::path::DfsPath;
use std::path::PathBuf;

/// A path or pattern in the cluster, and how its writer has written it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterPath {
    /// As written.
    pub(super) text: String,
    /// The absolute path or pattern.
    pub(super) path: String,
    style: Style,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Style {
    Absolute,
    /// `hdfs://AUTHORITY`.
    Uri(String),
    /// Relative to this folder.
    Relative(String),
}

/// Returns scheme and remainder of a URI.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let letters = |one: char| one.is_ascii_alphanumeric() || "+-.".contains(one);
    (scheme.starts_with(|one: char| one.is_ascii_alphabetic()) && scheme.chars().all(letters))
        .then_some((scheme, rest))
}

/// Returns authority and path after `SCHEME:`.
fn authority(rest: &str) -> (&str, &str) {
    let Some(after) = rest.strip_prefix("//") else { return ("", rest) };
    after.find('/').map_or((after, "/"), |slash| after.split_at(slash))
}

/// Removes `.` and resolves `..`, as far as there is a folder above.
fn normalise(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
        match name {
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

impl ClusterPath {
    /// Parses a path of the user with this name.
    pub(super) fn parse(text: &str, user: &str) -> Result<Self> {
        let home = format!("/user/{user}");
        let (path, style) = match scheme(text) {
            Some(("hdfs" | "viewfs", rest)) if rest.starts_with('/') => {
                let (authority, path) = authority(rest);
                let slashes = if rest.starts_with("//") { "//" } else { "" };
                (path.to_owned(), Style::Uri(format!("hdfs:{slashes}{authority}")))
            }
            Some((scheme, _)) => {
                bail!(Usage(format!("No FileSystem for scheme \"{scheme}\": {text} is not in the cluster")))
            }
            None if text.starts_with('/') => (text.to_owned(), Style::Absolute),
            None => (format!("{home}/{text}"), Style::Relative(home)),
        };
        Ok(Self { text: text.to_owned(), path: normalise(&path), style })
    }

    /// Returns the path; fails if it is not valid.
    pub(super) fn exact(&self) -> Result<DfsPath> {
        Ok(DfsPath::parse(&self.path)?)
    }

    /// Formats a path that belongs to this one in the way in which this one is written.
    pub(super) fn show(&self, path: &DfsPath) -> String {
        match &self.style {
            Style::Absolute => path.to_string(),
            Style::Uri(prefix) => format!("{prefix}{path}"),
            Style::Relative(home) => match path.as_str().strip_prefix(home.as_str()) {
                Some("") => ".".into(),
                Some(rest) if rest.starts_with('/') => rest[1..].into(),
                _ => path.to_string(),
            },
        }
    }
}

/// Returns the local path of a plain path or of a `file:` URI; None for a URI of a cluster.
pub(super) fn local(text: &str) -> Option<PathBuf> {
    match scheme(text) {
        Some(("file", rest)) => Some(authority(rest).1.into()),
        Some((_, rest)) if rest.starts_with('/') => None,
        _ => Some(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shown_as_they_are_written() {
        for (text, path, below) in [
            ("/a/b/", "/a/b", "/a/b/c"),
            ("hdfs:///a//b", "/a/b", "hdfs:///a/b/c"),
            ("hdfs://host:9000/a/./b", "/a/b", "hdfs://host:9000/a/b/c"),
            ("hdfs:/a/b", "/a/b", "hdfs:/a/b/c"),
            ("x", "/user/ada/x", "x/c"),
            (".", "/user/ada", "c"),
            ("../b", "/user/b", "/user/b/c"),
            ("/a*/{b,c}", "/a*/{b,c}", ""),
        ] {
            let parsed = ClusterPath::parse(text, "ada").unwrap();
            assert_eq!(parsed.path, path);
            if !below.is_empty() {
                assert_eq!(parsed.show(&DfsPath::parse(&format!("{path}/c")).unwrap()), below);
            }
        }
        assert_eq!(ClusterPath::parse("", "ada").unwrap().path, "/user/ada");
        assert_eq!(ClusterPath::parse("hdfs://host", "ada").unwrap().path, "/");
        assert!(
            ClusterPath::parse("s3://bucket/a", "ada").unwrap_err().to_string().contains("scheme \"s3\"")
        );
    }

    #[test]
    fn local_paths_are_plain_or_uris() {
        assert_eq!(local("file:///a/b"), Some("/a/b".into()));
        assert_eq!(local("a b"), Some("a b".into()));
        assert_eq!(local("a:b"), Some("a:b".into()));
        assert_eq!(local("hdfs:///a"), None);
    }
}
