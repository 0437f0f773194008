//! Formats reasons (rules and numbers) as sentences for users. `facts.rs` formats the facts of a
//! job, `why.rs` makes the answer of `mrctl why`.
//!
//! A rule is `base` or `base,detail`. The text of the base is in the file of its policy or in
//! [`RULE_TEXTS`], the text of the detail in [`RULE_DETAILS`]. A rule without a text is shown by
//! its name and numbers, so that the reasons of a new policy are readable. A test fails if a rule
//! has no text.
//!
//! | in a text | is replaced by |
//! |---|---|
//! | `{held}` | the number with this name, with at most one digit after the point |
//! | `{jobs job waits\|jobs wait}` | `1 job waits`, `3 jobs wait`, `no job waits` |
//! | `{left:s}`, `{left:bytes}`, `{left:%}` | a duration, a size, a percentage |
//! | `{for:job}`, `{on:node}` | the name of a job or a tracker, from its number |
//! | `{pool}`, `{user}`, `{queue}` | the pool, user or queue of the job |
//! | `[...]`, `[!held ...]` | left out if a number in it is missing; left out unless the number `held` is missing |

mod facts;
mod why;

use crate::{POLICIES, WRAPPERS};
pub use facts::{FactFormatter, FactText, Reason};
use mrcore::{
    Why,
    ids::{JobId, TrackerId},
};
pub use why::{Explanation, Subject, explain};

/// Names that a text may contain.
pub struct Names<'a> {
    /// The user of the job.
    pub user: &'a str,
    /// The queue of the job.
    pub queue: &'a str,
    /// The pool of the job: its user or its queue.
    pub pool: &'a str,
    /// The name of a tracker.
    pub tracker: &'a dyn Fn(TrackerId) -> String,
}

/// The texts of rules of the core and of rules that several policies share. The other texts are in
/// the files of the policies.
pub const RULE_TEXTS: &[RuleText] = &[
    ("job-ended", "the job has ended"),
    ("committing-output", "all its tasks are done and its output is being committed"),
    ("task-is-done", "the task is done"),
    ("task-running", "it is running on {on_tracker:node}"),
    ("being-preempted", "its slot on {on_tracker:node} is being preempted"),
    ("on-hold", "[{tasks task is|tasks are}][!tasks it is] paused by a user until `mrctl resume`"),
    ("slot-reserved", "the next free slot of {on_tracker:node} is reserved for it"),
    (
        "slots-reserved",
        "{tasks task waits|tasks wait} for a reserved slot that a preempted attempt still holds",
    ),
    ("paused", "it is paused, and its checkpoint is on {checkpoint_on_tracker:node}"),
    (
        "checkpoint-unreachable",
        "its checkpoint is on {checkpoint_on_tracker:node}, which sends no heartbeats: it waits for that node",
    ),
    (
        "checkpoint-on-lost-tracker",
        "its checkpoint is on {checkpoint_on_tracker:node}, which is lost: if a user resumes it before that node comes back, it starts over",
    ),
    (
        "suspect-tracker",
        "no heartbeat from {on_tracker:node} for {silent_s:s}[ (nor from {others other node|other nodes})]: tasks of this job there are restarted elsewhere in {lost_in_s:s}",
    ),
    (
        "slots-unreachable",
        "{nodes node without tasks of the job sends|nodes without tasks of the job send} no heartbeats: the slots there are not used",
    ),
    ("tracker-down", "{on_tracker:node} has sent no heartbeat for {silent_s:s}"),
    ("trackers-down", "{others other node is|other nodes are} down too"),
    (
        "checkpoints-unreachable",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}] for unreachable nodes with their checkpoints",
    ),
    (
        "tasks-delayed",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}] up to a minute before the next \
         attempt, because earlier attempts ended without a result",
    ),
    (
        "task-delayed",
        "{attempts attempt|attempts} of it ended without a result, although nothing stopped it: it waits up to a minute before \
         the next one",
    ),
    ("avoids-trackers", "it avoids {trackers node where it|nodes where it} failed or was interrupted"),
    (
        "slow-start",
        "{reduces_waiting reduce waits|reduces wait} for maps: {maps_done} of {maps_wanted} required maps are done",
    ),
    (
        "launches-suspended",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}]: no attempt is launched while the \
         disk of the JobTracker is nearly full (see `mrctl nodes`)",
    ),
    (
        "no-tracker",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}]: no live node has slots of this kind\
         [!known , because no TaskTracker has registered: start one]\
         [, and {known known node is|known nodes are} down, draining or without such slots: see `mrctl nodes`, and restart the \
         TaskTrackers (`mrctl up` does it in a cluster on one machine)]",
    ),
    (
        "no-free-slot",
        "[{maps_waiting map waits|maps wait}: {map_slots map slot is taken|map slots are all taken}]\
         [{reduces_waiting reduce waits|reduces wait}: {reduce_slots reduce slot is taken|reduce slots are all taken}], \
         {running} by this job\
         [; it also holds {excluded slot|slots} on nodes that send no heartbeats or are being drained]",
    ),
    (
        "policy-keeps-slots",
        "[{maps_waiting map waits|maps wait}][{reduces_waiting reduce waits|reduces wait}] although \
         {free slot is|slots are} free: the policy does not give them to this job now; it holds {running}",
    ),
    ("straggler", "a speculative attempt of a slow task"),
    ("straggler-split", "it is slow, and another node has a free slot for the remainder of its input"),
    ("straggler-remainder", "the remainder of the input of a slow map"),
];

