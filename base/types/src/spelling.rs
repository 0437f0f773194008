//! Suggestions for misspelt names.

/// Maximum length of a misspelt name. For a longer name no similar name is searched, because the
/// time of a comparison grows with the product of both lengths.
const SUGGESTION_BYTES_MAX: usize = 64;

/// Returns the candidate with the smallest edit distance to `name`, if the distance is small enough
/// for a misspelling.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > SUGGESTION_BYTES_MAX {
        return None;
    }
    let (length, allowed) = (name.chars().count(), (name.len() / 3).max(2));
    let similar = candidates.filter(|candidate| candidate.chars().count().abs_diff(length) <= allowed);
    let near = similar.map(|candidate| (distance(name, candidate), candidate));
    near.filter(|(distance, _)| *distance <= allowed).min().map(|(_, candidate)| candidate)
}

/// Returns the Levenshtein distance of two texts: the number of insertions, deletions and
/// substitutions that change one into the other.
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
    fn no_similar_name_is_suggested_for_a_long_name() {
        let long = "x".repeat(SUGGESTION_BYTES_MAX + 1);
        assert_eq!(nearest(&long, [&*long].into_iter()), None);
        let endless = std::iter::repeat_n("y".repeat(1 << 20), 2).collect::<Vec<_>>();
        let names = endless.iter().map(String::as_str).chain(["pace.map"]);
        assert_eq!(
            nearest("pace.mpa", names),
            Some("pace.map"),
            "names of very different lengths are skipped"
        );
    }

    #[test]
    fn edit_distances_equal_known_levenshtein_distances() {
        for (a, b, apart) in
            [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("pace.mpa", "pace.map", 2)]
        {
            assert_eq!(distance(a, b), apart, "{a} {b}");
        }
    }
}
