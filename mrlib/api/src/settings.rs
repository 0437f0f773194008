//! The settings of a job: one table, used to check them at submission, to parse them and to print
//! help.
//!
//! A setting is known if it is in [`ENGINE_SETTINGS`], if the program declares it
//! ([`crate::Job::settings`], [`crate::Job::declare_setting`]), or if its name begins
//! with [`USER_PREFIX`]. Every other setting is refused, with the nearest known name, because a
//! misspelled setting would have no effect and no message.

use crate::{
    codec::Codec,
    format::InputFormat,
    hadoop::{self, Meaning},
};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::HashMap, str::FromStr};
use types::quantity::Bytes;
pub use types::spelling::nearest;

/// The prefix of settings that a program may use without declaring them.
pub const USER_PREFIX: &str = "user.";
/// Number of records that a task may skip with `skip.bad.records=true`.
pub const SKIP_DEFAULT: u64 = 100;
/// Maximum replication that a job may request. A NameNode may allow less.
pub const REPLICATION_MAX: u64 = 64;

/// Minimum of `split.size`, in bytes: smaller splits are mostly empty.
pub const SPLIT_BYTES_MIN: u64 = 64;
/// Minimum of `sort.memory`, in bytes.
pub const SORT_BYTES_MIN: u64 = 64 << 10;
/// Largest value of `sort.memory`.
const SORT_BYTES_MAX: u64 = 1 << 40;
/// Maximum of `attempts.max`: the JobTracker stores the error of every failed attempt.
pub const ATTEMPTS_MAX: u64 = 100;
/// Maximum length of the name of a setting, in bytes.
pub const NAME_BYTES_MAX: usize = 256;
/// Maximum number of settings that a program may declare.
pub const DECLARED_MAX: usize = 1000;
/// The path of the file with the split keys: the bounds of the key ranges that the reduces of a job
/// with total order get.
pub const SPLIT_KEYS: &str = "total.order.splits";

/// The values that a setting accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number in this range.
    Count {
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// A size of at least one byte.
    Size,
    /// A size in this range, in bytes.
    SizeFrom {
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// A number from 0 to 1.
    Fraction,
    /// `lines`, `keyvalue`, `whole` or `fixed:RECORD:KEY`.
    Format,
    /// `auto`, `none` or `gzip`.
    Codec,
    /// A number of records, `true` or `false`.
    Skip,
    /// Any text.
    Text,
}

/// A setting of the engine or of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The name, as in `--conf NAME=VALUE`.
    pub name: Cow<'static, str>,
    /// The values that it accepts.
    pub kind: Kind,
    /// Its meaning, in one line.
    pub help: Cow<'static, str>,
}

impl Setting {
    /// Creates an entry of a table of settings.
    pub const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), kind, help: Cow::Borrowed(help) }
    }
}

/// The settings that every job accepts.
pub const ENGINE_SETTINGS: &[Setting] = &[
    Setting::new(
        "split.size",
        Kind::SizeFrom { min: SPLIT_BYTES_MIN, max: u64::MAX },
        "bytes that one map reads, at least 64 [default: a block]",
    ),
    Setting::new("input.format", Kind::Format, "lines, keyvalue, whole or fixed:RECORD:KEY (bytes)"),
    Setting::new("input.codec", Kind::Codec, "auto, gzip, or none (do not decompress)"),
    Setting::new("input.recursive", Kind::Flag, "false: same as --no-recursive [default: true]"),
    Setting::new(
        "output.replication",
        Kind::Count { min: 1, max: REPLICATION_MAX },
        "replicas of the output files",
    ),
    Setting::new("slow.start", Kind::Fraction, "fraction of maps done before reduces start, from 0 to 1"),
    Setting::new("speculation", Kind::Flag, "false: disable speculative execution"),
    Setting::new("speculation.split", Kind::Flag, "false: speculate on a slow map, never split it"),
    Setting::new(
        "attempts.max",
        Kind::Count { min: 1, max: ATTEMPTS_MAX },
        "failures per task that fail the job, max 100 [default: 4]",
    ),
    Setting::new("skip.bad.records", Kind::Skip, "bad records that a task may skip (true: 100; see below)"),
    Setting::new("record.bytes.max", Kind::Size, "maximum length of a record [default: 256MiB]"),
    Setting::new("pace.map", Kind::Size, "read rate limit of a map, per second, for tests"),
    Setting::new("pace.reduce", Kind::Size, "read rate limit of a reduce, per second, for tests"),
    Setting::new(
        "sort.memory",
        Kind::SizeFrom { min: SORT_BYTES_MIN, max: SORT_BYTES_MAX },
        "memory of a task for sorting, from 64KiB to 1TiB",
    ),
    Setting::new("merge.factor", Kind::Count { min: 2, max: 1 << 20 }, "runs merged at a time [default: 64]"),
    Setting::new("fetch.parallel", Kind::Count { min: 1, max: 1 << 10 }, "parallel fetches [default: 4]"),
    Setting::new("map.output.compress", Kind::Flag, "false: never compress map output"),
    Setting::new(SPLIT_KEYS, Kind::Text, "file of split keys, for jobs with total order"),
    Setting::new("group", Kind::Text, "group of jobs in `mrctl history --figures`"),
];