/// The texts of details, which follow the comma of a rule.
pub const RULE_DETAILS: &[RuleText] = &[
    ("node-local", "its input is on that node"),
    ("rack-local", "its input is in the rack of that node"),
    ("off-rack", "its input is not in the rack of that node"),
    ("resumed", "it resumes where it was paused"),
    ("migrated", "its checkpoint is copied from another node"),
    ("near-maps", "that node ran maps of its job or stores its input"),
];

/// A rule and its text.
pub type RuleText = (&'static str, &'static str);

/// Returns the text of the base of a rule.
fn rule_text(base: &str) -> Option<&'static str> {
    let own = POLICIES.iter().map(|policy| policy.rule_texts);
    let tables = own.chain(WRAPPERS.iter().map(|wrapper| wrapper.rule_texts));
    std::iter::once(RULE_TEXTS).chain(tables).find_map(|table| lookup(table, base))
}

fn lookup(table: &[RuleText], rule: &str) -> Option<&'static str> {
    table.iter().find(|(known, _)| *known == rule).map(|(_, rule_text)| *rule_text)
}

/// Returns whether a rule has a text.
pub fn has_rule_text(rule: &str) -> bool {
    let (base, detail) = rule.split_once(',').unzip();
    let base = base.unwrap_or(rule);
    rule_text(base).is_some() && detail.is_none_or(|detail| lookup(RULE_DETAILS, detail).is_some())
}

/// Formats a reason as a sentence, without a full stop.
pub fn describe(why: &Why, names: &Names<'_>) -> String {
    let (base, detail) = why.rule.split_once(',').map_or((&*why.rule, ""), |(base, detail)| (base, detail));
    let Some(rule_text) = rule_text(base) else { return describe_by_name(why) };
    let mut text = fill_in(rule_text, why, names);
    if !detail.is_empty() {
        text.push_str("; ");
        text.push_str(lookup(RULE_DETAILS, detail).unwrap_or(detail));
    }
    text
}

/// Formats a reason that was stored as text. If the text is not a rule, it is returned unchanged.
pub fn describe_text(text: &str, names: &Names<'_>) -> String {
    match Why::parse(text).filter(|why| has_rule_text(&why.rule)) {
        Some(why) => describe(&why, names),
        None => text.to_owned(),
    }
}

