//! Checks values of settings that their types do not check: ranges, and relations between settings.

use super::{
    BLOCK_BYTES_MAX, Config, ConfigError, DataNodeConfig, JobTrackerConfig, NameNodeConfig, SLOTS_MAX,
    TASK_MEMORY_LIMIT_MAX, TASK_MEMORY_MAX, TaskTrackerConfig,
};
use crate::{Bytes, Period, host::is_host_port};
use std::borrow::Cow;

impl Config {
    /// Checks all values. Call this after the flags have overridden the file.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (key, addr) in [
            ("namenode.listen", &self.namenode.listen),
            ("datanode.listen", &self.datanode.listen),
            ("jobtracker.listen", &self.jobtracker.listen),
            ("tasktracker.listen", &self.tasktracker.listen),
            ("gateway.listen", &self.gateway.listen),
        ] {
            if !is_host_port(addr) {
                return refuse(key, format!("{addr:?}"), "must be host:port, the port a number up to 65535");
            }
        }
        self.namenode.check()?;
        self.jobtracker.check()?;
        self.datanode.check()?;
        self.tasktracker.check()?;
        for (key, number) in [
            ("gateway.connections_max", self.gateway.connections_max),
            ("gateway.user_requests_max", self.gateway.user_requests_max),
        ] {
            if number == 0 {
                return refuse(key, "0".into(), "must be at least 1");
            }
        }
        if self.client.deadline.0.is_zero() {
            return refuse("client.deadline", self.client.deadline.to_string(), "must be more than 0");
        }
        if self.client.parallel_blocks == 0 {
            return refuse("client.parallel_blocks", "0".into(), "must be at least 1");
        }
        Ok(())
    }
}

fn refuse(key: &'static str, value: String, why: impl Into<Cow<'static, str>>) -> Result<(), ConfigError> {
    Err(ConfigError::Value { key, value, why: why.into() })
}

impl NameNodeConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let Self { replication, replication_max, block_size, block_size_min, .. } = self;
        if *replication == 0 || replication > replication_max {
            let why = format!("must be at least 1 and at most namenode.replication_max, {replication_max}");
            return refuse("namenode.replication", replication.to_string(), why);
        }
        if block_size < block_size_min || block_size_min.0 == 0 {
            let why = format!("must be at least namenode.block_size_min, {block_size_min}");
            return refuse("namenode.block_size", block_size.to_string(), why);
        }
        if block_size.0 > BLOCK_BYTES_MAX {
            let why = format!("must be at most {}", Bytes(BLOCK_BYTES_MAX));
            return refuse("namenode.block_size", block_size.to_string(), why);
        }
        let Self { copies_max, copies_per_node_max, retry_cache, lease, heartbeat, .. } = self;
        for (key, value, zero) in [
            ("namenode.copies_max", copies_max.to_string(), *copies_max == 0),
            ("namenode.copies_per_node_max", copies_per_node_max.to_string(), *copies_per_node_max == 0),
            ("namenode.retry_cache", retry_cache.to_string(), *retry_cache == 0),
            ("namenode.lease", lease.to_string(), lease.0.is_zero()),
            ("namenode.heartbeat", heartbeat.to_string(), heartbeat.0.is_zero()),
        ] {
            if zero {
                return refuse(key, value, "must be more than 0");
            }
        }
        let keys =
            MemberKeys { member: "namenode.member", join: "namenode.join", advertise: "namenode.advertise" };
        keys.check(self.member, &self.join, &self.advertise)?;
        let Self { dead_after, suspect_after, safemode_threshold, .. } = self;
        if dead_after <= suspect_after {
            let why = "must be longer than namenode.suspect_after";
            return refuse("namenode.dead_after", dead_after.to_string(), why);
        }
        if suspect_after <= heartbeat {
            let why = "must be longer than namenode.heartbeat";
            return refuse("namenode.suspect_after", suspect_after.to_string(), why);
        }
        if !(0.0..=1.0).contains(safemode_threshold) {
            let why = "must be between 0 and 1";
            return refuse("namenode.safemode_threshold", safemode_threshold.to_string(), why);
        }
        Ok(())
    }
}

/// The names of the settings of a member of a group.
struct MemberKeys {
    member: &'static str,
    join: &'static str,
    advertise: &'static str,
}

