//! Makes the scheduling policy and the shadow policy that are configured, with their parameters.

use daemon::config::{Config, ConfigError, SchedulerConfig};
use mrcore::Scheduler;
use schedulers::{
    Params, PolicyError,
    timed::{DecisionTimes, Timed},
};
use std::{sync::Arc, time::Instant};

/// The configured policies and their parameters.
pub(crate) struct Policies {
    pub(crate) policy: Box<dyn Scheduler>,
    pub(crate) shadow: Option<Box<dyn Scheduler>>,
    pub(crate) params: Params,
}

/// Checks that the configured policy exists and that all parameters are valid.
pub fn check_scheduler(config: &Config) -> Result<(), ConfigError> {
    make_policies(&config.scheduler, &Arc::default()).map(drop)
}

/// Makes the policies. `decision_times` measures how long the first one takes to decide.
pub(crate) fn make_policies(
    config: &SchedulerConfig,
    decision_times: &Arc<DecisionTimes>,
) -> Result<Policies, ConfigError> {
    let params = config.parameters()?;
    let make = |key: &str, name: &str| {
        schedulers::make(name, &params).map_err(|error| {
            let (key, value) = match &error {
                PolicyError::Unknown { name } => (key.to_owned(), Some(name.clone())),
                PolicyError::Parameter(bad) => (bad.place().to_owned(), None),
            };
            ConfigError::Setting { key: format!("scheduler.{key}"), value, why: error.to_string() }
        })
    };
    let began = Instant::now();
    let policy = make("name", &config.name)?;
    let policy = Box::new(Timed::new(policy, Box::new(move || began.elapsed()), decision_times.clone()));
    let shadow = Some(config.shadow.trim()).filter(|name| !name.is_empty());
    let shadow = shadow.map(|name| make("shadow", name)).transpose()?;
    Ok(Policies { policy, shadow, params })
}
