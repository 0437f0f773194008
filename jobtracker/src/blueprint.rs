//! What the state and the histories of a JobTracker are made from: its settings, and a journal.
//!
//! They are made when the process starts, and again in a member of a group when its state is
//! replaced: the policy, too, depends on nothing but the facts of the journal.

use crate::{
    history::{Histories, Limits},
    policy::{Policies, make_policies},
    storage::{self, HISTORY_FOLDER, StorageError},
};
use daemon::config::{Config, ConfigError, JobTrackerConfig, SchedulerConfig};
use mrcore::{JobTracker, Span, Time, history::Policy};
use replication::replay::Replay;
use schedulers::{Params, timed::DecisionTimes};
use std::{path::PathBuf, sync::Arc};

/// The settings of a JobTracker that its state and its histories depend on.
pub(crate) struct Blueprint {
    pub(crate) settings: JobTrackerConfig,
    scheduler: SchedulerConfig,
    pub(crate) params: Params,
    /// Measures how long the policy takes to decide.
    pub(crate) decision_times: Arc<DecisionTimes>,
    /// The folder of the histories.
    pub(crate) histories: PathBuf,
    pub(crate) cluster_id: String,
}

/// The state after a replay.
pub(crate) struct Replayed {
    pub(crate) core: JobTracker,
    /// The time of the newest fact.
    pub(crate) newest: Time,
}

impl Blueprint {
    /// Checks the settings of the policies.
    pub(crate) fn new(config: &Config, cluster_id: String) -> Result<Self, ConfigError> {
        let decision_times = Arc::new(DecisionTimes::default());
        let Policies { params, .. } = make_policies(&config.scheduler, &decision_times)?;
        Ok(Self {
            settings: config.jobtracker.clone(),
            scheduler: config.scheduler.clone(),
            params,
            decision_times,
            histories: config.jobtracker.dir.join(HISTORY_FOLDER),
            cluster_id,
        })
    }

    /// Returns the name of the policy.
    pub(crate) fn scheduler_name(&self) -> &str {
        &self.scheduler.name
    }

    /// Makes a state without facts.
    pub(crate) fn core(&self) -> Result<JobTracker, ConfigError> {
        let Policies { policy, shadow, .. } = make_policies(&self.scheduler, &self.decision_times)?;
        let core = JobTracker::new(core_config(&self.settings), policy);
        Ok(match shadow {
            Some(shadow) => core.with_shadow(shadow),
            None => core,
        })
    }

    /// Opens the folder of the histories.
    pub(crate) fn open_histories(&self) -> Result<Histories, StorageError> {
        let settings = &self.settings;
        let limits = Limits {
            count: settings.histories_kept,
            bytes: settings.history_bytes_max.0,
            user_bytes: settings.user_history_bytes_max.0,
            reserve: settings.disk_reserve.0,
        };
        let policy = Policy { name: self.scheduler.name.clone(), params: self.params.clone() };
        let opened = Histories::open(&self.histories, &self.cluster_id, limits, policy);
        opened.map_err(|source| StorageError::Io { path: self.histories.clone(), source })
    }

    /// Replays a journal into a new state, and into the histories.
    pub(crate) fn replay(
        &self,
        replay: Replay,
        mut core: JobTracker,
    ) -> Result<(Replayed, Histories), StorageError> {
        let mut histories = self.open_histories()?;
        let mut newest = Time(0);
        storage::read_entries(replay, |entry| {
            newest = newest.max(entry.at);
            histories.append(&entry);
            core.replay(&entry).map_err(|error| error.to_string())
        })?;
        histories.finish_replay();
        Ok((Replayed { core, newest }, histories))
    }
}

pub(crate) fn core_config(settings: &JobTrackerConfig) -> mrcore::Config {
    let span = |period: daemon::Period| Span(period.0.as_micros() as u64);
    mrcore::Config {
        suspect_after: span(settings.suspect_after),
        lost_after: span(settings.lost_after),
        forget_after: span(settings.forget_after),
        launch_timeout: span(settings.launch_timeout),
        task_timeout: span(settings.task_timeout),
        preemption_timeout: span(settings.preemption_timeout),
        reduces_max: settings.reduces_max,
        maps_max: settings.maps_max,
        jobs_max: settings.jobs_max,
        user_jobs_max: settings.user_jobs_max,
        user_tasks_max: settings.user_tasks_max,
        disk_reserve_bytes: settings.disk_reserve.0,
        blacklist_after: settings.blacklist_after,
        blacklist_share: settings.blacklist_share,
        straggler_after: span(settings.straggler_after),
        jobs_kept: settings.jobs_kept,
        tasks_kept: settings.tasks_kept,
        ..mrcore::Config::default()
    }
}
