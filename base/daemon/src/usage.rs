//! Usage errors of all programs: one line on standard error, and exit code 2.

use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    num::{IntErrorKind, ParseFloatError, ParseIntError},
    path::Path,
};

/// The exit code for a usage error.
pub const EXIT_CODE: i32 = 2;

/// Parses the command line of this process. Ends the process after a usage error, and after help.
pub fn parse<T: clap::Parser>() -> T {
    let words: Vec<OsString> = std::env::args_os().collect();
    let error = match T::try_parse_from(&words) {
        Ok(args) => return args,
        Err(error) => error,
    };
    let Some(line) = line(&error, &T::command(), &words) else { error.exit() };
    eprintln!("{line}");
    std::process::exit(EXIT_CODE)
}

/// Returns the name of this program for its messages.
pub fn program_name() -> String {
    let word = std::env::args_os().next().unwrap_or_default();
    file_name(&word).unwrap_or_default().into_owned()
}

fn file_name(word: &OsStr) -> Option<Cow<'_, str>> {
    Path::new(word).file_name().map(OsStr::to_string_lossy)
}

/// Returns one line about an error in the command line `words`: what, why, what to do. `None` for
/// help and version, which are not errors.
pub fn line(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand) {
        return None;
    }
    let name = words.first().and_then(|word| file_name(word));
    let name = name.unwrap_or_else(|| command.get_name().into());
    let path = subcommands(command, words)
        .fold(name.clone().into_owned(), |path, below| format!("{path} {}", below.get_name()));
    let what = describe(error, command, words).unwrap_or_else(|| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    });
    // A value may contain line breaks.
    let what = what.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    Some(format!("{name}: {what}; see `{path} --help`"))
}

/// Returns the subcommands in a command line, the outermost first.
fn subcommands<'a>(command: &'a Command, words: &'a [OsString]) -> impl Iterator<Item = &'a Command> {
    words
        .iter()
        .skip(1)
        .scan(command, |at, word| {
            let below = at.find_subcommand(word);
            *at = below.unwrap_or(at);
            Some(below)
        })
        .flatten()
}

/// Returns the flags of the innermost subcommand whose names begin with `arg`.
fn flags_that_start_with(arg: &str, command: &Command, words: &[OsString]) -> Vec<String> {
    let innermost = subcommands(command, words).last().unwrap_or(command);
    let Some(start) =
        argument_name(arg).strip_prefix("--").filter(|start| start.len() > 1).map(str::to_owned)
    else {
        return Vec::new();
    };
    let flags = innermost.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(clap::Arg::get_long);
    flags.filter(|long| long.starts_with(&start)).map(|long| format!("--{long}")).collect()
}

/// Describes an error; `None` if the description of clap is used.
fn describe(error: &clap::Error, command: &Command, words: &[OsString]) -> Option<String> {
    let of = |kind| context_text(error, kind);
    let flag = || of(ContextKind::InvalidArg).map(|arg| argument_name(&arg));
    let usage = || {
        let usage = of(ContextKind::Usage)?;
        let line = usage.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(format!(": write `{}`", line.trim_start_matches("Usage: ")))
    };
    let near = |kind| of(kind).map_or_else(String::new, |near| format!(": did you mean {near}?"));
    Some(match error.kind() {
        ErrorKind::InvalidValue => {
            let values = of(ContextKind::ValidValue).unwrap_or_default();
            match of(ContextKind::InvalidValue).filter(|value| !value.is_empty()) {
                None if values.is_empty() => format!("{} needs a value", flag()?),
                None => format!("{} needs a value: {values}", flag()?),
                Some(value) => format!("{}: {} is not one of {values}", flag()?, quote_if_needed(&value)),
            }
        }
        ErrorKind::ValueValidation => {
            describe_invalid_value(error, &flag()?, &of(ContextKind::InvalidValue)?, command, words)
        }
        ErrorKind::UnknownArgument => {
            let arg = of(ContextKind::InvalidArg)?;
            if let Some(negative) = describe_negative_value(&arg, command, words) {
                return Some(negative);
            }
            let kind = if arg.starts_with('-') { "unknown flag" } else { "unexpected argument" };
            let near = match flags_that_start_with(&arg, command, words) {
                flags if flags.is_empty() => near(ContextKind::SuggestedArg),
                flags => format!(": did you mean {}?", flags.join(" or ")),
            };
            format!("{kind} {}{near}", quote_if_needed(&arg))
        }
        ErrorKind::InvalidSubcommand => {
            let name = of(ContextKind::InvalidSubcommand)?;
            format!("unknown command {}{}", quote_if_needed(&name), near(ContextKind::SuggestedSubcommand))
        }
        ErrorKind::MissingRequiredArgument => {
            format!("missing {}{}", of(ContextKind::InvalidArg)?, usage().unwrap_or_default())
        }
        ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues => {
            let wanted = of(ContextKind::MinValues).or_else(|| of(ContextKind::ExpectedNumValues))?;
            let given = of(ContextKind::ActualNumValues)?;
            let usage = usage().unwrap_or_default();
            format!("{} needs {wanted} values and got {given}{usage}", flag()?)
        }
        // A word after the flags of a command that also has subcommands.
        ErrorKind::ArgumentConflict if of(ContextKind::InvalidSubcommand).is_some() => {
            let word = of(ContextKind::InvalidSubcommand)?;
            if let Some(negative) = describe_negative_value(&word, command, words) {
                return Some(negative);
            }
            let kind = if word.starts_with('-') { "unknown flag" } else { "unexpected argument" };
            format!("{kind} {}", quote_if_needed(&word))
        }
        ErrorKind::ArgumentConflict => {
            let (flag, other) = (flag()?, of(ContextKind::PriorArg).map(|other| argument_name(&other))?);
            if flag == other {
                format!("{flag} is given more than once: give it once")
            } else {
                format!("{flag} and {other} exclude each other: leave out one of them")
            }
        }
        ErrorKind::InvalidUtf8 => {
            let word = words.iter().find(|word| word.to_str().is_none())?;
            format!("{} is not UTF-8: give it another name", word.display())
        }
        _ => return None,
    })
}

