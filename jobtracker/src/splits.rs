//! Cuts the input files of a job into splits, the ranges that its maps read.
//!
//! [`dfs_client::Client::find_inputs`] expands paths and patterns. Subfolders are included unless
//! the job sets `input.recursive = false`. An empty file gets no split. A split identifies its file
//! by ID and length, so that a map never reads a file that has replaced the original one.

use crate::error::Refusal;
use dfs_client::{Client, FileStatus, InputError, Inputs, LocatedBlock};
use mrcore::job::{InputPin, Split};
use mrlib_api::{
    InputFormat,
    codec::{Codec, Coding, MAGIC_BYTES},
};
use std::{collections::BTreeMap, time::Duration};
use tokio::{task::JoinSet, time::timeout};

/// Maximum number of nodes listed for a split. More nodes do not improve locality.
const SPLIT_NODES_MAX: usize = 3;
/// Maximum number of files whose first bytes are checked at submission. Maps check all files again.
const CHECKED_FILES_MAX: usize = 256;
/// How many files are checked at the same time.
const PARALLEL_CHECKS: usize = 16;
/// Time limit for checking the first bytes of files. Maps check the files that were not read by
/// then.
const CHECKS_TIMEOUT: Duration = Duration::from_secs(5);

/// How input files are cut into splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitOptions {
    /// Bytes in a split; 0 for the block size of the file.
    pub(crate) size: u64,
    /// The input format. With [`InputFormat::WholeFile`] each file is one split.
    pub(crate) format: InputFormat,
    /// The codec. A gzip file is one split.
    pub(crate) codec: Codec,
    /// Whether a map may be split when it is preempted.
    pub(crate) divisible: bool,
    /// Whether to include subfolders.
    pub(crate) recursive: bool,
    /// Maximum number of splits.
    pub(crate) splits_max: usize,
}

/// Finds all input files. Refuses files that are still being written, and more files than a job may
/// have maps. Empty files count too, because the list of them takes memory.
pub(crate) async fn find_inputs(
    client: &Client,
    inputs: &[String],
    split_options: SplitOptions,
) -> Result<Inputs, Refusal> {
    if inputs.is_empty() {
        return Err(Refusal::invalid("job has no input: name at least one file, folder or pattern"));
    }
    let SplitOptions { recursive, splits_max, .. } = split_options;
    let found = client.find_inputs(inputs, recursive, splits_max).await.map_err(|error| match error {
        InputError::TooMany(_) => Refusal::refused(format!(
            "{error}, the limit of a job (jobtracker.maps_max): name fewer files, or join small files into larger ones"
        )),
        InputError::Path(..) => Refusal::invalid(error.to_string()),
        InputError::Missing(_) | InputError::NoMatch(_) => Refusal::not_found(error.to_string()),
        InputError::Dfs(text, error) => Refusal::dfs(&format!("input {text}"), &error),
    })?;
    if let Some(open) = found.files.iter().find(|file| file.open) {
        return Err(Refusal::refused(format!("input {} is still being written: wait for it", open.path)));
    }
    Ok(found)
}

/// Returns how a file is encoded, according to the codec of the job and the name of the file.
fn coding_of(split_options: SplitOptions, file: &FileStatus) -> Result<Coding, Refusal> {
    split_options
        .codec
        .coding_by_name(file.path.as_str())
        .map_err(|error| Refusal::invalid(error.to_string()))
}

/// Refuses compressed input that a map could not decode. All files are checked by name. At most
/// [`CHECKED_FILES_MAX`] files, evenly spread over the input, are also checked by their first
/// bytes. A file that cannot be read now is accepted, because the map checks it again.
pub(crate) async fn check_codecs(
    client: &Client,
    input: &Inputs,
    split_options: SplitOptions,
) -> Result<(), Refusal> {
    let files: Vec<&FileStatus> = input.files.iter().filter(|file| file.length > 0).collect();
    for file in &files {
        coding_of(split_options, file)?;
    }
    if split_options.codec == Codec::None {
        return Ok(());
    }
    let step = files.len().div_ceil(CHECKED_FILES_MAX).max(1);
    let mut unchecked = files.into_iter().step_by(step).cloned();
    let mut reading = JoinSet::new();
    let check = async {
        loop {
            while reading.len() < PARALLEL_CHECKS
                && let Some(file) = unchecked.next()
            {
                let client = client.clone();
                reading.spawn(async move {
                    let mut start = [0; MAGIC_BYTES];
                    let read = match client.open(&file.path).await {
                        Ok(mut reader) => reader.read_at(0, &mut start).await,
                        Err(error) => Err(error),
                    };
                    read.map(|bytes| (file.path.to_string(), start[..bytes].to_vec()))
                });
            }
            match reading.join_next().await {
                None => return Ok(()),
                Some(Ok(Ok((path, start)))) => {
                    let checked = split_options.codec.check_start(&path, split_options.format, &start);
                    checked.map_err(|error| Refusal::invalid(error.to_string()))?;
                }
                Some(_) => {}
            }
        }
    };
    timeout(CHECKS_TIMEOUT, check).await.unwrap_or(Ok(()))
}

