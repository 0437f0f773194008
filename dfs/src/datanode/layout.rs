//! What lies in a data folder, by name. Pure: nothing here touches a disk.
//!
//! ```text
//! LOCK                    held by the daemon
//! VERSION                 layout number, cluster, node, its last start, the NameNode's last start (toml)
//! VOLUMES                 all data folders of the node (daemon::data_dirs)
//! NEW                     made by an operator: this folder is meant to be empty; removed at start
//! CLUSTER                 written by `mrctl cluster`: the cluster that it started here
//! local.sock              for readers on this machine
//! current/2a/blk_298      a finalised block: xx is the low byte of its id
//! current/2a/blk_298.crc  its checksums
//! tmp/                    blocks being written; emptied at start
//! bad/                    damaged blocks, quarantined
//! ```
//!
//! A name is ours only if it is exactly what we would write: `blk_007` is somebody else's file.

use crate::ids::{BlockId, NodeUuid};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The layout this build writes and reads.
pub(super) const LAYOUT: u32 = 2;
/// Folders below `current/`.
pub(super) const SHARDS: u64 = 256;

/// The contents of `VERSION`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Version {
    pub(super) layout: u32,
    pub(super) cluster_id: String,
    pub(super) node_uuid: NodeUuid,
    /// The last start's: the next one counts on from it, whatever the clock says.
    #[serde(default)]
    pub(super) incarnation: u64,
    /// The start of the NameNode that the node last registered with.
    #[serde(default)]
    pub(super) namenode_start: NameNodeStart,
}

/// A start of the NameNode: its epoch (0 for none yet) and its id, in hexadecimal because toml has no unsigned
/// integers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct NameNodeStart {
    pub(super) epoch: u64,
    pub(super) start: String,
}

impl NameNodeStart {
    pub(super) fn new(epoch: u64, start: u64) -> Self {
        Self { epoch, start: format!("{start:016x}") }
    }

    /// The id of the start. One that does not parse matches no start.
    pub(super) fn start(&self) -> u64 {
        u64::from_str_radix(&self.start, 16).unwrap_or(0)
    }
}

/// Only the layout number: read first, for a newer layout may have other keys.
#[derive(Debug, Deserialize)]
struct LayoutOnly {
    layout: u32,
}

/// Why `VERSION` is of no use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum VersionError {
    Newer(u32),
    Malformed(String),
}

impl Version {
    pub(super) fn parse(text: &str) -> Result<Self, VersionError> {
        let malformed = |error: toml::de::Error| VersionError::Malformed(error.message().replace('\n', "; "));
        let LayoutOnly { layout } = toml::from_str(text).map_err(malformed)?;
        if layout != LAYOUT {
            return Err(VersionError::Newer(layout));
        }
        toml::from_str(text).map_err(malformed)
    }

    pub(super) fn print(&self) -> String {
        toml::to_string(self).expect("plain values")
    }
}

/// Which file of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Data,
    Sums,
}

/// A block's file name.
pub(super) fn name(block: BlockId, part: Part) -> String {
    match part {
        Part::Data => format!("blk_{}", block.0),
        Part::Sums => format!("blk_{}.crc", block.0),
    }
}

/// The reverse of [`name`]; None for any other name.
pub(super) fn parse_name(text: &str) -> Option<(BlockId, Part)> {
    let digits = text.strip_prefix("blk_")?;
    let (digits, part) = match digits.strip_suffix(".crc") {
        Some(digits) => (digits, Part::Sums),
        None => (digits, Part::Data),
    };
    let block = BlockId(digits.parse().ok()?);
    (name(block, part) == text).then_some((block, part))
}

/// The folder of `current/` that holds `block`.
pub(super) fn shard(block: BlockId) -> String {
    format!("{:02x}", block.0 % SHARDS)
}

/// Paths of a data folder.
#[derive(Debug, Clone)]
pub(super) struct Paths {
    pub(super) root: PathBuf,
}

impl Paths {
    pub(super) fn current(&self) -> PathBuf {
        self.root.join("current")
    }

    pub(super) fn shard(&self, block: BlockId) -> PathBuf {
        self.current().join(shard(block))
    }

    pub(super) fn finalised(&self, block: BlockId, part: Part) -> PathBuf {
        self.shard(block).join(name(block, part))
    }

    pub(super) fn tmp(&self, block: BlockId, part: Part) -> PathBuf {
        self.tmp_dir().join(name(block, part))
    }

    pub(super) fn tmp_dir(&self) -> PathBuf {
        self.root.join("tmp")
    }

    pub(super) fn bad(&self, block: BlockId, part: Part) -> PathBuf {
        self.bad_dir().join(name(block, part))
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
            for part in [Part::Data, Part::Sums] {
                assert_eq!(parse_name(&name(BlockId(id), part)), Some((BlockId(id), part)));
            }
        }
        for other in
            ["blk_", "blk_007", "blk_+7", "blk_7.crc2", "blk_7.", "blk_18446744073709551616", "x", "blk_-1"]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }

    #[test]
    fn newer_layout_differs_from_a_damaged_file() {
        let node_uuid = NodeUuid(uuid::Uuid::from_u128(5));
        let namenode_start = NameNodeStart::new(3, u64::MAX);
        assert_eq!(namenode_start.start(), u64::MAX);
        let version =
            Version { layout: LAYOUT, cluster_id: "c".into(), node_uuid, incarnation: 7, namenode_start };
        assert_eq!(Version::parse(&version.print()), Ok(version));
        assert_eq!(Version::parse("layout = 3\nshape = \"new\"\n"), Err(VersionError::Newer(3)));
        assert_eq!(Version::parse("layout = 1\n"), Err(VersionError::Newer(1)));
        assert!(matches!(Version::parse("layout = \"x\""), Err(VersionError::Malformed(_))));
        assert!(matches!(Version::parse("layout = 2\n"), Err(VersionError::Malformed(_))));
    }
}