/// Describes a negative value, if the unknown flag `arg` is one: clap reads `-5` in `--copies -5` and
/// in `--size -5MiB` as a flag.
fn describe_negative_value(arg: &str, command: &Command, words: &[OsString]) -> Option<String> {
    if !arg.strip_prefix('-')?.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let innermost = subcommands(command, words).last().unwrap_or(command);
    let takes_value = |flag: &str| {
        let mut known = innermost.get_arguments().filter(|known| known.get_action().takes_values());
        flag.strip_prefix("--").is_some_and(|long| known.any(|known| known.get_long() == Some(long)))
    };
    let mut pairs = words.windows(2).filter_map(|pair| Some((pair[0].to_str()?, pair[1].to_str()?)));
    let (flag, value) = pairs.find(|(flag, value)| value.starts_with(arg) && takes_value(flag))?;
    Some(match range_of(command, words, value) {
        Some(range) => format!("{flag}: {value} is not {range}"),
        None => format!("{flag}: {value} is not valid: it must not be negative"),
    })
}

/// Returns the message about a value that the parser of `flag` has refused.
fn describe_invalid_value(
    error: &clap::Error,
    flag: &str,
    value: &str,
    command: &Command,
    words: &[OsString],
) -> String {
    let cause = std::error::Error::source(error);
    let why = cause.map_or_else(|| "is not valid".into(), ToString::to_string);
    let value = quote_if_needed(value);
    if let Some(range) = describe_range(&why) {
        return format!("{flag}: {value} is not {range}");
    }
    if let Some(cause) = cause.and_then(|cause| cause.downcast_ref::<ParseIntError>()) {
        let range = range_of(command, words, &value);
        return match cause.kind() {
            IntErrorKind::PosOverflow if range.as_ref().is_none_or(|range| range.starts_with(AT_LEAST)) => {
                format!("{flag}: {value} is too large")
            }
            _ => format!("{flag}: {value} is not {}", range.unwrap_or_else(|| "a whole number".into())),
        };
    }
    if cause.and_then(|cause| cause.downcast_ref::<ParseFloatError>()).is_some() {
        return format!("{flag}: {value} is not a number");
    }
    if contains_word(&why, value.trim_matches('"')) {
        format!("{flag}: {why}")
    } else {
        format!("{flag} {value}: {why}")
    }
}

/// Returns whether `text` contains `word` and not only as a part of a longer word: `3650d` does not
/// contain the word `0d`.
fn contains_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

/// The start of the text for a range without an upper bound.
const AT_LEAST: &str = "a whole number that is at least";

