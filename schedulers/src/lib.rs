//! Every scheduling policy, pure and small: a cluster and its history in, decisions out.
//!
//! A policy is one file here and one line in [`POLICIES`]; README.md states each as a problem. Read [`fifo`] first.

pub mod fifo;
pub mod params;

pub use params::{BadParameter, Parameter, Params, Section};

use mrcore::Scheduler;

/// A policy that can be chosen.
pub struct Policy {
    /// What it is chosen by.
    pub name: &'static str,
    /// The section that its parameters are in.
    pub section: &'static str,
    /// In a line.
    pub about: &'static str,
    build: fn(&mut Section<'_>) -> Box<dyn Scheduler>,
}

/// The policies.
pub const POLICIES: &[Policy] = &[Policy {
    name: "fifo",
    section: "fifo",
    about: "the most urgent job, then the oldest, takes every slot it can use",
    build: |_| Box::new(fifo::Fifo::default()),
}];

/// Why there is no policy for what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum MakeError {
    #[error("there is no scheduler {name:?}: choose one of {}", names().join(", "))]
    Unknown { name: String },
    #[error(transparent)]
    Parameter(#[from] BadParameter),
}

/// A policy, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// What it is chosen by.
    pub name: &'static str,
    /// In a line.
    pub about: &'static str,
    /// The section that its parameters are in.
    pub section: &'static str,
    /// Its parameters and their values.
    pub parameters: Vec<Parameter>,
}

/// What can be chosen.
pub fn names() -> Vec<String> {
    POLICIES.iter().map(|policy| policy.name.to_owned()).collect()
}

/// The policy that a text such as `fair` or `chronos(fair)` names, tuned by these parameters. Parameters of policies that
/// were not chosen are checked too.
pub fn make(spec: &str, params: &Params) -> Result<Box<dyn Scheduler>, MakeError> {
    describe(params)?;
    build(spec.trim(), params)
}

fn build(spec: &str, params: &Params) -> Result<Box<dyn Scheduler>, MakeError> {
    let policy = POLICIES.iter().find(|policy| policy.name == spec);
    let policy = policy.ok_or_else(|| MakeError::Unknown { name: spec.to_owned() })?;
    Ok((policy.build)(&mut Section::of(policy.section, params)))
}

/// Every policy with its parameters as they are now.
pub fn describe(params: &Params) -> Result<Vec<Description>, BadParameter> {
    let sections: Vec<&'static str> = POLICIES.iter().map(|policy| policy.section).collect();
    let known = |key: &&String| key.split_once('.').is_some_and(|(section, _)| sections.contains(&section));
    if let Some(key) = params.keys().find(|key| !known(key)) {
        return Err(BadParameter::Section { key: key.clone(), sections });
    }
    let describe = |policy: &Policy| {
        let mut section = Section::of(policy.section, params);
        (policy.build)(&mut section);
        let Policy { name, about, section: of, .. } = *policy;
        Ok(Description { name, about, section: of, parameters: section.finish()? })
    };
    POLICIES.iter().map(describe).collect()
}