impl Kind {
    /// Describes the accepted values, for error messages.
    fn expected_values(self) -> String {
        match self {
            Self::Flag => "true or false".into(),
            Self::Count { min, max } => format!("a whole number from {min} to {max}"),
            Self::Size => "a size such as 16MiB, at least 1B and less than 16EiB".into(),
            Self::SizeFrom { min, max: u64::MAX } => {
                format!("a size such as 16MiB, at least {} and less than 16EiB", Bytes(min))
            }
            Self::SizeFrom { min, max } => {
                format!("a size such as 16MiB, at least {} and at most {}", Bytes(min), Bytes(max))
            }
            Self::Fraction => "a number from 0 to 1".into(),
            Self::Format => "lines, keyvalue, whole or fixed:RECORD:KEY (bytes)".into(),
            Self::Codec => "auto, none or gzip".into(),
            Self::Skip => "a number of records, true or false".into(),
            Self::Text => "text".into(),
        }
    }

    fn accepts(self, text: &str) -> bool {
        match self {
            Self::Flag => text.parse::<bool>().is_ok(),
            Self::Count { min, max } => text.parse().is_ok_and(|count| (min..=max).contains(&count)),
            Self::Size => Self::SizeFrom { min: 1, max: u64::MAX }.accepts(text),
            Self::SizeFrom { min, max } => {
                text.parse().is_ok_and(|Bytes(bytes)| (min..=max).contains(&bytes))
            }
            Self::Fraction => text.parse().is_ok_and(|part: f64| (0.0..=1.0).contains(&part)),
            Self::Format => InputFormat::from_str(text).is_ok(),
            Self::Codec => Codec::from_str(text).is_ok(),
            Self::Skip => skip_records(text).is_some(),
            Self::Text => true,
        }
    }
}

/// Returns the number of records that a task may skip with this value of `skip.bad.records`.
pub fn skip_records(text: &str) -> Option<u64> {
    match text {
        "true" => Some(SKIP_DEFAULT),
        "false" => Some(0),
        number => number.parse().ok(),
    }
}

/// Returns the error for a value that a setting does not accept.
pub fn invalid_value(name: &str, value: &str, expected_values: &str) -> String {
    format!("setting {name} = {value:?}: it must be {expected_values}")
}

/// Checks every setting of a job. `own` are the settings that its program declares. The error is
/// one line about the first setting that is unknown or has an invalid value.
pub fn check<'a>(conf: impl IntoIterator<Item = (&'a str, &'a str)>, own: &[Setting]) -> Result<(), String> {
    let known: HashMap<&str, Kind> =
        ENGINE_SETTINGS.iter().chain(own).rev().map(|setting| (&*setting.name, setting.kind)).collect();
    for (name, value) in conf {
        if name.starts_with(USER_PREFIX) {
            continue;
        }
        let Some(kind) = known.get(name) else {
            return Err(unknown_setting(name, value, own));
        };
        if !kind.accepts(value.trim()) {
            return Err(invalid_value(name, value, &kind.expected_values()));
        }
    }
    Ok(())
}

/// Checks only the values of engine settings, because a task also has settings that no user gave,
/// such as `task.id`. Minimum sizes are checked only at submission.
pub fn check_engine<'a>(conf: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), String> {
    for (name, value) in conf {
        let known =
            ENGINE_SETTINGS.iter().find(|setting| setting.name == name).map(|known| match known.kind {
                Kind::SizeFrom { .. } => Kind::Size,
                kind => kind,
            });
        if let Some(kind) = known.filter(|kind| !kind.accepts(value.trim())) {
            return Err(invalid_value(name, value, &kind.expected_values()));
        }
    }
    Ok(())
}

/// Returns the error for an unknown setting, with what to use instead if that is known.
fn unknown_setting(name: &str, value: &str, own: &[Setting]) -> String {
    let start = format!("setting {name} is unknown");
    if let Some(meaning) = hadoop::meaning(name) {
        if matches!(meaning, Meaning::Setting(own) if own == name) {
            return format!("setting {name} is only for the program streaming");
        }
        return format!("setting {name} is a Hadoop setting: {}", meaning.advice(value));
    }
    if let Some(near) = nearest(name, ENGINE_SETTINGS.iter().chain(own).map(|setting| &*setting.name)) {
        return format!("{start}: did you mean {near}?");
    }
    if hadoop::is_hadoop_name(name) {
        return format!(
            "setting {name} looks like a Hadoop setting and has no equivalent (`mrctl submit --help` lists all settings)"
        );
    }
    format!(
        "{start}: `mrctl submit --help` and `mrctl programs` list all settings; names for your own program begin with {USER_PREFIX}"
    )
}