fn describe_by_name(why: &Why) -> String {
    // The reason is not a rule, but a text from another source.
    if why.rule.contains(' ') || why.rule.is_empty() {
        return why.rule.to_string();
    }
    let numbers =
        why.numbers.iter().map(|(name, value)| format!("{} {}", name.replace('_', " "), number(*value)));
    let numbers: Vec<String> = numbers.collect();
    let rule = why.rule.replace('-', " ").replace(',', ", ");
    if numbers.is_empty() { rule } else { format!("{rule} ({})", numbers.join(", ")) }
}

/// Fills in a rule text. Parts in brackets are left out if a number in them is missing.
fn fill_in(rule_text: &str, why: &Why, names: &Names<'_>) -> String {
    let mut text = String::new();
    let mut rest = rule_text;
    while let Some((before, after)) = rest.split_once('[') {
        let (part, after) = after.split_once(']').unwrap_or((after, ""));
        text.push_str(&fill_placeholders(before, why, names).0);
        match part.strip_prefix('!').and_then(|part| part.split_once(' ')) {
            Some((missing, part)) if why.number(missing).is_none() => text.push_str(part),
            Some(_) => {}
            None => {
                let (part, is_complete) = fill_placeholders(part, why, names);
                text.push_str(if is_complete { &part } else { "" });
            }
        }
        rest = after;
    }
    text.push_str(&fill_placeholders(rest, why, names).0);
    text
}

/// Fills in the placeholders of a text. Returns `false` if a value was missing.
fn fill_placeholders(text: &str, why: &Why, names: &Names<'_>) -> (String, bool) {
    let (mut filled, mut is_complete) = (String::new(), true);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (place, after) = after.split_once('}').unwrap_or((after, ""));
        filled.push_str(before);
        let value = placeholder_value(place, why, names);
        is_complete &= value.is_some();
        filled.push_str(value.as_deref().unwrap_or("?"));
        rest = after;
    }
    filled.push_str(rest);
    (filled, is_complete)
}

