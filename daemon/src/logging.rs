//! Logs by tracing, on standard error: for people on a terminal, JSON lines for programs.
//! `FERMATA_LOG` filters, e.g. `FERMATA_LOG=debug` or `fermata_dfs=trace`; the default is `info`.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text an event; coloured on a terminal.
    Human,
    /// One JSON object an event.
    Json,
}

/// Starts logging. Call once, first thing.
pub fn init(format: LogFormat) {
    let filter = EnvFilter::try_from_env("FERMATA_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Human => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
}
