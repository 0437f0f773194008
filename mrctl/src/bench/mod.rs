//! bench
#[derive(Debug, clap::Subcommand)]
pub(crate) enum BenchCommand {
    Dfs,
}
pub(crate) async fn run(_args: BenchCommand) -> anyhow::Result<std::process::ExitCode> {
    todo!()
}
