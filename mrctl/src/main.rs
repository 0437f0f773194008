//! `mrctl`, the command line of Fermata: local and remote clusters, the file system, jobs, nodes,
//! faults, benchmarks.
//!
//! Exit codes: 0 success; 1 failure; 2 usage error (`output::Usage`): the command would be invalid
//! in any cluster. An error is one line on standard error: what, where, why, what to do. mrctl
//! stores no state except in the cluster folder that `mrctl up` or `mrctl cluster` creates.

mod command;
mod fs;
mod hadoop;
mod job;
mod output;

use anyhow::Result;
use clap::{Parser, Subcommand};
use command::provenance::Provenance;
use serde_json::json;
use std::{fmt::Write as _, io, process::ExitCode};

// Simulations allocate many small values.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The headings in the help of `mrctl`, each with its commands. clap has no headings for commands.
const HEADINGS: [(&str, &[&str]); 7] = [
    (
        "Cluster",
        &["demo", "up", "down", "status", "health", "masters", "top", "web", "cluster", "backup", "restore"],
    ),
    ("Files", &["fs", "hadoop-home"]),
    ("Jobs", &["submit", "jobs", "job", "tasks", "logs", "counters", "history", "kill", "programs"]),
    ("Scheduling", &["why", "preempt", "resume", "schedulers", "shadow", "new"]),
    ("Nodes", &["nodes", "drain"]),
    ("Security", &["token"]),
    ("Lab", &["bench", "chaos", "sim", "compare", "replay", "repro", "verify"]),
];

const HELP_INTRO: &str = "\
Get started:
  mrctl demo                   run a demonstration, then remove it
  mrctl up --detach            start a cluster in ./.fermata; `down` stops it
  mrctl fs put -r docs /docs   copy a local folder into the cluster
  mrctl submit wordcount --input /docs --output /counts

";

const HELP_FOOTER: &str = "\
`mrctl COMMAND --help` shows examples and options; results as JSON: --json.
Exit codes: 0 success; 1 failure; 2 usage error. `mrctl --version`: the version.
The cluster is the first of: --namenode and --jobtracker; --config; one running
in ./.fermata; ./fermata.toml; the nearest .fermata in a parent folder.";

/// Returns the template of the help, which lists each command under its heading, with the first
/// line of the command's own help.
fn help_template() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("mrctl"));
    let (header, literal) = (commands.get_styles().get_header(), commands.get_styles().get_literal());
    let mut list = String::new();
    for (heading, names) in HEADINGS {
        let _ = write!(list, "\n{header}{heading}:{header:#}");
        for name in names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = write!(list, "\n  {literal}{name:12}{literal:#}{about}");
        }
    }
    format!("{{about-with-newline}}\n{{before-help}}{{usage-heading}} {{usage}}\n{list}{{after-help}}")
}

/// Fermata: a MapReduce cluster and its distributed file system
#[derive(Debug, Parser)]
#[command(name = "mrctl", version, arg_required_else_help = true)]
#[command(before_help = HELP_INTRO, after_help = HELP_FOOTER, help_template = help_template())]
struct Cli {
    #[command(flatten)]
    target: clusters::locate::Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    // The help text of each command is the doc comment of its `Args` type.
    Up(command::up::Args),
    Down(command::down::Args),
    Status(command::status::Args),
    Demo(command::demo::Args),
    /// Work with files in the cluster
    #[command(subcommand, arg_required_else_help = true)]
    Fs(fs::FsCommand),
    HadoopHome(hadoop::home::Args),
    #[command(hide = true)]
    Hadoop(hadoop::Args),
    Submit(job::submit::Args),
    Jobs(job::inspect::Jobs),
    Job(job::inspect::Show),
    Tasks(job::tasks::Args),
    Counters(job::inspect::Counters),
    Logs(job::inspect::Logs),
    Kill(job::inspect::Kill),
    Preempt(job::preempt::Args),
    Resume(job::resume::Args),
    Why(command::why::Args),
    History(job::inspect::History),
    Programs(job::inspect::Programs),
    Schedulers(command::schedulers::Args),
    Shadow(command::shadow::Args),
    New(command::new::Args),
    Nodes(command::nodes::Args),
    Top(command::top::Args),
    Drain(command::drain::Args),
    Health(command::health::Args),
    Masters(command::masters::Args),
    Web(command::web::Args),
    Token(command::token::Args),
    /// Create and run a cluster on several machines, with its users
    #[command(subcommand, arg_required_else_help = true)]
    Cluster(command::cluster::ClusterCommand),
    Backup(command::backup::Args),
    Restore(command::restore::Args),
    #[command(flatten)]
    Experiment(LabCommand),
    /// Experiments: the commands under "Lab" in the help of `mrctl`
    #[command(subcommand, arg_required_else_help = true, hide = true)]
    Lab(LabCommand),
}

