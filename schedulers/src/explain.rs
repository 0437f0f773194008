//! Reasons as sentences: from rules and numbers to words that people read.
//!
//! A rule is `base` or `base,detail`: the base has a sentence in its policy's file, or in [`RULE_TEXTS`]; the detail one in
//! [`RULE_DETAILS`]. A rule that is not there is shown by its name and numbers, so a new policy is readable before anybody has
//! written a sentence; a test says which rules have none.
//!
//! | in a sentence | is shown as |
//! |---|---|
//! | `{held}` | the number of that name, with one digit after the point if it has any |
//! | `{jobs job waits\|jobs wait}` | `1 job waits`, `3 jobs wait`, `no job waits` |
//! | `{left:s}`, `{left:bytes}`, `{left:%}` | a length of time, a size, a percentage |
//! | `{for:job}`, `{on:node}` | a job's or a tracker's name, from its number |
//! | `{pool}`, `{user}`, `{queue}` | whose job it is about |
//! | `[...]`, `[!held ...]` | left out if a number in it is missing; only if that number is missing |

use crate::{POLICIES, WRAPPERS};
use mrcore::{
    Why,
    ids::{JobId, TrackerId},
};

/// Whom and what a sentence may name.
pub struct Names<'a> {
    /// Of the job that it is about.
    pub user: &'a str,
    /// Its queue.
    pub queue: &'a str,
    /// Its pool: the user or the queue.
    pub pool: &'a str,
    /// What people call a tracker.
    pub tracker: &'a dyn Fn(TrackerId) -> String,
}

/// A sentence for each rule that any policy may give, or that the core does. A policy's own are in its file.
pub const RULE_TEXTS: &[RuleText] = &[
    ("job-ended", "the job has ended"),
    ("committing-output", "all its tasks are done and its output is being moved into place"),
    ("task-is-done", "it is done"),
    ("task-running", "it runs on {on_tracker:node}"),
    ("being-preempted", "its slot on {on_tracker:node} is being preempted"),
    ("on-hold", "[{tasks task is|tasks are}][!tasks it is] on hold until `mrctl resume`"),
    ("slot-reserved", "the next free slot of {on_tracker:node} is reserved for it"),
    ("slots-reserved", "{tasks task has|tasks have} a slot reserved that is being preempted"),
    ("paused", "it is paused, and its state lies on {state_on_tracker:node}"),
    (
        "checkpoint-unreachable",
        "its checkpoint is on {state_on_tracker:node}, which sends no heartbeats: it is waited for",
    ),
    (
        "checkpoint-on-lost-tracker",
        "its checkpoint is on {state_on_tracker:node}, which is lost: it resumes if that node comes back, and starts over if it is resumed before",
    ),
    (
        "suspect-tracker",
        "{on_tracker:node} has sent no heartbeat for {silent_s:s}[ (and {others other|others})]: its tasks restart elsewhere in {given_up_s:s}",
    ),
    (
        "checkpoints-unreachable",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}] for unreachable nodes with their checkpoints",
    ),
    ("avoids-trackers", "it avoids {trackers node where it|nodes where it} failed"),
    (
        "slow-start",
        "{reduces_waiting reduce waits|reduces wait} for maps: {maps_done} of the {maps_wanted} that must be done are",
    ),
    (
        "launches-suspended",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}]: no attempt is started while the \
         JobTracker's disk is nearly full (`mrctl nodes`)",
    ),
    (
        "no-tracker",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}]: no node has slots for them",
    ),
    (
        "no-free-slot",
        "[{maps_waiting map waits|maps wait}: {map_slots map slot is taken|map slots are all taken}]\
         [{reduces_waiting reduce waits|reduces wait}: {reduce_slots reduce slot is taken|reduce slots are all taken}], \
         {running} by this job\
         [; it also holds {apart slot|slots} on nodes that are silent or being drained]",
    ),
    (
        "policy-keeps-slots",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}] although \
         {free slot is|slots are} free: the policy keeps them; this job holds {running}",
    ),
    ("straggler", "a speculative attempt"),
    ("straggler-split", "it is slow, and a slot is free elsewhere for what it has not read"),
    ("straggler-remainder", "what a slow map had not read"),
];

/// What comes after the comma of a rule.
pub const RULE_DETAILS: &[RuleText] = &[
    ("node-local", "its input is on that node"),
    ("rack-local", "its input is in that rack"),
    ("off-rack", "its input is elsewhere"),
    ("resumed", "it resumes where it was paused"),
    ("migrated", "its checkpoint comes from another node"),
    ("near-maps", "maps or input of its job are there"),
];

/// What a rule means in words.
pub type RuleText = (&'static str, &'static str);