/// Describes the range in an error of clap such as `0 is not in 1..=64`. In such errors, a range
/// without an upper bound ends with the largest number: `0 is not in 1..18446744073709551615`.
fn describe_range(why: &str) -> Option<String> {
    let (from, to) = why.rsplit_once(" is not in ")?.1.split_once("..")?;
    let last = match to.strip_prefix('=') {
        Some(last) => last.to_owned(),
        None if to == i64::MAX.to_string() || to == u64::MAX.to_string() => {
            return Some(format!("{AT_LEAST} {from}"));
        }
        None => (to.parse::<i128>().ok()? - 1).to_string(),
    };
    Some(format!("a whole number from {from} to {last}"))
}

/// Describes the range that the parser of `value` accepts. The errors of clap contain the range
/// only if the value is a number outside it. So this function parses the command line again with
/// numbers that are likely to be outside.
fn range_of(command: &Command, words: &[OsString], value: &str) -> Option<String> {
    [i64::MAX, 0].iter().find_map(|outside| {
        let replaced = words.iter().map(|word| match word.to_str()?.strip_suffix(value) {
            Some(start) if start.is_empty() || start.starts_with('-') => Some(format!("{start}{outside}")),
            _ => word.to_str().map(str::to_owned),
        });
        let error = command.clone().try_get_matches_from(replaced.collect::<Option<Vec<_>>>()?).err()?;
        describe_range(&std::error::Error::source(&error)?.to_string())
    })
}

/// Returns a part of an error as text.
fn context_text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => Some(texts.join(", ")),
        ContextValue::StyledStr(text) => Some(text.to_string()),
        ContextValue::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the name of an argument without its values: `--reduces` for `--reduces <N>`, `N` for
/// `<N>`.
fn argument_name(arg: &str) -> String {
    arg.split([' ', '=']).next().unwrap_or_default().trim_matches(['<', '>', '[', ']', '.']).to_owned()
}

