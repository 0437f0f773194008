//! Fuzz targets: every reader of bytes that a disk, a peer or a person may have damaged.
//!
//! The body of a target is a plain function over bytes that panics when a property does not hold. The same bodies run
//! in three ways:
//! - `tests/short.rs`: a fixed number of seeded mutations of valid inputs, on stable, in CI;
//! - `scripts/fuzz`: coverage-guided, by the libFuzzer entries in `fuzz/fuzz_targets`, where cargo-fuzz is installed;
//! - `fermata-fuzz run`: the seeded mutations for a given time, where it is not.
//!
//! What each execution checks: no panic; no more memory than the target's documented limit; no endless loop. What a
//! body checks of what it accepted: it encodes to the same bytes, or reads back as the same value; two ways to read it
//! agree. What the seeded runs check beyond: a damaged valid input is refused, or read as the same content, or, for a
//! log, as a beginning of it ([`Damage`]).

pub mod campaign;
mod folder;
pub mod memory;
mod mutate;
mod readers;

pub use campaign::{Campaign, Tally};

/// A reader under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the target: that of its libFuzzer entry too.
    pub name: &'static str,
    /// The functions that read.
    pub reads: &'static str,
    /// Valid inputs, made by the code that writes such bytes.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Reads the input and panics if a property does not hold. Returns the content if the input was accepted.
    pub body: fn(&[u8]) -> Option<Vec<u8>>,
    /// What may become of a valid input that was damaged.
    pub damage: Damage,
    /// The memory that one execution may take.
    pub memory: Limit,
}

/// What a reader may make of a damaged valid input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// Other valid content: the format has no checksum.
    Unnoticed,
    /// A refusal, or the content of a valid input.
    Refused,
    /// A refusal, or the beginning of the content of a valid input.
    CutShort,
}

/// Bytes of memory, by the length of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// However short the input is.
    pub fixed: usize,
    /// For each byte of input.
    pub per_byte: usize,
}

impl Limit {
    /// The most that an input of this length may cost.
    pub fn of(self, length: usize) -> usize {
        self.fixed + self.per_byte * length
    }
}

/// All targets, in the order of `fuzz/README.md`.
pub fn targets() -> Vec<Target> {
    readers::all()
}

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    targets().into_iter().find(|target| target.name == name)
}

/// One execution, with its memory measured. Panics if a property of the target does not hold.
pub fn execute(target: &Target, input: &[u8]) -> Option<Vec<u8>> {
    let (content, peak) = memory::peak_of(|| (target.body)(input));
    let limit = target.memory.of(input.len());
    assert!(
        peak <= limit,
        "{}: {peak} bytes of memory for {} of input: {limit} is the limit",
        target.name,
        input.len()
    );
    content
}
