//! The options of `hadoop jar hadoop-streaming.jar`, and their translation into a submission.
//!
//! Properties (`-D`) are translated with the table of `mrlib_api::hadoop`. Whatever has no
//! equivalent is refused by name, before anything is uploaded; what has no effect is reported.

use super::path::ClusterPath;
use crate::output::Usage;
use anyhow::{Context, Result, bail, ensure};
use client::Submission;
use engine::{
    registry,
    streaming::{self, fields},
};
use mrlib_api::hadoop::{self, Meaning};
use std::{collections::BTreeMap, ffi::OsStr, fmt::Write as _, path::Path};

/// A job as the options describe it.
#[derive(Debug, Default)]
pub(super) struct Request {
    inputs: Vec<String>,
    output: Option<String>,
    mapper: Option<String>,
    combiner: Option<String>,
    reducer: Option<String>,
    input_format: Option<String>,
    output_format: Option<String>,
    partitioner: Option<String>,
    reduces: Option<String>,
    environment: BTreeMap<String, String>,
    properties: BTreeMap<String, String>,
    files: Vec<SideFile>,
    archives: Vec<SideFile>,
    /// Whether to delete empty files from the output.
    pub(super) lazy_output: bool,
    /// Whether to end when the job is submitted.
    pub(super) background: bool,
}

/// A file that every task finds in its working folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SideFile {
    /// A local path, or a URI of the cluster.
    pub(super) source: String,
    /// The name in the folder of the task.
    pub(super) name: String,
}

/// What the options became.
#[derive(Debug)]
pub(super) struct Translated {
    pub(super) submission: Submission,
    /// Messages about properties without effect.
    pub(super) warnings: Vec<String>,
    /// The number of lines of the input that each map gets, with `NLineInputFormat`.
    pub(super) lines_per_map: Option<usize>,
}

/// The property with the lines of each map, for `NLineInputFormat`, and its older name.
const LINES_PER_MAP: [&str; 2] =
    ["mapreduce.input.lineinputformat.linespermap", "mapred.line.input.format.linespermap"];

/// Returns the name of an archive in the folder of a task, beside the folder with its contents.
fn packed_name(archive: &SideFile) -> String {
    format!("{}.packed", archive.name)
}

/// Returns a usage error.
fn usage<T>(text: impl Into<String>) -> Result<T> {
    Err(Usage(text.into()).into())
}

impl SideFile {
    /// Parses `SOURCE#NAME` or `SOURCE`.
    fn parse(text: &str) -> Result<Self> {
        let (source, name) = text.split_once('#').unwrap_or((text, ""));
        let name = if name.is_empty() {
            source.trim_end_matches('/').rsplit('/').next().unwrap_or(source)
        } else {
            name
        };
        if source.is_empty() || name.is_empty() || name.contains('/') || matches!(name, "." | "..") {
            return usage(format!("{text}: write FILE or FILE#NAME, with a name without slashes"));
        }
        Ok(Self { source: source.into(), name: name.into() })
    }

    fn list(text: &str) -> Result<Vec<Self>> {
        text.split(',').filter(|one| !one.is_empty()).map(Self::parse).collect()
    }
}

fn pair(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.into(), value.into())),
        _ => usage(format!("{text}: write NAME=VALUE")),
    }
}

impl Request {
    /// Parses the options.
    pub(super) fn parse(args: &[String]) -> Result<Self> {
        let mut request = Self::default();
        let mut args = args.iter();
        while let Some(option) = args.next() {
            if request.set_flag(option)? {
                continue;
            }
            if let Some(property) = option.strip_prefix("-D").filter(|rest| rest.contains('=')) {
                request.properties.extend([pair(property)?]);
                continue;
            }
            let Some(value) = args.next() else { return usage(format!("{option} needs a value")) };
            request.set(option, value)?;
        }
        Ok(request)
    }

