//! Measures the free space of each folder in a separate thread, so that a disk that hangs delays
//! only its own measurement. The choice of a folder uses the last measurements and never waits for
//! a disk.

use parking_lot::Mutex;
use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Time between two measurements.
const MEASUREMENT_INTERVAL: Duration = Duration::from_millis(500);
/// A disk that has not answered for this long counts as hanging.
const HANG_TIMEOUT: Duration = Duration::from_secs(5);

/// A function that returns the free bytes of a folder: [`measure_free_bytes`], except in tests.
pub(super) type FreeSpaceFn = fn(&Path) -> io::Result<u64>;

/// Returns the free bytes of a folder according to the local file system.
pub(super) fn measure_free_bytes(path: &Path) -> io::Result<u64> {
    let about = rustix::fs::statvfs(path)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// The last measurement of a folder.
#[derive(Debug)]
pub(super) struct FreeSpaceGauge {
    last: Mutex<Measurement>,
}

#[derive(Debug)]
struct Measurement {
    at: Instant,
    /// `None` if the measurement failed.
    free_bytes: Option<u64>,
}

impl FreeSpaceGauge {
    /// Measures now, and then periodically until the gauge is dropped.
    pub(super) fn start(folder: &Path, free_space: FreeSpaceFn) -> io::Result<Arc<Self>> {
        let last = Measurement { at: Instant::now(), free_bytes: free_space(folder).ok() };
        let gauge = Arc::new(Self { last: Mutex::new(last) });
        let (folder, weak) = (folder.to_owned(), Arc::downgrade(&gauge));
        let measure = move || {
            while weak.strong_count() > 0 {
                std::thread::sleep(MEASUREMENT_INTERVAL);
                let free_bytes = free_space(&folder).ok();
                weak.upgrade()
                    .inspect(|gauge| *gauge.last.lock() = Measurement { at: Instant::now(), free_bytes });
            }
        };
        std::thread::Builder::new().name("free-space".into()).spawn(measure)?;
        Ok(gauge)
    }

    /// Returns the free bytes of the last measurement, if it succeeded.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        self.last.lock().free_bytes
    }

    /// Returns whether the last measurement is recent, so that the disk does not hang.
    pub(super) fn is_responsive(&self) -> bool {
        self.last.lock().at.elapsed() < HANG_TIMEOUT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn hanging_disk_is_detected_without_blocking() {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        /// Returns at once twice, then blocks once for a long time.
        fn free_space(_: &Path) -> io::Result<u64> {
            let calls = CALLS.fetch_add(1, Ordering::Relaxed);
            if calls == 2 {
                std::thread::sleep(HANG_TIMEOUT * 2);
                return Err(io::ErrorKind::TimedOut.into());
            }
            Ok(calls)
        }
        let began = Instant::now();
        let gauge = FreeSpaceGauge::start(Path::new("/"), free_space).unwrap();
        assert!(gauge.is_responsive());
        while gauge.is_responsive() {
            assert!(began.elapsed() < Duration::from_mins(1));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(gauge.free_bytes(), Some(1));
        while !gauge.is_responsive() {
            assert!(began.elapsed() < Duration::from_mins(1));
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_ne!(gauge.free_bytes(), Some(1));
    }
}
