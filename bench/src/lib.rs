//! The plain way to do what Fermata's jobs do: one process, two threads, everything in memory. The sort of program
//! that one writes in an afternoon for one input on one machine; what a job costs more is the price of the rest.
//!
//! Also makes the inputs, so that there is one place that says what is measured. Uses nothing of Fermata: a shared
//! mistake would cancel itself out. Deliberately absent: inputs larger than memory, any other number of threads.

mod count;
mod input;
mod random;
mod records;
mod table;
mod text;

pub use count::count;
pub use records::{KEY_BYTES, RECORD_BYTES, make as make_records, sort};
pub use text::make as make_text;

use anyhow::{Result, bail};
use std::path::Path;

/// How to call [`run`].
pub const USAGE: &str = "wordcount FILE OUT | sort FILE OUT | text FILE BYTES | records FILE BYTES";

/// One of the programs, by its command line.
pub fn run(args: &[String]) -> Result<()> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["wordcount", file, out] => count(Path::new(file), Path::new(out)),
        ["sort", file, out] => sort(Path::new(file), Path::new(out)),
        ["text", file, bytes] => make_text(Path::new(file), bytes.parse()?, SEED),
        ["records", file, bytes] => make_records(Path::new(file), bytes.parse()?, SEED),
        _ => bail!("usage: {USAGE}"),
    }
}

/// The inputs of the benchmark are made from this.
pub const SEED: u64 = 20;
