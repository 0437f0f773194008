//! The commands `hadoop`, `hdfs` and `mapred` of `mrctl hadoop-home`, called as programs call them,
//! and the Python package mrjob, which calls them itself.

use fermata_tests::{Cluster, QUICK, Ran, Up, binaries, eventually, skip};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::{Duration, Instant},
};

/// A cluster and a folder of `mrctl hadoop-home` for it.
struct Hadoop {
    cluster: Cluster,
    home: PathBuf,
}

impl Hadoop {
    fn up() -> Self {
        // The setup script of mrjob writes to /tmp, which a confined task does not have.
        let settings = format!("{QUICK}[tasktracker]\ntask_writes = [\"/tmp\"]\n");
        let cluster = Cluster::up(Up { nodes: 2, settings: &settings, ..Up::default() });
        let home = cluster.path("hadoop");
        let printed = cluster.mrctl(&["hadoop-home", "hadoop"]);
        assert_eq!(printed, format!("export HADOOP_HOME={}\n", home.display()));
        // A second call writes the same files again; another folder is not touched.
        cluster.mrctl(&["hadoop-home", "hadoop"]);
        fs::create_dir(cluster.path("other")).expect("our folder");
        fs::write(cluster.path("other/file"), "").expect("our folder");
        assert!(cluster.refused(2, &["hadoop-home", "other"]).contains("is not empty"));
        Self { cluster, home }
    }

    /// Returns the command, in a folder where `mrctl` would find no cluster.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.home.join("bin").join(program));
        command.current_dir("/").env("FERMATA_NAMENODE", "127.0.0.1:1");
        command
    }

    fn run(&self, line: &str) -> Ran {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().expect("a program"));
        command.args(words).output().expect("the script starts").into()
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!(ran.code, 0, "{line}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Runs a command that must fail with this code, and returns its standard error.
    #[track_caller]
    fn fails(&self, code: i32, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!(ran.code, code, "{line}: {}{}", ran.stdout, ran.stderr);
        ran.stderr
    }

    fn local(&self, name: &str, text: &str) -> String {
        let path = self.cluster.path(name);
        fs::write(&path, text).expect("our folder");
        path.display().to_string()
    }

    fn streaming(&self, options: &[&str]) -> Ran {
        let jar = self.home.join("share/hadoop/tools/lib/hadoop-streaming-3.4.1.jar");
        assert!(jar.is_file());
        let mut command = self.command("hadoop");
        command.arg("jar").arg(jar).args(options).output().expect("the script starts").into()
    }

    fn output(&self, folder: &str) -> String {
        self.ok(&format!("hadoop fs -cat {folder}/part-*"))
    }
}

