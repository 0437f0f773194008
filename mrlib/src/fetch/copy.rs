//! Copies a whole map output from another node.

use super::RemoteCheckpoint;
use crate::{
    engine::disk_failed,
    error::TaskError,
    segment::{Extent, Index},
};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

/// Copies all partitions of the output that `remote_checkpoint` leads to, verified, to the first of these paths whose disk takes it.
/// Each is opened by what `token` gives for it. The index is beside it, and is written last.
pub fn copy_output(
    ship: &mut RemoteCheckpoint<'_>,
    partitions: u32,
    token: &dyn Fn(u32) -> Vec<u8>,
    places: &[PathBuf],
) -> Result<(PathBuf, Index), TaskError> {
    let mut last = TaskError::Program("there is no place for a copy of a map output".into());
    for path in places {
        match copy_to(ship, partitions, token, path) {
            Ok(index) => return Ok((path.clone(), index)),
            Err(error) => last = error,
        }
        for path in [&Index::path_of(path), path] {
            // Without its index it is none, and is cleared away in the end.
            let _ = fs::remove_file(path);
        }
        if !disk_failed(&last) {
            break;
        }
    }
    Err(last)
}

fn copy_to(
    ship: &mut RemoteCheckpoint<'_>,
    partitions: u32,
    token: &dyn Fn(u32) -> Vec<u8>,
    path: &Path,
) -> Result<Index, TaskError> {
    let failed = |verb: &str| TaskError::io(format!("{verb} {}", path.display()));
    let file = File::create(path).map_err(failed("create"))?;
    let mut index = Index { extents: Vec::with_capacity(partitions as usize) };
    let mut offset = 0;
    for partition in 0..partitions {
        ship.token = token(partition);
        let coming = ship.any(partition, &mut |at, bytes| {
            file.write_all_at(bytes, offset + at).map_err(failed("write"))
        })?;
        index.extents.push(Extent { offset, ..coming });
        offset += coming.stored;
    }
    index.write(path)?;
    Ok(index)
}
