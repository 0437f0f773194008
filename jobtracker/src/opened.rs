//! The folder of one JobTracker without a group, and what its journal leads to.

use crate::{
    blueprint::{Blueprint, Replayed},
    driver::{DriverParts, FIRST_STATE},
    end::JobTrackerError,
    files::Files,
    history::{Histories, HistoryWriter},
    starts,
    storage::{self, Storage, StorageError},
};
use daemon::config::Config;
use dfs_client::ClientOptions;
use journal::{Log, Recovery};
use replication::master::Journal;

/// The opened folder of one JobTracker, and what its journal leads to.
pub(crate) struct Opened {
    pub(crate) log: Log,
    pub(crate) blueprint: Blueprint,
    pub(crate) replayed: Replayed,
    histories: Histories,
    /// A message for the operator if journal records may have been lost at this start.
    pub(crate) notice: Option<String>,
}

impl Opened {
    /// Opens the folder of one JobTracker without a group.
    pub(crate) fn open(config: &Config, recovery: Recovery) -> Result<Self, JobTrackerError> {
        Self::replay(config, Storage::open(&config.jobtracker.dir, recovery)?)
    }

    /// Replays the journal into a state and the histories.
    pub(crate) fn replay(config: &Config, storage: Storage) -> Result<Self, JobTrackerError> {
        let Storage { log, replay, cluster_id, lost, recovery_requested, recovering } = storage;
        let blueprint = Blueprint::new(config, cluster_id)?;
        let (mut replayed, histories) = blueprint.replay(replay, blueprint.core()?)?;
        let accepted =
            || recovery_requested.then(|| "--recover accepts this journal as the newest".to_owned());
        let notice = lost.or_else(accepted).map(|lost| format!("{lost}: the last records may be lost"));
        if let Some(notice) = &notice {
            tracing::error!("{notice}");
            let Replayed { core, newest } = &mut replayed;
            let entry = storage::skip_ids(&log, core.cluster(), *newest, recovery_requested)?;
            *newest = entry.at;
            let apply_error =
                |error: mrcore::cluster::ApplyError| StorageError::Record { seq: 0, why: error.to_string() };
            core.replay(&entry).map_err(apply_error)?;
        }
        if recovery_requested {
            starts::clear(&config.jobtracker.dir).map_err(StorageError::from)?;
        }
        if let Some(recovering) = recovering {
            recovering.done().map_err(StorageError::from)?;
        }
        tracing::info!(records = log.last_seq(), cluster = blueprint.cluster_id, "journal replayed");
        Ok(Self { log, blueprint, replayed, histories, notice })
    }

    /// Returns what the driver is made from.
    pub(crate) fn into_parts(self, options: ClientOptions) -> Result<DriverParts, JobTrackerError> {
        let Self { log, blueprint, replayed: Replayed { core, newest }, histories, notice } = self;
        let files = Files::new(options, &blueprint.cluster_id);
        let history_writer = HistoryWriter::start(FIRST_STATE, histories)?;
        Ok(DriverParts {
            core,
            journal: Journal::Single(log),
            newest,
            blueprint,
            files,
            history_writer,
            notice,
        })
    }
}
