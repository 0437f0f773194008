//! Parses lists of policies: `fifo,chronos(fair),kill=fcs[preempt=kill;literal=true]`. A parameter
//! may have several values: `fcs[skips=20|60;slack_max=3|5]` is four policies.

use super::{ALONE, ExperimentError};
use crate::external;
use schedulers::{Params, Policy, PolicyError};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Most policies, or workloads, in a list.
pub const COMBINATIONS_MAX: usize = 1000;

/// One combination of the values in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Combination {
    /// The pairs with one value each: `skips=20;slack_max=3`.
    pub pairs: String,
    /// Those of the pairs whose key has several values.
    pub varied: String,
}

/// Returns every combination of the values in `skips=20|60;slack_max=3|5`; those of the last key vary
/// first. A command may contain pipes, so `command` has one value. Returns `None` if there are more
/// than [`COMBINATIONS_MAX`].
pub fn combinations(given: &str) -> Option<Vec<Combination>> {
    let mut all = vec![Combination { pairs: String::new(), varied: String::new() }];
    for pair in given.split(';').filter(|pair| !pair.is_empty()) {
        let (key, values) = pair.split_once('=').map_or((pair, None), |(key, values)| (key, Some(values)));
        let pairs: Vec<String> = match values {
            Some(_) if key == "command" => vec![pair.to_owned()],
            Some(values) => values.split('|').map(|value| format!("{key}={value}")).collect(),
            None => vec![key.to_owned()],
        };
        if all.len() * pairs.len() > COMBINATIONS_MAX {
            return None;
        }
        let joined = |one: &str, pair: &str| format!("{one}{}{pair}", if one.is_empty() { "" } else { ";" });
        let with = |one: &Combination, pair: &String| Combination {
            pairs: joined(&one.pairs, pair),
            varied: if pairs.len() > 1 { joined(&one.varied, pair) } else { one.varied.clone() },
        };
        all = all.iter().flat_map(|one| pairs.iter().map(move |pair| with(one, pair))).collect();
    }
    Some(all)
}

/// A policy with its parameters and a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// Label in tables.
    pub label: String,
    /// Name for `schedulers::make`, or `external`.
    pub scheduler: String,
    /// Parameters by dotted key.
    pub params: Params,
}

impl Variant {
    /// Creates a variant without parameters; its label is the name of the policy.
    pub fn plain(scheduler: &str) -> Self {
        Self { label: scheduler.to_owned(), scheduler: scheduler.to_owned(), params: Params::new() }
    }

    /// Creates a variant with parameters. A key that names no section, such as `node_wait`, belongs
    /// to the section of the policy, such as `fair`.
    pub fn tuned(label: &str, scheduler: &str, params: &[(&str, &str)]) -> Self {
        let outer = scheduler.split('(').next().unwrap_or(scheduler);
        let found = schedulers::POLICIES.iter().find(|policy| policy.name.split('(').next() == Some(outer));
        let section = found.map_or(outer, |policy| policy.section);
        // For fair, `pools.a.weight` and `fair.pools.a.weight` are the same key.
        let is_full = |key: &str| key.split_once('.').is_some_and(|(first, _)| schedulers::is_section(first));
        let full = |key: &str| if is_full(key) { key.to_owned() } else { format!("{section}.{key}") };
        let params = params.iter().map(|(key, value)| (full(key), (*value).to_owned())).collect();
        Self { label: label.to_owned(), scheduler: scheduler.to_owned(), params }
    }

    /// Adds parameters, unless the variant sets them itself.
    #[must_use]
    pub fn with_params(mut self, params: &Params) -> Self {
        for (key, value) in params {
            self.params.entry(key.clone()).or_insert_with(|| value.clone());
        }
        self
    }

    /// Parses `fifo,chronos(fair),kill=fcs[preempt=kill;literal=true]`, and checks that each policy
    /// can be created. Values separated by `|` give a policy for each combination. A name before `=`
    /// is the label, to which the values that vary are added; without it the text is. Labels are unique, and
    /// the name of a policy is only the label of that policy without parameters: results of `fair`
    /// are those that others are compared with.
    pub fn list(text: &str) -> Result<Vec<Self>, ExperimentError> {
        Self::list_with(&[], text)
    }

