//! `fermata.toml`: one file for all daemons, typed, every key with its default.
//!
//! A key that is not known here is refused with its line, so that a misspelt setting never passes for a
//! default. Flags of a daemon go over the file; `--print-config` prints what came out.

mod check;
mod merge;

use crate::{
    Bytes, Period,
    scheduler::{found, found_in},
};
pub use crate::{
    client::ClientConfig,
    scheduler::SchedulerConfig,
    security::{Choice, SecurityConfig},
};
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

/// Everything in `fermata.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What every daemon and client has in common.
    pub cluster: ClusterConfig,
    /// The NameNode.
    pub namenode: NameNodeConfig,
    /// Each DataNode.
    pub datanode: DataNodeConfig,
    /// Programs that read and write files.
    pub client: ClientConfig,
    /// The JobTracker.
    pub jobtracker: JobTrackerConfig,
    /// What runs where.
    pub scheduler: SchedulerConfig,
    /// Each TaskTracker.
    pub tasktracker: TaskTrackerConfig,
    /// Who may do what.
    pub security: SecurityConfig,
}

/// `[cluster]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Where DataNodes and clients find the NameNode, `host:port`.
    pub namenode: String,
    /// Where TaskTrackers and clients find the JobTracker, `host:port`.
    pub jobtracker: String,
    /// Listen on addresses other than loopback although nothing says who the callers are (`[security]` does).
    pub insecure: bool,
}

/// Largest block size that a file may ask for: 1 TiB, so that no sum of lengths overflows.
pub const BLOCK_BYTES_MAX: u64 = 1 << 40;

/// `[namenode]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NameNodeConfig {
    /// Address to serve on, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Folder for the edit log and snapshots.
    pub dir: PathBuf,
    /// Replicas of a new file that does not ask for a number.
    pub replication: u32,
    /// Most replicas a file may ask for.
    pub replication_max: u32,
    /// Block size of a new file that does not ask for one.
    pub block_size: Bytes,
    /// Smallest block size a file may ask for.
    pub block_size_min: Bytes,
    /// A DataNode no heartbeat for this long is suspect: not used for new blocks.
    pub suspect_after: Period,
    /// A DataNode no heartbeat for this long is dead: its replicas are made again elsewhere.
    pub dead_after: Period,
    /// How often DataNodes report when they have nothing to tell.
    pub heartbeat: Period,
    /// A writer no heartbeat for this long has lost its files.
    pub lease: Period,
    /// Part of the blocks that must be reported before safemode ends.
    pub safemode_threshold: f64,
    /// DataNodes that must be reported before safemode ends.
    pub safemode_nodes_min: u32,
    /// Safemode when the edit log's disk has less room than this.
    pub disk_reserve: Bytes,
    /// Copies that repair replication at one time, over the whole cluster.
    pub copies_max: u32,
    /// Copies at one time from or to one DataNode.
    pub copies_per_node_max: u32,
    /// A copy not reported for this long is given up and tried elsewhere.
    pub copy_timeout: Period,
    /// Replicas of unknown blocks are kept this long after safemode before they are deleted.
    pub orphan_grace: Period,
    /// Answers kept to recognise repeated requests, at the most (about 100 bytes each); those of the last ten
    /// minutes are kept, so few of them without load.
    pub retry_cache: usize,
    /// A snapshot is made when the edits since the last one exceed this many bytes.
    pub snapshot_bytes: Bytes,
    /// Entries in one folder, at the most.
    pub dir_entries_max: u64,
    /// Quota of each new home folder `/user/NAME`, and of `/tmp` of a new namespace: files and folders, 0 for no limit.
    /// `mrctl fs quota` shows and changes the quota of a folder that exists.
    pub default_quota_files: u64,
    /// The same for bytes over all replicas, 0 for no limit.
    pub default_quota_space: Bytes,
}