/// Formats a table of settings as help text, indented and aligned.
pub fn help(settings: &[Setting]) -> String {
    let width = settings.iter().map(|setting| setting.name.len()).max().unwrap_or(0);
    let lines: Vec<String> =
        settings.iter().map(|setting| format!("  {:width$}  {}\n", setting.name, setting.help)).collect();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, value: &str) -> Option<String> {
        let own = [Setting::new("word.length", Kind::Count { min: 1, max: 99 }, "the shortest word")];
        check([(name, value)], &own).err()
    }

    #[test]
    fn engine_settings_declared_settings_and_user_settings_are_accepted() {
        for (name, value) in [
            ("pace.map", "1MiB"),
            ("skip.bad.records", "3"),
            ("skip.bad.records", "true"),
            ("input.format", "fixed:100:10"),
            ("slow.start", " 0.5 "),
            ("word.length", "4"),
            ("user.anything", "at all"),
        ] {
            assert_eq!(refusal(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn misspelled_settings_are_refused_with_the_nearest_name() {
        for (name, near) in [
            ("pace.mpa", "pace.map"),
            ("speculaton", "speculation"),
            ("word.lenght", "word.length"),
            ("input.recursiv", "input.recursive"),
            ("skip.bad.record", "skip.bad.records"),
        ] {
            let why = refusal(name, "1").expect(name);
            assert!(why.contains(&format!("setting {name} is unknown: did you mean {near}?")), "{why}");
        }
        let why = refusal("nonsense", "1").expect("unknown");
        assert!(why.contains("nonsense is unknown") && why.contains("begin with user."), "{why}");
    }

    #[test]
    fn hadoop_settings_are_refused_with_their_equivalent() {
        let reduces = refusal("mapreduce.job.reduces", "2").expect("Hadoop's");
        assert_eq!(reduces, "setting mapreduce.job.reduces is a Hadoop setting: use --reduces 2");
        let fields = refusal("mapred.text.key.partitioner.options", "-k1,2").expect("Hadoop's");
        assert!(fields.ends_with("use --conf stream.partition.fields=-k1,2"), "{fields}");
        assert!(refusal("mapreduce.nonsense", "1").expect("a Hadoop setting").contains("no equivalent"));
    }

    #[test]
    fn invalid_values_are_refused_with_the_name_of_the_setting() {
        for (name, value) in [
            ("slow.start", "1.5"),
            ("slow.start", "NaN"),
            ("speculation", "perhaps"),
            ("attempts.max", "0"),
            ("attempts.max", "-1"),
            ("attempts.max", "101"),
            ("split.size", "0"),
            ("split.size", "big"),
            ("split.size", "99999999TiB"),
            ("split.size", "3"),
            ("sort.memory", "1"),
            ("input.format", "fixed:10"),
            ("input.format", "fixed:10:11"),
            ("input.format", "fixed:0:0"),
            ("input.format", "xml"),
            ("input.codec", "zstd"),
            ("input.recursive", "yes"),
            ("skip.bad.records", "-1"),
            ("output.replication", "99"),
            ("merge.factor", "1"),
            ("fermata.token", "00"),
            ("staging", "/tmp/x"),
            ("mapper.divisible", "true"),
        ] {
            let why = refusal(name, value).expect(name);
            assert!(why.starts_with(&format!("setting {name}")) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn refusal_names_the_allowed_range() {
        let why = refusal("sort.memory", "1").expect("too small");
        assert_eq!(
            why,
            "setting sort.memory = \"1\": it must be a size such as 16MiB, at least 64KiB and at most 1TiB"
        );
        assert!(refusal("sort.memory", "100TiB").expect("too large").contains("at most 1TiB"));
        let why = refusal("split.size", "99999999999999999999999").expect("too large");
        assert!(why.ends_with("at least 64 and less than 16EiB"), "{why}");
        let why = check([("pace.map", "0")], &[]).unwrap_err();
        assert!(why.contains("pace.map = \"0\"") && why.contains("at least 1B"), "{why}");
        assert_eq!(refusal("sort.memory", "64KiB"), None);
        assert_eq!(refusal("split.size", "64"), None);
        assert_eq!(check_engine([("split.size", "3")]), Ok(()), "tests use smaller splits");
        assert!(check_engine([("split.size", "0")]).is_err());
    }

    #[test]
    fn program_that_declares_many_settings_is_checked() {
        let own: Vec<Setting> = (0..DECLARED_MAX)
            .map(|n| Setting { name: format!("own.{n}").into(), kind: Kind::Flag, help: Cow::default() })
            .collect();
        let conf: Vec<(String, &str)> = (0..DECLARED_MAX).map(|n| (format!("own.{n}"), "true")).collect();
        let pairs = || conf.iter().map(|(name, value)| (name.as_str(), *value));
        assert_eq!(check(pairs(), &own), Ok(()));
        assert!(check(pairs().chain([("own.999", "1")]), &own).is_err_and(|why| why.contains("own.999")));
        assert!(
            check([("attempts.max", "0")], &own).is_err(),
            "a program cannot redefine a setting of the engine"
        );
    }
}
