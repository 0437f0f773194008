//! Converts the parts of a backup.

use journal::backup::{Part, Parts};
use proto::mr as pb;

/// The first message of a backup.
pub(crate) fn backup_start(parts: &Parts, cluster_id: String) -> pb::BackupChunk {
    let start = pb::BackupStart {
        cluster_id,
        layout: journal::home::LAYOUT,
        journal: parts.journal.into(),
        last_record: parts.last_record,
        bytes: parts.bytes,
    };
    pb::BackupChunk { start: Some(start), ..Default::default() }
}

pub(crate) fn backup_chunk(part: Part) -> pb::BackupChunk {
    let mut chunk = pb::BackupChunk::default();
    match part {
        Part::File(path) => chunk.file = path,
        Part::Data(bytes) => chunk.data = bytes,
        Part::End(files) => chunk.files = files,
    }
    chunk
}