/// `[datanode]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataNodeConfig {
    /// The node's name; the host name if empty.
    pub node: String,
    /// Its rack.
    pub rack: String,
    /// Address of the bulk protocol, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Address that others are told, if it is not the one it listens on.
    pub advertise: String,
    /// Folders for blocks, best one a disk.
    pub dirs: Vec<PathBuf>,
    /// Folder for the socket of short-circuit reads, if readers cannot enter those of `dirs`; the first of `dirs` if
    /// empty.
    pub socket_dir: PathBuf,
    /// Room left free on each disk.
    pub reserve: Bytes,
    /// Bulk connections served at one time.
    pub transfers_max: u32,
    /// A connection silent for this long is dropped.
    pub transfer_timeout: Period,
    /// Bytes a second that the scrubber reads; 0 turns it off.
    pub scrub_rate: Bytes,
    /// Each block is scrubbed once in this time, or as fast as `scrub_rate` allows.
    pub scrub_period: Period,
    /// Distinct bad blocks found in one folder that retire it (its disk is failing); 0 for no limit. The last folder in
    /// service is not retired, but takes no new blocks.
    pub bad_blocks_max: u32,
}

/// `[jobtracker]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobTrackerConfig {
    /// Address to serve on, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Folder for the journal and job history.
    pub dir: PathBuf,
    /// How often trackers speak when they have nothing to tell.
    pub heartbeat: Period,
    /// A tracker no heartbeat for this long gets nothing new.
    pub suspect_after: Period,
    /// A tracker no heartbeat for this long is lost: what it ran runs elsewhere.
    pub lost_after: Period,
    /// A tracker that has been lost for this long is forgotten; `mrctl nodes forget NAME` does it at once.
    pub forget_after: Period,
    /// An attempt that its tracker has not started for this long has failed.
    pub launch_timeout: Period,
    /// An attempt that has not come further for this long has failed.
    pub task_timeout: Period,
    /// An attempt that a policy asks for its slot, to be split or paused, and that still holds it after this long is
    /// killed.
    pub preemption_timeout: Period,
    /// Part of the maps that must be done before a job's reduces may start, unless it says otherwise.
    pub slow_start: f64,
    /// Failures of a task that fail its job, unless it says otherwise.
    pub attempts_max: u32,
    /// Whether stragglers are duplicated, unless a job says otherwise.
    pub speculation: bool,
    /// Most bytes in one split; a file's block size if 0.
    pub split_size: Bytes,
    /// Most reduces a job may ask for.
    pub reduces_max: u32,
    /// Most maps a job may have.
    pub maps_max: u32,
    /// Active jobs, of all users; more are told to come later.
    pub jobs_max: usize,
    /// The same of one user.
    pub user_jobs_max: usize,
    /// Tasks in the jobs of one user that are not over.
    pub user_tasks_max: u64,
    /// Failures of one job on one tracker before the job leaves it alone.
    pub blacklist_after: u32,
    /// Part of the trackers that one job may leave alone.
    pub blacklist_share: f64,
    /// A task is not called a straggler before it has run this long.
    pub straggler_after: Period,
    /// Finished jobs remembered; older ones live on in history alone.
    pub jobs_kept: usize,
    /// Tasks of finished jobs remembered, over all of them.
    pub tasks_kept: usize,
    /// Job histories kept on disk.
    pub histories_kept: usize,
    /// Bytes of all job histories. The oldest are removed first.
    pub history_bytes_max: Bytes,
    /// Bytes of the job histories of one user.
    pub user_history_bytes_max: Bytes,
    /// Room left free on the disk of `dir` for the journal: below it no job is accepted and no history is written, below a
    /// quarter of it no attempt is started.
    pub disk_reserve: Bytes,
    /// A snapshot of the journal is made when it has grown by this much.
    pub snapshot_bytes: Bytes,
}

