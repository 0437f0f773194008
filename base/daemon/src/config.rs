//! `fermata.toml`: one typed file for all daemons, with a default for every key.
//!
//! An unknown key is refused with its line, so that a misspelt setting is not silently ignored.
//! Flags of a daemon override the file. `--print-config` prints the result.

mod check;
mod lines;
mod merge;
mod scheduler;

use crate::{Bytes, MasterAddrs, Period};
pub use crate::{
    client::ClientConfig,
    security::{Choice, SecurityConfig},
};
use lines::{with_line, with_line_in};
pub use scheduler::SchedulerConfig;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

/// The contents of `fermata.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Settings of all daemons and clients.
    pub cluster: ClusterConfig,
    /// Settings of the NameNode.
    pub namenode: NameNodeConfig,
    /// Settings of every DataNode.
    pub datanode: DataNodeConfig,
    /// Settings of programs that read and write files.
    pub client: ClientConfig,
    /// Settings of the JobTracker.
    pub jobtracker: JobTrackerConfig,
    /// The scheduling policy and its parameters.
    pub scheduler: SchedulerConfig,
    /// Settings of every TaskTracker.
    pub tasktracker: TaskTrackerConfig,
    /// Settings of the gateway.
    pub gateway: GatewayConfig,
    /// Credentials, admins and permissions.
    pub security: SecurityConfig,
}

/// `[cluster]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterConfig {
    /// Address of the NameNode for DataNodes and clients, `host:port`; a list if there are several.
    pub namenode: MasterAddrs,
    /// Address of the JobTracker for TaskTrackers and clients, `host:port`; a list if there are
    /// several.
    pub jobtracker: MasterAddrs,
    /// Allow daemons to listen on addresses other than loopback although callers do not prove their
    /// identity (no credentials in `[security]`).
    pub insecure: bool,
}

/// Largest block size of a file: 1 TiB, so that no sum of lengths overflows.
pub const BLOCK_BYTES_MAX: u64 = 1 << 40;
/// Maximum number of map slots, and of reduce slots, of a tracker.
pub const SLOTS_MAX: u32 = 10_000;
/// Largest `tasktracker.task_memory`.
const TASK_MEMORY_MAX: Bytes = Bytes::mib(1 << 20);
/// Largest `tasktracker.task_memory_max`.
const TASK_MEMORY_LIMIT_MAX: Bytes = Bytes::mib(16 << 20);

/// `[namenode]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NameNodeConfig {
    /// Address to listen on, `host:port`; port 0 chooses a free port.
    pub listen: String,
    /// Folder for the edit log and snapshots.
    pub dir: PathBuf,
    /// ID of this NameNode in a group of NameNodes, which no other has ever had; 0 for one NameNode
    /// without a group.
    pub member: u64,
    /// Addresses of NameNodes of the group that this one joins if its folder is empty. Without one,
    /// an empty folder becomes that of the first member of a new group.
    pub join: Vec<String>,
    /// Address that other members of the group use, if it differs from `listen`.
    pub advertise: String,
    /// Default number of replicas of a new file.
    pub replication: u32,
    /// Maximum number of replicas of a file.
    pub replication_max: u32,
    /// Default block size of a new file.
    pub block_size: Bytes,
    /// Minimum block size of a file.
    pub block_size_min: Bytes,
    /// A DataNode without a heartbeat for this long is suspect and gets no new blocks.
    pub suspect_after: Period,
    /// A DataNode without a heartbeat for this long is dead; its blocks are replicated elsewhere.
    pub dead_after: Period,
    /// Interval of the heartbeats of DataNodes.
    pub heartbeat: Period,
    /// A writer that does not renew its lease for this long loses the right to write its files.
    pub lease: Period,
    /// Fraction of the blocks that must be reported before safemode ends.
    pub safemode_threshold: f64,
    /// Number of DataNodes that must be registered before safemode ends.
    pub safemode_nodes_min: u32,
    /// The NameNode enters safemode if the disk of the edit log has less free space than this.
    pub disk_reserve: Bytes,
    /// Maximum number of concurrent replication copies in the cluster.
    pub copies_max: u32,
    /// Maximum number of concurrent copies from or to one DataNode.
    pub copies_per_node_max: u32,
    /// A copy that is not reported as complete for this long is abandoned and started elsewhere.
    pub copy_timeout: Period,
    /// Replicas of unknown blocks are deleted only this long after the end of safemode.
    pub orphan_grace: Period,
    /// Maximum number of replies in the cache that recognises repeated requests, about 100 bytes
    /// each. Replies are removed after ten minutes.
    pub retry_cache: usize,
    /// A snapshot is made when the edits since the last one exceed this size.
    pub snapshot_bytes: Bytes,
    /// Maximum number of entries of a folder.
    pub dir_entries_max: u64,
    /// Quota of files and folders for each new home folder `/user/NAME`, and for `/tmp` of a new
    /// namespace; 0 for no limit. `mrctl fs quota` shows and changes the quota of an existing
    /// folder.
    pub default_quota_files: u64,
    /// Quota of bytes over all replicas for the same folders; 0 for no limit.
    pub default_quota_space: Bytes,
}

