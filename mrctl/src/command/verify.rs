//! `mrctl verify`: see the crate `lab`.

use super::provenance::Provenance;
use anyhow::Result;
use std::process::ExitCode;

pub(crate) async fn run(args: &lab::verify::Args) -> Result<ExitCode> {
    lab::verify::run(args, &serde_json::to_value(Provenance::of_this_process())?).await
}
