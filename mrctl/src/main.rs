//! `mrctl`, Fermata's command line: local clusters, the file system, nodes, faults, benchmarks.
//!
//! Exit codes: 0 done, 1 failed, 2 usage. An error is one line on standard error: what, where, why, what to
//! do. Deliberately absent: state of its own beyond the folder that `mrctl up` makes.

mod bench;
mod cluster;
mod command;
mod fs;
mod job;
mod locate;
mod output;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::{io, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  mrctl up --detach                     start three nodes on this machine
  mrctl fs put -r corpus /corpus        copy a folder in
  mrctl fs ls -lh /corpus               look at it
  mrctl nodes                           see where the bytes are
  mrctl down                            stop everything; the data stays

The cluster is found by --namenode, FERMATA_NAMENODE, --config, FERMATA_CONFIG, a cluster that runs in ./.fermata,
./fermata.toml, or the nearest .fermata/ folder upwards with a running cluster.

Exit codes: 0 done, 1 failed, 2 bad usage or a bad value.";

/// Fermata: a MapReduce cluster in a handful of small programs
#[derive(Debug, Parser)]
#[command(name = "mrctl", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    target: locate::Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster on this machine: a namenode, a jobtracker, and nodes with a datanode and a tasktracker each
    Up(command::up::Args),
    /// Stop the cluster that `mrctl up` started
    Down(command::down::Args),
    /// Show what Fermata does in less than a minute, and leave nothing behind
    Demo(command::demo::Args),
    /// Work with files in the cluster
    #[command(subcommand, arg_required_else_help = true)]
    Fs(fs::FsCommand),
    /// Submit a job, and follow it
    Submit(job::submit::Args),
    /// List the jobs
    Jobs(job::look::Jobs),
    /// Show one job
    Job(job::look::Show),
    /// List a job's tasks and their attempts
    Tasks(job::look::One),
    /// Show a job's counters
    Counters(job::look::One),
    /// Show what an attempt of a task printed
    Logs(job::look::Logs),
    /// Stop a job
    Kill(job::look::One),
    /// Take an attempt's slot back
    Preempt(job::preempt::Args),
    /// Print a job's history, as JSON lines
    History(job::look::One),
    /// List the built-in programs
    Programs(job::look::Programs),
    /// List the nodes
    Nodes(command::nodes::Args),
    /// Empty a datanode so that it can be stopped
    Drain(command::drain::Args),
    /// Kill, stop, continue or restart a daemon of the local cluster
    #[command(subcommand, arg_required_else_help = true)]
    Chaos(command::chaos::ChaosCommand),
    /// Measure, each figure beside its limit
    #[command(subcommand, arg_required_else_help = true)]
    Bench(bench::BenchCommand),
    Sim(command::sim::Args),
    Replay(command::sim_replay::Args),
    Repro(command::sim_repro::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&anyhow::Error::new(error).context("cannot start threads")),
    };
    let result = runtime.block_on(run(cli));
    // Standard input may be blocked in a thread of its own; nobody waits for that.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| report(&error))
}

async fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Up(args) => command::up::run(args, cli.target.config_for_up()).await,
        Command::Down(args) => command::down::run(args),
        Command::Demo(args) => command::demo::run(args).await,
        Command::Fs(command) => fs::run(command, &cli.target).await,
        Command::Submit(args) => job::submit::run(args, &cli.target).await,
        Command::Jobs(args) => job::look::jobs(args, &cli.target).await,
        Command::Job(args) => job::look::show(args, &cli.target).await,
        Command::Tasks(args) => job::look::tasks(args, &cli.target).await,
        Command::Counters(args) => job::look::counters(args, &cli.target).await,
        Command::Logs(args) => job::look::logs(args, &cli.target).await,
        Command::Kill(args) => job::look::kill(args, &cli.target).await,
        Command::Preempt(args) => job::preempt::run(args, &cli.target).await,
        Command::History(args) => job::look::history(args, &cli.target).await,
        Command::Programs(args) => job::look::programs(&args),
        Command::Nodes(args) => command::nodes::run(args, &cli.target).await,
        Command::Drain(args) => command::drain::run(args, &cli.target).await,
        Command::Chaos(command) => command::chaos::run(command).await,
        Command::Bench(command) => bench::run(command).await,
        Command::Sim(args) => command::sim::run(&args),
        Command::Replay(args) => command::sim_replay::run(&args),
        Command::Repro(args) => command::sim_repro::run(&args),
    }
}

/// Says what went wrong. A reader of our output that has gone away is no failure: it saw what it wanted.
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
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_exit_with_2() {
        let cases: [&[&str]; 8] = [
            &["mrctl", "nonsense"],
            &["mrctl", "up", "--nodes", "-1"],
            &["mrctl", "up", "--block-size", "64parrots"],
            &["mrctl", "up", "--namenode-port", "70000"],
            &["mrctl", "fs", "put", "only-one"],
            &["mrctl", "fs", "tail", "-n", "1", "-c", "1", "/x"],
            &["mrctl", "drain", "node1", "--deadline", "soon"],
            &["mrctl", "fs", "chmod", "rwx", "/x"],
        ];
        for case in cases {
            let error = Cli::try_parse_from(case).expect_err(&case.join(" "));
            assert_eq!(error.exit_code(), 2, "{case:?}");
        }
    }

    #[test]
    fn the_documented_forms_parse() {
        let cases = [
            "up --nodes 3 --replication 2 --block-size 64MiB --racks 1 --dir .fermata --detach",
            "down --purge",
            "fs ls -l -R -H /a /b",
            "fs ls -lh /a",
            "fs put -r --force --replication 3 --block-size 1MiB a b /dest/",
            "fs put - /from-stdin --quiet",
            "fs get -r /a /b out --json",
            "fs cat /a/*",
            "fs tail -c 1KiB /a",
            "fs mkdir -p /a/b",
            "fs rm -rf /a",
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
            "preempt job_7.m3.0 --how split",
            "chaos kill node1 --daemon datanode",
            "chaos restart namenode",
            "bench dfs --size 1GiB --only write,read --json",
            "bench mr --size 1GiB --nodes 4 --only wordcount,terasort,small,tasks,idle --rounds 1 --json",
            "bench plain wordcount in out",
            "fs ls / --namenode localhost:9400",
            "demo",
            "sim --workload hsrtf --nodes 58 --scheduler fifo,chronos(fifo) --seeds 3 --report r.html",
            "sim fuzz --seed 7",
            "repro fcs --scale paper --seeds 2",
            "replay history --scheduler fcs --nodes +4 --fail node3@120",
        ];
        for case in cases {
            let words = std::iter::once("mrctl").chain(case.split(' '));
            Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{case}: {error}"));
        }
    }
}
