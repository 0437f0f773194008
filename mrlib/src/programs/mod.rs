//! The built-in programs: everyday ones, the sort benchmark, and the set that the scheduling papers run.
//!
//! Each is a function from settings to a [`crate::Job`], written with nothing but the public API.

#![allow(clippy::unnecessary_wraps, reason = "all programs are made through one signature")]

mod documents;
mod gensort;
mod kmeans;
mod selfjoin;
mod sum;
mod tera;
mod text;

pub use gensort::{Checksum, RECORD_BYTES, Records};

use crate::{
    registry::Builtin,
    settings::{Kind, Setting},
};

const ANY: Kind = Kind::Count { min: 0, max: u64::MAX };

const GREP: &[Setting] = &[
    Setting::new("grep.pattern", Kind::Text, "the text to look for"),
    Setting::new("grep.invert", Kind::Flag, "true: lines without it"),
];
const KMEANS: &[Setting] = &[Setting::new("kmeans.centroids", Kind::Text, "side file with the centroids")];
const TERM_VECTOR: &[Setting] = &[Setting::new("termvector.min", ANY, "the smallest count that is kept")];
const TERAGEN: &[Setting] = &[
    Setting::new("rows", ANY, "how many 100-byte records to make"),
    Setting::new("maps", ANY, "how many maps make them [default: 2]"),
];

/// All of them, by name.
pub(crate) const ALL: [Builtin; 13] = [
    Builtin {
        name: "grep",
        about: "lines that contain the text grep.pattern (no regular expression)",
        settings: GREP,
        make: text::grep,
    },
    Builtin {
        name: "identity",
        about: "lines as they are, sorted if there are reduces",
        settings: &[],
        make: text::identity,
    },
    Builtin {
        name: "invertedindex",
        about: "for each word, the files it is in",
        settings: &[],
        make: documents::inverted_index,
    },
    Builtin {
        name: "kmeans",
        about: "one round of k-means; centroids in the side file kmeans.centroids",
        settings: KMEANS,
        make: kmeans::job,
    },
    Builtin {
        name: "rankedinvertedindex",
        about: "from sequencecount's output: for each sequence, files by count",
        settings: &[],
        make: documents::ranked_inverted_index,
    },
    Builtin {
        name: "selfjoin",
        about: "joins sorted k-field lines into k+1 fields",
        settings: &[],
        make: selfjoin::job,
    },
    Builtin {
        name: "sequencecount",
        about: "counts three words in a row, by file",
        settings: &[],
        make: documents::sequence_count,
    },
    Builtin { name: "sort", about: "sorts lines, as a whole", settings: &[], make: text::sort },
    Builtin {
        name: "teragen",
        about: "makes 100-byte records for terasort",
        settings: TERAGEN,
        make: tera::generate,
    },
    Builtin {
        name: "terasort",
        about: "sorts 100-byte records by their 10-byte keys, as a whole",
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
        settings: TERM_VECTOR,
        make: documents::term_vector,
    },
    Builtin { name: "wordcount", about: "counts words", settings: &[], make: text::word_count },
];

#[cfg(test)]
mod tests;
