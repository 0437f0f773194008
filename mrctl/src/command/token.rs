//! `mrctl token`: creates a token with the identity of the caller, for clients that do not have the
//! caller's credentials.

use crate::output::{self, Usage};
use anyhow::{Result, bail};
use clusters::locate::Target;
use daemon::Period;
use std::process::ExitCode;

/// Print a token with your identity, for another client
///
/// Until the token expires, it gives all your rights in this cluster: protect it like a password. A
/// client passes it as `security.token` (a file with mode 600 that contains the token),
/// `--token-file`, or `fermata-token` in the metadata of a call. `mrctl down --purge` invalidates
/// all tokens of a local cluster.
///
/// A cluster with certificates (`mrctl cluster init`) has no user tokens. There an admin creates a
/// certificate for the other client with `mrctl cluster user NAME --out FOLDER --days 1`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl token                        valid for an hour\n  \
    mrctl token --valid 7d             valid for a week\n  \
    mrctl token --json                 with name, role and expiry")]
pub(crate) struct Args {
    /// Validity of the token
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_validity)]
    valid: Period,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const VALID_DAYS_MAX: u64 = 3650;

fn parse_validity(text: &str) -> Result<Period, String> {
    let period: Period = text.parse().map_err(|error| format!("{error}"))?;
    let fits = (1..=VALID_DAYS_MAX * 24 * 3600).contains(&period.0.as_secs());
    if fits { Ok(period) } else { Err(format!("must be from 1s to {VALID_DAYS_MAX}d")) }
}

pub(crate) fn run(args: &Args, target: &Target) -> Result<ExitCode> {
    let credentials = target.credentials()?;
    let (text, token) = credentials.token(args.valid.0)?;
    if credentials.is_token() {
        bail!(Usage(format!(
            "mrctl uses a token of {} (--token-file or security.token), which cannot create another one: use the \
             credentials of the cluster, or pass on this token",
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
