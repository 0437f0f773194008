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

use crate::registry::Builtin;

/// All of them, by name.
pub(crate) const ALL: [Builtin; 13] = [
    Builtin {
        name: "grep",
        about: "lines that contain the text grep.pattern (no regular expression)",
        make: text::grep,
    },
    Builtin {
        name: "identity",
        about: "lines as they are, sorted if there are reduces",
        make: text::identity,
    },
    Builtin {
        name: "invertedindex",
        about: "for each word, the files it is in",
        make: documents::inverted_index,
    },
    Builtin {
        name: "kmeans",
        about: "one round of k-means; centroids in the side file kmeans.centroids",
        make: kmeans::job,
    },
    Builtin {
        name: "rankedinvertedindex",
        about: "from sequencecount's output: for each sequence, files by count",
        make: documents::ranked_inverted_index,
    },
    Builtin { name: "selfjoin", about: "joins sorted k-field lines into k+1 fields", make: selfjoin::job },
    Builtin {
        name: "sequencecount",
        about: "counts three words in a row, by file",
        make: documents::sequence_count,
    },
    Builtin { name: "sort", about: "sorts lines, as a whole", make: text::sort },
    Builtin { name: "teragen", about: "makes 100-byte records for terasort", make: tera::generate },
    Builtin {
        name: "terasort",
        about: "sorts 100-byte records by their 10-byte keys, as a whole",
        make: tera::sort,
    },
    Builtin {
        name: "teravalidate",
        about: "checks order, count and checksum of sorted records",
        make: tera::validate,
    },
    Builtin {
        name: "termvector",
        about: "for each file, its most frequent words",
        make: documents::term_vector,
    },
    Builtin { name: "wordcount", about: "counts words", make: text::word_count },
];

#[cfg(test)]
mod tests;
