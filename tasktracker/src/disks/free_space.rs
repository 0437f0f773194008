//! Measures the free space of disks with one thread per folder, so that a hanging disk delays only
//! its own measurement. The choice of a folder uses the last measurements and never waits for a
//! disk.

use parking_lot::Mutex;
use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Interval of measurements.
const EVERY: Duration = Duration::from_millis(500);
/// A disk that has not answered for this long hangs.
const HANG_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the free bytes. Replaced in tests.
pub(super) type FreeSpaceFn = fn(&Path) -> io::Result<u64>;

/// Returns the free bytes according to the file system.
pub(super) fn free(path: &Path) -> io::Result<u64> {
    let about = rustix::fs::statvfs(path)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// The last measurement of a folder.
#[derive(Debug)]
pub(super) struct Gauge {
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    at: Instant,
    /// `None` if the measurement failed.
    free: Option<u64>,
}

impl Gauge {
    /// Measures now, then periodically until dropped.
    pub(super) fn start(folder: &Path, free_space: FreeSpaceFn) -> io::Result<Arc<Self>> {
        let last = Last { at: Instant::now(), free: free_space(folder).ok() };
        let gauge = Arc::new(Self { last: Mutex::new(last) });
        let (folder, weak) = (folder.to_owned(), Arc::downgrade(&gauge));
        let measure = move || {
            while weak.strong_count() > 0 {
                std::thread::sleep(EVERY);
                let free = free_space(&folder).ok();
                weak.upgrade().inspect(|gauge| *gauge.last.lock() = Last { at: Instant::now(), free });
            }
        };
        std::thread::Builder::new().name("room".into()).spawn(measure)?;
        Ok(gauge)
    }

    /// Returns the free bytes of the last measurement, if it succeeded.
    pub(super) fn figure(&self) -> Option<u64> {
        self.last.lock().free
    }

    /// Whether the disk answers.
    pub(super) fn answers(&self) -> bool {
        self.last.lock().at.elapsed() < HANG_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn hung_disk_is_detected_without_blocking() {
        static ASKED: AtomicU64 = AtomicU64::new(0);
        /// Answers twice, then blocks for a long time.
        fn free_space(_: &Path) -> io::Result<u64> {
            let asked = ASKED.fetch_add(1, Ordering::Relaxed);
            if asked == 2 {
                std::thread::sleep(HANG_TIMEOUT * 2);
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok(asked)
        }
        let began = Instant::now();
        let gauge = Gauge::start(Path::new("/"), free_space).unwrap();
        assert!(gauge.answers());
        while gauge.answers() {
            assert!(began.elapsed() < Duration::from_mins(1));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(gauge.figure(), Some(1));
        while !gauge.answers() {
            assert!(began.elapsed() < Duration::from_mins(1));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_ne!(gauge.figure(), Some(1));
    }
}
