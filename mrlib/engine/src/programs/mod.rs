//! The built-in programs: common programs, the sort benchmark, and programs of the scheduling
//! papers.
//!
//! Each program is a function from settings to a [`mrlib_api::Job`], written with the public API.

#![allow(clippy::unnecessary_wraps, reason = "all programs have the same signature")]

mod documents;
mod gensort;
pub(crate) mod kmeans;
mod selfjoin;
mod sum;
mod tera;
mod text;

pub use gensort::{Checksum, RECORD_BYTES, Records};

use mrlib_api::{
    Conf, Job, TaskError,
    settings::{Kind, Setting},
};

/// A built-in program.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    pub name: &'static str,
    /// A description in one line.
    pub about: &'static str,
    /// Settings that the program declares, in addition to those of the engine.
    pub settings: &'static [Setting],
    /// Creates the job.
    pub make: fn(&Conf) -> Result<Job, TaskError>,
}

const ANY_COUNT: Kind = Kind::Count { min: 0, max: u64::MAX };

const GREP_SETTINGS: &[Setting] = &[
    Setting::new("grep.pattern", Kind::Text, "text to search for"),
    Setting::new("grep.invert", Kind::Flag, "if true, output the lines that do not contain the text"),
];
const KMEANS_SETTINGS: &[Setting] =
    &[Setting::new("kmeans.centroids", Kind::Text, "side file with the centroids")];
const TERM_VECTOR_SETTINGS: &[Setting] =
    &[Setting::new("termvector.min", ANY_COUNT, "smallest count of a word in the output")];
const TERAGEN_SETTINGS: &[Setting] = &[
    Setting::new("rows", ANY_COUNT, "number of 100-byte records to generate"),
    Setting::new("maps", ANY_COUNT, "number of maps [default: 2]"),
];

pub(crate) const ALL: [Builtin; 13] = [
    Builtin {
        name: "grep",
        about: "lines that contain the text grep.pattern (no regular expression)",
        settings: GREP_SETTINGS,
        make: text::grep,
    },
    Builtin {
        name: "identity",
        about: "copies lines; with reduces, sorts them",
        settings: &[],
        make: text::identity,
    },
    Builtin {
        name: "invertedindex",
        about: "for each word, the files that contain it",
        settings: &[],
        make: documents::inverted_index,
    },
    Builtin {
        name: "kmeans",
        about: "one round of k-means; centroids in the side file kmeans.centroids",
        settings: KMEANS_SETTINGS,
        make: kmeans::job,
    },
    Builtin {
        name: "rankedinvertedindex",
        about: "from the output of sequencecount: for each sequence, files by count",
        settings: &[],
        make: documents::ranked_inverted_index,
    },
    Builtin {
        name: "selfjoin",
        about: "joins lines of k fields that differ only in the last one into lines of k+1 fields",
        settings: &[],
        make: selfjoin::job,
    },
    Builtin {
        name: "sequencecount",
        about: "counts sequences of three words, by file",
        settings: &[],
        make: documents::sequence_count,
    },
    Builtin {
        name: "sort",
        about: "sorts lines (total order over all parts)",
        settings: &[],
        make: text::sort,
    },
    Builtin {
        name: "teragen",
        about: "generates 100-byte records for terasort",
        settings: TERAGEN_SETTINGS,
        make: tera::generate,
    },
    Builtin {
        name: "terasort",
        about: "sorts 100-byte records by their 10-byte keys (total order)",
        settings: &[],
        make: tera::sort,
    },
    Builtin {
        name: "teravalidate",
        about: "checks order, count and checksum of sorted records",
        settings: &[],
        make: tera::validate,
    },
    Builtin {
        name: "termvector",
        about: "for each file, its most frequent words",
        settings: TERM_VECTOR_SETTINGS,
        make: documents::term_vector,
    },
    Builtin { name: "wordcount", about: "counts words", settings: &[], make: text::word_count },
];

#[cfg(test)]
mod tests;
