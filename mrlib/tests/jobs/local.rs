//! Runs jobs on local files and compares their output with a simple count of words.

use engine::registry;
use mrlib::{
    Conf, Context, Emit, Job, KeyOrder, Mapper, TaskError,
    local::{LocalRun, run_local},
};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Generates pseudo-random text with different line endings.
fn text(lines: usize, seed: u64) -> String {
    let mut state = seed;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut text = String::new();
    for _ in 0..lines {
        for _ in 0..random() % 12 {
            // Few words are frequent, many are rare.
            let word = random() % (random() % 3000 + 1);
            text.extend(["w", &word.to_string(), " "]);
        }
        text.push_str(if random() % 5 == 0 { "\r\n" } else { "\n" });
    }
    text
}

/// Runs jobs in local mode, all on the same input files, each with its own output folder.
struct LocalJobs {
    folder: TempDir,
    inputs: Vec<PathBuf>,
    runs: usize,
}

impl LocalJobs {
    fn new(texts: &[String]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |(number, text): (usize, &String)| {
            let path = folder.path().join(format!("in{number}"));
            fs::write(&path, text).expect("a working disk");
            path
        };
        let inputs = texts.iter().enumerate().map(write).collect();
        Self { folder, inputs, runs: 0 }
    }

    /// Runs a job. Returns the contents of its output files, sorted by name, and its counters.
    fn run(
        &mut self,
        make: impl Fn(&Conf) -> Result<Job, TaskError>,
        reduces: u32,
        settings: &[(&str, &str)],
    ) -> Result<(Vec<String>, BTreeMap<String, u64>), TaskError> {
        self.runs += 1;
        let output = self.folder.path().join(format!("out{}", self.runs));
        let pairs = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let conf: Conf = pairs.collect();
        let job = make(&conf)?;
        let run = LocalRun { inputs: self.inputs.clone(), output: output.clone(), reduces, threads: 3, conf };
        let counters = run_local(&job, &run)?;
        let mut names: Vec<String> = fs::read_dir(&output)
            .expect("a folder")
            .map(|entry| entry.expect("a name").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names.remove(0), "_SUCCESS");
        let read = |name: &String| fs::read_to_string(output.join(name)).expect("text");
        Ok((names.iter().map(read).collect(), counters))
    }
}

/// Parses the output of a wordcount.
fn counts(parts: &[String]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in parts.iter().flat_map(|part| part.lines()) {
        let (word, count) = line.split_once('\t').expect("a tab");
        let before = counts.insert(word.to_owned(), count.trim().parse().expect("a number"));
        assert_eq!(before, None, "{word} occurs twice");
    }
    counts
}

fn expected_counts(texts: &[String]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for word in texts.iter().flat_map(|text| text.split_ascii_whitespace()) {
        *counts.entry(word.to_owned()).or_default() += 1;
    }
    counts
}

#[test]
fn wordcount_counts_all_words_with_one_to_seven_reduces() {
    let texts = [text(3000, 1), String::new(), text(500, 2)];
    let mut jobs = LocalJobs::new(&texts);
    let plain = expected_counts(&texts);
    for reduces in 1..=7 {
        let settings = [("split.size", "10000")];
        let (parts, counters) =
            jobs.run(|conf| registry::job("wordcount", conf), reduces, &settings).expect("a good job");
        assert_eq!(parts.len(), reduces as usize);
        assert_eq!(counts(&parts), plain);
        for part in &parts {
            let words: Vec<&str> =
                part.lines().map(|line| line.split('\t').next().expect("a word")).collect();
            assert!(words.is_sorted(), "a part is not sorted");
        }
        assert_eq!(counters["MAP_INPUT_RECORDS"], 3500);
        assert_eq!(counters["REDUCE_OUTPUT_RECORDS"], plain.len() as u64);
        assert_eq!(counters["REDUCE_INPUT_GROUPS"], plain.len() as u64);
        assert_eq!(counters["OUTPUT_BYTES"], parts.iter().map(|part| part.len() as u64).sum::<u64>());
    }
}

#[test]
fn output_is_the_same_with_many_runs_and_little_memory() {
    let texts = [text(4000, 3)];
    let mut jobs = LocalJobs::new(&texts);
    let job = |conf: &Conf| registry::job("identity", conf);
    let (plenty, _) = jobs.run(job, 3, &[]).expect("a good job");
    let little = [("split.size", "3000"), ("sort.memory", "20000"), ("merge.factor", "3")];
    let (scarce, _) = jobs.run(job, 3, &little).expect("a good job");
    assert_eq!(plenty, scarce);
    let mut lines: Vec<&str> = plenty.iter().flat_map(|part| part.lines()).collect();
    let mut plain: Vec<&str> = texts[0].lines().collect();
    lines.sort_unstable();
    plain.sort_unstable();
    assert_eq!(lines, plain);
}