/// `[tasktracker]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskTrackerConfig {
    /// The node's name; the host name if empty.
    pub node: String,
    /// Its rack.
    pub rack: String,
    /// Address of the shuffle server, `host:port`; port 0 takes a free one.
    pub listen: String,
    /// Folders for map output, spills and logs, best one a disk.
    pub dirs: Vec<PathBuf>,
    /// Maps at a time.
    pub map_slots: u32,
    /// Reduces at a time.
    pub reduce_slots: u32,
    /// Idle task processes kept warm.
    pub warm_tasks: u32,
    /// Memory a task plans its buffers for.
    pub task_memory: Bytes,
    /// Memory a task may take, with all that it starts; its address space may be four times as large. 0 for four
    /// times `task_memory` and 1GiB.
    pub task_memory_max: Bytes,
    /// Files a task may have open.
    pub task_files_max: u64,
    /// A task that prints more than this to stdout or stderr is ended; 0 for no limit.
    pub task_log_max: Bytes,
    /// The account that tasks run as, if the tracker runs as root; `nobody` if empty.
    pub task_user: String,
    /// Let tasks run as root, if the tracker does and there is no `task_user`. Nothing else makes them root's.
    pub tasks_as_root: bool,
    /// Whether tasks are kept to their own folders (by Landlock) and to limits of the system: `auto` if callers must prove
    /// who they are, `on` in any case, `off` never. On a kernel without Landlock a tracker refuses to start with `on`, and
    /// with `auto` if tasks have its own account.
    pub confine: Choice,
    /// Folders that confined tasks may read and run programs from, beside those of the system.
    pub task_reads: Vec<PathBuf>,
    /// Processes and threads that a confined task may have.
    pub task_processes_max: u64,
    /// Logs of attempts kept.
    pub logs_kept: usize,
    /// Tasks are stopped when the JobTracker has not answered for this long, and never later than it gives this tracker up
    /// (`jobtracker.lost_after`); 0 for just before that.
    pub isolation_timeout: Period,
    /// Room left free on each disk.
    pub reserve: Bytes,
}

impl Default for JobTrackerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9500".into(),
            dir: "fermata-data/jobtracker".into(),
            heartbeat: Period::secs(1),
            suspect_after: Period::secs(3),
            lost_after: Period::secs(10),
            forget_after: Period::secs(24 * 3600),
            launch_timeout: Period::secs(30),
            task_timeout: Period::secs(600),
            preemption_timeout: Period::secs(60),
            slow_start: 0.05,
            attempts_max: 4,
            speculation: true,
            split_size: Bytes(0),
            reduces_max: 10_000,
            maps_max: 1_000_000,
            jobs_max: 10_000,
            user_jobs_max: 1000,
            user_tasks_max: 1_000_000,
            blacklist_after: 3,
            blacklist_share: 0.25,
            straggler_after: Period::secs(15),
            jobs_kept: 1000,
            tasks_kept: 100_000,
            histories_kept: 10_000,
            history_bytes_max: Bytes::mib(4096),
            user_history_bytes_max: Bytes::mib(1024),
            disk_reserve: Bytes::mib(256),
            snapshot_bytes: Bytes::mib(64),
        }
    }
}

impl Default for TaskTrackerConfig {
    fn default() -> Self {
        Self {
            node: String::new(),
            rack: "default".into(),
            listen: "127.0.0.1:9501".into(),
            dirs: vec!["fermata-data/tasktracker".into()],
            map_slots: 2,
            reduce_slots: 1,
            warm_tasks: 1,
            task_memory: Bytes::mib(256),
            task_memory_max: Bytes(0),
            task_files_max: 4096,
            task_log_max: Bytes::mib(64),
            task_user: String::new(),
            tasks_as_root: false,
            confine: Choice::Auto,
            task_reads: Vec::new(),
            task_processes_max: 1024,
            logs_kept: 1000,
            isolation_timeout: Period::secs(0),
            reserve: Bytes::mib(64),
        }
    }
}

impl TaskTrackerConfig {
    /// `task_memory_max`, or what it stands for if it is 0.
    pub fn memory_limit(&self) -> Bytes {
        match self.task_memory_max {
            Bytes(0) => Bytes(self.task_memory.0.saturating_mul(4).saturating_add(1 << 30)),
            set => set,
        }
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self { namenode: "127.0.0.1:9400".into(), jobtracker: "127.0.0.1:9500".into(), insecure: false }
    }
}

impl Default for NameNodeConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9400".into(),
            dir: "fermata-data/namenode".into(),
            replication: 2,
            replication_max: 64,
            block_size: Bytes::mib(64),
            block_size_min: Bytes(64 << 10),
            suspect_after: Period::secs(3),
            dead_after: Period::secs(10),
            heartbeat: Period::secs(1),
            lease: Period::secs(60),
            safemode_threshold: 0.999,
            safemode_nodes_min: 0,
            disk_reserve: Bytes::mib(64),
            copies_max: 32,
            copies_per_node_max: 4,
            copy_timeout: Period::secs(120),
            orphan_grace: Period::secs(60),
            retry_cache: 1_000_000,
            snapshot_bytes: Bytes::mib(64),
            dir_entries_max: 10_000_000,
            default_quota_files: 1_000_000,
            default_quota_space: Bytes::mib(1 << 20),
        }
    }
}

