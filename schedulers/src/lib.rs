//! All scheduling policies. They are pure: the input is a cluster and its facts, the output is a
//! list of decisions.
//!
//! A policy is one file here and one entry of [`POLICIES`]. README.md states the problem and the
//! rule of each. Read [`fifo`] first.

pub mod capacity;
pub mod chronos;
pub mod coda;
pub mod coshh;
pub mod estimate;
pub mod explain;
pub mod fair;
pub mod fcs;
pub mod fifo;
pub mod fill;
pub mod hsrtf;
pub mod las;
pub mod params;
mod paused;
pub mod ranked_queue;
pub mod shares;
pub mod timed;
pub mod victims;

/// Makes `cargo test` compile and run the example in the guide.
#[cfg(doctest)]
#[doc = include_str!("../../docs/research/write-a-scheduler.md")]
struct Guide;

pub use params::{Parameter, ParameterError, Params, Section};

use explain::RuleText;
use hsrtf::{Hsrtf, Mode};
use mrcore::Scheduler;
use std::{collections::BTreeSet, fmt};

/// A policy that can be configured.
pub struct Policy {
    /// The name in the configuration.
    pub name: &'static str,
    /// The configuration section with its parameters.
    pub section: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// The texts of its rules.
    pub rule_texts: &'static [RuleText],
    /// Reads the parameters and creates the policy.
    pub build: fn(&mut Section<'_>) -> Box<dyn Scheduler>,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Names are unique, and functions cannot be compared.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// All policies.
pub const POLICIES: &[Policy] = &[
    Policy {
        name: "fifo",
        section: "fifo",
        about: "slots go to the job with the highest priority, then to the oldest",
        rule_texts: fifo::RULE_TEXTS,
        build: |_| Box::new(fifo::Fifo::default()),
    },
    Policy {
        name: "fair",
        section: "fair",
        about: "slots are shared between users or queues by weight, with minimum shares and delay scheduling",
        rule_texts: fair::RULE_TEXTS,
        build: |section| Box::new(fair::Fair::new(section)),
    },
    Policy {
        name: "capacity",
        section: "capacity",
        about: "a tree of queues with guaranteed and maximum capacity and user limits; first in, first out within a queue",
        rule_texts: capacity::RULE_TEXTS,
        build: |section| Box::new(capacity::Capacity::new(section)),
    },
    Policy {
        name: "hsrtf-pu",
        section: "hsrtf",
        about: "every slot goes to the job with the shortest remaining time",
        rule_texts: hsrtf::RULE_TEXTS,
        build: |section| Box::new(Hsrtf::new(Mode::Pu, section)),
    },
    Policy {
        name: "hsrtf-pup",
        section: "hsrtf",
        about: "like hsrtf-pu, and preempts jobs with longer remaining times",
        rule_texts: hsrtf::RULE_TEXTS,
        build: |section| Box::new(Hsrtf::new(Mode::PuP, section)),
    },
    Policy {
        name: "hsrtf-pr",
        section: "hsrtf",
        about: "slots are shared in inverse proportion to remaining times, with more for jobs that starve",
        rule_texts: hsrtf::RULE_TEXTS,
        build: |section| Box::new(Hsrtf::new(Mode::Pr, section)),
    },
    Policy {
        name: "hsrtf-prp",
        section: "hsrtf",
        about: "like hsrtf-pr, and preempts jobs with longer remaining times",
        rule_texts: hsrtf::RULE_TEXTS,
        build: |section| Box::new(Hsrtf::new(Mode::PrP, section)),
    },
    Policy {
        name: "las",
        section: "las",
        about: "slots go to the job that has used the least slot time, also by preemption; needs no estimates",
        rule_texts: las::RULE_TEXTS,
        build: |section| Box::new(las::Las::new(section)),
    },
    Policy {
        name: "fcs",
        section: "fcs",
        about: "reduce slots go to the job with the least remaining work, also by pausing reduces of others; map slots as in fair",
        rule_texts: fcs::RULE_TEXTS,
        build: |section| Box::new(fcs::Fcs::new(section)),
    },
    Policy {
        name: "coshh",
        section: "coshh",
        about: "jobs of similar duration form classes, and a linear program suggests nodes for each class",
        rule_texts: coshh::RULE_TEXTS,
        build: |section| Box::new(coshh::Coshh::new(section)),
    },
    Policy {
        name: "coda",
        section: "coda",
        about: "slots go to the job with the least remaining work, also by preemption; jobs that take much longer than under fair sharing share 30 % of the slots",
        rule_texts: coda::RULE_TEXTS,
        build: coda::Coda::build,
    },
];

/// Returns the queues that the configuration of a policy names. A job that names another queue
/// would get the default queue. The last part of a path is included too if it is unique. Returns
/// `None` if every name is allowed: the policy has no queues, or it has pools and none are
/// configured.
pub fn queues(policy: &str, params: &Params) -> Option<BTreeSet<String>> {
    let below = |prefix: &str| -> BTreeSet<String> {
        let inner = params.keys().filter_map(|key| key.strip_prefix(prefix));
        inner.filter_map(|rest| rest.rsplit_once('.')).map(|(name, _)| name.to_owned()).collect()
    };
    let base = policy.rsplit('(').next().unwrap_or(policy).trim_end_matches(')');
    let by_queue = params.get("fair.pool_by").is_some_and(|by| by.trim() == "queue");
    let mut names = match base {
        "capacity" => below("capacity.queues."),
        "fair" | "fcs" if by_queue => below("fair.pools."),
        _ => return None,
    };
    if names.is_empty() && base != "capacity" {
        return None;
    }
    names.insert("default".into());
    let inner = |name: &String| names.iter().any(|other| other.starts_with(&format!("{name}.")));
    let leaves: BTreeSet<String> = names.iter().filter(|name| !inner(name)).cloned().collect();
    let last = |name: &String| name.rsplit('.').next().map(str::to_owned);
    let ends: Vec<String> = leaves.iter().filter_map(last).collect();
    let unique = ends.iter().filter(|end| ends.iter().filter(|other| other == end).count() == 1);
    Some(leaves.iter().chain(unique).cloned().collect())
}

/// Policies that wrap another one: `chronos(fair)`.
const WRAPPERS: &[Wrapper] = &[Wrapper {
    name: "chronos",
    about: "wraps any policy: tasks that were lost with a node get slots at once, near their input",
    rule_texts: chronos::RULE_TEXTS,
    build: |inner, section| Box::new(chronos::Chronos::new(inner, section)),
}];

struct Wrapper {
    name: &'static str,
    about: &'static str,
    rule_texts: &'static [RuleText],
    build: fn(Box<dyn Scheduler>, &mut Section<'_>) -> Box<dyn Scheduler>,
}

/// Why a policy could not be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("there is no scheduler {name:?}: choose one of {}{}", names().join(", "), parameters_hint(name))]
    Unknown { name: String },
    #[error(transparent)]
    Parameter(#[from] ParameterError),
}

/// The name of policies in another process, which only the simulator has.
const EXTERNAL: &str = "external";

/// Returns a hint for `external`, and for a name with parameters in brackets, which are allowed only in lists of
/// policies for the simulator.
fn parameters_hint(name: &str) -> String {
    match name.split_once('[') {
        _ if name == EXTERNAL || name.starts_with("external[") => {
            "; external runs only in the simulator (`mrctl sim`)".to_owned()
        }
        Some((policy, _)) => format!(
            "; parameters are in fermata.toml, under [scheduler.{}]",
            POLICIES.iter().find(|known| known.name == policy).map_or(policy, |known| known.section)
        ),
        None => String::new(),
    }
}

/// Returns whether a section of parameters has this name.
pub fn is_section(name: &str) -> bool {
    POLICIES.iter().any(|policy| policy.section == name)
        || WRAPPERS.iter().any(|wrapper| wrapper.name == name)
}

/// The description of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The name in the configuration.
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// The configuration section with its parameters.
    pub section: &'static str,
    /// Its parameters and their values.
    pub parameters: Vec<Parameter>,
}

/// Returns the names of all policies, for messages.
pub fn names() -> Vec<String> {
    let policies = POLICIES.iter().map(|policy| policy.name.to_owned());
    policies.chain(WRAPPERS.iter().map(|wrapper| format!("{}(POLICY)", wrapper.name))).collect()
}

/// Returns all valid names: each policy alone and in each wrapper.
pub fn specs() -> Vec<String> {
    let bare = || POLICIES.iter().map(|policy| policy.name.to_owned());
    let wrapped = WRAPPERS.iter().flat_map(|wrapper| bare().map(|name| format!("{}({name})", wrapper.name)));
    bare().chain(wrapped).collect()
}

/// Creates the policy with a name such as `fair` or `chronos(fair)`. Parameters of other policies
/// are checked too.
pub fn make(spec: &str, params: &Params) -> Result<Box<dyn Scheduler>, PolicyError> {
    make_with(&[], spec, params)
}

/// Works like [`make`], also with policies of another crate.
pub fn make_with(own: &[Policy], spec: &str, params: &Params) -> Result<Box<dyn Scheduler>, PolicyError> {
    describe_with(own, params)?;
    build(own, spec.trim(), params).ok_or_else(|| PolicyError::Unknown { name: spec.to_owned() })
}

fn build(own: &[Policy], spec: &str, params: &Params) -> Option<Box<dyn Scheduler>> {
    let find = |name: &str| POLICIES.iter().chain(own).find(|policy| policy.name == name);
    if let Some(policy) = find(spec) {
        return Some((policy.build)(&mut Section::of(policy.section, params)));
    }
    let (outer, inner) = spec.strip_suffix(')')?.split_once('(')?;
    let wrapper = WRAPPERS.iter().find(|wrapper| wrapper.name == outer.trim())?;
    let inner = find(inner.trim())?;
    let inner = (inner.build)(&mut Section::of(inner.section, params));
    Some((wrapper.build)(inner, &mut Section::of(wrapper.name, params)))
}

/// Describes all policies, with their parameters and current values.
pub fn describe(params: &Params) -> Result<Vec<Description>, ParameterError> {
    describe_with(&[], params)
}

fn describe_with(own: &[Policy], params: &Params) -> Result<Vec<Description>, ParameterError> {
    let wrappers = WRAPPERS.iter().map(|wrapper| wrapper.name);
    let policies = || POLICIES.iter().chain(own);
    let sections: Vec<&'static str> = policies().map(|policy| policy.section).chain(wrappers).collect();
    let known = |key: &&String| key.split_once('.').is_some_and(|(section, _)| sections.contains(&section));
    if let Some(key) = params.keys().find(|key| !known(key)) {
        return Err(ParameterError::Section { key: key.clone(), sections });
    }
    let policies = policies().map(|policy| {
        let mut section = Section::of(policy.section, params);
        (policy.build)(&mut section);
        let Policy { name, about, section: of, .. } = *policy;
        Ok(Description { name, about, section: of, parameters: section.finish()? })
    });
    let wrappers = WRAPPERS.iter().map(|wrapper| {
        let mut section = Section::of(wrapper.name, params);
        (wrapper.build)(Box::<fifo::Fifo>::default(), &mut section);
        let Wrapper { name, about, .. } = *wrapper;
        Ok(Description { name, about, section: name, parameters: section.finish()? })
    });
    policies.chain(wrappers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(key: &str, value: &str) -> Params {
        Params::from([(key.to_owned(), value.to_owned())])
    }

    fn refusal(spec: &str, params: &Params) -> String {
        make(spec, params).unwrap_err().to_string()
    }

    #[test]
    fn every_policy_has_its_configured_name() {
        for spec in specs() {
            assert_eq!(make(&spec, &Params::new()).unwrap().name(), spec);
        }
        assert_eq!(make(" chronos( fair ) ", &Params::new()).unwrap().name(), "chronos(fair)");
    }

    #[test]
    fn unknown_policy_error_lists_the_names() {
        for wrong in
            ["fare", "", "chronos", "chronos()", "chronos(fare)", "chronos(chronos(fair))", "fair(fifo)"]
        {
            let error = refusal(wrong, &Params::new());
            assert!(
                error.starts_with(&format!("there is no scheduler {wrong:?}: choose one of fifo, fair")),
                "{error}"
            );
            assert!(error.ends_with("chronos(POLICY)"), "{error}");
        }
    }

    #[test]
    fn queues_lists_the_configured_queues_and_their_unique_last_parts() {
        let names = |policy: &str, params: &Params| -> Option<Vec<String>> {
            queues(policy, params).map(|names| names.into_iter().collect())
        };
        assert_eq!(names("capacity", &Params::new()).unwrap(), ["default"]);
        assert_eq!(names("chronos(capacity)", &Params::new()).unwrap(), ["default"]);
        let etl = settings("capacity.queues.prod.etl.capacity", "30");
        assert_eq!(names("capacity", &etl).unwrap(), ["default", "etl", "prod.etl"]);
        // A pool needs no configuration.
        assert_eq!(names("fair", &settings("fair.pool_by", "queue")), None);
        assert_eq!(names("fifo", &Params::new()), None);
    }

    #[test]
    fn invalid_parameters_are_refused_even_for_other_policies() {
        let error = refusal("fifo", &settings("fair.nod_wait", "1s"));
        assert!(
            error.starts_with("there is no scheduler parameter fair.nod_wait; parameters of fair: pool_by, "),
            "{error}"
        );
        let error = refusal("fifo", &settings("node_wait", "1s"));
        assert!(
            error
                .starts_with("there is no scheduler parameter node_wait: parameters begin with fifo, fair, "),
            "{error}"
        );
        let error = refusal("fifo", &settings("chronos.early", "now"));
        assert_eq!(error, "scheduler parameter chronos.early = \"now\" is not suspect or lost");
        let error = refusal("fifo", &settings("hsrtf-pr.margin", "2"));
        assert_eq!(error.matches("hsrtf,").count(), 1, "each section is listed once: {error}");
        let error = refusal("fcs[preempt=kill]", &Params::new());
        assert!(error.ends_with("; parameters are in fermata.toml, under [scheduler.fcs]"), "{error}");
        for name in ["external", "external[command=python3 p.py]"] {
            let error = refusal(name, &Params::new());
            assert!(error.ends_with("; external runs only in the simulator (`mrctl sim`)"), "{error}");
        }
    }

    #[test]
    fn readme_mentions_every_policy_and_parameter() {
        let readme = include_str!("../README.md");
        for description in describe(&Params::new()).unwrap() {
            assert!(readme.contains(&format!("`{}`", description.name)), "{}", description.name);
            for parameter in description.parameters {
                let key = parameter.key.replace("s.default.", "s.NAME.");
                assert!(readme.contains(&format!("`{key}`")), "{}.{key}", description.section);
            }
        }
    }

    #[test]
    fn description_contains_default_and_current_values() {
        let all = describe(&settings("fair.node_wait", "7s")).unwrap();
        let fair = all.iter().find(|description| description.name == "fair").unwrap();
        let wait = fair.parameters.iter().find(|parameter| parameter.key == "node_wait").unwrap();
        assert_eq!((wait.default.as_str(), wait.value.as_str()), ("3s", "7s"));
    }
}
