//! Errors of the file system client as errors of a task.

use dfs_client::ClientError;
use mrlib_api::TaskError;

/// The error of a task that could not read or write the distributed file system.
pub(crate) fn dfs_error(error: ClientError) -> TaskError {
    if error.is_unavailable() {
        TaskError::DfsUnavailable(error.into())
    } else {
        TaskError::Dfs(error.into())
    }
}
