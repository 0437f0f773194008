//! Limits the input that waits until a program reads it.
//!
//! A program that is preempted must first process the input that it already has. The limit is
//! therefore what the program reads in a fraction of a second: it grows while the program is fast,
//! and shrinks while it is slow, down to one record. A fast program is not limited.

use std::time::{Duration, Instant};

/// Initial size of the window.
const INITIAL_BYTES: u64 = 256;
/// A window of this size is unlimited: only the queues limit the input.
const UNLIMITED_BYTES: u64 = 512 << 10;
/// If the program reads the whole window within this time, the window grows.
const FAST_TIME: Duration = Duration::from_millis(50);
/// If the program does not read the whole window within this time, the window shrinks.
const SLOW_TIME: Duration = Duration::from_millis(500);
/// The window is filled in this many parts.
const PARTS: u64 = 4;

#[derive(Debug)]
pub(super) struct Window {
    bytes: u64,
    /// When the current measurement started.
    since: Instant,
    /// Bytes that the program had read when the current measurement started.
    read_before: u64,
}

impl Window {
    pub(super) fn new(now: Instant) -> Self {
        Self { bytes: INITIAL_BYTES, since: now, read_before: 0 }
    }

    /// Adjusts the window. `read` is the number of bytes that the program has read since its start.
    pub(super) fn update(&mut self, now: Instant, read: u64) {
        let (is_read, taken) = (read.saturating_sub(self.read_before) >= self.bytes, now - self.since);
        if is_read && taken <= FAST_TIME {
            self.bytes = (self.bytes * 2).min(UNLIMITED_BYTES);
        } else if !is_read && taken >= SLOW_TIME {
            self.bytes = (self.bytes / 2).max(1);
        } else if !is_read {
            return;
        }
        (self.since, self.read_before) = (now, read);
    }

    /// Returns whether more input may be queued if the program has not read `unread` bytes.
    pub(super) fn has_room(&self, unread: u64) -> bool {
        self.bytes == UNLIMITED_BYTES || unread < self.bytes
    }

    /// Returns how many bytes of input to queue at a time.
    pub(super) fn part_bytes(&self, bytes_max: usize) -> usize {
        usize::try_from(self.bytes / PARTS).map_or(bytes_max, |part| part.clamp(1, bytes_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the window after a program has read at this rate for ten seconds, and the time after
    /// which it was unlimited.
    fn after_reading(bytes_per_second: u64) -> (u64, Option<Duration>) {
        let start = Instant::now();
        let (mut window, mut unlimited) = (Window::new(start), None);
        for step in 1..10_000 {
            let time = Duration::from_millis(step);
            window.update(start + time, bytes_per_second * step / 1000);
            if window.has_room(u64::MAX) {
                unlimited.get_or_insert(time);
            }
        }
        (window.bytes, unlimited)
    }

    #[test]
    fn window_of_a_fast_program_is_soon_unlimited() {
        let (bytes, when) = after_reading(100 << 20);
        assert_eq!(bytes, UNLIMITED_BYTES);
        assert!(when.is_some_and(|when| when < Duration::from_millis(50)), "{when:?}");
    }

    #[test]
    fn window_of_a_slow_program_is_what_it_reads_in_half_a_second() {
        for rate in [1, 10, 1000, 10_000, 100_000] {
            let (bytes, unlimited) = after_reading(rate);
            assert!(bytes <= (rate / 2).max(1) && unlimited.is_none(), "{rate}: {bytes}");
            assert!(bytes >= rate / 50, "{rate}: {bytes}");
        }
    }

    #[test]
    fn program_that_reads_nothing_gets_one_record() {
        let start = Instant::now();
        let mut window = Window::new(start);
        for step in 1..100 {
            window.update(start + SLOW_TIME * step, 0);
        }
        assert!(window.has_room(0) && !window.has_room(1));
        assert_eq!(window.part_bytes(1 << 10), 1);
    }
}
