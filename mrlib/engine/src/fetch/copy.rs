//! Copies a complete map output from another node.

use super::RemoteCheckpoint;
use crate::{
    scratch::disk_failed,
    segment::{Extent, Index},
};
use mrlib_api::TaskError;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// Copies and verifies all partitions of the output at `remote` to the first of these paths whose
/// disk has enough space. `token` returns the token for each partition. The index is next to the
/// output, and is written last.
pub fn copy_output(
    remote: &mut RemoteCheckpoint<'_>,
    partitions: u32,
    token: &dyn Fn(u32) -> Vec<u8>,
    paths: &[PathBuf],
) -> Result<(PathBuf, Index), TaskError> {
    let mut last = TaskError::Program("there is no folder for the copy of a map output".into());
    for path in paths {
        match copy_to(remote, partitions, token, path) {
            Ok(index) => return Ok((path.clone(), index)),
            Err(error) => last = error,
        }
        for path in [&Index::path_of(path), path] {
            // Without its index this is not a map output, and the tracker deletes it later.
            let _ = fs::remove_file(path);
        }
        if !disk_failed(&last) {
            break;
        }
    }
    Err(last)
}

fn copy_to(
    remote: &mut RemoteCheckpoint<'_>,
    partitions: u32,
    token: &dyn Fn(u32) -> Vec<u8>,
    path: &Path,
) -> Result<Index, TaskError> {
    let failed = |verb: &str| TaskError::io(format!("{verb} {}", path.display()));
    let file = File::create(path).map_err(failed("create"))?;
    let mut index = Index { extents: Vec::with_capacity(partitions as usize) };
    let mut offset = 0;
    for partition in 0..partitions {
        remote.token = token(partition);
        let extent = remote.fetch_any_length(partition, &mut |at, bytes| {
            file.write_all_at(bytes, offset + at).map_err(failed("write"))
        })?;
        index.extents.push(Extent { offset, ..extent });
        offset += extent.stored;
    }
    index.write(path)?;
    Ok(index)
}