impl Default for DataNodeConfig {
    fn default() -> Self {
        Self {
            node: String::new(),
            rack: "default".into(),
            listen: "127.0.0.1:9401".into(),
            advertise: String::new(),
            dirs: vec!["fermata-data/datanode".into()],
            socket_dir: PathBuf::new(),
            reserve: Bytes::mib(256),
            transfers_max: 256,
            transfer_timeout: Period::secs(30),
            scrub_rate: Bytes::mib(8),
            scrub_period: Period::secs(7 * 24 * 3600),
            bad_blocks_max: 50,
        }
    }
}

/// Why a configuration could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has an error at a line.
    #[error("{path}:{line}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        message: String,
    },
    /// A setting makes no sense.
    #[error("{key} = {value}: {why}")]
    Value {
        /// As in the file, `section.key`.
        key: &'static str,
        /// As given.
        value: String,
        /// What is wrong with it.
        why: Cow<'static, str>,
    },
    /// A setting whose meaning only one daemon knows makes none.
    #[error("{why}")]
    Setting {
        /// As in the file, `section.key`.
        key: String,
        /// As given, if that may have been by flag.
        value: Option<String>,
        /// What is wrong, and with what.
        why: String,
    },
}

impl ConfigError {
    /// The same with its line, if it is about a setting in this file.
    #[must_use]
    pub fn found_in(self, path: Option<&Path>) -> Self {
        found_in(self, path)
    }
}

impl Config {
    /// Reads a file; without one, the defaults. A missing file that was named is an error.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse(&text, path)
    }

    /// Reads the text of a file; `path` is for messages, and where relative paths of `[security]` begin.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text[..at].matches('\n').count() + 1;
            ConfigError::Parse { path: path.into(), line, message: error.message().replace('\n', "; ") }
        })?;
        config.scheduler.parameters().map_err(|error| found(error, path, text))?;
        config.security.anchor(path);
        Ok(config)
    }

    /// The whole configuration as a file.
    pub fn print(&self) -> String {
        toml::to_string_pretty(self).expect("the configuration is plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("fermata.toml"))
    }

    #[test]
    fn empty_file_gives_valid_defaults() {
        assert_eq!(parse("").unwrap(), Config::default());
        Config::default().check().unwrap();
    }

    #[test]
    fn tasks_have_a_memory_limit_by_default() {
        let limit = |text: &str| parse(text).unwrap().tasktracker.memory_limit();
        assert_eq!(limit(""), Bytes::mib(2048));
        assert_eq!(limit("[tasktracker]\ntask_memory = \"1GiB\"\n"), Bytes::mib(5 * 1024));
        assert_eq!(limit("[tasktracker]\ntask_memory_max = \"3GiB\"\n"), Bytes::mib(3 * 1024));
    }

    #[test]
    fn display_round_trips() {
        let config = Config::default();
        assert_eq!(parse(&config.print()).unwrap(), config);
        let config =
            parse("[scheduler]\nname = \"fair\"\n[scheduler.fair.pools.\"a.b\"]\nweight = 2\n").unwrap();
        assert_eq!(parse(&config.print()).unwrap(), config);
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error = parse("[namenode]\nreplication = 3\nreplicaton_max = 9\n").unwrap_err().to_string();
        assert!(error.starts_with("fermata.toml:3: unknown field `replicaton_max`"), "{error}");
        let error = parse("\n\n[namenoode]\n").unwrap_err().to_string();
        assert!(error.starts_with("fermata.toml:3: unknown field `namenoode`"), "{error}");
    }

    #[test]
    fn bad_toml_and_bad_values_are_refused_with_their_line() {
        let error = parse("[namenode]\nblock_size = \"64 parrots\"\n").unwrap_err().to_string();
        assert!(error.starts_with("fermata.toml:2: \"64 parrots\" is not a size"), "{error}");
        let error = parse("[namenode\n").unwrap_err().to_string();
        assert!(error.starts_with("fermata.toml:1: "), "{error}");
        let error = parse("[scheduler]\nname = \"fair\"\nshade = \"fcs\"\n").unwrap_err().to_string();
        assert!(error.starts_with("fermata.toml:3: unknown field `shade`"), "{error}");
    }
}
