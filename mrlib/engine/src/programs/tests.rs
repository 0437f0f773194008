//! Runs each program in local mode with several reduces and small splits, and compares it with a
//! simple implementation.

use super::{Checksum, RECORD_BYTES, Records};
use crate::{
    local::{LocalRun, run_local},
    registry,
};
use mrlib_api::Conf;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Writes files with words, some of them frequent. Returns their names and texts.
fn books(folder: &Path) -> Vec<(String, String)> {
    let words =
        ["the", "cat", "sat", "on", "a", "mat", "and", "held", "its", "breath", "Ünder", "a|b", "|", "b|c"];
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) as usize
    };
    let mut books = Vec::new();
    for name in ["one.txt", "two words.txt", "two", "three|bars|.txt"] {
        let mut text = String::new();
        for _ in 0..300 {
            for _ in 0..next() % 9 {
                text.push_str(words[next() % words.len()]);
                text.push(' ');
            }
            text.push('\n');
        }
        fs::write(folder.join(name), &text).unwrap();
        books.push((name.to_owned(), text));
    }
    books
}

fn conf(settings: &[(&str, &str)]) -> Conf {
    settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Runs a program. Returns the lines of all parts, sorted.
fn run(name: &str, inputs: &[PathBuf], reduces: u32, settings: &[(&str, &str)]) -> Vec<String> {
    let output = tempfile::tempdir().unwrap();
    let mut conf = conf(settings);
    conf.set("split.size", "1500");
    let to = output.path().join("out");
    let job = registry::job(name, &conf).unwrap();
    run_local(&job, &LocalRun { inputs: inputs.to_vec(), output: to.clone(), reduces, threads: 2, conf })
        .unwrap();
    let mut lines: Vec<String> = Vec::new();
    for part in parts(&to) {
        lines.extend(fs::read_to_string(part).unwrap().lines().map(str::to_owned));
    }
    lines.sort();
    lines
}

fn parts(folder: &Path) -> Vec<PathBuf> {
    let mut parts: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    parts.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("part-")));
    parts.sort();
    parts
}

/// Runs a program with one and three reduces, and compares its output with `plain`.
fn check_program(name: &str, settings: &[(&str, &str)], plain: impl Fn(&[(String, String)]) -> Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let books = books(folder.path());
    let mut wanted = plain(&books);
    wanted.sort();
    for reduces in [1, 3] {
        let got = run(name, &[folder.path().to_owned()], reduces, settings);
        assert_eq!(got, wanted, "{name} with {reduces} reduces");
    }
}

fn count<'a>(items: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    items.for_each(|item| *counts.entry(item).or_default() += 1);
    counts
}

#[test]
fn wordcount_counts_all_words() {
    check_program("wordcount", &[], |books| {
        let words = books.iter().flat_map(|(_, text)| text.split_ascii_whitespace());
        count(words).into_iter().map(|(word, n)| format!("{word}\t{n}")).collect()
    });
}

#[test]
fn grep_emits_matching_lines_and_needs_a_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let books = books(folder.path());
    let lines = books.iter().flat_map(|(_, text)| text.lines());
    let mut wanted: Vec<String> = lines.filter(|line| line.contains("cat sat")).map(str::to_owned).collect();
    wanted.sort();
    assert_eq!(run("grep", &[folder.path().to_owned()], 0, &[("grep.pattern", "cat sat")]), wanted);
    assert!(registry::job("grep", &Conf::default()).unwrap_err().to_string().contains("grep.pattern"));
}

#[test]
fn inverted_index_lists_the_files_of_each_word() {
    check_program("invertedindex", &[], |books| {
        let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (file, text) in books {
            text.split_ascii_whitespace().for_each(|word| {
                files.entry(word).or_default().insert(file);
            });
        }
        let line = |(word, files): (&str, BTreeSet<&str>)| {
            format!("{word}\t{}", files.into_iter().collect::<Vec<_>>().join(" "))
        };
        files.into_iter().map(line).collect()
    });
}

#[test]
fn term_vector_lists_the_frequent_words_of_each_file() {
    check_program("termvector", &[("termvector.min", "50")], |books| {
        let line = |(file, text): &(String, String)| {
            let mut terms: Vec<_> =
                count(text.split_ascii_whitespace()).into_iter().filter(|(_, n)| *n >= 50).collect();
            terms.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
            let terms: Vec<String> = terms.iter().map(|(word, n)| format!("{word}:{n}")).collect();
            format!("{file}\t{}", terms.join(" "))
        };
        books.iter().map(line).collect()
    });
}

fn sequences(books: &[(String, String)]) -> BTreeMap<(String, String), u64> {
    let mut counts = BTreeMap::new();
    for (file, text) in books {
        for line in text.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            for three in words.windows(3) {
                *counts.entry((three.join(" "), file.clone())).or_default() += 1;
            }
        }
    }
    counts
}

#[test]
fn sequence_count_counts_three_words_by_file() {
    check_program("sequencecount", &[], |books| {
        let line = |((three, file), n): ((String, String), u64)| format!("{three} {file}\t{n}");
        sequences(books).into_iter().map(line).collect()
    });
}