/// `[datanode]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataNodeConfig {
    /// Name of the node; the host name if empty.
    pub node: String,
    /// Rack of the node.
    pub rack: String,
    /// Address of the block protocol, `host:port`; port 0 chooses a free port.
    pub listen: String,
    /// Address that other machines use, if it differs from `listen`.
    pub advertise: String,
    /// Folders for blocks, ideally one per disk.
    pub dirs: Vec<PathBuf>,
    /// Folder for the socket of short-circuit reads, if readers cannot enter the folders in `dirs`;
    /// the first of `dirs` if empty.
    pub socket_dir: PathBuf,
    /// Free space to keep on each disk.
    pub reserve: Bytes,
    /// Maximum number of concurrent connections of the block protocol.
    pub transfers_max: u32,
    /// A connection without traffic for this long is closed.
    pub transfer_timeout: Period,
    /// Bytes per second that the scrubber reads; 0 disables it.
    pub scrub_rate: Bytes,
    /// Time in which the scrubber reads each block once, if `scrub_rate` allows it.
    pub scrub_period: Period,
    /// Number of bad blocks in one folder after which the folder is retired, because its disk is
    /// failing; 0 for no limit. The last folder in service is not retired, but gets no new blocks.
    pub bad_blocks_max: u32,
}

/// `[jobtracker]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobTrackerConfig {
    /// Address to listen on, `host:port`; port 0 chooses a free port.
    pub listen: String,
    /// Folder for the journal and job histories.
    pub dir: PathBuf,
    /// ID of this JobTracker in a group of `JobTrackers`, which no other has ever had; 0 for one
    /// JobTracker without a group.
    pub member: u64,
    /// Addresses of `JobTrackers` of the group that this one joins if its folder is empty. Without one,
    /// an empty folder becomes that of the first member of a new group.
    pub join: Vec<String>,
    /// Address that other members of the group use, if it differs from `listen`.
    pub advertise: String,
    /// Interval of the heartbeats of trackers.
    pub heartbeat: Period,
    /// A tracker without a heartbeat for this long is suspect and gets no new attempts.
    pub suspect_after: Period,
    /// A tracker without a heartbeat for this long is lost; its attempts run elsewhere.
    pub lost_after: Period,
    /// A tracker that has been lost for this long is forgotten. `mrctl nodes forget NAME` forgets
    /// it at once.
    pub forget_after: Period,
    /// An attempt that its tracker has not started for this long has failed.
    pub launch_timeout: Period,
    /// An attempt without progress for this long has failed.
    pub task_timeout: Period,
    /// An attempt that a policy preempts by split or pause is killed if it still has its slot after
    /// this time.
    pub preemption_timeout: Period,
    /// Default fraction of the maps that must be done before the reduces of a job may start.
    pub slow_start: f64,
    /// Default number of failures of a task that fail its job.
    pub attempts_max: u32,
    /// Whether stragglers get speculative attempts by default.
    pub speculation: bool,
    /// Maximum bytes of a split; 0 for the block size of the file.
    pub split_size: Bytes,
    /// Maximum number of reduces of a job.
    pub reduces_max: u32,
    /// Maximum number of maps of a job.
    pub maps_max: u32,
    /// Maximum number of active jobs of all users. Further submissions are refused.
    pub jobs_max: usize,
    /// Maximum number of active jobs of one user.
    pub user_jobs_max: usize,
    /// Maximum number of tasks in the active jobs of one user.
    pub user_tasks_max: u64,
    /// Failures of a job on a tracker after which the job no longer uses the tracker.
    pub blacklist_after: u32,
    /// Maximum fraction of the trackers that a job may blacklist.
    pub blacklist_share: f64,
    /// Minimum run time of an attempt before it counts as a straggler.
    pub straggler_after: Period,
    /// Number of finished jobs in memory. Older jobs are only in the history.
    pub jobs_kept: usize,
    /// Number of tasks of finished jobs in memory, over all jobs.
    pub tasks_kept: usize,
    /// Number of job histories on disk.
    pub histories_kept: usize,
    /// Maximum bytes of all job histories. The oldest are removed first.
    pub history_bytes_max: Bytes,
    /// Maximum bytes of the job histories of one user.
    pub user_history_bytes_max: Bytes,
    /// Free space to keep on the disk of `dir` for the journal. Below it no job is accepted and no
    /// history is written; below a quarter of it no attempt is started.
    pub disk_reserve: Bytes,
    /// A snapshot is made when the journal has grown by this size.
    pub snapshot_bytes: Bytes,
}