#[test]
fn files_are_shown_and_changed_as_by_hadoop() {
    let hadoop = Hadoop::up();
    assert!(hadoop.ok("hadoop version").starts_with("Hadoop 3."));
    let (one, two) = (hadoop.local("one", "first\n"), hadoop.local("two", "second\n"));

    hadoop.ok("hadoop fs -mkdir -p hdfs:///data/in");
    assert_eq!(hadoop.fails(1, "hadoop fs -mkdir /data/in"), "mkdir: `/data/in': File exists\n");
    assert_eq!(
        hadoop.fails(1, "hadoop fs -mkdir /no/where"),
        "mkdir: `/no/where': No such file or directory\n"
    );
    hadoop.ok(&format!("hadoop fs -put {one} {two} hdfs://any:9000/data/in"));
    assert_eq!(
        hadoop.fails(1, &format!("hadoop fs -put {one} /data/in")),
        "put: `/data/in/one': File exists\n"
    );
    hadoop.ok(&format!("hadoop dfs -put -f file://{one} /data/in"));
    assert_eq!(hadoop.fails(1, "hadoop fs -put /no/file /x"), "put: `/no/file': No such file or directory\n");

    let listing = hadoop.ok("hdfs dfs -ls hdfs:///data/in");
    let lines: Vec<Vec<&str>> = listing.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["Found", "2", "items"]);
    assert_eq!(
        (lines[1][0], lines[1][1], lines[1][4], lines[1][7]),
        ("-rw-r--r--", "2", "6", "hdfs:///data/in/one")
    );
    assert_eq!(hadoop.ok("hadoop fs -ls -C /data/i*/t*"), "/data/in/two\n");
    assert_eq!(hadoop.ok("hadoop fs -ls -R /data").lines().count(), 3);
    assert_eq!(hadoop.ok("hadoop fs -lsr /data").lines().count(), 3);
    assert!(hadoop.ok("hadoop fs -ls -d /data").ends_with(" /data\n"));
    assert_eq!(hadoop.fails(1, "hadoop fs -ls hdfs:///no"), "ls: `hdfs:///no': No such file or directory\n");
    assert_eq!(hadoop.fails(1, "hadoop fs -ls /no*"), "ls: `/no*': No such file or directory\n");
    assert!(hadoop.fails(255, "hadoop fs -ls -z /").starts_with("-ls: Illegal option -z\nUsage: hadoop fs"));
    assert!(hadoop.fails(255, "hadoop fs -nonsense").starts_with("nonsense: Unknown command\n"));

    assert_eq!(hadoop.ok("hadoop fs -cat /data/in/*"), "first\nsecond\n");
    assert_eq!(hadoop.fails(1, "hadoop fs -cat /data"), "cat: `/data': Is a directory\n");
    assert_eq!(hadoop.ok("hadoop fs -tail /data/in/two"), "second\n");
    assert_eq!(hadoop.ok("hadoop fs -head /data/in/two"), "second\n");
    assert_eq!(hadoop.ok("hadoop fs -du /data/in"), "6  12  /data/in/one\n7  14  /data/in/two\n");
    assert_eq!(hadoop.ok("hadoop fs -du -s /data"), "13  26  /data\n");
    assert_eq!(
        hadoop.ok("hadoop fs -count /data").split_whitespace().collect::<Vec<_>>(),
        ["2", "2", "13", "/data"]
    );
    assert_eq!(hadoop.ok("hadoop fs -stat %n:%b:%F:%r /data/in/one"), "one:6:regular file:2\n");
    assert_eq!(hadoop.ok("hadoop fs -find /data -name t*"), "/data/in/two\n");
    for (code, test) in
        [(0, "-d /data"), (1, "-f /data"), (0, "-e /data/in/one"), (1, "-z /data/in/one"), (1, "-e /no")]
    {
        hadoop.fails(code, &format!("hadoop fs -test {test}"));
    }

    hadoop.ok("hadoop fs -cp /data/in/one /data/copy");
    hadoop.ok("hadoop fs -cp /data/in /data/all");
    assert_eq!(hadoop.ok("hadoop fs -cat /data/copy /data/all/two"), "first\nsecond\n");
    assert_eq!(hadoop.fails(1, "hadoop fs -cp /data/in/one /data/copy"), "cp: `/data/copy': File exists\n");
    hadoop.ok("hadoop fs -mv /data/copy /data/all");
    hadoop.ok("hadoop fs -touchz /data/empty");
    hadoop.ok("hadoop fs -test -z /data/empty");
    assert!(hadoop.fails(1, "hadoop fs -touchz /data/in/one").contains("Not a zero-length file"));
    hadoop.ok(&format!("hadoop fs -appendToFile {one} {two} /data/empty"));
    assert_eq!(hadoop.ok("hadoop fs -cat /data/empty"), "first\nsecond\n");
    hadoop.ok("hadoop fs -chmod -R g+w,o-r /data/all");
    assert_eq!(hadoop.ok("hadoop fs -stat %a /data/all/one"), "660\n");
    hadoop.ok("hadoop fs -chown ada:staff /data/all/one");
    assert_eq!(hadoop.ok("hadoop fs -stat %u:%g /data/all/one"), "ada:staff\n");
    assert_eq!(hadoop.ok("hadoop fs -setrep -w 1 /data/all/one"), "Replication 1 set: /data/all/one\n");

    let target = hadoop.cluster.path("target").display().to_string();
    hadoop.ok(&format!("hadoop fs -get /data/in {target}"));
    assert_eq!(fs::read_to_string(format!("{target}/two")).unwrap(), "second\n");
    hadoop.ok(&format!("hadoop fs -copyToLocal /data/in/two {target}/again"));
    assert!(hadoop.fails(1, &format!("hadoop fs -get /data/in/two {target}/again")).contains("File exists"));
    hadoop.ok(&format!("hadoop fs -getmerge -nl /data/in {target}/merged"));
    assert_eq!(fs::read_to_string(format!("{target}/merged")).unwrap(), "first\n\nsecond\n\n");

    assert_eq!(hadoop.fails(1, "hadoop fs -rm /data/all"), "rm: `/data/all': Is a directory\n");
    assert_eq!(hadoop.ok("hadoop fs -rm /data/all/one"), "Deleted /data/all/one\n");
    assert_eq!(hadoop.fails(1, "hadoop fs -rmdir /data/all"), "rmdir: `/data/all': Directory is not empty\n");
    hadoop.ok("hadoop fs -rm -R -f -skipTrash hdfs:///data/all hdfs:///no");
    assert_eq!(hadoop.fails(1, "hadoop fs -rm /no"), "rm: `/no': No such file or directory\n");
    hadoop.ok("hadoop fs -rmr /data");
    hadoop.fails(1, "hadoop fs -test -e /data");
    assert!(hadoop.fails(1, "hdfs namenode").contains("there is no command namenode"));
}