#[test]
fn map_only_job_keeps_the_order_and_writes_a_part_per_map() {
    let texts = [text(1000, 4)];
    let mut jobs = LocalJobs::new(&texts);
    let settings = [("split.size", "5000")];
    let (parts, counters) =
        jobs.run(|conf| registry::job("identity", conf), 0, &settings).expect("a good job");
    assert!(parts.len() > 2);
    assert_eq!(parts.concat(), texts[0].replace("\r\n", "\n"));
    assert_eq!(counters["MAP_OUTPUT_RECORDS"], 1000);
}

#[test]
fn parts_of_a_totally_ordered_job_are_sorted_together() {
    let texts = [text(3000, 5), text(100, 6)];
    let mut jobs = LocalJobs::new(&texts);
    let job = |conf: &Conf| Ok(registry::job("identity", conf)?.totally_ordered());
    let (parts, _) = jobs.run(job, 4, &[("split.size", "20000")]).expect("a good job");
    let lines: Vec<&str> = parts.iter().flat_map(|part| part.lines()).collect();
    assert_eq!(lines.len(), 3100);
    assert!(lines.is_sorted());
    assert!(parts.iter().all(|part| !part.is_empty()), "a reduce got no keys");
}

#[test]
fn empty_input_gives_empty_parts() {
    let mut jobs = LocalJobs::new(&[String::new()]);
    let (parts, _) = jobs.run(|conf| registry::job("wordcount", conf), 2, &[]).expect("a good job");
    assert_eq!(parts, ["", ""]);
    // As on a cluster, an empty file has no record, even if each file is one record.
    let mut jobs = LocalJobs::new(&[String::new(), "x".into()]);
    let whole = [("input.format", "whole")];
    let (_, counters) = jobs.run(|conf| registry::job("identity", conf), 0, &whole).expect("a good job");
    assert_eq!(counters["MAP_INPUT_RECORDS"], 1);
}

#[test]
fn reverse_order_and_grouping_are_applied() {
    struct KeyOf;
    impl Mapper for KeyOf {
        fn map(
            &mut self,
            _: &[u8],
            line: &[u8],
            out: &mut dyn Emit,
            _: &mut Context,
        ) -> Result<(), TaskError> {
            out.emit(line, &line[1..])
        }
    }
    struct Join;
    impl mrlib::Reducer for Join {
        fn reduce(
            &mut self,
            key: &[u8],
            values: &mut dyn mrlib::Values,
            out: &mut dyn Emit,
            _: &mut Context,
        ) -> Result<(), TaskError> {
            let (first, mut joined) = (key[..1].to_vec(), Vec::new());
            while let Some(value) = values.next()? {
                joined.extend_from_slice(value);
            }
            out.emit(&first, &joined)
        }
    }
    let mut jobs = LocalJobs::new(&["a2\nb1\na1\nb3\na3\nb2\n".to_owned()]);
    let job = |_: &Conf| {
        let by_first = KeyOrder::By(|a, b| b[0].cmp(&a[0]));
        Ok(Job::map(|_| Ok(KeyOf)).reduce(|_| Ok(Join)).sort_by(KeyOrder::Reverse).group_by(by_first))
    };
    let (parts, _) = jobs.run(job, 1, &[("split.size", "4")]).expect("a good job");
    assert_eq!(parts, ["b\t321\na\t321\n"]);
}

/// Checks that the counters are the same as in Hadoop, and the same as for a combiner in Rust.
#[test]
fn map_output_of_a_streaming_job_is_counted_before_its_combiner() {
    let mut jobs = LocalJobs::new(&["a b a\nb a b\n".to_owned()]);
    let combiner = "awk -F '\\t' '{n[$1]++} END {for (k in n) print k \"\\t\" n[k]}'";
    let settings =
        [("stream.mapper", "tr ' ' '\\n'"), ("stream.combiner", combiner), ("stream.reducer", "cat")];
    let (parts, counters) =
        jobs.run(|conf| registry::job("streaming", conf), 1, &settings).expect("a good job");
    assert_eq!(parts, ["a\t3\nb\t3\n"]);
    let names = ["MAP_OUTPUT_RECORDS", "MAP_OUTPUT_BYTES", "COMBINE_INPUT_RECORDS", "COMBINE_OUTPUT_RECORDS"];
    assert_eq!(names.map(|name| counters[name]), [6, 6, 6, 2]);
}

#[test]
fn file_that_is_named_twice_is_read_once() {
    let mut jobs = LocalJobs::new(&["a b\n".to_owned()]);
    jobs.inputs.extend([jobs.inputs[0].clone(), jobs.folder.path().join("./in0")]);
    let (parts, _) = jobs.run(|conf| registry::job("wordcount", conf), 1, &[]).expect("a good job");
    assert_eq!(parts, ["a\t1\nb\t1\n"]);
}

