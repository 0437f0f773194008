//! `mrctl token`: proves the caller's identity to clients that cannot read its credentials.

use crate::{
    locate::Target,
    output::{self, Usage},
};
use anyhow::{Result, bail};
use daemon::Period;
use std::process::ExitCode;

/// Print a token of your identity, for another client
///
/// Whoever has the token can do all that you can in this cluster until it expires: pass it on like a password. A client
/// shows it as `security.token` (the name of a file with mode 600 that holds it), `--token-file` or `fermata-token` in a
/// call's metadata. `mrctl down --purge` ends all tokens of the cluster of a folder.
///
/// A cluster with certificates (`mrctl cluster init`) has no tokens of users: there an admin makes a certificate for the
/// other client, with `mrctl cluster user NAME --out FOLDER --days 1`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl token                        for an hour\n  \
    mrctl token --valid 7d             for a week\n  \
    mrctl token --json                 with its name, role and end")]
pub(crate) struct Args {
    /// How long it is valid
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = valid)]
    valid: Period,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const VALID_DAYS_MAX: u64 = 3650;

fn valid(text: &str) -> Result<Period, String> {
    let period: Period = text.parse().map_err(|error| format!("{error}"))?;
    let fits = (1..=VALID_DAYS_MAX * 24 * 3600).contains(&period.0.as_secs());
    if fits { Ok(period) } else { Err(format!("from 1s to {VALID_DAYS_MAX}d")) }
}

pub(crate) fn run(args: &Args, target: &Target) -> Result<ExitCode> {
    let credentials = target.credentials()?;
    let (text, token) = credentials.token(args.valid.0)?;
    if credentials.is_token() {
        bail!(Usage(format!(
            "{} is proved by a token here (--token-file or security.token), and a token makes no other: run this with the \
             cluster's own credentials, or pass on the token that you have",
            token.name
        )));
    }
    if args.json {
        let end = token.expires;
        output::json(&serde_json::json!({
            "token": text, "name": token.name, "role": token.role.name(), "expires_s": end,
        }))?;
    } else {
        output::line(text)?;
    }
    Ok(ExitCode::SUCCESS)
}