/// The sentence of a rule's base: any policy's, or the policy's own.
fn rule_text(base: &str) -> Option<&'static str> {
    let own = POLICIES.iter().map(|policy| policy.sentences);
    let tables = own.chain(WRAPPERS.iter().map(|wrapper| wrapper.sentences));
    std::iter::once(RULE_TEXTS).chain(tables).find_map(|table| lookup(table, base))
}

fn lookup(table: &[RuleText], rule: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == rule).map(|(_, rule_text)| *rule_text)
}

/// Whether a rule has its sentence.
pub fn has_rule_text(rule: &str) -> bool {
    let (base, detail) = rule.split_once(',').unzip();
    let base = base.unwrap_or(rule);
    rule_text(base).is_some() && detail.is_none_or(|detail| lookup(RULE_DETAILS, detail).is_some())
}

/// A reason as a sentence, without a full stop.
pub fn describe(why: &Why, names: &Names<'_>) -> String {
    let (base, detail) = why.rule.split_once(',').map_or((&*why.rule, ""), |(base, detail)| (base, detail));
    let Some(rule_text) = rule_text(base) else { return by_name(why) };
    let mut said = fill(rule_text, why, names);
    if !detail.is_empty() {
        said.push_str("; ");
        said.push_str(lookup(RULE_DETAILS, detail).unwrap_or(detail));
    }
    said
}

/// A reason that may have been kept as text: one with a sentence is said, anything else is left as it is.
pub fn describe_text(text: &str, names: &Names<'_>) -> String {
    match Why::parse(text).filter(|why| has_rule_text(&why.rule)) {
        Some(why) => describe(&why, names),
        None => text.to_owned(),
    }
}

fn by_name(why: &Why) -> String {
    // Not a rule but somebody's own words.
    if why.rule.contains(' ') || why.rule.is_empty() {
        return why.rule.to_string();
    }
    let numbers =
        why.numbers.iter().map(|(name, value)| format!("{} {}", name.replace('_', " "), number(*value)));
    let numbers: Vec<String> = numbers.collect();
    let rule = why.rule.replace('-', " ").replace(',', ", ");
    if numbers.is_empty() { rule } else { format!("{rule} ({})", numbers.join(", ")) }
}

/// Fills a sentence in. Parts in brackets are left out if something in them is missing.
fn fill(rule_text: &str, why: &Why, names: &Names<'_>) -> String {
    let mut said = String::new();
    let mut rest = rule_text;
    while let Some((before, after)) = rest.split_once('[') {
        let (part, after) = after.split_once(']').unwrap_or((after, ""));
        said.push_str(&fill_placeholders(before, why, names).0);
        match part.strip_prefix('!').and_then(|part| part.split_once(' ')) {
            Some((missing, part)) if why.number(missing).is_none() => said.push_str(part),
            Some(_) => {}
            None => {
                let (part, is_whole) = fill_placeholders(part, why, names);
                said.push_str(if is_whole { &part } else { "" });
            }
        }
        rest = after;
    }
    said.push_str(&fill_placeholders(rest, why, names).0);
    said
}

/// The text with its places filled, and whether all could be.
fn fill_placeholders(text: &str, why: &Why, names: &Names<'_>) -> (String, bool) {
    let (mut said, mut is_whole) = (String::new(), true);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (place, after) = after.split_once('}').unwrap_or((after, ""));
        said.push_str(before);
        let value = value(place, why, names);
        is_whole &= value.is_some();
        said.push_str(value.as_deref().unwrap_or("?"));
        rest = after;
    }
    said.push_str(rest);
    (said, is_whole)
}

fn value(place: &str, why: &Why, names: &Names<'_>) -> Option<String> {
    match place {
        "pool" => return Some(names.pool.to_owned()),
        "user" => return Some(names.user.to_owned()),
        "queue" => return Some(names.queue.to_owned()),
        _ => {}
    }
    if let Some((name, nouns)) = place.split_once(' ') {
        let value = why.number(name)?;
        let (one, many) = nouns.split_once('|').unwrap_or((nouns, nouns));
        return Some(match number(value).as_str() {
            "0" => format!("no {one}"),
            "1" => format!("1 {one}"),
            other => format!("{other} {many}"),
        });
    }
    let (name, kind) = place.split_once(':').unwrap_or((place, ""));
    let value = why.number(name)?;
    Some(match kind {
        "s" => seconds(value),
        "bytes" => bytes(value),
        "%" => format!("{:.0}%", value * 100.0),
        "job" => JobId(value as u32).to_string(),
        "node" => (names.tracker)(TrackerId(value as u32)),
        _ => number(value),
    })
}

fn number(value: f64) -> String {
    let shown = format!("{value:.1}");
    shown.strip_suffix(".0").map_or(shown.clone(), str::to_owned)
}

