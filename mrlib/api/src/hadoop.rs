//! Names of Hadoop's properties, and what they mean here: one table, for the advice in errors about
//! settings, and for jobs that are submitted with the options of Hadoop.
//!
//! Both the names of Hadoop 3 and the older ones are in the table. A name that is not in the table
//! has no meaning here. Properties that change nothing about the result of a job are accepted
//! without effect ([`Meaning::NoEffect`]); those that would change it are refused.

/// What a property of Hadoop means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The number of reduces.
    Reduces,
    /// The name of the job.
    Name,
    /// The queue of the job.
    Queue,
    /// The priority of the job.
    Priority,
    /// The input.
    Input,
    /// The folder of the output.
    Output,
    /// Whether folders are read with their subfolders. Hadoop's default is false, ours is true.
    Recursive,
    /// This setting, with the same value.
    Setting(&'static str),
    /// This setting, a size that Hadoop has in MiB.
    Mebibytes(&'static str),
    /// The class of the partitioner.
    Partitioner,
    /// The class that compares keys.
    Comparator,
    /// A job can run without it. The reason.
    NoEffect(&'static str),
    /// A job would give another result without it. The reason.
    Refused(&'static str),
}

use Meaning::{
    Comparator, Input, Mebibytes, Name, NoEffect, Output, Partitioner, Priority, Queue, Recursive, Reduces,
    Refused, Setting,
};

const LIMITS: Meaning =
    NoEffect("memory and processors of a task are limits of its node (docs/guide/jobs.md)");
const JVM: Meaning = NoEffect("tasks run in no Java virtual machine");
const NO_YARN: Meaning = NoEffect("there is no YARN");
const CODEC: Meaning = Refused("the output of a job is not compressed: compress it in the reducer");

/// Names that mean the same, and their meaning.
const TABLE: &[(&[&str], Meaning)] = &[
    (&["mapreduce.job.reduces", "mapred.reduce.tasks"], Reduces),
    (&["mapreduce.job.name", "mapred.job.name"], Name),
    (&["mapreduce.job.queuename", "mapred.job.queue.name"], Queue),
    (&["mapreduce.job.priority", "mapred.job.priority"], Priority),
    (&["mapreduce.input.fileinputformat.inputdir", "mapred.input.dir"], Input),
    (&["mapreduce.output.fileoutputformat.outputdir", "mapred.output.dir"], Output),
    (
        &[
            "mapreduce.input.fileinputformat.split.maxsize",
            "mapreduce.input.fileinputformat.split.minsize",
            "mapred.max.split.size",
            "mapred.min.split.size",
        ],
        Setting("split.size"),
    ),
    (&["mapreduce.input.fileinputformat.input.dir.recursive", "mapred.input.dir.recursive"], Recursive),
    (
        &[
            "mapreduce.map.maxattempts",
            "mapreduce.reduce.maxattempts",
            "mapred.map.max.attempts",
            "mapred.reduce.max.attempts",
        ],
        Setting("attempts.max"),
    ),
    (
        &[
            "mapreduce.map.speculative",
            "mapreduce.reduce.speculative",
            "mapred.map.tasks.speculative.execution",
            "mapred.reduce.tasks.speculative.execution",
        ],
        Setting("speculation"),
    ),
    (
        &["mapreduce.job.reduce.slowstart.completedmaps", "mapred.reduce.slowstart.completed.maps"],
        Setting("slow.start"),
    ),
    (&["mapreduce.map.output.compress", "mapred.compress.map.output"], Setting("map.output.compress")),
    (&["mapreduce.task.io.sort.mb", "io.sort.mb"], Mebibytes("sort.memory")),
    (&["mapreduce.task.io.sort.factor", "io.sort.factor"], Setting("merge.factor")),
    (
        &["mapreduce.reduce.shuffle.parallelcopies", "mapred.reduce.parallel.copies"],
        Setting("fetch.parallel"),
    ),
    (&["mapreduce.map.skip.maxrecords", "mapred.skip.map.max.skip.records"], Setting("skip.bad.records")),
    (&["dfs.replication"], Setting("output.replication")),
    (
        &["mapreduce.partition.keypartitioner.options", "mapred.text.key.partitioner.options"],
        Setting("stream.partition.fields"),
    ),
    (
        &["mapreduce.partition.keycomparator.options", "mapred.text.key.comparator.options"],
        Setting("stream.sort.fields"),
    ),
    (
        &["mapreduce.map.output.key.field.separator", "map.output.key.field.separator"],
        Setting("stream.key.field.separator"),
    ),
    (
        &["mapreduce.output.textoutputformat.separator", "mapred.textoutputformat.separator"],
        Setting("stream.output.field.separator"),
    ),
    (&["stream.map.input.field.separator"], Setting("stream.map.input.field.separator")),
    (&["stream.map.output.field.separator"], Setting("stream.map.output.field.separator")),
    (&["stream.num.map.output.key.fields"], Setting("stream.num.map.output.key.fields")),
    (&["stream.reduce.input.field.separator"], Setting("stream.reduce.input.field.separator")),
    (&["stream.reduce.output.field.separator"], Setting("stream.reduce.output.field.separator")),
    (&["stream.num.reduce.output.key.fields"], Setting("stream.num.reduce.output.key.fields")),
    (&["stream.map.input.ignoreKey"], Setting("stream.map.input.ignoreKey")),
    (&["stream.non.zero.exit.is.failure"], Setting("stream.non.zero.exit.is.failure")),
    (&["mapreduce.job.partitioner.class", "mapred.partitioner.class"], Partitioner),
    (&["mapreduce.job.output.key.comparator.class", "mapred.output.key.comparator.class"], Comparator),
    (
        &["mapreduce.job.maps", "mapred.map.tasks"],
        NoEffect("the number of maps follows from the splits of the input"),
    ),
    (&["mapreduce.map.memory.mb", "mapred.job.map.memory.mb"], LIMITS),
    (&["mapreduce.reduce.memory.mb", "mapred.job.reduce.memory.mb"], LIMITS),
    (&["mapreduce.map.cpu.vcores"], LIMITS),
    (&["mapreduce.reduce.cpu.vcores"], LIMITS),
    (&["mapreduce.map.java.opts", "mapred.map.child.java.opts"], JVM),
    (&["mapreduce.reduce.java.opts", "mapred.reduce.child.java.opts"], JVM),
    (&["mapred.child.java.opts"], JVM),
    (&["mapreduce.job.jvm.numtasks", "mapred.job.reuse.jvm.num.tasks"], JVM),
    (&["mapreduce.job.ubertask.enable"], JVM),
    (&["mapreduce.framework.name"], NO_YARN),
    (&["yarn.app.mapreduce.am.resource.mb"], NO_YARN),
    (&["yarn.app.mapreduce.am.command-opts"], NO_YARN),
    (
        &["mapreduce.task.timeout", "mapred.task.timeout"],
        NoEffect("the timeout of tasks is the setting jobtracker.task_timeout of the cluster"),
    ),
    (
        &["mapreduce.map.output.compress.codec", "mapred.map.output.compression.codec"],
        NoEffect("map output has one codec, lz4"),
    ),
    (
        &["mapreduce.task.userlog.limit.kb", "mapred.userlog.limit.kb"],
        NoEffect("the limit is tasktracker.task_log_max"),
    ),
    (&["mapreduce.output.fileoutputformat.compress", "mapred.output.compress"], CODEC),
    (&["mapreduce.output.fileoutputformat.compress.codec", "mapred.output.compression.codec"], CODEC),
    (
        &["mapreduce.map.failures.maxpercent", "mapred.max.map.failures.percent"],
        Refused("a job succeeds only with all maps; skip.bad.records skips records"),
    ),
    (
        &["mapreduce.reduce.failures.maxpercent", "mapred.max.reduce.failures.percent"],
        Refused("a job succeeds only with all reduces"),
    ),
    (
        &["mapreduce.job.output.group.comparator.class", "mapred.output.value.groupfn.class"],
        Refused("a streaming reducer gets lines, not groups"),
    ),
    (&["mapreduce.job.inputformat.class", "mapred.input.format.class"], Refused("use -inputformat")),
    (&["mapreduce.job.outputformat.class", "mapred.output.format.class"], Refused("use -outputformat")),
    (&["mapreduce.map.debug.script", "mapred.map.task.debug.script"], Refused("tasks have no debug scripts")),
    (
        &["mapreduce.reduce.debug.script", "mapred.reduce.task.debug.script"],
        Refused("tasks have no debug scripts"),
    ),
];

/// Prefixes of the names of Hadoop's properties.
const PREFIXES: &[&str] = &["mapreduce.", "mapred.", "stream.", "yarn.", "dfs.", "io.", "fs."];

/// Returns the meaning of a property; None if it is not in the table.
pub fn meaning(name: &str) -> Option<Meaning> {
    TABLE.iter().find(|(names, _)| names.contains(&name)).map(|(_, meaning)| *meaning)
}

/// Returns whether a name looks like a property of Hadoop.
pub fn is_hadoop_name(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

impl Meaning {
    /// Returns what to use instead of the property in `mrctl submit`.
    pub fn advice(self, value: &str) -> String {
        match self {
            Reduces => format!("use --reduces {value}"),
            Name => format!("use --name {value}"),
            Queue => format!("use --queue {value}"),
            Priority => "use --priority".into(),
            Input => format!("use --input {value}"),
            Output => format!("use --output {value}"),
            Recursive => {
                "folders are read with their subfolders; use --no-recursive to read only the folder itself"
                    .into()
            }
            Setting(name) => format!("use --conf {name}={value}"),
            Mebibytes(name) => format!("use --conf {name}={value}MiB"),
            Partitioner => {
                "use --conf stream.partition.fields=-k1,1 to partition by fields of the key".into()
            }
            Comparator => "use --conf stream.sort.fields=-k1,1 to sort by fields of the key".into(),
            NoEffect(why) | Refused(why) => why.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_name_has_one_meaning_and_the_prefix_of_a_hadoop_property() {
        let names: Vec<&str> = TABLE.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        let different: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), different.len());
        let other: Vec<&&str> =
            names.iter().filter(|name| !is_hadoop_name(name) && !name.starts_with("map.output.")).collect();
        assert!(other.is_empty(), "{other:?}");
    }

    #[test]
    fn old_and_new_names_mean_the_same() {
        assert_eq!(meaning("mapred.reduce.tasks"), meaning("mapreduce.job.reduces"));
        assert_eq!(meaning("mapred.reduce.tasks").unwrap().advice("2"), "use --reduces 2");
        assert_eq!(meaning("io.sort.mb").unwrap().advice("8"), "use --conf sort.memory=8MiB");
        assert_eq!(meaning("mapreduce.nonsense"), None);
    }
}
