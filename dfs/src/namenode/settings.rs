//! The settings of the state machine of the NameNode, in milliseconds and bytes.

use super::op::Quota;
use daemon::config::NameNodeConfig;

/// Limits and periods from the section `[namenode]` of `fermata.toml`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub replication: u32,
    pub replication_max: u32,
    pub block_size: u64,
    pub block_size_min: u64,
    pub suspect_after_ms: u64,
    pub dead_after_ms: u64,
    pub lease_ms: u64,
    pub safemode_threshold: f64,
    pub safemode_nodes_min: u32,
    pub copies_max: u32,
    pub copies_per_node_max: u32,
    pub copy_timeout_ms: u64,
    pub orphan_grace_ms: u64,
    pub retry_cache: usize,
    pub dir_entries_max: u64,
    pub default_quota: Quota,
}

impl From<&NameNodeConfig> for Settings {
    fn from(config: &NameNodeConfig) -> Self {
        let ms = |period: daemon::Period| period.0.as_millis() as u64;
        Self {
            replication: config.replication,
            replication_max: config.replication_max,
            block_size: config.block_size.0,
            block_size_min: config.block_size_min.0,
            suspect_after_ms: ms(config.suspect_after),
            dead_after_ms: ms(config.dead_after),
            lease_ms: ms(config.lease),
            safemode_threshold: config.safemode_threshold,
            safemode_nodes_min: config.safemode_nodes_min,
            copies_max: config.copies_max,
            copies_per_node_max: config.copies_per_node_max,
            copy_timeout_ms: ms(config.copy_timeout),
            orphan_grace_ms: ms(config.orphan_grace),
            retry_cache: config.retry_cache,
            dir_entries_max: config.dir_entries_max,
            default_quota: default_quota(config),
        }
    }
}

/// Returns the quota of a new home folder and of `/tmp`. A 0 in the configuration means no limit.
pub(super) fn default_quota(config: &NameNodeConfig) -> Quota {
    let limit = |value: u64| (value > 0).then_some(value);
    Quota { files: limit(config.default_quota_files), space: limit(config.default_quota_space.0) }
}
