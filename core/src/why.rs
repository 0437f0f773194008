//! The reasons of decisions.

use crate::ids::JobId;
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt};

/// The reason of a decision: the name of a rule, and numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Why {
    /// The name of the rule, such as `oldest-job`.
    pub rule: Cow<'static, str>,
    /// Named numbers, such as `share = 0.25`.
    pub numbers: Vec<(Cow<'static, str>, f64)>,
}

impl Why {
    /// Creates a reason that is not a rule of a policy.
    pub fn from_text(reason: String) -> Self {
        Self { rule: Cow::Owned(reason), numbers: Vec::new() }
    }

    /// Creates a reason from a rule, without numbers.
    pub const fn rule(rule: &'static str) -> Self {
        Self { rule: Cow::Borrowed(rule), numbers: Vec::new() }
    }

    /// Adds a detail to the name of the rule: `oldest-job` becomes `oldest-job,node-local`.
    #[must_use]
    pub fn with_detail(mut self, detail: &str) -> Self {
        let rule = self.rule.to_mut();
        rule.push(',');
        rule.push_str(detail);
        self
    }

    /// Parses the output of `Display`. Returns `None` if the text is not a rule with numbers.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let is_rule = |rule: &&str| !rule.is_empty() && !rule.contains('=');
        let rule = words.next().filter(is_rule)?.to_owned();
        let number = |word: &str| {
            let (name, value) = word.split_once('=')?;
            // JSON has no other numbers, so the text could not be stored as a rule.
            let value = value.parse().ok().filter(|value: &f64| value.is_finite())?;
            Some((Cow::Owned(name.to_owned()), value))
        };
        let numbers = words.map(number).collect::<Option<Vec<_>>>()?;
        Some(Self { rule: Cow::Owned(rule), numbers })
    }

    /// Returns the number with this name.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.numbers.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// Adds a number with a name.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.numbers.push((Cow::Borrowed(name), value));
        self
    }

    /// Adds the number `for_job`: the job that benefits from the decision.
    #[must_use]
    pub fn with_beneficiary(self, job: JobId) -> Self {
        self.with("for_job", f64::from(job.0))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        // At most three digits after the point.
        self.numbers
            .iter()
            .try_for_each(|(name, value)| write!(f, " {name}={}", (value * 1000.0).round() / 1000.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_at_most_three_decimals() {
        let why = Why::rule("share").with("held", 2.0).with("share", 10.0 / 3.0).with_beneficiary(JobId(7));
        assert_eq!(why.to_string(), "share held=2 share=3.333 for_job=7");
    }

    #[test]
    fn reason_display_round_trips() {
        let why = Why::rule("fair-share,node-local").with("held", 3.0).with("share", 2.5);
        assert_eq!(Why::parse(&why.to_string()), Some(why));
        assert_eq!(Why::parse("recovery"), Some(Why::rule("recovery")));
        for text in ["", "killed by ann", "its tracker is lost", "held=3", "share a=1 b=x"] {
            assert_eq!(Why::parse(text), None, "{text}");
        }
    }
}