/// Returns a value as it was written, in quotation marks if it is not a single visible word.
fn quote_if_needed(value: &str) -> String {
    let is_word = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c.is_control());
    if is_word { value.to_owned() } else { format!("{value:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Parser, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};

    #[derive(Debug, Parser)]
    #[command(name = "tool", version)]
    struct Cli {
        #[command(subcommand)]
        command: Sub,
    }

    #[derive(Debug, Subcommand)]
    enum Sub {
        Copy {
            #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
            copies: Option<u32>,
            #[arg(long, value_name = "N")]
            seed: Option<u64>,
            #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
            bytes: Option<u64>,
            #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..5))]
            levels: Option<u32>,
            #[arg(long, value_name = "X")]
            scale: Option<f64>,
            #[arg(long, value_name = "SIZE", conflicts_with = "seed")]
            size: Option<crate::Bytes>,
            #[arg(long, value_enum)]
            color: Option<Color>,
            #[arg(long, value_parser = NonEmptyStringValueParser::new())]
            name: Option<String>,
            #[arg(long, value_parser = refuse_lifetime)]
            lifetime: Option<String>,
            #[arg(value_name = "PATH", required = true, num_args = 2..)]
            paths: Vec<String>,
        },
    }

    #[derive(Debug, Clone, ValueEnum)]
    enum Color {
        Red,
        Blue,
    }

    /// Refuses every value with a message that does not contain the value as a word.
    fn refuse_lifetime(_: &str) -> Result<String, String> {
        Err("must be from 1s to 3650d".into())
    }

    fn refusal(words: Vec<OsString>) -> String {
        let error = Cli::try_parse_from(&words).unwrap_err();
        assert_eq!(error.exit_code(), EXIT_CODE);
        let line = line(&error, &<Cli as clap::CommandFactory>::command(), &words).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    }

    #[test]
    fn a_usage_error_is_one_line_with_value_reason_and_remedy() {
        let copy = "tool copy";
        for (words, what) in [
            ("copy --copies x a b", "--copies: x is not a whole number from 1 to 64"),
            ("copy --copies=x a b", "--copies: x is not a whole number from 1 to 64"),
            ("copy --copies -1 a b", "--copies: -1 is not a whole number from 1 to 64"),
            ("copy a b --seed -1", "--seed: -1 is not valid: it must not be negative"),
            ("copy --scale -1.5 a b", "--scale: -1.5 is not valid: it must not be negative"),
            ("copy --size -5MiB a b", "--size: -5MiB is not valid: it must not be negative"),
            ("copy a -1 b", "unknown flag -1"),
            ("copy --copies 65 a b", "--copies: 65 is not a whole number from 1 to 64"),
            (
                "copy --copies 99999999999999999999 a b",
                "--copies: 99999999999999999999 is not a whole number from 1 to 64",
            ),
            ("copy --bytes 0 a b", "--bytes: 0 is not a whole number that is at least 1"),
            ("copy --bytes 1.5 a b", "--bytes: 1.5 is not a whole number that is at least 1"),
            ("copy --bytes 99999999999999999999 a b", "--bytes: 99999999999999999999 is too large"),
            ("copy --levels 5 a b", "--levels: 5 is not a whole number from 2 to 4"),
            ("copy --seed x a b", "--seed: x is not a whole number"),
            ("copy --seed 99999999999999999999 a b", "--seed: 99999999999999999999 is too large"),
            ("copy --scale x a b", "--scale: x is not a number"),
            ("copy --lifetime 9999d a b", "--lifetime 9999d: must be from 1s to 3650d"),
            // The value is a part of a word of the message.
            ("copy --lifetime 0d a b", "--lifetime 0d: must be from 1s to 3650d"),
            ("copy --color green a b", "--color: green is not one of red, blue"),
            ("copy --color", "--color needs a value: red, blue"),
            ("copy --name", "--name needs a value"),
            ("copy --colour red a b", "unknown flag --colour: did you mean --color?"),
            ("copy --co 1 a b", "unknown flag --co: did you mean --copies or --color?"),
            ("copy --level=2 a b", "unknown flag --level: did you mean --levels?"),
            ("copy --seed 1 --size 2 a b", "--seed and --size exclude each other: leave out one of them"),
            ("copy --seed 1 --seed 2 a b", "--seed is given more than once: give it once"),
        ] {
            let words = std::iter::once("bin/tool").chain(words.split(' ')).map(OsString::from).collect();
            assert_eq!(refusal(words), format!("tool: {what}; see `{copy} --help`"));
        }
    }

    #[test]
    fn a_word_after_the_flags_of_a_command_with_subcommands_is_named() {
        #[derive(Debug, Parser)]
        #[command(name = "tool", args_conflicts_with_subcommands = true)]
        struct Both {
            #[command(subcommand)]
            command: Option<Sub>,
            #[arg(long, default_value = "a")]
            one: String,
            #[arg(long)]
            two: Option<String>,
        }
        let words: Vec<OsString> = "tool --two b extra".split(' ').map(OsString::from).collect();
        let error = Both::try_parse_from(&words).unwrap_err();
        let line = line(&error, &<Both as clap::CommandFactory>::command(), &words).unwrap();
        assert_eq!(line, "tool: unexpected argument extra; see `tool --help`");
    }

    #[test]
    fn errors_contain_messages_of_value_parsers_and_missing_arguments() {
        let of = |words: &[&str]| refusal([&["tool"], words].concat().iter().map(OsString::from).collect());
        let size = of(&["copy", "--size", "99999999TiB", "a", "b"]);
        assert!(
            size.starts_with("tool: --size: \"99999999TiB\" is too large: the maximum is 1844"),
            "{size}"
        );
        assert!(
            of(&["copy", "--size", "a\nb", "a", "b"]).starts_with("tool: --size: \"a\\nb\" is not a size")
        );
        assert!(of(&["copy", "--name", "", "a", "b"]).starts_with("tool: --name needs a value; "));
        let missing = of(&["copy"]);
        assert!(missing.starts_with("tool: missing <PATH> <PATH>...: write `tool copy <PATH> "), "{missing}");
        assert!(of(&["copy", "a"]).starts_with("tool: PATH needs 2 values and got 1: write `tool copy "));
        assert_eq!(of(&["cpoy"]), "tool: unknown command cpoy: did you mean copy?; see `tool --help`");
    }

    #[test]
    fn an_argument_that_is_not_utf8_is_reported() {
        use std::os::unix::ffi::OsStringExt;
        let mut words: Vec<OsString> = ["tool", "copy", "a"].map(OsString::from).into();
        words.push(OsString::from_vec(b"odd-\xff".into()));
        assert!(refusal(words).starts_with("tool: odd-\u{fffd} is not UTF-8: give it another name; "));
    }

    #[test]
    fn help_and_version_are_not_errors() {
        for flag in ["--help", "--version"] {
            let words = ["tool", flag].map(OsString::from);
            let error = Cli::try_parse_from(&words).unwrap_err();
            assert_eq!(line(&error, &<Cli as clap::CommandFactory>::command(), &words), None);
        }
    }
}