fn seconds(value: f64) -> String {
    let whole = value.round() as u64;
    match whole {
        _ if !value.is_finite() => "forever".to_owned(),
        0..60 => format!("{} s", number(value)),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

fn bytes(value: f64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (value, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", number(value), units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(why: &Why) -> String {
        let tracker = |id: TrackerId| format!("node{}", id.0);
        describe(why, &Names { user: "ann", queue: "default", pool: "ann", tracker: &tracker })
    }

    #[test]
    fn reasons_are_formatted_as_sentences() {
        let share = Why::rule("pool-share-of-map-slots").with("held", 12.0).with("share", 10.66);
        let share = share.with("weight", 1.0).with("min", 0.0).with("jobs_ahead", 2.0);
        assert_eq!(
            said(&share),
            "pool ann holds 12 of its fair share of 10.7 map slots (weight 1, minimum 0); 2 jobs go first"
        );
        let waits = Why::rule("no-free-slot").with("reduces_waiting", 1.0).with("running", 0.0);
        let waits = waits.with("free", 0.0).with("reduce_slots", 4.0);
        assert_eq!(said(&waits), "1 reduce waits: 4 reduce slots are all taken, 0 by this job");
        assert_eq!(said(&Why::rule("task-running").with("on_tracker", 3.0)), "it runs on node3");
        let back = Why::rule("longest-remaining-time").with("remaining", 754.0).with("shorter", 8.25);
        assert_eq!(
            said(&back.benefit(JobId(7))),
            "its job has about 12 min 34 s left, and the slot goes to job_7, which has 8.2 s"
        );
    }

    #[test]
    fn unknown_class_is_formatted() {
        let suits = Why::rule("class-suggested-nodes").with("class", 3.0).with("nodes", 4.0);
        let suits = suits.with("lambda", 7.21).with("prediction_error", 0.2);
        assert_eq!(
            said(&suits),
            "4 nodes suit its kind of job best (class 3); others are taken for it too if they would be idle; \
             the cluster can do 7.2 times the jobs that have been coming; the lengths foretold for its tasks are off by 20%"
        );
        let literal = Why::rule("class-suggested-nodes").with("nodes", 1.0).with("literal", 1.0);
        assert_eq!(said(&literal), "1 node suits its kind of job best");
        let below_minimum =
            Why::rule("below-min-share,node-local").with("class", 0.0).with("held", 1.0).with("min", 4.0);
        assert_eq!(
            said(&below_minimum),
            "user ann held 1 of the 4 slots that it is owed, and the node suits its kind of job (class 0); \
             its input is on that node"
        );
    }

    #[test]
    fn missing_preemption_is_explained() {
        let new = Why::rule("longer-jobs-just-launched").with("tasks", 4.0).with("at_most", 10.0);
        assert_eq!(
            said(&new.with("next", 6.0)),
            "4 tasks of longer jobs were launched less than 10 s ago, and none is preempted so soon: not for another 6 s"
        );
        assert_eq!(
            said(&Why::rule("no-longer-job").with("margin", 1.25)),
            "no job that holds such slots has more left than 125% of what this one has: none is preempted"
        );
        let alone = Why::rule("reduces-protected").with("tasks", 3.0).with("new", 2.0).with("at_most", 10.0);
        assert_eq!(
            said(&alone.with("nearly", 1.0).with("beyond", 0.7)),
            "3 reduces of jobs with more left are left alone; launched less than 10 s ago: 2; beyond 70%: 1"
        );
    }

    #[test]
    fn optional_parts_are_omitted_without_their_numbers() {
        assert_eq!(said(&Why::rule("on-hold")), "it is on hold until `mrctl resume`");
        let held = Why::rule("on-hold").with("tasks", 1.0);
        assert_eq!(said(&held), "1 task is on hold until `mrctl resume`");
        let pure = Why::rule("remaining-time,node-local").with("remaining", 5.0);
        assert_eq!(said(&pure), "its job has about 5 s left; its input is on that node");
    }

    #[test]
    fn rule_without_text_is_shown_by_name() {
        let new = Why::rule("my-own-rule,off-rack").with("jobs_ahead", 2.0).with("score", 0.25);
        assert_eq!(said(&new), "my own rule, off rack (jobs ahead 2, score 0.2)");
        assert_eq!(said(&Why::named("resumed by bob".into())), "resumed by bob");
        let tracker = |id: TrackerId| id.to_string();
        let names = Names { user: "", queue: "", pool: "", tracker: &tracker };
        assert_eq!(
            describe_text("recovery for_job=3", &names),
            "the slot goes to work of job_3 that was lost with a node"
        );
        for text in ["preempted by ann", "preempted", "unheard-of a=1"] {
            assert_eq!(describe_text(text, &names), text);
        }
    }
}
