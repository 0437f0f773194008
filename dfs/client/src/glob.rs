//! Glob patterns over paths: `*`, `?`, `[a-z]`, `[!x]`, `{a,b}`. Only an alternative in braces can
//! contain a slash.
//!
//! A pattern is first expanded into patterns without braces. These are matched name by name, so
//! that only folders that can match are listed. Names that start with a dot match like any other
//! name.

use super::ClientError;

/// Maximum number of patterns after expansion. The number is the product of the alternatives of all
/// braces.
const ALTERNATIVES_MAX: usize = 4096;

/// An element of a [`NamePattern`].
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Char(char),
    AnyChar,
    AnyText,
    Set { negated: bool, ranges: Vec<(char, char)> },
}

/// The pattern of one name between slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    /// A segment without wildcards: the name itself.
    Literal(String),
    /// A segment with wildcards, to be compared with the entries of a folder.
    Pattern(NamePattern),
}

/// A pattern of a name, without braces and slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(Vec<Piece>);

/// Parses a pattern. Returns one list of segments for each expansion of its braces.
pub(super) fn parse(pattern: &str) -> Result<Vec<Vec<Segment>>, ClientError> {
    let fail = |reason| ClientError::Pattern { pattern: pattern.to_owned(), reason };
    if !pattern.starts_with('/') && !pattern.starts_with('{') {
        return Err(fail("the pattern is relative: paths in the file system start with /"));
    }
    let mut plain = Vec::new();
    expand(String::new(), pattern, &mut plain).map_err(fail)?;
    plain.sort_unstable();
    plain.dedup();
    plain.iter().map(|plain| parse_segments(plain).map_err(fail)).collect()
}

fn expand(done: String, rest: &str, out: &mut Vec<String>) -> Result<(), &'static str> {
    if out.len() >= ALTERNATIVES_MAX {
        return Err("the braces expand to too many paths");
    }
    let Some(open) = find_open(rest) else {
        if has_stray_close(rest) {
            return Err("a } without a {");
        }
        out.push(done + rest);
        return Ok(());
    };
    let (close, commas) = find_close(rest, open).ok_or("a { without a }")?;
    let done = done + &rest[..open];
    let mut start = open + 1;
    for end in commas.into_iter().chain([close]) {
        let expanded = format!("{}{}", &rest[start..end], &rest[close + 1..]);
        expand(done.clone(), &expanded, out)?;
        start = end + 1;
    }
    Ok(())
}

fn find_open(text: &str) -> Option<usize> {
    unescaped(text).find(|(_, c)| *c == '{').map(|(at, _)| at)
}

fn has_stray_close(text: &str) -> bool {
    unescaped(text).any(|(_, c)| c == '}')
}

/// Returns the characters with their offsets, without backslashes and escaped characters.
fn unescaped(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut escaped = false;
    text.char_indices().filter(move |(_, c)| {
        let plain = !escaped && *c != '\\';
        escaped = !escaped && *c == '\\';
        plain
    })
}

/// Returns the offset of the brace that closes the brace at `open`, and the offsets of the commas
/// between them at the same depth.
fn find_close(text: &str, open: usize) -> Option<(usize, Vec<usize>)> {
    let (mut depth, mut commas) = (0, Vec::new());
    for (at, c) in unescaped(&text[open..]).map(|(at, c)| (at + open, c)) {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => return Some((at, commas)),
            '}' => depth -= 1,
            ',' if depth == 1 => commas.push(at),
            _ => {}
        }
    }
    None
}

fn parse_segments(plain: &str) -> Result<Vec<Segment>, &'static str> {
    if !plain.starts_with('/') {
        return Err("an alternative in braces is relative: paths start with /");
    }
    plain.split('/').filter(|name| !name.is_empty()).map(parse_segment).collect()
}

fn parse_segment(name: &str) -> Result<Segment, &'static str> {
    let NamePattern(pieces) = NamePattern::parse(name)?;
    let literal: Option<String> =
        pieces.iter().map(|piece| if let Piece::Char(c) = piece { Some(*c) } else { None }).collect();
    Ok(literal.map_or(Segment::Pattern(NamePattern(pieces)), Segment::Literal))
}

fn parse_pieces(name: &str) -> Result<Vec<Piece>, &'static str> {
    let mut pieces = Vec::new();
    let mut chars = name.chars();
    while let Some(c) = chars.next() {
        pieces.push(match c {
            '*' => Piece::AnyText,
            '?' => Piece::AnyChar,
            '\\' => Piece::Char(chars.next().ok_or("a \\ at the end of a name")?),
            '[' => parse_set(&mut chars)?,
            c => Piece::Char(c),
        });
    }
    Ok(pieces)
}