    /// Works like [`Self::list`], also with policies of another crate.
    pub fn list_with(own: &[Policy], text: &str) -> Result<Vec<Self>, ExperimentError> {
        let bad = || ExperimentError::NoList(text.to_owned());
        let mut variants = Vec::new();
        for part in split_outside_brackets(text).ok_or_else(bad)? {
            let (name, given) = match part.split_once('[') {
                None => (part, ""),
                Some((name, rest)) => (name, rest.strip_suffix(']').ok_or_else(bad)?),
            };
            let too_many = || ExperimentError::TooMany(text.to_owned());
            for Combination { pairs, varied } in combinations(given).ok_or_else(too_many)? {
                let (label, scheduler) = match name.split_once('=') {
                    Some((label, scheduler)) if varied.is_empty() => (label.trim().to_owned(), scheduler),
                    Some((label, scheduler)) => (format!("{}[{varied}]", label.trim()), scheduler),
                    None if varied.is_empty() => (part.to_owned(), name),
                    None => (format!("{name}[{pairs}]"), name),
                };
                let pairs = pairs.split(';').filter(|pair| !pair.is_empty());
                let pairs: Option<Vec<(&str, &str)>> = pairs.map(|pair| pair.split_once('=')).collect();
                let pairs = pairs.ok_or_else(bad)?;
                let variant = Self::tuned(&label, scheduler.trim(), &pairs);
                if variant.params.len() < pairs.len() {
                    return Err(Self::repeated_parameter(name, &pairs));
                }
                variant.check_in_list(own, &variants)?;
                variants.push(variant);
                if variants.len() > COMBINATIONS_MAX {
                    return Err(too_many());
                }
            }
        }
        if variants.is_empty() { Err(bad()) } else { Ok(variants) }
    }

    fn repeated_parameter(policy: &str, pairs: &[(&str, &str)]) -> ExperimentError {
        let mut seen = BTreeSet::new();
        // The same parameter may have been given with and without its section.
        let last = |key: &str| key.rsplit('.').next().unwrap_or(key).to_owned();
        let repeated = pairs.iter().map(|(key, _)| last(key)).find(|key| !seen.insert(key.clone()));
        let key = repeated.unwrap_or_default();
        ExperimentError::RepeatedParameter { policy: policy.to_owned(), key }
    }

    /// Checks that the policy can be created, and that its label is not that of other runs.
    fn check_in_list(&self, own: &[Policy], others: &[Self]) -> Result<(), ExperimentError> {
        if self.label.is_empty() || self.label.starts_with('[') {
            return Err(ExperimentError::EmptyLabel(self.scheduler.clone()));
        }
        self.check(own)?;
        let is_plain = *self == Self::plain(&self.label);
        if self.label == ALONE || (!is_plain && is_policy(own, &self.label)) {
            return Err(ExperimentError::ReservedLabel(self.label.clone()));
        }
        if others.iter().any(|other| other.label == self.label) {
            let (label, scheduler) = (self.label.clone(), self.scheduler.clone());
            return Err(ExperimentError::RepeatedLabel { label, scheduler });
        }
        Ok(())
    }

    /// Checks that the policy can be created. Does not start the process of an external policy.
    fn check(&self, own: &[Policy]) -> Result<(), PolicyError> {
        if self.scheduler == external::NAME {
            external::Command::of(&self.params)?;
        } else {
            schedulers::make_with(own, &self.scheduler, &self.params)?;
        }
        Ok(())
    }

    /// Returns hashes of the files that the command of an external policy names, such as a script.
    /// They are part of what a run depends on.
    pub(crate) fn file_hashes(&self) -> Vec<u64> {
        self.external_command().map(|command| command.file_hashes()).unwrap_or_default()
    }

    /// Returns the files that the command of an external policy names, such as a script.
    pub fn files(&self) -> Vec<PathBuf> {
        let command = self.external_command();
        command.map(|command| command.files().map(Path::to_path_buf).collect()).unwrap_or_default()
    }

    fn external_command(&self) -> Option<external::Command<'_>> {
        let is_external = self.scheduler == external::NAME;
        is_external.then(|| external::Command::of(&self.params).ok()).flatten()
    }
}

/// Returns whether a policy has this name.
fn is_policy(own: &[Policy], name: &str) -> bool {
    name == external::NAME || schedulers::make_with(own, name, &Params::new()).is_ok()
}