    /// Sets an option without a value. Returns false for another option.
    fn set_flag(&mut self, option: &str) -> Result<bool> {
        match option {
            "-lazyOutput" => self.lazy_output = true,
            "-background" => self.background = true,
            "-verbose" | "-debug" => {}
            "-help" | "-info" | "-usage" => {
                return usage("docs/guide/hadoop.md lists the options of hadoop-streaming.jar");
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<()> {
        let text = || Some(value.to_owned());
        match option {
            "-input" => self.inputs.extend(split_paths(value)),
            "-output" => self.output = text(),
            "-mapper" => self.mapper = text(),
            "-combiner" => self.combiner = text(),
            "-reducer" => self.reducer = text(),
            "-inputformat" => self.input_format = text(),
            "-outputformat" => self.output_format = text(),
            "-partitioner" => self.partitioner = text(),
            "-numReduceTasks" => self.reduces = text(),
            "-cmdenv" => self.environment.extend([pair(value)?]),
            "-D" | "-jobconf" => self.properties.extend([pair(value)?]),
            "-file" | "-cacheFile" => self.files.push(SideFile::parse(value)?),
            "-files" => self.files.extend(SideFile::list(value)?),
            "-conf" | "-additionalconfspec" => self.properties.extend(read_properties(value)?),
            "-io" if matches!(value, "text" | "identifier_text") => {}
            // The folder of `mrctl hadoop-home` belongs to one cluster.
            "-fs" | "-dfs" | "-jt" | "-tokenCacheFile" => {}
            "-archives" => self.archives.extend(SideFile::list(value)?),
            "-cacheArchive" => self.archives.push(SideFile::parse(value)?),
            "-libjars" => return usage(format!("-libjars {value}: Fermata runs no Java classes")),
            "-inputreader" => {
                return usage(format!("-inputreader {value}: there are no record readers in Java"));
            }
            "-io" => return usage(format!("-io {value}: programs read and write lines of text")),
            "-mapdebug" | "-reducedebug" => {
                return usage(format!(
                    "{option} {value}: tasks have no debug scripts: `mrctl logs TASK` shows why it failed"
                ));
            }
            other => return usage(format!("Unrecognized option: {other}")),
        }
        Ok(())
    }

    /// Returns the files that every task finds in its working folder.
    pub(super) fn side_files(&self) -> Vec<SideFile> {
        let packed = |archive: &SideFile| SideFile { name: packed_name(archive), ..archive.clone() };
        self.files.iter().cloned().chain(self.archives.iter().map(packed)).collect()
    }

    /// Returns a command that unpacks the archives, each into a folder with its name, and then
    /// executes the given one. The mapper and the combiner of a task have the same working folder.
    fn with_archives(&self, command: String) -> Result<String> {
        if self.archives.is_empty() {
            return Ok(command);
        }
        let mut script = String::new();
        for archive in &self.archives {
            let (name, packed) = (&archive.name, packed_name(archive));
            let plain = |one: char| one.is_ascii_alphanumeric() || "._-+".contains(one);
            if !name.chars().all(plain) || name.starts_with('-') {
                return usage(format!(
                    "archive {name}: write #NAME after it, with letters, digits, ., _, - and +"
                ));
            }
            let unpack = match Path::new(&archive.source).extension().and_then(OsStr::to_str) {
                Some("zip" | "jar") => {
                    format!(
                        "{{ unzip -q {packed} -d {name}.new || python3 -m zipfile -e {packed} {name}.new; }}"
                    )
                }
                _ => format!("tar -xf {packed} -C {name}.new"),
            };
            let _ = write!(
                script,
                "test -d {name} || {{ mkdir {name}.new && {unpack} && mv {name}.new {name}; }} || exit 1; "
            );
        }
        // Without the shell, the engine finds side files that are named without `./`.
        Ok(format!("sh -c '{script}PATH=$PATH:$PWD exec \"$@\"' sh {command}"))
    }

    /// Translates the options for this user.
    pub(super) fn translate(&self, user: &str) -> Result<Translated> {
        let mut job = Translation::default();
        job.set("input.recursive", "false", "-input")?;
        for (name, value) in &self.properties {
            job.add_property(name, value)?;
        }
        job.choose(self.partitioner.as_deref(), self.input_format.as_deref(), self.output_format.as_deref())?;
        let Translation {
            mut submission, warnings, partitioner, comparator, discards_output, by_lines, ..
        } = job;
        if let Some(number) = &self.reduces {
            submission.reduces = number_of_reduces(number)?;
        }
        let absolute = |text: &str| ClusterPath::parse(text, user).map(|path| path.path);
        let inputs = self.inputs.iter().chain(&submission.inputs);
        submission.inputs = inputs.map(|text| absolute(text)).collect::<Result<_>>()?;
        ensure!(!submission.inputs.is_empty(), Usage("Required argument: -input <name>".into()));
        let output = self.output.clone().or(Some(submission.output)).filter(|output| !output.is_empty());
        let output = output.context(Usage("Required argument: -output ".into()))?;
        submission.output = if discards_output { String::new() } else { absolute(&output)? };
        self.add_programs(&mut submission)?;
        if !partitioner {
            submission.conf.remove(fields::PARTITION_FIELDS);
        }
        if !comparator {
            submission.conf.remove(fields::SORT_FIELDS);
        }
        if submission.name.is_empty() {
            submission.name = "streamjob".into();
        }
        let environment = self.properties.iter().map(|(name, value)| (variable(name), value.clone()));
        let environment: BTreeMap<String, String> = environment.chain(self.environment.clone()).collect();
        let json =
            serde_json::to_string(&environment).context("the environment cannot be written as JSON")?;
        submission.conf.insert(streaming::ENVIRONMENT.into(), json);
        let lines_per_map = if by_lines { Some(self.lines_per_map()?) } else { None };
        Ok(Translated { submission, warnings, lines_per_map })
    }

    fn lines_per_map(&self) -> Result<usize> {
        let value = LINES_PER_MAP.iter().find_map(|name| Some((name, self.properties.get(*name)?)));
        let Some((name, text)) = value else { return Ok(1) };
        match text.trim().parse() {
            Ok(lines) if lines > 0 => Ok(lines),
            _ => usage(format!("-D {name}={text}: it must be a number of lines")),
        }
    }

    /// Adds the commands of mapper, combiner and reducer.
    fn add_programs(&self, submission: &mut Submission) -> Result<()> {
        let keys = submission.conf.get("input.format").is_some_and(|format| format != "lines");
        let mapper = self.program("-mapper", self.mapper.as_deref())?;
        let identity = "the default mapper of Hadoop passes the offset of each line as its key: use -mapper cat, which does not";
        match mapper {
            Some(Program::Identity) | None if !keys => return usage(identity),
            Some(Program::Identity) | None => submission.conf.insert(streaming::MAPPER.into(), "cat".into()),
            Some(Program::Command(command)) => {
                submission.conf.insert(streaming::MAPPER.into(), self.with_archives(command)?)
            }
        };
        let no_reduces = self.reducer.as_deref() == Some("NONE");
        if no_reduces {
            submission.reduces = 0;
        }
        if submission.reduces == 0 {
            return Ok(());
        }
        if let Some(Program::Command(command)) = self.program("-reducer", self.reducer.as_deref())? {
            let command =
                if command == streaming::AGGREGATE { command } else { self.with_archives(command)? };
            submission.conf.insert(streaming::REDUCER.into(), command);
        }
        if let Some(Program::Command(command)) = self.program("-combiner", self.combiner.as_deref())? {
            // The engine adds values itself.
            if command != streaming::AGGREGATE {
                submission.conf.insert(streaming::COMBINER.into(), self.with_archives(command)?);
            }
        }
        Ok(())
    }

    /// Returns what a command means. A name of a Java class is refused, except for those that pass
    /// on what they get.
    fn program(&self, option: &str, command: Option<&str>) -> Result<Option<Program>> {
        let Some(command) = command else { return Ok(None) };
        let is_class = !command.contains(['/', ' '])
            && command.split('.').count() > 2
            && class(command).starts_with(|first: char| first.is_ascii_uppercase())
            && !self.files.iter().any(|file| file.name == command);
        if !is_class {
            return Ok(Some(Program::Command(command.to_owned())));
        }
        match class(command) {
            "IdentityMapper" | "IdentityReducer" => Ok(Some(Program::Identity)),
            _ => usage(format!("{option} {command}: Fermata runs no Java classes: name a program")),
        }
    }
}

enum Program {
    /// Passes on what it gets.
    Identity,
    Command(String),
}

/// What the properties have set so far.
#[derive(Debug)]
struct Translation {
    submission: Submission,
    warnings: Vec<String>,
    /// The property that has set a setting.
    origins: BTreeMap<&'static str, String>,
    /// Whether fields of the key choose the reduce.
    partitioner: bool,
    /// Whether keys are sorted by fields.
    comparator: bool,
    discards_output: bool,
    /// Whether each map gets a number of lines.
    by_lines: bool,
}

impl Default for Translation {
    fn default() -> Self {
        let submission =
            Submission { reduces: 1, builtin: Some(registry::STREAMING.into()), ..Submission::default() };
        Self {
            submission,
            warnings: Vec::new(),
            origins: BTreeMap::new(),
            partitioner: false,
            comparator: false,
            discards_output: false,
            by_lines: false,
        }
    }
}

impl Translation {
    /// Sets a setting. Two properties that give it different values are refused.
    fn set(&mut self, setting: &'static str, value: &str, origin: &str) -> Result<()> {
        let before = self.submission.conf.insert(setting.to_owned(), value.to_owned());
        let other = self.origins.insert(setting, origin.to_owned());
        match (before, other) {
            (Some(before), Some(other)) if before != value => usage(format!(
                "{other}={before} and {origin}={value} both mean the setting {setting}: give them the same value"
            )),
            _ => Ok(()),
        }
    }

    fn add_property(&mut self, name: &str, value: &str) -> Result<()> {
        if LINES_PER_MAP.contains(&name) {
            return Ok(());
        }
        let Some(meaning) = hadoop::meaning(name) else {
            ensure!(
                !hadoop::is_hadoop_name(name),
                Usage(format!(
                    "-D {name}={value}: the property has no equivalent in Fermata (docs/guide/hadoop.md)"
                ))
            );
            return Ok(());
        };
        match meaning {
            Meaning::Reduces => self.submission.reduces = number_of_reduces(value)?,
            Meaning::Name => value.clone_into(&mut self.submission.name),
            Meaning::Queue => value.clone_into(&mut self.submission.queue),
            Meaning::Priority => self.submission.priority = priority(value)?,
            Meaning::Input => self.submission.inputs.extend(split_paths(value)),
            Meaning::Output => value.clone_into(&mut self.submission.output),
            Meaning::Recursive => {
                self.origins.remove("input.recursive");
                self.set("input.recursive", value, name)?;
            }
            Meaning::Setting(setting) => self.set(setting, value, name)?,
            Meaning::Mebibytes(setting) => self.set(setting, &format!("{value}MiB"), name)?,
            Meaning::Partitioner => self.set_partitioner(value)?,
            Meaning::Comparator => match class(value) {
                "KeyFieldBasedComparator" => {
                    self.comparator = true;
                    self.submission.conf.entry(fields::SORT_FIELDS.into()).or_default();
                }
                _ => {
                    return usage(format!(
                        "-D {name}={value}: only KeyFieldBasedComparator has an equivalent"
                    ));
                }
            },
            Meaning::NoEffect(why) => self.warnings.push(format!("{name}={value} has no effect: {why}")),
            Meaning::Refused(why) => return usage(format!("-D {name}={value}: {why}")),
        }
        Ok(())
    }

    fn set_partitioner(&mut self, name: &str) -> Result<()> {
        match class(name) {
            "KeyFieldBasedPartitioner" => {
                self.partitioner = true;
                self.submission.conf.entry(fields::PARTITION_FIELDS.into()).or_default();
            }
            "HashPartitioner" => self.partitioner = false,
            _ => {
                return usage(format!(
                    "-partitioner {name}: only HashPartitioner and KeyFieldBasedPartitioner have an equivalent"
                ));
            }
        }
        Ok(())
    }

    fn choose(
        &mut self,
        partitioner: Option<&str>,
        input_format: Option<&str>,
        output_format: Option<&str>,
    ) -> Result<()> {
        if let Some(name) = partitioner {
            self.set_partitioner(name)?;
        }
        match input_format.map(class) {
            None | Some("TextInputFormat" | "AutoInputFormat") => {}
            Some("KeyValueTextInputFormat") => self.set("input.format", "keyvalue", "-inputformat")?,
            Some("NLineInputFormat") => {
                self.by_lines = true;
                // The mapper gets the offset of each line as its key.
                self.set("input.format", "keyvalue", "-inputformat")?;
            }
            Some(other) => {
                return usage(format!(
                    "-inputformat {other}: only TextInputFormat, KeyValueTextInputFormat and NLineInputFormat have an equivalent"
                ));
            }
        }
        match output_format.map(class) {
            None | Some("TextOutputFormat") => {}
            Some("NullOutputFormat") => self.discards_output = true,
            Some(other) => {
                return usage(format!(
                    "-outputformat {other}: only TextOutputFormat and NullOutputFormat have an equivalent"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the name of a class without its package.
fn class(name: &str) -> &str {
    name.rsplit(['.', '$']).next().unwrap_or(name)
}

/// Returns the environment variable of a property.
fn variable(name: &str) -> String {
    name.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '_' }).collect()
}

fn number_of_reduces(text: &str) -> Result<u32> {
    text.trim().parse().map_err(|_| Usage(format!("{text:?} is not a number of reduces")).into())
}

fn priority(text: &str) -> Result<String> {
    let name = match text.to_ascii_uppercase().as_str() {
        "VERY_HIGH" => "very-high",
        "HIGH" => "high",
        "NORMAL" | "DEFAULT" => "normal",
        "LOW" => "low",
        "VERY_LOW" => "very-low",
        _ => return usage(format!("priority {text}: write VERY_HIGH, HIGH, NORMAL, LOW or VERY_LOW")),
    };
    Ok(name.into())
}

/// Splits paths at commas that are not between braces.
fn split_paths(text: &str) -> Vec<String> {
    let mut depth = 0;
    let parts = text.split(|one| {
        depth += i32::from(one == '{') - i32::from(one == '}');
        one == ',' && depth == 0
    });
    parts.filter(|path| !path.is_empty()).map(str::to_owned).collect()
}

/// Reads the properties of a configuration file of Hadoop.
fn read_properties(file: &str) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(Path::new(file)).with_context(|| format!("cannot read {file}"))?;
    let between = |text: &str, tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        let (value, _) = rest.split_once(&format!("</{tag}>"))?;
        let plain = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
        Some(plain.iter().fold(value.trim().to_owned(), |text, (escape, one)| text.replace(escape, one)))
    };
    let property = |part: &str| {
        let body = part.split_once("</property>").map_or(part, |(body, _)| body);
        match (between(body, "name"), between(body, "value")) {
            (Some(name), Some(value)) => Ok((name, value)),
            _ => bail!(Usage(format!("{file}: a property has no name or no value"))),
        }
    };
    text.split("<property>").skip(1).map(property).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> Result<Request> {
        Request::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn translated(text: &str) -> Result<Translated> {
        request(text)?.translate("ada")
    }

    const PATHS: &str = "-input /in -output hdfs:///out -mapper cat";

    #[test]
    fn options_become_a_submission() {
        let job = translated(
            "-D mapred.reduce.tasks=3 -Dmapreduce.job.name=words -D user.own=x -files hdfs:///lib/a.py#b.py,c \
             -input a,/b/{c,d} -input hdfs://host/e -output out -mapper b.py -reducer cat -cmdenv LC_ALL=C \
             -D mapreduce.task.io.sort.mb=8 -D mapreduce.map.memory.mb=1024 -D mapreduce.job.priority=HIGH",
        )
        .unwrap();
        let Submission { inputs, output, reduces, name, priority, conf, .. } = job.submission;
        assert_eq!(inputs, ["/user/ada/a", "/b/{c,d}", "/e"]);
        assert_eq!(
            (output.as_str(), reduces, name.as_str(), priority.as_str()),
            ("/user/ada/out", 3, "words", "high")
        );
        assert_eq!(conf["stream.mapper"], "b.py");
        assert_eq!(conf["sort.memory"], "8MiB");
        assert_eq!(conf["input.recursive"], "false");
        let environment: BTreeMap<String, String> =
            serde_json::from_str(&conf["stream.environment"]).unwrap();
        assert_eq!((environment["user_own"].as_str(), environment["LC_ALL"].as_str()), ("x", "C"));
        assert_eq!(environment["mapred_reduce_tasks"], "3");
        assert_eq!(job.warnings.len(), 1);
        let files = request("-files hdfs:///lib/a.py#b.py,c/d -archives e.tgz#f").unwrap().side_files();
        let file = |source: &str, name: &str| SideFile { source: source.into(), name: name.into() };
        assert_eq!(files, [file("hdfs:///lib/a.py", "b.py"), file("c/d", "d"), file("e.tgz", "f.packed")]);
    }

    #[test]
    fn fields_of_keys_need_their_classes() {
        let options =
            "-D mapreduce.partition.keypartitioner.options=-k1,1 -D mapred.text.key.comparator.options=-k2nr";
        let plain = translated(&format!("{options} {PATHS}")).unwrap().submission.conf;
        assert!(!plain.contains_key(fields::PARTITION_FIELDS) && !plain.contains_key(fields::SORT_FIELDS));
        let classes = "-partitioner org.apache.hadoop.mapred.lib.KeyFieldBasedPartitioner \
             -D mapred.output.key.comparator.class=org.apache.hadoop.mapred.lib.KeyFieldBasedComparator";
        let conf = translated(&format!("{options} {classes} {PATHS}")).unwrap().submission.conf;
        assert_eq!(
            (conf[fields::PARTITION_FIELDS].as_str(), conf[fields::SORT_FIELDS].as_str()),
            ("-k1,1", "-k2nr")
        );
    }

    #[test]
    fn jobs_without_reduces_have_no_reducer() {
        for options in
            ["-numReduceTasks 0 -reducer cat -combiner cat", "-reducer NONE", "-D mapreduce.job.reduces=0"]
        {
            let job = translated(&format!("{PATHS} {options}")).unwrap().submission;
            assert_eq!(job.reduces, 0);
            assert!(
                !job.conf.contains_key(streaming::REDUCER) && !job.conf.contains_key(streaming::COMBINER)
            );
        }
        let job =
            translated(&format!("{PATHS} -reducer org.apache.hadoop.mapred.lib.IdentityReducer")).unwrap();
        assert!(job.submission.reduces == 1 && !job.submission.conf.contains_key(streaming::REDUCER));
    }

    #[test]
    fn what_has_no_equivalent_is_refused_by_name() {
        for (options, why) in [
            ("-libjars a.jar", "-libjars a.jar"),
            ("-archives a.tgz#b/c", "a.tgz#b/c"),
            ("-archives a.tgz#b;c", "archive b;c"),
            ("-mapdebug x", "-mapdebug"),
            ("-inputformat org.x.SequenceFileInputFormat", "SequenceFileInputFormat"),
            ("-outputformat SequenceFileOutputFormat", "SequenceFileOutputFormat"),
            ("-partitioner my.Own", "my.Own"),
            ("-reducer org.x.Reduce", "no Java classes"),
            ("-D mapreduce.nonsense=1", "mapreduce.nonsense"),
            ("-D mapreduce.output.fileoutputformat.compress=true", "compress"),
            ("-D mapreduce.map.speculative=true -D mapreduce.reduce.speculative=false", "speculation"),
            ("-nonsense 1", "Unrecognized option: -nonsense"),
            ("-input", "-input needs a value"),
        ] {
            let error = translated(&format!("{PATHS} {options}")).unwrap_err();
            assert!(error.is::<Usage>() && error.to_string().contains(why), "{options}: {error}");
        }
        assert!(translated("-output /out -mapper cat").unwrap_err().to_string().contains("-input"));
        assert!(translated("-input /in -mapper cat").unwrap_err().to_string().contains("-output"));
        assert!(translated("-input /in -output /out").unwrap_err().to_string().contains("-mapper cat"));
    }

    #[test]
    fn maps_may_get_numbers_of_lines() {
        let format = format!("{PATHS} -inputformat org.apache.hadoop.mapred.lib.NLineInputFormat");
        let job = translated(&format).unwrap();
        assert_eq!((job.lines_per_map, job.submission.conf["input.format"].as_str()), (Some(1), "keyvalue"));
        let job = translated(&format!("{format} -D mapred.line.input.format.linespermap=5")).unwrap();
        assert_eq!(job.lines_per_map, Some(5));
        let many = "-D mapreduce.input.lineinputformat.linespermap=0";
        assert!(translated(&format!("{format} {many}")).unwrap_err().to_string().contains("linespermap=0"));
        assert_eq!(translated(&format!("{PATHS} {many}")).unwrap().lines_per_map, None);
    }

    #[test]
    fn configuration_files_have_properties() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "<?xml version='1.0'?><configuration>\n<property><name> a.b </name><value>1 &lt; 2</value></property>\n\
             <property><description>x</description><name>c</name><value></value></property></configuration>";
        std::fs::write(file.path(), text).unwrap();
        let read = read_properties(file.path().to_str().unwrap()).unwrap();
        assert_eq!(read, BTreeMap::from([("a.b".into(), "1 < 2".into()), ("c".into(), String::new())]));
    }
}