/// Cuts all files into splits.
pub(crate) async fn split_inputs(
    client: &Client,
    input: &Inputs,
    split_options: SplitOptions,
) -> Result<Vec<Split>, Refusal> {
    let mut splits = Vec::new();
    for file in input.files.iter().filter(|file| file.length > 0) {
        let size = if split_options.size > 0 { split_options.size } else { file.block_size.max(1) };
        let coding = coding_of(split_options, file)?;
        let is_one_split = split_options.format == InputFormat::WholeFile || coding == Coding::Gzip;
        let size = if is_one_split { file.length } else { size };
        if splits.len() as u64 + file.length / size > split_options.splits_max as u64 {
            return Err(Refusal::refused(format!(
                "job has more than {} maps (jobtracker.maps_max): set a larger split.size",
                split_options.splits_max
            )));
        }
        let located = client.locate(&file.path, 0, file.length).await;
        let (now, blocks) = located.map_err(|error| Refusal::dfs(&format!("input {}", file.path), &error))?;
        if now.file_id != file.file_id || now.length < file.length {
            let path = &file.path;
            return Err(Refusal::refused(format!(
                "input {path} was replaced just now: submit the job again"
            )));
        }
        let pin = InputPin { file: file.file_id.0, length: file.length };
        for (start, end) in split_ranges(file.length, size) {
            let hosts = hosts_of_range(&blocks, start, end);
            let divisible = split_options.divisible && !is_one_split;
            splits.push(Split { source: file.path.to_string(), start, end, divisible, hosts, pin });
        }
    }
    Ok(splits)
}

/// Returns the start and the end of each split of a file: ranges of `size` bytes. The last range
/// may be up to a tenth longer, so that no map is started for a few bytes.
fn split_ranges(length: u64, size: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let left = length - start;
        if left == 0 {
            return None;
        }
        let take = if left.saturating_mul(10) > size.saturating_mul(11) { size } else { left };
        let range = (start, start + take);
        start += take;
        Some(range)
    })
}

/// Returns the hosts with the most bytes of a range, best first. Each node is listed with its node
/// name and with the name of its machine, because a tracker uses one of the two as its host. If
/// several nodes run on one machine, only the node name is unique.
fn hosts_of_range(blocks: &[LocatedBlock], start: u64, end: u64) -> Vec<String> {
    let mut bytes: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for block in blocks {
        let overlap = end.min(block.offset + block.length).saturating_sub(start.max(block.offset));
        for node in block.nodes.iter().filter(|_| overlap > 0) {
            *bytes.entry((&node.node, &node.host)).or_default() += overlap;
        }
    }
    let mut nodes: Vec<_> = bytes.into_iter().collect();
    nodes.sort_by_key(|(name, bytes)| (std::cmp::Reverse(*bytes), *name));
    let mut hosts: Vec<String> = Vec::new();
    for name in nodes.iter().take(SPLIT_NODES_MAX).flat_map(|((node, host), _)| [*node, *host]) {
        if !name.is_empty() && !hosts.iter().any(|host| host == name) {
            hosts.push(name.to_owned());
        }
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;
    use dfs_client::{NodeAddress, ids::BlockId};

    fn ranges(length: u64, size: u64) -> Vec<(u64, u64)> {
        split_ranges(length, size).collect()
    }

    #[test]
    fn last_split_may_be_ten_percent_longer() {
        assert_eq!(ranges(0, 100), []);
        assert_eq!(ranges(1, 100), [(0, 1)]);
        assert_eq!(ranges(110, 100), [(0, 110)]);
        assert_eq!(ranges(111, 100), [(0, 100), (100, 111)]);
        assert_eq!(ranges(310, 100), [(0, 100), (100, 200), (200, 310)]);
        assert_eq!(ranges(3, 1), [(0, 1), (1, 2), (2, 3)]);
    }

    #[test]
    fn ranges_cover_every_byte_of_a_file_exactly_once() {
        for size in 1..40 {
            for length in 0..200 {
                let ranges = ranges(length, size);
                let mut at = 0;
                for (start, end) in &ranges {
                    assert_eq!(*start, at);
                    assert!(end - start <= size * 11 / 10, "{length} by {size}: {ranges:?}");
                    at = *end;
                }
                assert_eq!(at, length);
            }
        }
    }

    #[test]
    fn hosts_are_listed_by_their_bytes_of_the_range_in_descending_order() {
        let node = |name: &str| NodeAddress {
            node: name.into(),
            uuid: String::new(),
            data_addr: String::new(),
            rack: String::new(),
            local_socket: None,
            host: "machine".into(),
            seal: Vec::new(),
        };
        let block = |id, offset, length, names: &[&str]| LocatedBlock {
            block: BlockId(id),
            nonce: dfs_client::ids::Nonce(0),
            offset,
            length,
            nodes: names.iter().map(|name| node(name)).collect(),
            token: security::BlockToken::default(),
            damaged_on: Vec::new(),
        };
        let blocks = [block(1, 0, 100, &["a", "b"]), block(2, 100, 100, &["b", "c"])];
        assert_eq!(hosts_of_range(&blocks, 0, 100), ["a", "machine", "b"]);
        assert_eq!(hosts_of_range(&blocks, 90, 200), ["b", "machine", "c", "a"]);
    }
}