#[test]
fn failed_jobs_report_the_error_and_leave_no_output() {
    let mut jobs = LocalJobs::new(&[text(100, 7)]);
    let settings = [("stream.mapper", "sh -c 'cat >/dev/null; echo why >&2; exit 7'")];
    let error = jobs.run(|conf| registry::job("streaming", conf), 1, &settings).expect_err("code 7");
    assert!(error.to_string().contains("exit status 7") && error.to_string().contains("why"), "{error}");
    assert!(!jobs.folder.path().join("out1").exists());
    let there = jobs.folder.path().join("out2");
    fs::create_dir(&there).expect("a working disk");
    let error = jobs.run(|conf| registry::job("wordcount", conf), 1, &[]).expect_err("the output exists");
    assert!(error.to_string().contains("out2"), "{error}");
    jobs.inputs.push(Path::new("/no/such/input").into());
    let error = jobs.run(|conf| registry::job("wordcount", conf), 1, &[]).expect_err("no such file");
    assert!(error.to_string().contains("/no/such/input"), "{error}");
    assert!(registry::job("wordcuont", &Conf::default()).is_err());
}

#[test]
fn example_job_counts_only_long_words() {
    let mut jobs = LocalJobs::new(&["The cat, the Dog.\nA dog's life\n".to_owned()]);
    let settings = [("word.length", "3")];
    let (parts, counters) = jobs.run(|conf| Ok(crate::example::job(conf)), 1, &settings).expect("a good job");
    assert_eq!(parts, ["cat\t1\ndog\t2\nlife\t1\nthe\t2\n"]);
    assert_eq!(counters["SHORT_WORDS"], 2);
    let settings = [("word.length", "three")];
    let error = jobs.run(|conf| Ok(crate::example::job(conf)), 1, &settings).expect_err("not a number");
    assert!(error.to_string().contains("word.length"), "{error}");
}

#[test]
fn streaming_job_with_awk_counts_words() {
    let texts = [text(2000, 8), text(10, 9)];
    let mut jobs = LocalJobs::new(&texts);
    let mapper = r#"awk '{for (i = 1; i <= NF; i++) print $i "\t1"}'"#;
    let sum = r#"awk -F '\t' '$1 != k {if (NR > 1) print k "\t" n; k = $1; n = 0} {n += $2} END {if (NR) print k "\t" n}'"#;
    for reduces in [1, 3] {
        let with_combiner = [
            ("stream.mapper", mapper),
            ("stream.combiner", sum),
            ("stream.reducer", sum),
            ("split.size", "30000"),
        ];
        let without = [with_combiner[0], with_combiner[2], with_combiner[3]];
        for settings in [with_combiner.as_slice(), &without] {
            let (parts, _) =
                jobs.run(|conf| registry::job("streaming", conf), reduces, settings).expect("awk");
            assert_eq!(counts(&parts), expected_counts(&texts));
        }
    }
    // Without a reducer, reduces only sort the pairs. Without reduces, the pairs are unchanged.
    let settings = [("stream.mapper", "cut -c1-2")];
    let (parts, _) = jobs.run(|conf| registry::job("streaming", conf), 1, &settings).expect("cut");
    assert!(parts[0].lines().is_sorted() && parts[0].lines().count() == 2010);
    let (parts, _) = jobs.run(|conf| registry::job("streaming", conf), 0, &settings).expect("cut");
    assert_eq!(parts.concat().lines().count(), 2010);
}

#[test]
fn streaming_job_with_python_counts_words() {
    if !Command::new("python3").arg("--version").status().is_ok_and(|status| status.success()) {
        return skip::skip("python3", "there is no python3");
    }
    let texts = [text(1000, 10)];
    let mut jobs = LocalJobs::new(&texts);
    let script = |name: &str, code: &str| {
        let path = jobs.folder.path().join(name);
        fs::write(&path, code).expect("a working disk");
        format!("python3 {}", path.display())
    };
    let mapper = script(
        "map.py",
        "import sys\nfor line in sys.stdin:\n    for word in line.split():\n        print(f'{word}\\t1')\n\
         print('reporter:counter:Words,maps,1', file=sys.stderr)\n",
    );
    let reducer = script(
        "reduce.py",
        "import sys\nfrom itertools import groupby\n\
         pairs = (line.rstrip('\\n').split('\\t') for line in sys.stdin)\n\
         for word, group in groupby(pairs, lambda pair: pair[0]):\n    \
         print(f'{word}\\t{sum(int(n) for _, n in group)}')\n",
    );
    let settings =
        [("stream.mapper", mapper.as_str()), ("stream.reducer", &reducer), ("split.size", "10000")];
    let (parts, counters) = jobs.run(|conf| registry::job("streaming", conf), 2, &settings).expect("python");
    assert_eq!(counts(&parts), expected_counts(&texts));
    assert_eq!(counters["Words:maps"], texts[0].len().div_ceil(10000) as u64);
}