impl Command {
    /// Returns whether the command acts on the cluster that the global flags select. The other
    /// commands start a cluster or name one by their own arguments.
    fn uses_target(&self) -> bool {
        !matches!(
            self,
            Self::Up(_)
                | Self::Down(_)
                | Self::Status(_)
                | Self::Demo(_)
                | Self::New(_)
                | Self::Web(_)
                | Self::Cluster(_)
                | Self::Restore(_)
                | Self::Experiment(_)
                | Self::Lab(_)
        )
    }
}

// The commands under the heading "Lab". `mrctl NAME` and `mrctl lab NAME` are the same. A doc
// comment here would be the help text of `mrctl`.
#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Run benchmarks and compare each value with its limit
    #[command(subcommand, arg_required_else_help = true)]
    Bench(lab::bench::BenchCommand),
    /// Inject faults: one at a time, from a scenario, or at random
    #[command(subcommand, arg_required_else_help = true)]
    Chaos(lab::chaos::ChaosCommand),
    Sim(Box<command::sim::Args>),
    Compare(command::compare::Args),
    Replay(command::sim_replay::Args),
    Repro(command::sim_repro::Args),
    Verify(lab::verify::Args),
}

fn main() -> ExitCode {
    let cli: Cli = daemon::usage::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&anyhow::Error::new(error).context("cannot start threads")),
    };
    let result = runtime.block_on(run(cli));
    // A thread may be blocked in a read of standard input. Do not wait for it.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| report(&error))
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let target = cli.command.uses_target().then(|| cli.target.clone());
    let result = Box::pin(run_command(cli)).await;
    result.map_err(|error| if let Some(target) = target { target.explain(error) } else { error })
}

async fn run_command(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Up(args) => Box::pin(command::up::run(args, cli.target.config_for_up())).await,
        Command::Down(args) => command::down::run(args),
        Command::Status(args) => command::status::run(&args).await,
        Command::Demo(args) => command::demo::run(args).await,
        Command::Fs(command) => fs::run(command, &cli.target).await,
        Command::HadoopHome(args) => hadoop::home::run(&args, &cli.target),
        Command::Hadoop(args) => Box::pin(hadoop::run(args, &cli.target)).await,
        Command::Submit(args) => job::submit::run(args, &cli.target).await,
        Command::Jobs(args) => job::inspect::jobs(args, &cli.target).await,
        Command::Job(args) => job::inspect::show(args, &cli.target).await,
        Command::Tasks(args) => job::tasks::run(args, &cli.target).await,
        Command::Counters(args) => job::inspect::counters(args, &cli.target).await,
        Command::Logs(args) => job::inspect::logs(args, &cli.target).await,
        Command::Kill(args) => job::inspect::kill(args, &cli.target).await,
        Command::Preempt(args) => job::preempt::run(args, &cli.target).await,
        Command::Resume(args) => job::resume::run(args, &cli.target).await,
        Command::Why(args) => command::why::run(args, &cli.target).await,
        Command::Schedulers(args) => command::schedulers::run(args, &cli.target).await,
        Command::Shadow(args) => command::shadow::run(args, &cli.target).await,
        Command::New(args) => command::new::run(&args),
        Command::History(args) => job::inspect::history(args, &cli.target).await,
        Command::Programs(args) => job::inspect::programs(&args),
        Command::Nodes(args) => command::nodes::run(args, &cli.target).await,
        Command::Top(args) => command::top::run(args, &cli.target).await,
        Command::Drain(args) => command::drain::run(args, &cli.target).await,
        Command::Health(args) => command::health::run(args, &cli.target).await,
        Command::Masters(args) => command::masters::run(args, &cli.target).await,
        Command::Web(args) => command::web::run(args, &cli.target).await,
        Command::Token(args) => command::token::run(&args, &cli.target),
        Command::Cluster(command) => command::cluster::run(command).await,
        Command::Backup(args) => command::backup::run(args, &cli.target).await,
        Command::Restore(args) => command::restore::run(args),
        Command::Experiment(command) | Command::Lab(command) => Box::pin(run_lab(command)).await,
    }
}

async fn run_lab(command: LabCommand) -> Result<ExitCode> {
    match command {
        LabCommand::Bench(command) => {
            Box::pin(lab::bench::run(command, &json!(Provenance::of_this_process()))).await
        }
        LabCommand::Chaos(command) => lab::chaos::run(command).await,
        LabCommand::Sim(args) => command::sim::run(&args).await,
        LabCommand::Compare(args) => command::compare::run(&args),
        LabCommand::Replay(args) => command::sim_replay::run(&args),
        LabCommand::Repro(args) => command::sim_repro::run(&args).await,
        LabCommand::Verify(args) => command::verify::run(&args).await,
    }
}