#[test]
fn paths_without_a_slash_are_in_the_home_folder() {
    let hadoop = Hadoop::up();
    let file = hadoop.local("one", "first\n");
    hadoop.ok("hadoop fs -mkdir -p a/b");
    hadoop.ok(&format!("hadoop fs -put {file} a"));
    assert!(hadoop.ok("hadoop fs -ls a").ends_with(" a/one\n"));
    assert!(hadoop.ok("hadoop fs -ls").ends_with(" a\n"));
    let name = daemon::account::user();
    assert_eq!(hadoop.ok(&format!("hadoop fs -cat /user/{name}/a/one")), "first\n");
}

#[test]
fn streaming_jobs_take_the_options_of_hadoop() {
    let hadoop = Hadoop::up();
    let input = hadoop.local("in", "11.12.1.2\n11.14.2.3\n11.11.4.1\n11.12.1.1\n11.14.2.2\n");
    hadoop.ok(&format!("hadoop fs -put {input} /in"));
    let script = hadoop
        .local("map.sh", "#!/bin/sh\nsed \"s/$/.$suffix/\"; echo reporter:counter:my group,lines,2 >&2\n");
    let ran = hadoop.streaming(&[
        "-D",
        "mapreduce.job.reduces=3",
        "-D",
        "stream.map.output.field.separator=.",
        "-D",
        "stream.num.map.output.key.fields=4",
        "-D",
        "map.output.key.field.separator=.",
        "-D",
        "mapreduce.partition.keypartitioner.options=-k1,2",
        "-D",
        "mapred.output.key.comparator.class=org.apache.hadoop.mapred.lib.KeyFieldBasedComparator",
        "-D",
        "mapreduce.partition.keycomparator.options=-k3,3nr -k4,4n",
        "-D",
        "mapreduce.map.memory.mb=512",
        "-files",
        &format!("{script}#renamed.sh"),
        "-cmdenv",
        "suffix=value",
        "-partitioner",
        "org.apache.hadoop.mapred.lib.KeyFieldBasedPartitioner",
        "-input",
        "hdfs:///in",
        "-output",
        "hdfs:///out",
        "-mapper",
        "renamed.sh",
        "-reducer",
        "cat",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for text in [
        "INFO mapreduce.Job: Running job: job_0000000000000_0001\n",
        "INFO mapreduce.Job:  map 100% reduce 100%\n",
        "completed successfully",
        "\n\tmy group\n\t\tlines=2\n",
        "\t\tMap input records=5\n",
        "WARN streaming.StreamJob: mapreduce.map.memory.mb=512 has no effect",
        "INFO streaming.StreamJob: Output directory: hdfs:///out\n",
    ] {
        assert!(ran.stderr.contains(text), "{text}: {}", ran.stderr);
    }
    let parts: Vec<String> =
        (0..3).map(|n| hadoop.ok(&format!("hadoop fs -cat /out/part-r-{n:05}"))).collect();
    let mut lines: Vec<&str> = parts.iter().flat_map(|part| part.lines()).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["11.11.4.1\tvalue", "11.12.1.1\tvalue", "11.12.1.2\tvalue", "11.14.2.2\tvalue", "11.14.2.3\tvalue"]
    );
    // Lines with the same first two fields are in one part, sorted by the others as numbers.
    for part in &parts {
        let keys: Vec<Vec<i32>> = part
            .lines()
            .map(|line| line.split('\t').next().unwrap().split('.').map(|n| n.parse().unwrap()).collect())
            .collect();
        assert!(keys.is_sorted_by_key(|key| (-key[2], key[3])), "{part}");
    }
    let of_key = |key: &str| parts.iter().filter(|part| part.contains(key)).count();
    assert!(of_key("11.12.") == 1 && of_key("11.14.") == 1);
    assert!(hadoop.ok("mapred job -list all").contains("job_0000000000000_0001"));
    let counter = "mapred job -counter job_0000000000000_0001 my";
    let ran: Ran = hadoop
        .command("mapred")
        .args(["job", "-counter", "job_0000000000000_0001", "my group", "lines"])
        .output()
        .expect(counter)
        .into();
    assert_eq!(ran.stdout, "2\n");
    assert!(hadoop.ok("hadoop job -status job_1").contains("Job state: SUCCEEDED"));
    hadoop.fails(255, "hadoop job -kill job_0000000000000_0001");
    assert!(hadoop.fails(255, "mapred job -set-priority job_1 HIGH").contains("cannot be changed"));
}

#[test]
fn aggregate_lazy_output_and_errors_are_those_of_hadoop() {
    let hadoop = Hadoop::up();
    let input =
        hadoop.local("in", "LongValueSum:a\t1\nLongValueMax:b\t7\nLongValueSum:a\t2\nUniqValueCount:c\tx\n");
    hadoop.ok(&format!("hadoop fs -put {input} /in/file"));
    let ran = hadoop.streaming(&[
        "-input",
        "/in",
        "-output",
        "/out",
        "-mapper",
        "cat",
        "-reducer",
        "aggregate",
        "-numReduceTasks",
        "8",
        "-lazyOutput",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let output = hadoop.output("/out");
    let found: BTreeMap<&str, &str> = output.lines().filter_map(|line| line.split_once('\t')).collect();
    assert_eq!(found, BTreeMap::from([("a", "3"), ("b", "7"), ("c", "1")]));
    assert!(hadoop.ok("hadoop fs -ls -C /out").lines().count() <= 4, "empty parts are deleted");

    let common = ["-mapper", "cat"];
    let run = |options: &[&str]| hadoop.streaming(&[&common[..], options].concat());
    let ran = run(&["-input", "/in", "-output", "/out"]);
    assert_eq!(ran.code, 4, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("ERROR streaming.StreamJob: Error Launching job : output /out"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.ends_with("Streaming Command Failed!\n"));
    assert_eq!(run(&["-input", "/no", "-output", "/new"]).code, 2);
    assert_eq!(run(&["-input", "/in", "-output", "/new", "-libjars", "a.jar"]).code, 1);
    let ran = run(&[
        "-input",
        "/in",
        "-output",
        "/new",
        "-reducer",
        "false",
        "-D",
        "mapreduce.reduce.maxattempts=1",
    ]);
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    let attempt = "Task Id : attempt_0000000000000_0002_r_000000_0, Status : FAILED\nError: ";
    assert!(
        ran.stderr.contains(attempt) && ran.stderr.contains("failed with state FAILED"),
        "{}",
        ran.stderr
    );
    // An archive is a folder of each task.
    fs::create_dir(hadoop.cluster.path("folder")).expect("our folder");
    hadoop.local("folder/table", "from the archive\n");
    let (archive, folder) = (hadoop.cluster.path("a.tar.gz"), hadoop.cluster.path("folder"));
    let packed = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(folder).arg("table").status();
    assert!(packed.is_ok_and(|status| status.success()));
    let ran = run(&[
        "-input",
        "/in",
        "-output",
        "/unpacked",
        "-reducer",
        "cat lib/table",
        "-archives",
        &format!("{}#lib", archive.display()),
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(hadoop.output("/unpacked"), "from the archive\n");
    // Each map gets two lines, with their offsets.
    let ran = run(&[
        "-input",
        "/in",
        "-output",
        "/lines",
        "-inputformat",
        "NLineInputFormat",
        "-numReduceTasks",
        "0",
        "-D",
        "mapreduce.input.lineinputformat.linespermap=2",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("Launched map tasks=2"), "{}", ran.stderr);
    assert!(hadoop.output("/lines").starts_with("0\tLongValueSum:a\t1\n17\tLongValueMax:b"));
    let ran = run(&["-input", "/in", "-output", "/new", "-numReduceTasks", "0"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(hadoop.output("/new").lines().count(), 4);
    let ran: Ran =
        hadoop.command("hadoop").args(["jar", "my.jar", "a.B"]).output().expect("it starts").into();
    assert!(ran.code == 255 && ran.stderr.starts_with("Not a valid JAR: my.jar"), "{}", ran.stderr);
}

#[test]
fn deleted_files_are_in_the_trash_until_they_expire() {
    let settings = format!("{QUICK}[client]\ntrash_interval = \"1h\"\n");
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    cluster.mrctl(&["fs", "mkdir", "-p", "/data"]);
    for name in ["/data/a", "/data/b", "/data/c"] {
        cluster.mrctl(&["fs", "touch", name]);
    }
    cluster.mrctl(&["fs", "rm", "/data/a"]);
    cluster.mrctl(&["fs", "rm", "--skip-trash", "/data/b"]);
    let trash = format!("/user/{}/.Trash", daemon::account::user());
    let found = cluster.mrctl(&["fs", "find", &trash, "--kind", "file"]);
    assert!(found.ends_with("/data/a\n") && found.lines().count() == 1, "{found}");
    // A second file with the same path is kept, too, and the first can be moved back.
    cluster.mrctl(&["fs", "touch", "/data/a"]);
    cluster.mrctl(&["fs", "rm", "/data/a"]);
    assert_eq!(cluster.mrctl(&["fs", "find", &trash, "--name", "a"]).lines().count(), 2);
    cluster.mrctl(&["fs", "mv", found.trim(), "/data/back"]);
    let home = cluster.path("hadoop").display().to_string();
    cluster.mrctl(&["hadoop-home", &home]);
    let hadoop = Hadoop { home: home.into(), cluster };
    let moved = hadoop.ok("hadoop fs -rm hdfs:///data/c");
    assert!(moved.starts_with("Moved: 'hdfs:///data/c' to trash at: hdfs:///user/"), "{moved}");
    hadoop.ok("hadoop fs -expunge");
    let left =
        |hadoop: &Hadoop| hadoop.cluster.mrctl(&["fs", "find", &trash, "--kind", "file"]).lines().count();
    assert_eq!(left(&hadoop), 2, "nothing has expired");
    hadoop.cluster.mrctl(&["fs", "rm", "-r", "/data"]);
    assert_eq!(left(&hadoop), 3);
    // The trash itself cannot be moved to the trash.
    let refusal = hadoop.cluster.refused(1, &["fs", "rm", "-r", "/user"]);
    assert!(refusal.contains("cannot move /user to the trash, which is in it"), "{refusal}");
    assert_eq!(left(&hadoop), 3);
    hadoop.ok("hadoop fs -expunge -immediate");
    assert_eq!(left(&hadoop), 0);
    // What is in the trash is deleted.
    hadoop.cluster.mrctl(&["fs", "touch", &format!("{trash}/x")]);
    hadoop.cluster.mrctl(&["fs", "rm", &format!("{trash}/x")]);
    assert_eq!(left(&hadoop), 0);
}

#[test]
fn a_file_stays_in_the_trash_for_the_interval_after_its_own_deletion() {
    let settings = format!("{QUICK}[client]\ntrash_interval = \"3s\"\n");
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, settings: &settings, ..Up::default() });
    cluster.mrctl(&["fs", "mkdir", "-p", "/data"]);
    cluster.mrctl(&["fs", "touch", "/data/a"]);
    cluster.mrctl(&["fs", "touch", "/data/b"]);
    let trash = format!("/user/{}/.Trash", daemon::account::user());
    let left = || cluster.mrctl(&["fs", "find", &trash, "--kind", "file"]).lines().count();
    cluster.mrctl(&["fs", "rm", "/data/a"]);
    let deleted = Instant::now();
    eventually("the first file has expired", || (deleted.elapsed() > Duration::from_secs(3)).then_some(()));
    cluster.mrctl(&["fs", "rm", "/data/b"]);
    assert_eq!(left(), 2, "both have the folder of this hour");
    eventually("both have expired", || {
        cluster.mrctl(&["fs", "expunge"]);
        (left() == 0).then_some(())
    });
}

#[test]
fn files_are_copied_found_counted_and_tested() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, ..Up::default() });
    let local = |name: &str, text: &str| {
        fs::write(cluster.path(name), text).expect("our folder");
        cluster.path(name).display().to_string()
    };
    let (one, two) = (local("one", "1\n2\n3\n"), local("Two", "second\n"));
    cluster.mrctl(&["fs", "put", &one, &two, "/data/in/"]);
    cluster.mrctl(&["fs", "cp", "-r", "/data/in", "/data/copy"]);
    cluster.mrctl(&["fs", "cp", "/data/in/one", "/data/third"]);
    assert!(cluster.refused(1, &["fs", "cp", "/data/in/one", "/data/third"]).contains("--force"));
    assert!(cluster.refused(1, &["fs", "cp", "/data/in", "/data/x"]).contains("use -r"));
    assert_eq!(cluster.refused(2, &["fs", "cp", "-r", "/data", "/data/in/x"]).lines().count(), 1);
    assert_eq!(cluster.mrctl(&["fs", "cat", "/data/copy/*"]), "second\n1\n2\n3\n");
    assert_eq!(cluster.mrctl(&["fs", "head", "-n", "2", "/data/third"]), "1\n2\n");
    assert_eq!(cluster.mrctl(&["fs", "head", "-c", "3B", "/data/third"]), "1\n2");
    assert_eq!(
        cluster.mrctl(&["fs", "find", "/data", "--name", "t*", "--ignore-case", "--kind", "file"]),
        "/data/copy/Two\n/data/in/Two\n/data/third\n"
    );
    let counted = cluster.json(&["fs", "count", "/data"]);
    assert_eq!(
        (&counted[0]["folders"], &counted[0]["files"], &counted[0]["bytes"]),
        (&3.into(), &5.into(), &32.into())
    );
    let merged = cluster.path("merged").display().to_string();
    cluster.mrctl(&["fs", "getmerge", "/data/in", &merged]);
    assert!(cluster.refused(1, &["fs", "getmerge", "/data/in", "/dev/null"]).contains("is no file"));
    assert_eq!(fs::read_to_string(&merged).unwrap(), "second\n1\n2\n3\n");
    for (code, test) in
        [(0, ["-f", "/data/third"]), (1, ["-d", "/data/third"]), (1, ["-f", "/no"]), (0, ["-r", "/data"])]
    {
        assert_eq!(cluster.try_mrctl(&[&["fs", "test"], &test[..]].concat()).code, code, "{test:?}");
    }
    cluster.mrctl(&["fs", "chmod", "u+x,go-r", "/data/third"]);
    assert_eq!(cluster.json(&["fs", "stat", "/data/third"])[0]["mode"], 0o700);
}

/// Returns a Python with the package `mrjob`: that of the system, or that of a virtual environment in
/// the build folder, which is made once. None, with a message, if neither works.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PYTHON.get_or_init(|| {
        let imports = |python: &Path| {
            let ran = Command::new(python).args(["-c", "import mrjob.hadoop"]).output();
            ran.is_ok_and(|ran| ran.status.success())
        };
        if imports(Path::new("python3")) {
            return Some("python3".into());
        }
        let folder = tempfile::tempdir_in(binaries().with_file_name("tmp")).ok()?.keep();
        let python = folder.join("bin/python3");
        let made = Command::new("python3").args(["-m", "venv"]).arg(&folder).output();
        let pip = Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "mrjob"])
            .output();
        let works = made.is_ok() && pip.is_ok() && imports(&python);
        if !works {
            let _ = fs::remove_dir_all(&folder);
        }
        works.then_some(python)
    });
    if found.is_none() {
        skip("mrjob", "the package mrjob of PyPI cannot be installed");
    }
    found.as_deref()
}