/// `[tasktracker]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TaskTrackerConfig {
    /// Name of the node; the host name if empty.
    pub node: String,
    /// Rack of the node.
    pub rack: String,
    /// Address of the shuffle server, `host:port`; port 0 chooses a free port.
    pub listen: String,
    /// Folders for map outputs, spills and logs, ideally one per disk.
    pub dirs: Vec<PathBuf>,
    /// Maximum number of concurrent maps.
    pub map_slots: u32,
    /// Maximum number of concurrent reduces.
    pub reduce_slots: u32,
    /// Number of idle task processes that are started in advance.
    pub warm_tasks: u32,
    /// Memory that a task uses for its buffers.
    pub task_memory: Bytes,
    /// Maximum memory of a task including its child processes; its address space may be four times
    /// as large. 0 for four times `task_memory` plus 1GiB.
    pub task_memory_max: Bytes,
    /// Maximum number of open files of a task.
    pub task_files_max: u64,
    /// A task that prints more than this to stdout or stderr is killed; 0 for no limit.
    pub task_log_max: Bytes,
    /// Account of tasks, if the tracker runs as root; `nobody` if empty.
    pub task_user: String,
    /// Run tasks as root, if the tracker runs as root and `task_user` is empty. Tasks never run as
    /// root without this setting.
    pub tasks_as_root: bool,
    /// Whether tasks are restricted to their own folders (by Landlock) and by resource limits:
    /// `auto` if callers must prove their identity, `on` always, `off` never. On a kernel without
    /// Landlock a tracker refuses to start with `on`, and with `auto` if tasks have the account of
    /// the tracker.
    pub confine: Choice,
    /// Folders that confined tasks may read and execute from, in addition to those of the system.
    pub task_reads: Vec<PathBuf>,
    /// Folders that confined tasks may also write, such as `/tmp`. Tasks of all users share them.
    pub task_writes: Vec<PathBuf>,
    /// Maximum number of processes and threads of a confined task.
    pub task_processes_max: u64,
    /// Number of attempts whose logs are kept.
    pub logs_kept: usize,
    /// Tasks are stopped when the JobTracker has not answered for this long, but never later than
    /// the JobTracker declares this tracker lost (`jobtracker.lost_after`); 0 for just before that.
    pub isolation_timeout: Period,
    /// Free space to keep on each disk.
    pub reserve: Bytes,
}

