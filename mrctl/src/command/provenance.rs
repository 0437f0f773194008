//! How a result of a simulation was made: part of every JSON, CSV and HTML file.

use serde::Serialize;

/// The command and the version that a result was made with.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Provenance {
    /// The command line.
    pub(crate) command: String,
    /// The version of `mrctl`.
    pub(crate) version: &'static str,
    /// The commit that `mrctl` was built from: `unknown` without a repository, and with the suffix
    /// `+changes` if there were changes that were not committed.
    pub(crate) commit: &'static str,
}

impl Provenance {
    pub(crate) fn of_this_process() -> Self {
        let words: Vec<String> = std::env::args_os()
            .skip(1)
            .map(|word| crate::output::shell(std::path::Path::new(&word)))
            .collect();
        Self {
            command: format!("mrctl {}", words.join(" ")),
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("FERMATA_COMMIT"),
        }
    }

    /// Whether the code was exactly that of a commit.
    pub(crate) fn is_of_commit(&self) -> bool {
        self.commit != "unknown" && !self.commit.ends_with("+changes")
    }

    /// Describes the provenance in one line.
    pub(crate) fn line(&self) -> String {
        format!("{} (version {}, commit {})", self.command, self.version, self.commit)
    }
}
