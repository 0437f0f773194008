//! The JSON of answers, with the names of Hadoop.

use dfs_client::{FileStatus, LocatedBlock, Quota, Usage};
use serde_json::{Value, json};

/// A file or folder. `suffix` is its name in a listing, or empty. `childrenNum` of a folder is left
/// out, because the NameNode does not report it.
pub(super) fn file_status(status: &FileStatus, suffix: &str) -> Value {
    let mut value = json!({
        "accessTime": status.accessed_ms,
        "blockSize": status.block_size,
        "fileId": status.file_id.0,
        "group": status.group,
        "length": status.length,
        "modificationTime": status.modified_ms,
        "owner": status.owner,
        "pathSuffix": suffix,
        "permission": format!("{:o}", status.mode),
        "replication": status.replication,
        "storagePolicy": 0,
        "type": if status.is_dir { "DIRECTORY" } else { "FILE" },
    });
    if !status.is_dir {
        value["childrenNum"] = 0.into();
    }
    value
}

/// The contents of a file or folder. A folder counts itself.
pub(super) fn content_summary(status: &FileStatus, usage: &Usage) -> Value {
    let (quota, space_quota) = quotas(usage.quota);
    json!({ "ContentSummary": {
        "directoryCount": usage.dirs + u64::from(status.is_dir),
        "ecPolicy": "",
        "fileCount": usage.files,
        "length": usage.bytes,
        "quota": quota,
        "spaceConsumed": usage.space,
        "spaceQuota": space_quota,
        "typeQuota": {},
    }})
}

pub(super) fn quota_usage(status: &FileStatus, usage: &Usage) -> Value {
    let (quota, space_quota) = quotas(usage.quota);
    json!({ "QuotaUsage": {
        "fileAndDirectoryCount": usage.files + usage.dirs + u64::from(status.is_dir),
        "quota": quota,
        "spaceConsumed": usage.space,
        "spaceQuota": space_quota,
        "typeQuota": {},
    }})
}

/// Returns the quotas as numbers; -1 means that there is none.
fn quotas(quota: Option<Quota>) -> (i64, i64) {
    let number = |limit: Option<u64>| limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let quota = quota.unwrap_or_default();
    (number(quota.files), number(quota.space))
}

pub(super) fn block_locations(blocks: &[LocatedBlock]) -> Value {
    let block = |block: &LocatedBlock| {
        let of_nodes = |text: fn(&dfs_client::NodeAddress) -> String| -> Vec<String> {
            block.nodes.iter().map(text).collect()
        };
        json!({
            "cachedHosts": [],
            "corrupt": block.nodes.is_empty() && !block.damaged_on.is_empty(),
            "hosts": of_nodes(|node| node.host.clone()),
            "length": block.length,
            "names": of_nodes(|node| node.data_addr.clone()),
            "offset": block.offset,
            "storageTypes": of_nodes(|_| "DISK".into()),
            "topologyPaths": of_nodes(|node| format!("/{}/{}", node.rack, node.data_addr)),
        })
    };
    let blocks: Vec<Value> = blocks.iter().map(block).collect();
    json!({ "BlockLocations": { "BlockLocation": blocks } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dfs_client::{ids::FileId, path::DfsPath};

    fn status(is_dir: bool) -> FileStatus {
        FileStatus {
            path: DfsPath::parse("/a/b").unwrap(),
            is_dir,
            file_id: FileId(7),
            length: 5,
            replication: 2,
            block_size: 1024,
            owner: "ann".into(),
            group: "staff".into(),
            mode: 0o644,
            modified_ms: 9,
            accessed_ms: 9,
            open: false,
            blocks: 1,
            quota: None,
        }
    }

    #[test]
    fn status_has_the_names_of_hadoop() {
        let value = file_status(&status(false), "b");
        assert_eq!(
            value,
            json!({
                "accessTime": 9, "blockSize": 1024, "childrenNum": 0, "fileId": 7, "group": "staff", "length": 5,
                "modificationTime": 9, "owner": "ann", "pathSuffix": "b", "permission": "644",
                "replication": 2, "storagePolicy": 0, "type": "FILE",
            })
        );
        let folder = file_status(&FileStatus { mode: 0o1777, ..status(true) }, "");
        assert_eq!((&folder["type"], &folder["permission"]), (&json!("DIRECTORY"), &json!("1777")));
        assert!(folder.get("childrenNum").is_none());
    }

    #[test]
    fn folder_counts_itself_and_no_quota_is_minus_one() {
        let usage = Usage { files: 3, dirs: 1, bytes: 10, space: 20, quota: None };
        let summary = &content_summary(&status(true), &usage)["ContentSummary"];
        assert_eq!((&summary["directoryCount"], &summary["quota"]), (&json!(2), &json!(-1)));
        let quota = Some(Quota { files: Some(u64::MAX), space: Some(100) });
        let usage = quota_usage(&status(true), &Usage { quota, ..usage });
        let usage = &usage["QuotaUsage"];
        assert_eq!((&usage["quota"], &usage["spaceQuota"]), (&json!(i64::MAX), &json!(100)));
        assert_eq!(usage["fileAndDirectoryCount"], 5);
    }
}