/// `[gateway]`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// Address to listen on, `host:port`; port 0 chooses a free port.
    pub listen: String,
    /// Folder for the lock of the gateway. It has no data.
    pub dir: PathBuf,
    /// Maximum number of connections; further connections wait.
    pub connections_max: usize,
    /// Maximum number of concurrent requests of one identity.
    pub user_requests_max: usize,
    /// Maximum number of requests of one identity per second; 0 for no limit.
    pub user_request_rate: u32,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9870".into(),
            dir: "fermata-data/gateway".into(),
            connections_max: 1024,
            user_requests_max: 128,
            user_request_rate: 5000,
        }
    }
}

impl Default for JobTrackerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:9500".into(),
            dir: "fermata-data/jobtracker".into(),
            member: 0,
            join: Vec::new(),
            advertise: String::new(),
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
            task_writes: Vec::new(),
            task_processes_max: 1024,
            logs_kept: 1000,
            isolation_timeout: Period::secs(0),
            reserve: Bytes::mib(64),
        }
    }
}

impl TaskTrackerConfig {
    /// Returns `task_memory_max`, or the default that 0 stands for.
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
            member: 0,
            join: Vec::new(),
            advertise: String::new(),
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

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The file has a syntax error or an unknown key.
    #[error("{path}:{line}: {message}")]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// Description of the error.
        message: String,
    },
    /// A setting has an invalid value.
    #[error("{key} = {value}: {why}")]
    Value {
        /// Key as in the file, `section.key`.
        key: &'static str,
        /// Value as given.
        value: String,
        /// Why the value is invalid.
        why: Cow<'static, str>,
    },
    /// A setting that only one daemon can check has an invalid value.
    #[error("{why}")]
    Setting {
        /// Key as in the file, `section.key`.
        key: String,
        /// The invalid value, if a flag may have set it: then a line of the file is reported only
        /// if it has this value.
        value: Option<String>,
        /// Complete description of the error.
        why: String,
    },
}

impl ConfigError {
    /// Adds the line that sets the setting in the configuration file at `path`, if there is one.
    #[must_use]
    pub fn found_in(self, path: Option<&Path>) -> Self {
        with_line_in(self, path)
    }
}

impl Config {
    /// Reads a file; without a path, returns the defaults. A missing file is an error.
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        Self::parse(&text, path)
    }

    /// Parses the text of a file. `path` is used in errors, and relative paths of `[security]`
    /// start at its folder.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text[..at].matches('\n').count() + 1;
            let key =
                text.lines().nth(line - 1).and_then(|text| text.split_once('=')).map(|(key, _)| key.trim());
            let message = explain_parse_error(&error.message().replace('\n', "; "), key);
            ConfigError::Parse { path: path.into(), line, message }
        })?;
        config.scheduler.parameters().map_err(|error| with_line(error, path, text))?;
        config.security.make_paths_absolute(path);
        Ok(config)
    }

    /// Returns the complete configuration as TOML.
    pub fn print(&self) -> String {
        toml::to_string_pretty(self).expect("the configuration is plain data")
    }
}

