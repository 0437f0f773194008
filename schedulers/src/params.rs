//! Parses the parameters of policies. Each parameter is declared once, with its default and a
//! description.
//!
//! A policy reads its [`Section`] of the parameters (`fair.node_wait` is `node_wait` of the section
//! `fair`). Reading a parameter also describes it for `mrctl schedulers`. A parameter that no
//! policy reads is an error, so that a misspelt name is not ignored. This module does not read
//! files.

use mrcore::{Span, plan::PreemptMode};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
};

/// All parameters, by key such as `fair.pools.research.weight`.
pub type Params = BTreeMap<String, String>;

/// A parameter with its default and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// The key within its section.
    pub key: String,
    /// The default value.
    pub default: String,
    /// The current value.
    pub value: String,
    pub about: String,
}

/// An invalid parameter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    #[error("scheduler parameter {key} = {value:?} is not {wanted}")]
    Value { key: String, value: String, wanted: String },
    #[error("there is no scheduler parameter {key}; parameters of {section}: {}", listed(known))]
    Unknown { key: String, section: &'static str, known: Vec<String> },
    #[error("there is no scheduler parameter {key}: parameters begin with {}", listed(sections))]
    Section { key: String, sections: Vec<&'static str> },
    #[error("scheduler parameters of {section} contradict each other: {why}")]
    Conflict { section: &'static str, why: String },
}

/// Lists each name once, in order; `none` if there are none.
fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let mut each: Vec<&str> = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        if !each.contains(&name) {
            each.push(name);
        }
    }
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}

impl ParameterError {
    /// Returns the key or the section that the error is about.
    pub fn place(&self) -> &str {
        match self {
            Self::Value { key, .. } | Self::Unknown { key, .. } | Self::Section { key, .. } => key,
            Self::Conflict { section, .. } => section,
        }
    }
}

/// The parameters of one policy.
#[derive(Debug)]
pub struct Section<'a> {
    name: &'static str,
    settings: BTreeMap<&'a str, &'a str>,
    declared: Vec<Parameter>,
    first_error: Option<ParameterError>,
}

impl<'a> Section<'a> {
    /// Selects the parameters whose keys start with the name of a section.
    pub fn of(name: &'static str, params: &'a Params) -> Self {
        let own = params.iter().filter_map(|(key, value)| {
            let key = key.strip_prefix(name)?.strip_prefix('.')?;
            Some((key, value.as_str()))
        });
        Self { name, settings: own.collect(), declared: Vec::new(), first_error: None }
    }

    /// Returns the parameters that were read, or the first error.
    pub fn finish(self) -> Result<Vec<Parameter>, ParameterError> {
        if let Some(error) = self.first_error {
            return Err(error);
        }
        let known: Vec<String> = self.declared.iter().map(|parameter| parameter.key.clone()).collect();
        match self.settings.keys().find(|key| !known.iter().any(|known| known == *key)) {
            None => Ok(self.declared),
            Some(key) => {
                let key = format!("{}.{key}", self.name);
                Err(ParameterError::Unknown { key, section: self.name, known })
            }
        }
    }

    /// Reports that parameters contradict each other.
    pub fn refuse(&mut self, why: String) {
        let section = self.name;
        self.first_error.get_or_insert(ParameterError::Conflict { section, why });
    }