impl MemberKeys {
    fn check(&self, member: u64, join: &[String], advertise: &str) -> Result<(), ConfigError> {
        if member == 0 && !(join.is_empty() && advertise.is_empty()) {
            let why =
                format!("must be the ID of this member, because {} or {} is set", self.join, self.advertise);
            return refuse(self.member, "0".into(), why);
        }
        let advertised = Some(advertise).filter(|addr| !addr.is_empty()).map(|addr| (self.advertise, addr));
        for (key, addr) in join.iter().map(|addr| (self.join, addr.as_str())).chain(advertised) {
            if !is_host_port(addr) {
                let why = "must be host:port, the port a number up to 65535";
                return refuse(key, format!("{addr:?}"), why);
            }
        }
        Ok(())
    }
}

impl JobTrackerConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let Self { heartbeat, suspect_after, lost_after, launch_timeout, task_timeout, .. } = self;
        let Self { attempts_max, blacklist_after, jobs_max, user_jobs_max, snapshot_bytes, .. } = self;
        for (key, value, zero) in [
            ("jobtracker.heartbeat", heartbeat.to_string(), heartbeat.0.is_zero()),
            ("jobtracker.launch_timeout", launch_timeout.to_string(), launch_timeout.0.is_zero()),
            ("jobtracker.task_timeout", task_timeout.to_string(), task_timeout.0.is_zero()),
            ("jobtracker.attempts_max", attempts_max.to_string(), *attempts_max == 0),
            ("jobtracker.blacklist_after", blacklist_after.to_string(), *blacklist_after == 0),
            ("jobtracker.jobs_max", jobs_max.to_string(), *jobs_max == 0),
            ("jobtracker.user_jobs_max", user_jobs_max.to_string(), *user_jobs_max == 0),
            ("jobtracker.snapshot_bytes", snapshot_bytes.to_string(), snapshot_bytes.0 == 0),
        ] {
            if zero {
                return refuse(key, value, "must be more than 0");
            }
        }
        // Otherwise healthy trackers would be declared suspect or lost between two heartbeats.
        if suspect_after <= heartbeat {
            let why = format!("must be longer than jobtracker.heartbeat, {heartbeat}");
            return refuse("jobtracker.suspect_after", suspect_after.to_string(), why);
        }
        if lost_after <= suspect_after {
            let why = format!("must be longer than jobtracker.suspect_after, {suspect_after}");
            return refuse("jobtracker.lost_after", lost_after.to_string(), why);
        }
        let keys = MemberKeys {
            member: "jobtracker.member",
            join: "jobtracker.join",
            advertise: "jobtracker.advertise",
        };
        keys.check(self.member, &self.join, &self.advertise)?;
        if self.forget_after < *lost_after {
            let why = format!("must be at least jobtracker.lost_after, {lost_after}");
            return refuse("jobtracker.forget_after", self.forget_after.to_string(), why);
        }
        for (key, part) in
            [("jobtracker.slow_start", self.slow_start), ("jobtracker.blacklist_share", self.blacklist_share)]
        {
            if !(0.0..=1.0).contains(&part) {
                return refuse(key, part.to_string(), "must be between 0 and 1");
            }
        }
        Ok(())
    }
}

impl DataNodeConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if self.dirs.is_empty() {
            return refuse("datanode.dirs", "[]".into(), "must have at least one folder");
        }
        if self.transfers_max == 0 {
            return refuse("datanode.transfers_max", "0".into(), "must be at least 1");
        }
        if self.transfer_timeout < Period::millis(100) {
            let value = self.transfer_timeout.to_string();
            return refuse("datanode.transfer_timeout", value, "must be at least 100ms");
        }
        Ok(())
    }
}