fn parse_set(chars: &mut std::str::Chars<'_>) -> Result<Piece, &'static str> {
    const UNCLOSED_SET: &str = "a [ without a ]";
    let mut ranges = Vec::new();
    let mut c = chars.next().ok_or(UNCLOSED_SET)?;
    let negated = c == '!' || c == '^';
    if negated {
        c = chars.next().ok_or(UNCLOSED_SET)?;
    }
    // A `]` directly after the opening bracket is a member of the set and does not close it.
    loop {
        let low = if c == '\\' { chars.next().ok_or(UNCLOSED_SET)? } else { c };
        let mut ahead = chars.clone();
        let high = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(high)) if high != ']' => {
                *chars = ahead;
                high
            }
            _ => low,
        };
        if high < low {
            return Err("a range in [ ] with its end before its start");
        }
        ranges.push((low, high));
        c = chars.next().ok_or(UNCLOSED_SET)?;
        if c == ']' {
            return Ok(Piece::Set { negated, ranges });
        }
    }
}

impl NamePattern {
    /// Parses a pattern of one name.
    pub fn parse(name: &str) -> Result<Self, &'static str> {
        parse_pieces(name).map(Self)
    }

    /// Returns whether `name` matches the pattern. The time is at most proportional to the length
    /// of the pattern times the length of the name.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut piece) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match self.0.get(piece) {
                Some(Piece::AnyText) => {
                    star = Some((piece + 1, at));
                    piece += 1;
                }
                Some(one) if one.matches_char(name[at]) => {
                    (at, piece) = (at + 1, piece + 1);
                }
                _ => {
                    // Backtrack: the last star matches one more character.
                    let Some((after, taken)) = star else { return false };
                    star = Some((after, taken + 1));
                    (at, piece) = (taken + 1, after);
                }
            }
        }
        self.0[piece..].iter().all(|piece| *piece == Piece::AnyText)
    }
}

impl Piece {
    fn matches_char(&self, c: char) -> bool {
        match self {
            Self::Char(own) => *own == c,
            Self::AnyChar => true,
            Self::AnyText => false,
            Self::Set { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        let parsed = parse(&format!("/{pattern}")).unwrap();
        parsed.iter().any(|segments| match &segments[..] {
            [Segment::Literal(own)] => own == name,
            [Segment::Pattern(pattern)] => pattern.matches(name),
            other => panic!("one name expected: {other:?}"),
        })
    }

    #[test]
    fn patterns_match_only_the_expected_names() {
        for (pattern, yes, no) in [
            ("*", &["a", "", "abc", ".x"][..], &[][..]),
            ("a*c", &["ac", "abc", "aXcYc"], &["ab", "bc", "acd"]),
            ("part-?", &["part-0"], &["part-", "part-10"]),
            ("[a-cx]1", &["a1", "c1", "x1"], &["d1", "-1", "a"]),
            ("[!a-c]", &["d"], &["a", "dd"]),
            ("[]]", &["]"], &["["]),
            ("{a,b}x", &["ax", "bx"], &["cx", "x"]),
            ("{a{1,2},b*}", &["a1", "a2", "bzz"], &["a3", "a"]),
            ("a\\*b", &["a*b"], &["axb"]),
            ("**a", &["a", "bba"], &["b"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} should match {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} should not match {name}");
            }
        }
    }

    #[test]
    fn braces_may_contain_slashes() {
        let parsed = parse("/{a/b,c}/d").unwrap();
        assert_eq!(parsed.len(), 2);
        assert_eq!(parsed[0].len(), 3);
        assert_eq!(parsed[1].len(), 2);
    }

    #[test]
    fn invalid_patterns_are_refused_with_a_reason() {
        for pattern in ["a*", "/[a", "/{a,b", "/a}", "/[z-a]", "/a\\"] {
            assert!(matches!(parse(pattern), Err(ClientError::Pattern { .. })), "{pattern}");
        }
        let bomb = format!("/{}", "{a,b}".repeat(30));
        assert!(parse(&bomb).is_err());
    }

    #[test]
    fn pattern_with_many_stars_is_matched_quickly() {
        assert!(!matches(&"*a".repeat(40), &"a".repeat(39).repeat(5).replace("aaaaa", "aaaab")));
    }
}
