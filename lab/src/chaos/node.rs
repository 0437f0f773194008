//! Signals, kinds of damage and measurements of a node, for local clusters and for other machines.

use daemon::Bytes;

/// The maximum size in bytes of the file that fills a disk, unless `--force` is given.
pub(super) const FILL_BYTES_MAX: u64 = 1 << 30;
/// The name of the file that fills a disk.
pub(super) const FILL_FILE: &str = "chaos.fill";

/// A signal that a fault sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultSignal {
    Kill,
    Stop,
    Cont,
}

impl FaultSignal {
    /// Returns whether the signal changes the state of a running daemon. `was_frozen` tells whether
    /// the daemon was frozen before.
    pub(super) fn has_effect(self, was_frozen: bool) -> bool {
        match self {
            Self::Kill => true,
            Self::Stop => !was_frozen,
            Self::Cont => was_frozen,
        }
    }

    /// Returns the past participle for messages, such as `killed`.
    pub(crate) fn past_participle(self) -> &'static str {
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
    /// The name of the block; None means any block.
    pub(crate) block: Option<String>,
    /// The name of the node; None means the first node that has the block.
    pub(crate) node: Option<String>,
    /// Whether to remove the second half of the replica instead of flipping a byte.
    pub(crate) cut: bool,
    /// A random number that selects one of several blocks.
    pub(crate) random_number: u64,
}

/// The resources that a daemon uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceUsage {
    pub(crate) node: String,
    pub(crate) program: String,
    /// Resident memory in bytes.
    pub(crate) bytes: u64,
    /// Number of open files.
    pub(crate) files: u64,
    /// Number of child processes.
    pub(crate) tasks: u32,
}

/// Returns the error for a disk with more free space than is filled without `--force`.
pub(super) fn too_much_space_message(gap: u64, disk: &str) -> String {
    format!(
        "this would write {} to the disk of {disk}: use a smaller disk, raise --leave, or pass --force",
        Bytes(gap)
    )
}

#[cfg(test)]
mod tests {
    use super::FaultSignal;

    #[test]
    fn signal_without_effect_is_recognised() {
        assert!(FaultSignal::Cont.has_effect(true) && !FaultSignal::Cont.has_effect(false));
        assert!(FaultSignal::Stop.has_effect(false) && !FaultSignal::Stop.has_effect(true));
        assert!(FaultSignal::Kill.has_effect(true) && FaultSignal::Kill.has_effect(false));
    }
}
