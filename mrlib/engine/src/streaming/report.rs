//! The stderr of a program: extracts reports, passes other lines to the log, and remembers the last
//! lines.

use mrlib_api::{
    Context,
    limits::{COUNTER_NAME_BYTES_MAX, COUNTERS_MAX, start_of, truncate_status},
};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, BufRead as _, BufReader, Read, Write as _},
    sync::{Mutex, PoisonError},
};

/// Number of last lines that are shown when a program fails.
const LAST_LINES: usize = 10;
/// Maximum length of each of the last lines, in characters.
const LINE_CHARS_MAX: usize = 1000;
/// Maximum bytes that are read as one line. A longer line is read in pieces.
const PIECE_BYTES_MAX: u64 = 64 << 10;

/// The reports on the stderr of a program.
#[derive(Debug, Default)]
pub(super) struct Reports(Mutex<StderrState>);

#[derive(Debug, Default)]
struct StderrState {
    counters: BTreeMap<String, u64>,
    status: Option<String>,
    /// The last lines that are not reports.
    last_lines: VecDeque<String>,
}

impl Reports {
    /// Reads stderr to its end.
    pub(super) fn read(&self, from: impl Read) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match from.by_ref().take(PIECE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) => return,
                Ok(_) => self.handle_line(&line),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn handle_line(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end_matches(['\n', '\r']);
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counter) = text.strip_prefix("reporter:counter:")
            && let Some((name, by)) = counter.rsplit_once(',')
            && let Ok(by) = by.trim().parse::<u64>()
        {
            // Too many counters or too long names are refused when they are added to the context.
            let name = start_of(name, COUNTER_NAME_BYTES_MAX + 4);
            if state.counters.len() <= COUNTERS_MAX {
                let counter = state.counters.entry(name.replacen(',', ":", 1)).or_default();
                *counter = counter.saturating_add(by);
            }
            return;
        }
        if let Some(status) = text.strip_prefix("reporter:status:") {
            state.status = Some(truncate_status(status.to_owned()));
            return;
        }
        if state.last_lines.len() == LAST_LINES {
            state.last_lines.pop_front();
        }
        state.last_lines.push_back(text.chars().take(LINE_CHARS_MAX).collect());
        drop(state);
        // The log may be unavailable, which must not fail the program.
        let _ = io::stderr().write_all(line);
    }

    /// Adds the counters and the status since the last call to `context`, as signs of life.
    pub(super) fn apply_to(&self, context: &mut Context) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (counters, status) = (std::mem::take(&mut state.counters), state.status.take());
        drop(state);
        if !counters.is_empty() {
            context.mark_alive();
        }
        for (name, by) in counters {
            let counter = context.counter(&name);
            context.add(counter, by);
        }
        if let Some(status) = status {
            context.set_status(status);
        }
    }

    /// Returns the last lines, for an error message.
    pub(super) fn last_lines(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Vec::from(state.last_lines.clone()).join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_or_malformed_amounts_are_not_counted() {
        let (reports, mut context) = (Reports::default(), Context::default());
        reports.read(&b"reporter:counter:a,b,5\nreporter:counter:a,b,-5\nreporter:counter:a,b,x\n"[..]);
        assert_eq!(reports.0.lock().unwrap().counters, BTreeMap::from([("a:b".to_owned(), 5)]));
        assert_eq!(reports.last_lines(), "reporter:counter:a,b,-5\nreporter:counter:a,b,x");
        reports.apply_to(&mut context);
        assert!(reports.0.lock().unwrap().counters.is_empty());
    }
}
