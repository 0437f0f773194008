//! `mrctl verify`: see the crate `lab`.

use super::{interrupt, provenance::Provenance};
use anyhow::Result;
use std::process::ExitCode;

pub(crate) async fn run(args: &lab::verify::Args) -> Result<ExitCode> {
    let provenance = serde_json::to_value(Provenance::of_this_process())?;
    if args.starts_local_cluster() {
        interrupt::end_at_second_signal("stopping the cluster", || {});
    }
    lab::verify::run(args, &provenance).await
}