fn placeholder_value(place: &str, why: &Why, names: &Names<'_>) -> Option<String> {
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

    fn describe_why(why: &Why) -> String {
        let tracker = |id: TrackerId| format!("node{}", id.0);
        describe(why, &Names { user: "ann", queue: "default", pool: "ann", tracker: &tracker })
    }

    #[test]
    fn reasons_are_formatted_as_sentences() {
        let share = Why::rule("pool-share-of-map-slots").with("held", 12.0).with("share", 10.66);
        let share = share.with("weight", 1.0).with("min", 0.0).with("jobs_ahead", 2.0);
        assert_eq!(
            describe_why(&share),
            "pool ann holds 12 map slots of its fair share of 10.7 (weight 1, minimum 0); 2 jobs go first"
        );
        assert_eq!(describe_why(&Why::rule("fair-share").with("held", 1.0)), "pool ann held 1 slot");
        let waits = Why::rule("no-free-slot").with("reduces_waiting", 1.0).with("running", 0.0);
        let waits = waits.with("free", 0.0).with("reduce_slots", 4.0);
        assert_eq!(describe_why(&waits), "1 reduce waits: 4 reduce slots are all taken, 0 by this job");
        let running = Why::rule("task-running").with("on_tracker", 3.0);
        assert_eq!(describe_why(&running), "it is running on node3");
        let back = Why::rule("longest-remaining-time").with("remaining", 754.0).with("shorter", 8.25);
        assert_eq!(
            describe_why(&back.with_beneficiary(JobId(7))),
            "its job has about 12 min 34 s left, and the slot goes to job_7, which has about 8.2 s left"
        );
    }

    #[test]
    fn job_class_rules_are_described() {
        let suits = Why::rule("class-suggested-nodes").with("class", 3.0).with("nodes", 4.0);
        let suits = suits.with("lambda", 7.21).with("prediction_error", 0.2);
        assert_eq!(
            describe_why(&suits),
            "4 nodes are suggested for its job class 3; it also gets other nodes that would be idle; \
             the cluster can run 7.2 times the current rate of jobs; predicted task durations are off by 20%"
        );
        let literal = Why::rule("class-suggested-nodes").with("nodes", 1.0).with("literal", 1.0);
        assert_eq!(describe_why(&literal), "1 node is suggested for its job class");
        let below_minimum =
            Why::rule("below-min-share,node-local").with("class", 0.0).with("held", 1.0).with("min", 4.0);
        assert_eq!(
            describe_why(&below_minimum),
            "user ann held 1 of its minimum share of 4 slots, and this node is suggested for job class 0; \
             its input is on that node"
        );
    }

    #[test]
    fn reasons_for_no_preemption_are_described() {
        let new = Why::rule("longer-jobs-just-launched").with("tasks", 4.0).with("at_most", 10.0);
        assert_eq!(
            describe_why(&new.with("next", 6.0)),
            "4 tasks of longer jobs were launched less than 10 s ago: not preempted for another 6 s"
        );
        assert_eq!(
            describe_why(&Why::rule("no-longer-job").with("margin", 1.25)),
            "no job with slots of this kind has more than 125% of the remaining time of this job: none is preempted"
        );
        let alone = Why::rule("reduces-protected").with("tasks", 3.0).with("new", 2.0).with("at_most", 10.0);
        assert_eq!(
            describe_why(&alone.with("nearly", 1.0).with("beyond", 0.7)),
            "3 reduces of jobs with more remaining work are not paused; launched less than 10 s ago: 2; more than 70% done: 1"
        );
    }

    #[test]
    fn optional_parts_are_omitted_without_their_numbers() {
        assert_eq!(describe_why(&Why::rule("on-hold")), "it is paused by a user until `mrctl resume`");
        let held = Why::rule("on-hold").with("tasks", 1.0);
        assert_eq!(describe_why(&held), "1 task is paused by a user until `mrctl resume`");
        let pure = Why::rule("remaining-time,node-local").with("remaining", 5.0);
        assert_eq!(describe_why(&pure), "its job has about 5 s left; its input is on that node");
    }

    #[test]
    fn reasons_about_trackers_that_are_down_are_described() {
        let waits = Why::rule("no-tracker").with("maps_waiting", 2.0);
        assert_eq!(
            describe_why(&waits),
            "2 maps wait: no live node has slots of this kind, because no TaskTracker has registered: start one"
        );
        assert_eq!(
            describe_why(&waits.with("known", 2.0)),
            "2 maps wait: no live node has slots of this kind, and 2 known nodes are down, draining or without such slots: see \
             `mrctl nodes`, and restart the TaskTrackers (`mrctl up` does it in a cluster on one machine)"
        );
        let down = Why::rule("tracker-down").with("on_tracker", 2.0).with("silent_s", 75.0);
        assert_eq!(describe_why(&down), "node2 has sent no heartbeat for 1 min 15 s");
    }

    #[test]
    fn rule_without_text_is_shown_by_name() {
        let new = Why::rule("my-own-rule,off-rack").with("jobs_ahead", 2.0).with("score", 0.25);
        assert_eq!(describe_why(&new), "my own rule, off rack (jobs ahead 2, score 0.2)");
        assert_eq!(describe_why(&Why::from_text("resumed by bob".into())), "resumed by bob");
        let tracker = |id: TrackerId| id.to_string();
        let names = Names { user: "", queue: "", pool: "", tracker: &tracker };
        assert_eq!(
            describe_text("recovery for_job=3", &names),
            "the slot goes to a task of job_3 that was lost with its node"
        );
        for text in ["preempted by ann", "preempted", "unknown-rule a=1"] {
            assert_eq!(describe_text(text, &names), text);
        }
    }
}
