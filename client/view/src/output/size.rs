//! Formats for sizes, ages, times and permission bits.

pub use daemon::human;
use jiff::Timestamp;
use std::{
    path::Path,
    time::{Duration, SystemTime},
};

/// How sizes are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// In bytes.
    Exact,
    /// With three digits and a unit.
    Human,
}

impl Sizes {
    /// Formats a size.
    pub fn of(self, bytes: u64) -> String {
        match self {
            Self::Exact => bytes.to_string(),
            Self::Human => human(bytes),
        }
    }
}

/// Formats a path for a shell command, quoted if necessary.
pub fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Formats a duration in a short form: `0.4 s`, `12 s`, `3 min`.
pub fn age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{:.1} s", ms as f64 / 1000.0),
        10_000..120_000 => format!("{} s", ms / 1000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        _ => format!("{} h", ms / 3_600_000),
    }
}

/// Formats a duration in milliseconds or seconds.
pub fn millis(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

/// Formats how long a job or an attempt took, in the same form for all tables and pages.
pub fn took(ms: u64) -> String {
    format!("{:.2} s", ms as f64 / 1000.0)
}

/// Returns the current time in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_millis() as u64)
}

/// Formats a time in milliseconds since 1970, followed by `UTC`, for text outside of tables.
pub fn utc(ms: u64) -> String {
    format!("{} UTC", time(ms))
}

/// Formats a time in milliseconds since 1970 as UTC, to the second, for tables and lists.
pub fn time(ms: u64) -> String {
    let timestamp = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    timestamp.map_or("?".into(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Formats permissions as `ls` does: `drwxr-xr-x`.
pub fn permissions(is_dir: bool, mode: u32) -> String {
    let bits = (0..9).map(|at| if mode >> (8 - at) & 1 == 1 { char::from(b"rwx"[at % 3]) } else { '-' });
    let mut shown: String = std::iter::once(if is_dir { 'd' } else { '-' }).chain(bits).collect();
    if mode & 0o1000 != 0 {
        let last = shown.pop();
        shown.push(if last == Some('x') { 't' } else { 'T' });
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell() {
        let quoted = ["/a/b-c", "a b", "it's", ""].map(|word| shell(word.as_ref()));
        assert_eq!(quoted, ["/a/b-c", "'a b'", r"'it'\''s'", "''"]);
    }

    #[test]
    fn sizes_are_exact_or_have_units() {
        assert_eq!(Sizes::Exact.of(1536), "1536");
        assert_eq!(Sizes::Human.of(1536), "1.50 KiB");
    }

    #[test]
    fn durations_and_times_are_formatted() {
        assert_eq!(age(420), "0.4 s");
        assert_eq!(age(12_000), "12 s");
        assert_eq!(age(180_000), "3 min");
        assert_eq!(age(8_000_000), "2 h");
        assert_eq!(time(0), "1970-01-01 00:00:00");
        assert_eq!(time(u64::MAX), "?");
        assert_eq!(utc(1000), "1970-01-01 00:00:01 UTC");
        assert_eq!(took(1_234), "1.23 s");
        assert_eq!(millis(Duration::from_millis(70)), "70 ms");
        assert_eq!(millis(Duration::from_millis(1540)), "1.5 s");
    }

    #[test]
    fn permissions_have_the_format_of_ls() {
        assert_eq!(permissions(true, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(false, 0o640), "-rw-r-----");
        assert_eq!(permissions(true, 0o1777), "drwxrwxrwt");
        assert_eq!(permissions(true, 0o1770), "drwxrwx--T");
    }
}