#[test]
fn ranked_inverted_index_sorts_files_by_count() {
    let folder = tempfile::tempdir().unwrap();
    let books = books(folder.path());
    let counts = run("sequencecount", &[folder.path().to_owned()], 1, &[]);
    let input = folder.path().join("counts");
    fs::write(&input, counts.join("\n") + "\n").unwrap();
    let mut ranked: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
    for ((three, file), n) in sequences(&books) {
        ranked.entry(three).or_default().push((n, file));
    }
    let line = |(three, mut files): (String, Vec<(u64, String)>)| {
        files.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let files: Vec<String> = files.iter().map(|(n, file)| format!("{file}:{n}")).collect();
        format!("{three}\t{}", files.join(" "))
    };
    let mut wanted: Vec<String> = ranked.into_iter().map(line).collect();
    wanted.sort();
    assert_eq!(run("rankedinvertedindex", &[input], 3, &[]), wanted);
}

#[test]
fn self_join_joins_lines_that_differ_in_the_last_field() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("sets");
    fs::write(&input, "a,b\na,c\na,d\na,c\nb,c\nc,e\nalone\nc,f\n").unwrap();
    assert_eq!(run("selfjoin", &[input], 2, &[]), ["a,b,c", "a,b,d", "a,c,d", "c,e,f"]);
}

#[test]
fn kmeans_computes_new_centroids() {
    let folder = tempfile::tempdir().unwrap();
    let (points, centroids) = (folder.path().join("points"), folder.path().join("start"));
    fs::write(&points, "1 1\n2 2\n3,3\n10 10\n12 12\nnot a point\n").unwrap();
    fs::write(&centroids, "0 0\n9 9\n").unwrap();
    let got = run("kmeans", &[points], 2, &[("kmeans.centroids", centroids.to_str().unwrap())]);
    assert_eq!(got, ["0\t2.000000 2.000000", "1\t11.000000 11.000000"]);
}

#[test]
fn terasort_sorts_what_teragen_makes() {
    const ROWS: u64 = 5000;
    let folder = tempfile::tempdir().unwrap();
    let ranges = folder.path().join("ranges");
    fs::create_dir(&ranges).unwrap();
    fs::write(ranges.join("a"), "0 2000\n").unwrap();
    fs::write(ranges.join("b"), format!("2000 {}\n", ROWS - 2000)).unwrap();
    let local = |name: &str, input: PathBuf, to: &str, reduces| {
        let output = folder.path().join(to);
        let mut conf = Conf::default();
        conf.set("split.size", "100000");
        let job = registry::job(name, &conf).unwrap();
        let run = LocalRun { inputs: vec![input], output: output.clone(), reduces, threads: 2, conf };
        run_local(&job, &run).unwrap();
        output
    };
    let made = local("teragen", ranges, "made", 0);
    let mut wanted = Checksum::default();
    let mut records = Records::from(0);
    let mut record = [0; RECORD_BYTES];
    for _ in 0..ROWS {
        records.fill(&mut record);
        wanted.add(&record);
    }
    let made_bytes: Vec<u8> = parts(&made).iter().flat_map(|part| fs::read(part).unwrap()).collect();
    assert_eq!(made_bytes.len() as u64, ROWS * RECORD_BYTES as u64);

    let sorted = local("terasort", made, "sorted", 4);
    let bytes: Vec<u8> = parts(&sorted).iter().flat_map(|part| fs::read(part).unwrap()).collect();
    assert!(bytes.chunks(RECORD_BYTES).is_sorted_by_key(|record| &record[..10]), "not in order");
    let report = local("teravalidate", sorted, "report", 1);
    let text = fs::read_to_string(&parts(&report)[0]).unwrap();
    assert_eq!(text, format!("records\t{ROWS}\nchecksum\t{wanted}\nout-of-order\t0\n"));

    // Check that unsorted input is detected.
    let bad = local("teravalidate", folder.path().join("made"), "bad", 1);
    let text = fs::read_to_string(&parts(&bad)[0]).unwrap();
    assert!(!text.contains("out-of-order\t0\n"), "{text}");
}

#[test]
fn sort_gives_a_total_order() {
    let folder = tempfile::tempdir().unwrap();
    let books = books(folder.path());
    let output = tempfile::tempdir().unwrap();
    let to = output.path().join("out");
    let conf = conf(&[("split.size", "1500")]);
    let job = registry::job("sort", &conf).unwrap();
    let inputs = vec![folder.path().to_owned()];
    run_local(&job, &LocalRun { inputs, output: to.clone(), reduces: 3, threads: 2, conf }).unwrap();
    let text: String = parts(&to).iter().map(|part| fs::read_to_string(part).unwrap()).collect();
    let mut wanted: Vec<&str> = books.iter().flat_map(|(_, text)| text.lines()).collect();
    wanted.sort_unstable();
    assert_eq!(text.lines().collect::<Vec<_>>(), wanted);
}
