//! Tests what happens when the backlog is full: trackers wait and clients are refused.

use super::crash::{driver_parts, registration};
use crate::driver::Driver;
use journal::crash::CrashDisk;
use mrcore::{
    Event,
    ids::{JobId, RequestId},
};
use std::{sync::Arc, time::Duration};

#[tokio::test]
async fn full_backlog_delays_trackers_and_refuses_clients() {
    let folder = tempfile::tempdir().unwrap();
    let (driver, outgoing) = Driver::new(driver_parts(&CrashDisk::new(), folder.path()));
    let driver = Arc::new(driver);
    driver.start();
    let kill = || driver.kill(RequestId(1), JobId(1), "ann".into());
    let refused = kill().await.unwrap_err().to_string();
    assert!(!refused.contains("try again later"), "{refused}");
    // Outputs are not delivered yet, so each registration adds at least one to the backlog.
    let mut registrations = 0;
    while tokio::time::timeout(Duration::ZERO, driver.wait_for_backlog()).await.is_ok() {
        registrations += 1;
        assert!(registrations < 100_000, "the backlog has no limit");
        let request = RequestId(registrations);
        let tracker = registration("t", registrations as u64);
        driver.handle(Event::Registration { request, tracker }).unwrap();
    }
    let refused = kill().await.unwrap_err().to_string();
    assert!(refused.contains("try again later"), "{refused}");
    let waiting = tokio::spawn({
        let driver = driver.clone();
        async move { driver.wait_for_backlog().await }
    });
    let delivering = tokio::spawn(driver.clone().deliver(outgoing));
    assert!(
        tokio::time::timeout(Duration::from_mins(1), waiting).await.unwrap().unwrap(),
        "the backlog was full"
    );
    let refused = kill().await.unwrap_err().to_string();
    assert!(!refused.contains("try again later"), "{refused}");
    delivering.abort();
}