/// Runs a script of mrjob on the cluster.
fn mrjob(hadoop: &Hadoop, python: &Path, script: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(python);
    command.arg(script).args(["-r", "hadoop"]).args(args);
    command.current_dir(hadoop.cluster.path("")).env("HADOOP_HOME", &hadoop.home);
    command.output().expect("python3 starts").into()
}

/// Parses lines of `JSON TAB JSON`.
fn results(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn examples_of_mrjob_run_unchanged() {
    let Some(python) = python() else { return };
    let hadoop = Hadoop::up();
    let found = Command::new(python)
        .args(["-c", "import mrjob.examples; print(mrjob.examples.__path__[0])"])
        .output()
        .expect("python3 starts");
    let examples = PathBuf::from(String::from_utf8_lossy(&found.stdout).trim());
    let text = hadoop.local("text", "the quick brown fox\njumps over the lazy dog, the fox\nyou jump\n");
    let run = |script: &str, args: &[&str]| {
        let ran = mrjob(&hadoop, python, &examples.join(script), &[args, &[text.as_str()]].concat());
        assert_eq!(ran.code, 0, "{script}: {}{}", ran.stdout, ran.stderr);
        ran
    };
    let words = results(&run("mr_word_freq_count.py", &[]).stdout);
    assert_eq!((words["\"the\""].as_str(), words["\"fox\""].as_str(), words.len()), ("3", "2", 10));
    // Two steps, and a side file with words that do not count.
    assert_eq!(run("mr_most_used_word.py", &[]).stdout, "\"fox\"\n");
    let counts = results(&run("mr_wc.py", &[]).stdout);
    assert_eq!((counts["\"lines\""].as_str(), counts["\"words\""].as_str()), ("3", "13"));
    let with_u = results(&run("mr_words_containing_u_freq_count.py", &[]).stdout);
    assert_eq!(with_u.len(), 4, "{with_u:?}");
    assert_eq!(run("mr_log_sampler.py", &["--sample-size", "2"]).stdout.lines().count(), 2);
    let grep = run("mr_grep.py", &["-e", "fox"]).stdout;
    assert_eq!(grep.lines().count(), 2, "{grep}");
    let ran = mrjob(&hadoop, python, &examples.join("mr_boom.py"), &[&text]);
    assert!(ran.code != 0 && ran.stderr.contains("BOOM"), "{}", ran.stderr);
}

#[test]
fn mrjob_gets_counters_sorted_values_side_files_and_failures() {
    let Some(python) = python() else { return };
    let hadoop = Hadoop::up();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/hadoop/jobs.py");
    let text = hadoop.local("text", "beta alpha bar\nant bat alpha\n");
    let table = hadoop.local("table.txt", "from the side file\n");
    // The input is in the cluster already.
    hadoop.ok(&format!("hadoop fs -put {text} /text"));
    let ran = mrjob(&hadoop, python, &script, &["--table", &table, "hdfs:///text"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let expected = BTreeMap::from([
        ("\"a\"".to_owned(), "[\"alpha alpha ant\", \"from the side file\"]".to_owned()),
        ("\"b\"".to_owned(), "[\"bar bat beta\", \"from the side file\"]".to_owned()),
    ]);
    assert_eq!(results(&ran.stdout), expected);
    assert!(
        ran.stderr.contains("read; of all lengths=6") || ran.stderr.contains("read, of all lengths=6"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("Map input records=2"), "{}", ran.stderr);

    // mrjob deletes its files after a job that succeeded.
    let left = hadoop.ok("hadoop fs -ls -R /user");
    assert!(!left.contains("part-"), "temporary files are left: {left}");

    let ran = mrjob(&hadoop, python, &script, &["--fail", "--table", &table, "hdfs:///text"]);
    assert!(ran.code != 0 && ran.stderr.contains("fails on purpose"), "{}", ran.stderr);
    assert!(ran.stderr.contains("Step 2 of 2 failed"), "{}", ran.stderr);
}