/// Prints the error and returns the exit code. A broken pipe counts as success: the program that
/// reads the output (such as `head`) has closed the pipe.
fn report(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("mrctl: {}", output::chain(error));
    ExitCode::from(output::exit_code(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Collects the handwritten help lines that are wider than 80 columns.
    fn collect_wide_lines(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let pages = [command.get_before_help(), command.get_after_help()].into_iter().flatten();
        let text = pages.map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let wide = text.lines().filter(|line| line.chars().count() > 80);
        found.extend(wide.map(|line| format!("{path}: {line}")));
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            collect_wide_lines(below, &format!("{path} {}", below.get_name()), found);
        }
    }

    #[test]
    fn help_fits_80_columns_and_starts_with_examples() {
        let mut command = Cli::command();
        let mut wide = Vec::new();
        collect_wide_lines(&command, "mrctl", &mut wide);
        assert!(wide.is_empty(), "{wide:#?}");
        let help = command.render_long_help().to_string();
        for (name, about) in
            [("kill", "Kill a job"), ("up", "Start a cluster on this machine"), ("nodes", "List the nodes")]
        {
            let below = command.find_subcommand(name).unwrap();
            assert!(below.get_about().unwrap().to_string().starts_with(about), "{name}");
            assert!(below.get_long_about().is_some(), "the description of {name} is lost");
        }
        let begin = help.lines().position(|line| line.contains("mrctl demo")).unwrap();
        assert!(begin < 6, "{help}");
        let wide: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty() && help.lines().count() <= 60, "{wide:#?}\n{help}");
    }

    #[test]
    fn each_command_has_examples() {
        // A group of small commands has the examples of all of them.
        fn check(command: &clap::Command, path: &str, without: &mut Vec<String>) {
            for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
                let path = format!("{path} {}", below.get_name());
                let is_named = |command: &clap::Command| {
                    command.get_after_help().is_some_and(|help| help.to_string().contains(&path))
                };
                if below.has_subcommands() {
                    check(below, &path, without);
                } else if below.get_name() != "help" && !is_named(below) && !is_named(command) {
                    without.push(path);
                }
            }
        }
        let mut without = Vec::new();
        check(&Cli::command(), "mrctl", &mut without);
        assert!(without.is_empty(), "no examples: {without:#?}");
    }

    #[test]
    fn each_command_is_listed_under_one_heading() {
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|one| !one.is_hide_set());
        let mut visible: Vec<&str> = visible.map(clap::Command::get_name).collect();
        let mut listed: Vec<&str> = HEADINGS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        visible.sort_unstable();
        listed.sort_unstable();
        assert_eq!(visible, listed);

        let page = include_str!("../../docs/guide/README.md");
        for (heading, names) in HEADINGS {
            let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            assert!(page.contains(&format!("\n| {heading} | {names}")), "{heading}: {names}");
        }

        let help = Cli::command().render_help().to_string();
        let lab = help.split_once("\nLab:\n").unwrap().1;
        for name in HEADINGS[6].1 {
            let line = lab.lines().find(|line| line.starts_with(&format!("  {name} ")));
            assert!(line.is_some_and(|line| line.len() > 20), "{name} is not under Lab:\n{help}");
            let in_lab = command.find_subcommand("lab").and_then(|lab| lab.find_subcommand(name));
            assert!(in_lab.is_some(), "mrctl lab {name}");
        }
    }

    #[test]
    fn usage_errors_exit_with_2() {
        let cases: [&[&str]; 11] = [
            &["mrctl", "nonsense"],
            &["mrctl", "up", "--nodes", "-1"],
            &["mrctl", "up", "--map-slots", "0"],
            &["mrctl", "up", "--reduce-slots", "-1"],
            &["mrctl", "up", "--block-size", "64parrots"],
            &["mrctl", "up", "--namenode-port", "70000"],
            &["mrctl", "fs", "put", "only-one"],
            &["mrctl", "fs", "tail", "-n", "1", "-c", "1", "/x"],
            &["mrctl", "drain", "node1", "--deadline", "soon"],
            &["mrctl", "fs", "chmod", "rwx", "/x"],
            &["mrctl", "submit", "wordcount", "--output", "/x", "--no-output"],
        ];
        for case in cases {
            let error = Cli::try_parse_from(case).expect_err(&case.join(" "));
            assert_eq!(error.exit_code(), 2, "{case:?}");
            let words: Vec<std::ffi::OsString> = case.iter().map(Into::into).collect();
            let line = daemon::usage::line(&error, &Cli::command(), &words).unwrap();
            assert!(line.starts_with("mrctl: ") && line.ends_with("--help`"), "{line}");
            assert!(!line.contains('\n') && !line.contains("invalid digit"), "{line}");
        }
    }

    /// Checks which commands act on the cluster that the global flags select. For other commands,
    /// advice about that cluster in an error message would be wrong.
    #[test]
    fn commands_for_other_clusters_do_not_use_the_target() {
        let uses_target = |line: &str| {
            let words = std::iter::once("mrctl").chain(line.split(' '));
            Cli::try_parse_from(words).unwrap().command.uses_target()
        };
        for line in ["fs ls /", "submit wordcount --input /a --no-output", "nodes", "health namenode"] {
            assert!(uses_target(line), "{line}");
        }
        for line in ["up", "demo", "web --cluster c", "bench dfs", "lab verify", "chaos kill node1 --dir d"] {
            assert!(!uses_target(line), "{line}");
        }
    }

    #[test]
    fn documented_command_lines_parse() {
        let cases = [
            "up --nodes 3 --replication 2 --block-size 64MiB --racks 1 --dir .fermata --detach",
            "down --purge",
            "up --open --json --detach",
            "status --json",
            "backup /backups/monday --json",
            "restore --check /backups/monday",
            "restore /backups/monday --replace --dir .fermata",
            "restore /backups/monday --namenode-dir /data/namenode --jobtracker-dir /data/jobtracker",
            "token --valid 7d",
            "fs ls -l -R -H /a /b",
            "fs ls -lh /a",
            "fs put -r --force --replication 3 --block-size 1MiB a b /dest/",
            "fs put - /from-stdin --quiet",
            "fs get -r /a /b out --json",
            "fs cat /a/*",
            "fs tail -c 1KiB /a",
            "fs head -n 3 /a",
            "fs cp -rf /a /b",
            "fs getmerge --newline /a b",
            "fs find / --name '*.gz' --kind file --min-size 1KiB --json",
            "fs test -f -s /a",
            "fs count / --json",
            "fs touch /a",
            "fs chmod -R u+x,go-w /a",
            "fs chmod -w /a",
            "hadoop-home /tmp/hadoop",
            "hadoop hadoop fs -ls -R --config x /",
            "fs mkdir -p /a/b",
            "fs rm -rf /a",
            "fs rm --skip-trash /a",
            "fs expunge --all",
            "fs mv /a /b /c",
            "fs stat --json /a",
            "fs du -s -h /a",
            "fs setrep 3 -r --wait /a",
            "fs setrep 3 --wait 5s /a",
            "fs setrep 3 /a --wait",
            "fs fsck --wait 60s --json",
            "fs report --json",
            "fs quota /a --files 10 --space none",
            "fs safemode off",
            "drain node1 --deadline 120s --json",
            "nodes --json",
            "tasks job_7 --state failed --json",
            "history job_7 --json",
            "submit wordcount --input /a /b --output /c --conf k=v --detach",
            "submit wordcount --input /a --no-output",
            "fs fsck /a '/b*'",
            "preempt job_7.m3.0 --how split",
            "preempt job_7.r3.0 --how pause --json",
            "resume job_7.r3",
            "resume job_7.r3 --on node2 --json",
            "up --scheduler chronos(fair) --shadow fifo",
            "why job_7 --json",
            "why job_7.m3",
            "schedulers --json",
            "shadow --last 5",
            "nodes --rates",
            "chaos kill node1 --daemon datanode",
            "chaos restart namenode",
            "chaos run faults.toml --cluster mycluster --json",
            "chaos soak --minutes 1 --seed 7 --nodes 4",
            "chaos recovery fifo=a/history fair=b/history --report r.html",
            "bench dfs --size 1GiB --only write,read --json",
            "bench mr --size 1GiB --nodes 4 --only wordcount,terasort,small,tasks,idle --rounds 1 --json",
            "bench preempt --size 64MiB --nodes 2 --json",
            "bench plain wordcount in out",
            "health namenode --within 2s",
            "masters --json",
            "masters --within 5s",
            "masters transfer",
            "masters transfer b:9400 --daemon namenode",
            "masters add d:9400 --within 1m",
            "masters remove b:9400",
            "masters replace b:9400 d:9400 --daemon jobtracker",
            "up --masters 3 --detach",
            "top --every 5s",
            "top --once",
            "top --json",
            "web --port 0",
            "web --cluster mycluster",
            "fs ls / --namenode localhost:9400",
            "demo",
            "sim --workload hsrtf --nodes 58 --scheduler fifo,chronos(fifo) --seeds 3 --report r.html",
            "sim fuzz --seed 7",
            "sim verify --only short",
            "verify --only short --json",
            "lab verify --only short",
            "lab chaos kill node1",
            "lab replay history --scheduler fcs",
            "repro fcs --scale paper --seeds 2",
            "replay history --scheduler fcs --nodes +4 --fail node3@120",
        ];
        for case in cases {
            let words = std::iter::once("mrctl").chain(case.split(' '));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
}