/// Makes a message of the parser plain: suggests a similar name instead of listing all names, and
/// describes the accepted values instead of a Rust type.
fn explain_parse_error(message: &str, key: Option<&str>) -> String {
    if let Some((unknown, expected)) = message.split_once(", expected ")
        && let Some(name) = unknown.strip_prefix("unknown field `").and_then(|rest| rest.strip_suffix('`'))
    {
        let names = expected.split('`').skip(1).step_by(2);
        let sections = toml::Table::try_from(Config::default()).unwrap_or_default();
        if sections.get("cluster").and_then(|cluster| cluster.get(name)).is_some() {
            return format!("{unknown}: it is a setting of the section `[cluster]`");
        }
        // At the top level the name of a section is no unknown field.
        if sections.contains_key(name) {
            return format!("{unknown}: its settings are in the section `[{name}]`");
        }
        return match types::spelling::nearest(name, names) {
            Some(near) => format!("{unknown}: did you mean `{near}`?"),
            None => message.to_owned(),
        };
    }
    let Some((given, expected)) =
        message.split_once(", expected ").filter(|_| message.starts_with("invalid "))
    else {
        return message.to_owned();
    };
    let range = match (expected, key) {
        _ if !given.starts_with("invalid value: integer") => None,
        (_, Some(key)) if key.ends_with("map_slots") || key.ends_with("reduce_slots") => Some(SLOTS_MAX),
        ("u8", _) => Some(u8::MAX.into()),
        ("u16", _) => Some(u16::MAX.into()),
        ("u32", _) => Some(u32::MAX),
        _ => None,
    };
    let range = range.map(|max| format!("a whole number, at most {max}"));
    let expected = match expected {
        _ if range.is_some() => range.as_deref().unwrap_or_default(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        other => other,
    };
    let key = key.map_or(String::new(), |key| format!("{key}: "));
    format!("{key}{given}, expected {expected}")
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
    fn printed_configuration_parses_to_the_same_configuration() {
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
        let error = parse("[namenode]\nreplicaton = 2\n").unwrap_err().to_string();
        assert_eq!(error, "fermata.toml:2: unknown field `replicaton`: did you mean `replication`?");
        let error = parse("[namenode]\nxyzzy_plugh = 2\n").unwrap_err().to_string();
        assert!(error.contains("unknown field `xyzzy_plugh`, expected one of `"), "{error}");
    }

    #[test]
    fn value_of_another_type_is_refused_with_its_setting() {
        let error = parse("[namenode]\nreplication = \"x\"\n").unwrap_err().to_string();
        assert_eq!(
            error,
            "fermata.toml:2: replication: invalid type: string \"x\", expected a whole number that is not negative"
        );
        for (setting, expected) in [
            ("[tasktracker]\nmap_slots = 99999999999", "expected a whole number, at most 10000"),
            ("[namenode]\nreplication = 99999999999", "expected a whole number, at most 4294967295"),
        ] {
            let error = parse(setting).unwrap_err().to_string();
            assert!(error.starts_with("fermata.toml:2: ") && error.ends_with(expected), "{error}");
        }
    }

    #[test]
    fn section_that_is_written_as_a_setting_is_named() {
        let error = parse("[jobtracker]\nscheduler = \"fair\"\n").unwrap_err().to_string();
        let section = "its settings are in the section `[scheduler]`";
        assert_eq!(error, format!("fermata.toml:2: unknown field `scheduler`: {section}"));
        let error = parse("[datanode]\nnamenode = \"n:1\"\n").unwrap_err().to_string();
        let section = "it is a setting of the section `[cluster]`";
        assert_eq!(error, format!("fermata.toml:2: unknown field `namenode`: {section}"));
    }

    #[test]
    fn value_out_of_range_is_refused_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fermata.toml");
        std::fs::write(&path, "[jobtracker]\nattempts_max = 2\nslow_start = 7\n").unwrap();
        let mut config = Config::load(Some(&path)).unwrap();
        let error = config.check().unwrap_err().found_in(Some(&path)).to_string();
        let line = format!("{}:3: ", path.display());
        assert_eq!(error, format!("{line}jobtracker.slow_start = 7: must be between 0 and 1"));
        // A flag has set another value than the file.
        config.jobtracker.slow_start = 8.0;
        let error = config.check().unwrap_err().found_in(Some(&path)).to_string();
        assert_eq!(error, "jobtracker.slow_start = 8: must be between 0 and 1");
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