    /// Reads a value. Returns the default if the value is missing or invalid.
    fn read<T: Clone>(
        &mut self,
        key: &str,
        (default, shown): (T, String),
        about: &str,
        wanted: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> T {
        let settings = self.settings.get(key).copied();
        let value = settings.map_or_else(|| shown.clone(), str::to_owned);
        self.declared.push(Parameter { key: key.to_owned(), default: shown, value, about: about.to_owned() });
        let Some(text) = settings else { return default };
        parse(text.trim()).unwrap_or_else(|| {
            let key = format!("{}.{key}", self.name);
            let (value, wanted) = (text.to_owned(), wanted.to_owned());
            self.first_error.get_or_insert(ParameterError::Value { key, value, wanted });
            default
        })
    }

    /// Reads a duration: `5s`, `250ms`, `2m`, or a number of seconds.
    pub fn span(&mut self, key: &str, default: Span, about: &str) -> Span {
        let wanted = "a duration, such as 5s, 250ms or 2m";
        self.read(key, (default, show_span(default)), about, wanted, span)
    }

    /// Reads an interval: a duration above 0.
    pub fn period(&mut self, key: &str, default: Span, about: &str) -> Span {
        let wanted = "a duration above 0, such as 5s, 250ms or 2m";
        let above_0 = |text: &str| span(text).filter(|span| span.0 > 0);
        self.read(key, (default, show_span(default)), about, wanted, above_0)
    }

    /// Reads a duration or `never`.
    pub fn span_or_never(&mut self, key: &str, default: Option<Span>, about: &str) -> Option<Span> {
        self.span_or("never", key, default, about)
    }

    /// Reads a duration, or a word that stands for none.
    pub fn span_or(&mut self, word: &str, key: &str, default: Option<Span>, about: &str) -> Option<Span> {
        let shown = default.map_or_else(|| word.to_owned(), show_span);
        let wanted = format!("a duration, such as 5s, or {word}");
        self.read(key, (default, shown), about, &wanted, |text| {
            if text == word { Some(None) } else { span(text).map(Some) }
        })
    }

    /// Reads a number within a range.
    pub fn number(&mut self, key: &str, default: f64, range: RangeInclusive<f64>, about: &str) -> f64 {
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        let parse = |text: &str| text.parse().ok().filter(|number| range.contains(number));
        self.read(key, (default, default.to_string()), about, &wanted, parse)
    }

    /// Reads a whole number.
    pub fn count(&mut self, key: &str, default: u32, about: &str) -> u32 {
        self.read(key, (default, default.to_string()), about, "a whole number", |text| text.parse().ok())
    }

    /// Reads a whole number, or `none` for no limit.
    pub fn limit(&mut self, key: &str, about: &str) -> Option<u32> {
        let wanted = "a whole number, or none";
        self.read(key, (None, "none".to_owned()), about, wanted, |text| match text {
            "none" => Some(None),
            text => text.parse().ok().map(Some),
        })
    }

    /// Reads `true` or `false`.
    pub fn flag(&mut self, key: &str, default: bool, about: &str) -> bool {
        self.read(key, (default, default.to_string()), about, "true or false", |text| text.parse().ok())
    }

    /// Reads whether a rule is on. Rules are on by default.
    pub fn switch(&mut self, key: &str, about: &str) -> bool {
        self.choice(key, &[("on", true), ("off", false)], about)
    }

    /// Reads one of several words; the first is the default.
    pub fn choice<T: Copy>(&mut self, key: &str, words: &[(&'static str, T)], about: &str) -> T {
        let (default, shown) = (words[0].1, words[0].0.to_owned());
        let wanted = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        let parse = |text: &str| words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
        self.read(key, (default, shown), &format!("{about} ({wanted})"), &wanted, parse)
    }

    /// Reads the parameter `preempt`: how attempts are preempted.
    pub fn preempt_mode(&mut self) -> PreemptMode {
        self.preempt_mode_or(PreemptMode::Lossless)
    }

    /// Like [`Self::preempt_mode`], with another default.
    pub fn preempt_mode_or(&mut self, default: PreemptMode) -> PreemptMode {
        let mut words = [("lossless", PreemptMode::Lossless), ("kill", PreemptMode::Kill)];
        if default == PreemptMode::Kill {
            words.reverse();
        }
        self.choice("preempt", &words, "how attempts are preempted: lossless splits maps and pauses reduces")
    }

    /// Reads a number without declaring the parameter.
    pub fn peek(&self, key: &str) -> Option<f64> {
        self.settings.get(key)?.trim().parse().ok()
    }

    /// Returns the names that have settings below a key: `pools.research.weight` has the name
    /// `research` below `pools`. A name may contain dots.
    pub fn names(&self, below: &str) -> BTreeSet<String> {
        let inner = self.settings.keys().filter_map(|key| key.strip_prefix(below)?.strip_prefix('.'));
        inner.filter_map(|rest| rest.rsplit_once('.')).map(|(name, _)| name.to_owned()).collect()
    }
}

fn span(text: &str) -> Option<Span> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = digits.trim().parse().ok()?;
    let micros = number * seconds * 1e6;
    (0.0..1e15).contains(&micros).then_some(Span(micros.round() as u64))
}

fn show_span(span: Span) -> String {
    if span.0.is_multiple_of(1_000_000) {
        format!("{}s", span.0 / 1_000_000)
    } else {
        format!("{}ms", span.0 / 1000)
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({}; default {})", self.key, self.value, self.about, self.default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(list: &[(&str, &str)]) -> Params {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn values_are_typed_and_described() {
        let params = settings(&[("p.wait", "250ms"), ("p.way", "kill"), ("p.most", "7"), ("q.wait", "1s")]);
        let mut section = Section::of("p", &params);
        assert_eq!(section.span("wait", Span::secs(5), "how long"), Span::millis(250));
        assert_eq!(section.choice("way", &[("lossless", 1), ("kill", 2)], "how"), 2);
        assert_eq!(section.limit("most", "how many"), Some(7));
        assert_eq!(section.span_or_never("timeout", None, "when"), None);
        let listed = section.finish().unwrap();
        assert_eq!(listed[0].to_string(), "wait = 250ms (how long; default 5s)");
        assert_eq!(listed[1].about, "how (lossless or kill)");
        assert_eq!(listed[3].to_string(), "timeout = never (when; default never)");
    }

    #[test]
    fn unused_parameters_are_rejected() {
        let params = settings(&[("p.wiat", "5s")]);
        let mut section = Section::of("p", &params);
        section.span("wait", Span::secs(5), "how long");
        let error = section.finish().unwrap_err().to_string();
        assert_eq!(error, "there is no scheduler parameter p.wiat; parameters of p: wait");
        let error = Section::of("p", &params).finish().unwrap_err().to_string();
        assert_eq!(error, "there is no scheduler parameter p.wiat; parameters of p: none");
    }

    #[test]
    fn zero_intervals_are_rejected() {
        let params = settings(&[("p.every", "0s")]);
        let mut section = Section::of("p", &params);
        section.period("every", Span::secs(1), "how often");
        let error = section.finish().unwrap_err().to_string();
        assert!(
            error.starts_with("scheduler parameter p.every = \"0s\" is not a duration above 0"),
            "{error}"
        );
    }

    #[test]
    fn invalid_value_error_says_what_is_expected() {
        let params = settings(&[("p.share", "1.5")]);
        let mut section = Section::of("p", &params);
        assert!((section.number("share", 0.5, 0.0..=1.0, "part") - 0.5).abs() < 1e-9);
        let error = section.finish().unwrap_err().to_string();
        assert_eq!(error, "scheduler parameter p.share = \"1.5\" is not a number from 0 to 1");
    }

    #[test]
    fn names_below_a_key_may_contain_dots() {
        let params = settings(&[("p.pools.a.b.weight", "2"), ("p.pools.c.weight", "1"), ("p.other", "1")]);
        let names = Section::of("p", &params).names("pools");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a.b", "c"]);
    }

    #[test]
    fn durations_are_parsed_with_their_units() {
        for (text, wanted) in
            [("5", 5_000_000), ("0.5s", 500_000), ("2m", 120_000_000), ("1h", 3_600_000_000)]
        {
            assert_eq!(span(text), Some(Span(wanted)), "{text}");
        }
        for text in ["", "s", "-1s", "5 parsecs", "1e99"] {
            assert_eq!(span(text), None, "{text}");
        }
    }
}
