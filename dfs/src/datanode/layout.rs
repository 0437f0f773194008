//! The names of the files in a data folder. This module does not access the disk.
//!
//! ```text
//! LOCK                    locked by the daemon
//! VERSION                 layout, cluster, node, its last start, last start of the NameNode (toml)
//! VOLUMES                 all data folders of the node (daemon::data_dirs)
//! NEW                     created by an operator for a folder that is expected to be empty;
//!                         removed when the NameNode has accepted the node
//! CLUSTER                 written by `mrctl cluster`: the cluster that it started here
//! local.sock              socket for readers on this machine
//! current/2a/blk_298      a finalised block; the folder is the low byte of the block ID
//! current/2a/blk_298.crc  its checksum file
//! tmp/                    blocks that are being written; emptied at start
//! bad/                    quarantined blocks
//! ```
//!
//! A file belongs to the DataNode only if its name is exactly what the DataNode would write.
//! `blk_007` is therefore a foreign file.

use dfs_client::ids::{BlockId, NodeUuid};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The version of the folder layout that this build reads and writes.
pub(super) const LAYOUT: u32 = 2;
/// Number of folders in `current/`.
pub(super) const SHARDS: u64 = 256;

/// The contents of `VERSION`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) layout: u32,
    pub(super) cluster_id: String,
    pub(super) node_uuid: NodeUuid,
    /// The incarnation of the last start. The next start gets a higher one, even if the clock was
    /// set back.
    #[serde(default)]
    pub(super) incarnation: u64,
    /// The newest start of the NameNode, or leadership in its group, that the DataNode has
    /// acknowledged.
    #[serde(default)]
    pub(super) namenode_start: NameNodeStart,
}

/// Identifies a start of the NameNode by its epoch (0 for none yet) and its ID. The ID is a
/// hexadecimal string because TOML has no unsigned 64-bit integers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct NameNodeStart {
    pub(super) epoch: u64,
    pub(super) start: String,
}

impl NameNodeStart {
    pub(super) fn new(epoch: u64, start: u64) -> Self {
        Self { epoch, start: format!("{start:016x}") }
    }

    /// Returns the ID of the start, or 0, which matches no start, if the stored text is invalid.
    pub(super) fn start(&self) -> u64 {
        u64::from_str_radix(&self.start, 16).unwrap_or(0)
    }
}

/// The layout version in `VERSION`. It is parsed first, because a file of another layout may have
/// different keys.
#[derive(Debug, Deserialize)]
struct LayoutOnly {
    layout: u32,
}

/// Why a `VERSION` file cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum VersionError {
    OtherLayout(u32),
    Malformed(String),
}

impl Version {
    pub(super) fn parse(text: &str) -> Result<Self, VersionError> {
        let malformed = |error: toml::de::Error| VersionError::Malformed(error.message().replace('\n', "; "));
        let LayoutOnly { layout } = toml::from_str(text).map_err(malformed)?;
        if layout != LAYOUT {
            return Err(VersionError::OtherLayout(layout));
        }
        toml::from_str(text).map_err(malformed)
    }

    pub(super) fn print(&self) -> String {
        toml::to_string(self).expect("plain values can be serialised")
    }
}

/// The two files of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilePart {
    Data,
    Sums,
}

/// Returns the name of a file of a block.
pub(super) fn file_name(block: BlockId, part: FilePart) -> String {
    match part {
        FilePart::Data => format!("blk_{}", block.0),
        FilePart::Sums => format!("blk_{}.crc", block.0),
    }
}

/// Returns the block and the part whose [`file_name`] is `text`, or `None` for any other text.
pub(super) fn parse_file_name(text: &str) -> Option<(BlockId, FilePart)> {
    let digits = text.strip_prefix("blk_")?;
    let (digits, part) = match digits.strip_suffix(".crc") {
        Some(digits) => (digits, FilePart::Sums),
        None => (digits, FilePart::Data),
    };
    let block = BlockId(digits.parse().ok()?);
    (file_name(block, part) == text).then_some((block, part))
}

/// Returns the name of the folder in `current/` that contains `block`.
pub(super) fn shard_name(block: BlockId) -> String {
    format!("{:02x}", block.0 % SHARDS)
}

/// Paths in a data folder.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    pub(super) root: PathBuf,
}

impl Paths {
    pub(super) fn current(&self) -> PathBuf {
        self.root.join("current")
    }

    pub(super) fn shard(&self, block: BlockId) -> PathBuf {
        self.current().join(shard_name(block))
    }

    pub(super) fn finalised(&self, block: BlockId, part: FilePart) -> PathBuf {
        self.shard(block).join(file_name(block, part))
    }

    pub(super) fn tmp(&self, block: BlockId, part: FilePart) -> PathBuf {
        self.tmp_dir().join(file_name(block, part))
    }

    pub(super) fn tmp_dir(&self) -> PathBuf {
        self.root.join("tmp")
    }

    pub(super) fn bad(&self, block: BlockId, part: FilePart) -> PathBuf {
        self.bad_dir().join(file_name(block, part))
    }

    pub(super) fn bad_dir(&self) -> PathBuf {
        self.root.join("bad")
    }

    pub(super) fn version(&self) -> PathBuf {
        self.root.join("VERSION")
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_round_trip_and_others_are_rejected() {
        for id in [0, 1, 255, 256, u64::MAX] {
            for part in [FilePart::Data, FilePart::Sums] {
                assert_eq!(parse_file_name(&file_name(BlockId(id), part)), Some((BlockId(id), part)));
            }
        }
        for other in
            ["blk_", "blk_007", "blk_+7", "blk_7.crc2", "blk_7.", "blk_18446744073709551616", "x", "blk_-1"]
        {
            assert_eq!(parse_file_name(other), None, "{other}");
        }
    }

    #[test]
    fn other_layout_and_damaged_version_file_give_different_errors() {
        let node_uuid = NodeUuid(uuid::Uuid::from_u128(5));
        let namenode_start = NameNodeStart::new(3, u64::MAX);
        assert_eq!(namenode_start.start(), u64::MAX);
        let version =
            Version { layout: LAYOUT, cluster_id: "c".into(), node_uuid, incarnation: 7, namenode_start };
        assert_eq!(Version::parse(&version.print()), Ok(version));
        assert_eq!(Version::parse("layout = 3\nshape = \"new\"\n"), Err(VersionError::OtherLayout(3)));
        assert_eq!(Version::parse("layout = 1\n"), Err(VersionError::OtherLayout(1)));
        assert!(matches!(Version::parse("layout = \"x\""), Err(VersionError::Malformed(_))));
        assert!(matches!(Version::parse("layout = 2\n"), Err(VersionError::Malformed(_))));
    }
}
