//! Plain programs that do the work of Fermata's benchmark jobs in one process with two threads and
//! all data in memory. They are what a programmer would write for one input on one machine. The
//! difference in run time is the cost of a distributed job.
//!
//! The crate also generates the inputs. It uses no code of Fermata, so that the jobs and the plain
//! programs cannot share an error. Inputs larger than memory are not supported.

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

/// Usage line of [`run`].
pub const USAGE: &str = "wordcount FILE OUT | sort FILE OUT | text FILE BYTES | records FILE BYTES";

/// Runs the program that the command line names.
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

/// Seed of the inputs of the benchmark.
pub const SEED: u64 = 20;