/// Splits a text at the commas that are not inside brackets. Returns `None` if a part is empty or
/// a bracket has no counterpart.
pub fn split_outside_brackets(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut open, mut from) = (Vec::new(), Vec::new(), 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => open.push(')'),
            '[' => open.push(']'),
            ')' | ']' if open.pop() != Some(letter) => return None,
            ',' if open.is_empty() => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    (open.is_empty() && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_lists_are_parsed_and_invalid_lists_are_rejected() {
        assert_eq!(
            split_outside_brackets("fifo, chronos(fair),fcs[a=1;b=2]"),
            Some(vec!["fifo", "chronos(fair)", "fcs[a=1;b=2]"])
        );
        assert_eq!(split_outside_brackets("fifo,"), None);
        for bad in ["chronos(fifo", "chronos)fifo(", "fcs[a=1),fifo(b=2]", "fcs[a=(1]2)"] {
            assert_eq!(split_outside_brackets(bad), None, "{bad}");
        }
        assert_eq!(Variant::list("fifo").expect("a list").len(), 1);
        let tuned = Variant::list("fair[pools.a.weight=2;fair.node_wait=5s]").expect("a list");
        assert_eq!(tuned[0].params.keys().collect::<Vec<_>>(), ["fair.node_wait", "fair.pools.a.weight"]);
        let labelled = Variant::list("a=fifo, b=external[command=python3 x.py;k=1,2]").expect("a list");
        let labels: Vec<(&str, &str)> =
            labelled.iter().map(|one| (one.label.as_str(), one.scheduler.as_str())).collect();
        assert_eq!(labels, [("a", "fifo"), ("b", "external")]);
        assert_eq!(labelled[1].params["external.k"], "1,2");
        let error = Variant::list("external").expect_err("no command").to_string();
        assert!(error.contains("is not a command, as in external[command="), "{error}");
        for bad in ["", "nonsense", "fifo[", "fifo[x=1]", "fifo[x]", "=fifo", "external[command= ]"] {
            assert!(Variant::list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn parameters_with_several_values_give_every_combination() {
        let labels = |text: &str| -> Vec<String> {
            let list = Variant::list(text).unwrap_or_else(|error| panic!("{error}"));
            list.into_iter().map(|variant| variant.label).collect()
        };
        let grid = "fcs[skips=20|60;literal=true;slack_max=3|5],fifo";
        assert_eq!(
            labels(grid),
            [
                "fcs[skips=20;literal=true;slack_max=3]",
                "fcs[skips=20;literal=true;slack_max=5]",
                "fcs[skips=60;literal=true;slack_max=3]",
                "fcs[skips=60;literal=true;slack_max=5]",
                "fifo"
            ]
        );
        assert_eq!(labels("a=fcs[literal=true;skips=20|60]"), ["a[skips=20]", "a[skips=60]"]);
        let last = &Variant::list(grid).expect("a list")[3];
        let of = |key: &str| last.params.get(key).map(String::as_str);
        assert_eq!((of("fcs.skips"), of("fcs.slack_max")), (Some("60"), Some("5")));
        let many: Vec<String> = (1..=32).map(|value| value.to_string()).collect();
        let many = many.join("|");
        for bad in [format!("fcs[skips={many};slack_max={many}]"), format!("fcs[skips={many}|x]")] {
            assert!(Variant::list(&bad).is_err(), "{bad}");
        }
        let error =
            Variant::list(&format!("fcs[skips={many};slack_max={many}]")).expect_err("1,024 policies");
        assert!(error.to_string().ends_with("more than 1000 combinations: give fewer values"), "{error}");
        assert!(Variant::list("fcs[skips=20|20]").is_err_and(|error| error.to_string().contains("twice")));
    }

    #[test]
    fn labels_are_unique_and_not_those_of_reference_runs() {
        for good in ["fifo,fair,fair[node_wait=5s]", "fair=fair", "f=fair[node_wait=5s],g=chronos(fair)"] {
            assert!(Variant::list(good).is_ok(), "{good}");
        }
        for bad in
            ["fair=fifo", "alone=fifo", "fair=fair[node_wait=5s]", "chronos(fair)=fifo", "external=fifo"]
        {
            let error = Variant::list(bad).expect_err(bad).to_string();
            assert!(error.contains("stands for other runs: choose another label"), "{bad}: {error}");
        }
        for bad in ["fifo,fifo", "a=fifo,a=fair", "fcs[skips=2],fcs[skips=2]"] {
            let error = Variant::list(bad).expect_err(bad).to_string();
            assert!(error.contains("is given twice"), "{bad}: {error}");
        }
        let error = |bad: &str| Variant::list(bad).expect_err(bad).to_string();
        assert_eq!(
            error("a=fifo,a=fair"),
            "the label a is given twice: give one of the two policies another, as in other=fair"
        );
        for bad in ["fcs[skips=1;skips=200]", "fcs[skips=1;fcs.skips=200]"] {
            assert!(error(bad).starts_with("fcs: skips is given twice"), "{}", error(bad));
        }
        let empty = "the label before =fcs is empty: give it a name, as in mine=fcs, or omit the =";
        assert_eq!([error("=fcs"), error(" =fcs[skips=2|3]")], [empty; 2]);
    }
}
