//! What faults do to a node and what is measured on it, in local clusters and on other machines.

use daemon::Bytes;

/// More free space than this is only filled with `--force`.
pub(super) const GAP_MAX: u64 = 1 << 30;
/// The file that fills a disk.
pub(super) const FILL: &str = "chaos.fill";

/// A signal that a fault sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultSignal {
    Kill,
    Stop,
    Cont,
}

impl FaultSignal {
    /// Whether it changes a running daemon that was frozen before, or was not.
    pub(super) fn has_effect(self, was_frozen: bool) -> bool {
        match self {
            Self::Kill => true,
            Self::Stop => !was_frozen,
            Self::Cont => was_frozen,
        }
    }

    /// A participle for messages.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Self::Kill => "killed",
            Self::Stop => "frozen",
            Self::Cont => "continued",
        }
    }
}

/// How to damage a replica.
#[derive(Debug, Clone)]
pub(crate) struct Damage {
    /// The block; None means any.
    pub(crate) block: Option<String>,
    /// The node; None means the first that has the block.
    pub(crate) node: Option<String>,
    /// Remove the second half instead of flipping a byte.
    pub(crate) cut: bool,
    /// A random number that selects one of several blocks.
    pub(crate) chance: u64,
}

/// The resources that a daemon uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    pub(crate) node: String,
    pub(crate) program: String,
    /// Resident memory.
    pub(crate) bytes: u64,
    /// Number of open files.
    pub(crate) files: u64,
    /// Number of child processes.
    pub(crate) tasks: u32,
}

/// The error for too much free space.
pub(super) fn too_much(gap: u64, disk: &str) -> String {
    format!(
        "that would fill {} of the disk of {disk}: use a small disk, leave more space, or pass --force",
        Bytes(gap)
    )
}

#[cfg(test)]
mod tests {
    use super::FaultSignal;

    #[test]
    fn only_daemons_that_change_are_reported() {
        assert!(FaultSignal::Cont.has_effect(true) && !FaultSignal::Cont.has_effect(false));
        assert!(FaultSignal::Stop.has_effect(false) && !FaultSignal::Stop.has_effect(true));
        assert!(FaultSignal::Kill.has_effect(true) && FaultSignal::Kill.has_effect(false));
    }
}