impl TaskTrackerConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if self.dirs.is_empty() {
            return refuse("tasktracker.dirs", "[]".into(), "must have at least one folder");
        }
        if self.map_slots == 0 && self.reduce_slots == 0 {
            return refuse("tasktracker.map_slots", "0".into(), "a tracker needs map slots or reduce slots");
        }
        for (key, slots) in
            [("tasktracker.map_slots", self.map_slots), ("tasktracker.reduce_slots", self.reduce_slots)]
        {
            if slots > SLOTS_MAX {
                return refuse(key, slots.to_string(), format!("must be at most {SLOTS_MAX}"));
            }
        }
        if !(Bytes::mib(1)..=TASK_MEMORY_MAX).contains(&self.task_memory) {
            let (value, why) = (self.task_memory.to_string(), "must be at least 1MiB and at most");
            return refuse("tasktracker.task_memory", value, format!("{why} {TASK_MEMORY_MAX}"));
        }
        if self.task_memory_max > TASK_MEMORY_LIMIT_MAX {
            let value = self.task_memory_max.to_string();
            let why = format!("must be at most {TASK_MEMORY_LIMIT_MAX}");
            return refuse("tasktracker.task_memory_max", value, why);
        }
        if self.memory_limit() < self.task_memory {
            let value = self.task_memory_max.to_string();
            return refuse("tasktracker.task_memory_max", value, "must be at least task_memory, or 0");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_for(text: &str) -> String {
        let config: Config = toml::from_str(text).expect("valid TOML");
        config.check().expect_err(text).to_string()
    }

    #[test]
    fn invalid_namenode_settings_are_rejected_with_their_name() {
        let error = error_for("[namenode]\nreplication = 0\n");
        assert!(error.starts_with("namenode.replication = 0: "), "{error}");
        for (key, value) in [
            ("copies_max", "0"),
            ("copies_per_node_max", "0"),
            ("retry_cache", "0"),
            ("lease", "\"0s\""),
            ("heartbeat", "\"0s\""),
        ] {
            let error = error_for(&format!("[namenode]\n{key} = {value}\n"));
            assert!(error.starts_with(&format!("namenode.{key} = ")), "{error}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_rejected_with_their_name() {
        for (settings, begins) in [
            ("[namenode]\nblock_size = \"99999TiB\"", "namenode.block_size = "),
            ("[namenode]\njoin = [\"a:1\"]", "namenode.member = 0: must be the ID"),
            ("[namenode]\nmember = 2\njoin = [\"a:1\", \"b\"]", "namenode.join = \"b\": must be host:port"),
            ("[jobtracker]\nadvertise = \"a:1\"", "jobtracker.member = 0: must be the ID"),
            (
                "[jobtracker]\nmember = 2\nadvertise = \"b\"",
                "jobtracker.advertise = \"b\": must be host:port",
            ),
            ("[client]\ndeadline = \"0s\"", "client.deadline = 0s"),
            ("[client]\nparallel_blocks = 0", "client.parallel_blocks = 0"),
            ("[datanode]\ndirs = []", "datanode.dirs = []"),
            ("[datanode]\ntransfers_max = 0", "datanode.transfers_max = 0"),
            ("[datanode]\ntransfer_timeout = \"1ms\"", "datanode.transfer_timeout = 1ms"),
            ("[tasktracker]\nmap_slots = 0\nreduce_slots = 0", "tasktracker.map_slots = 0"),
            ("[tasktracker]\nmap_slots = 10001", "tasktracker.map_slots = 10001: must be at most 10000"),
            (
                "[tasktracker]\nreduce_slots = 99999",
                "tasktracker.reduce_slots = 99999: must be at most 10000",
            ),
            ("[tasktracker]\ntask_memory = \"1KiB\"", "tasktracker.task_memory = 1"),
            (
                "[tasktracker]\ntask_memory = \"2TiB\"",
                "tasktracker.task_memory = 2TiB: must be at least 1MiB and at most 1TiB",
            ),
            (
                "[tasktracker]\ntask_memory_max = \"17TiB\"",
                "tasktracker.task_memory_max = 17TiB: must be at most",
            ),
        ] {
            let error = error_for(settings);
            assert!(error.starts_with(begins), "{error}");
        }
    }

    #[test]
    fn invalid_jobtracker_settings_are_rejected_with_their_name() {
        for (settings, key) in [
            ("heartbeat = \"5s\"", "suspect_after = 3s"),
            ("suspect_after = \"10s\"", "lost_after = 10s"),
            ("heartbeat = \"0s\"", "heartbeat = 0"),
            ("slow_start = 2.0", "slow_start = 2"),
            ("blacklist_share = -0.5", "blacklist_share = -0.5"),
            ("attempts_max = 0", "attempts_max = 0"),
            ("snapshot_bytes = \"0B\"", "snapshot_bytes = 0"),
        ] {
            let error = error_for(&format!("[jobtracker]\n{settings}\n"));
            assert!(error.starts_with(&format!("jobtracker.{key}")), "{error}");
        }
        let text = "[jobtracker]\nheartbeat = \"5s\"\nsuspect_after = \"15s\"\nlost_after = \"40s\"\n";
        toml::from_str::<Config>(text).expect("valid TOML").check().expect("valid values");
    }
}
