//! Fuzz targets for every reader of bytes that a disk, a peer or a user may have damaged.
//!
//! The body of a target is a function over bytes that panics when a property is violated. The same
//! bodies run in three ways:
//! - `tests/short.rs`: a fixed number of seeded mutations of valid inputs, on stable Rust, in CI;
//! - `scripts/fuzz`: with coverage guidance, by the libFuzzer entries in `fuzz/fuzz_targets`; needs
//!   cargo-fuzz;
//! - `fermata-fuzz run`: seeded mutations for a given time, without cargo-fuzz.
//!
//! Every execution checks that there is no panic, no endless loop, and no more memory use than the
//! limit of the target. The body checks accepted inputs: encoding the value again gives the same
//! bytes or the same value, and two ways to read the input give the same result. The seeded runs
//! also check damaged valid inputs: they must be refused, or be read as the content of a valid
//! input, or, for a log, as a prefix of such content ([`Damage`]).

pub mod campaign;
mod folder;
pub mod memory;
mod mutate;
mod readers;

pub use campaign::{Campaign, Tally};

/// A reader under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the target and of its libFuzzer entry.
    pub name: &'static str,
    /// The functions under test.
    pub reads: &'static str,
    /// Valid inputs, created by the code that writes such bytes.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Reads the input, and panics if a property is violated. Returns the content if the input was
    /// accepted.
    pub body: fn(&[u8]) -> Option<Vec<u8>>,
    /// How a damaged valid input may be read.
    pub damage: Damage,
    /// The memory limit of one execution.
    pub memory: Limit,
}

/// How a reader may treat a damaged valid input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// The reader may accept the input with different content, because the format has no checksum.
    Unnoticed,
    /// The reader refuses the input, or reads the content of a valid input.
    Refused,
    /// The reader refuses the input, or reads a prefix of the content of a valid input.
    CutShort,
}

/// A memory limit in bytes, depending on the length of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Bytes that are allowed for any input.
    pub fixed: usize,
    /// Bytes that are allowed in addition, per byte of input.
    pub per_byte: usize,
}

impl Limit {
    /// Returns the limit for an input of this length.
    pub fn of(self, length: usize) -> usize {
        self.fixed + self.per_byte * length
    }
}

/// Returns all targets, in the order of `fuzz/README.md`.
pub fn targets() -> Vec<Target> {
    readers::all()
}

/// Returns the target with this name, if any.
pub fn target(name: &str) -> Option<Target> {
    targets().into_iter().find(|target| target.name == name)
}

/// Executes a target once, and measures its memory. Panics if a property is violated. Returns the
/// content if the input was accepted.
pub fn execute(target: &Target, input: &[u8]) -> Option<Vec<u8>> {
    let (content, peak) = memory::peak_of(|| (target.body)(input));
    let limit = target.memory.of(input.len());
    assert!(
        peak <= limit,
        "{}: used {peak} bytes of memory for {} bytes of input: the limit is {limit}",
        target.name,
        input.len()
    );
    content
}
