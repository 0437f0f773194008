//! Errors of the file system client as errors of a task.

use dfs_client::ClientError;
use mrlib_api::TaskError;

/// Converts an error of the file system client to the error of a task.
pub(crate) fn dfs_error(error: ClientError) -> TaskError {
    if error.is_unavailable() {
        TaskError::DfsUnavailable(error.into())
    } else {
        TaskError::Dfs(error.into())
    }
}
