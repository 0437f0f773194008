//! Suggestions for misspelt names.

/// Maximum length of a name for which a similar one is searched, because the search takes the
/// product of both lengths.
const SUGGESTION_BYTES_MAX: usize = 64;

/// The candidate with the smallest edit distance, if it is near enough to be a misspelling.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > SUGGESTION_BYTES_MAX {
        return None;
    }
    let (length, allowed) = (name.chars().count(), (name.len() / 3).max(2));
    let similar = candidates.filter(|candidate| candidate.chars().count().abs_diff(length) <= allowed);
    let near = similar.map(|candidate| (distance(name, candidate), candidate));
    near.filter(|(distance, _)| *distance <= allowed).min().map(|(_, candidate)| candidate)
}

/// The number of insertions, deletions and substitutions between two texts (Levenshtein distance).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_unknown_name_is_refused_without_a_search_for_a_similar_one() {
        let long = "x".repeat(SUGGESTION_BYTES_MAX + 1);
        assert_eq!(nearest(&long, [&*long].into_iter()), None);
        let endless = std::iter::repeat_n("y".repeat(1 << 20), 2).collect::<Vec<_>>();
        let names = endless.iter().map(String::as_str).chain(["pace.map"]);
        assert_eq!(nearest("pace.mpa", names), Some("pace.map"), "names of other lengths are skipped");
    }

    #[test]
    fn edit_distances_are_those_of_levenshtein() {
        for (a, b, apart) in
            [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("pace.mpa", "pace.map", 2)]
        {
            assert_eq!(distance(a, b), apart, "{a} {b}");
        }
    }
}
