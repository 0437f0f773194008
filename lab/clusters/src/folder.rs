//! The default folder of a local cluster, and the `--dir` flag of commands that mrctl suggests.

use std::path::Path;
use view::output;

/// The default folder of `mrctl up`.
pub const DEFAULT_FOLDER: &str = ".fermata";

/// Returns whether `folder` is the default folder in the current folder, which commands find
/// without `--dir`.
pub(crate) fn is_here(folder: &Path) -> bool {
    let here = std::path::absolute(DEFAULT_FOLDER).ok();
    folder == Path::new(DEFAULT_FOLDER) || std::path::absolute(folder).ok() == here
}

/// Returns the `--dir` flag for `folder` in a suggested command; empty if the command finds it
/// without the flag.
pub fn dir_flag(folder: Option<&Path>) -> String {
    match folder {
        Some(folder) if !is_here(folder) => format!(" --dir {}", output::shell(folder)),
        _ => String::new(),
    }
}
