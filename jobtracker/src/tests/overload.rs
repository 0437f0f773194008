//! More is told than can leave: nobody is forgotten, and everybody waits or comes later.

use super::crash::{parts, registration};
use crate::driver::Driver;
use journal::crash::CrashDisk;
use mrcore::{
    Event,
    ids::{JobId, RequestId},
};
use std::{sync::Arc, time::Duration};

#[tokio::test]
async fn backlog_delays_trackers_and_rejects_clients() {
    let folder = tempfile::tempdir().unwrap();
    let (driver, outgoing) = Driver::new(parts(&CrashDisk::new(), folder.path()));
    let driver = Arc::new(driver);
    let kill = || driver.kill(RequestId(1), JobId(1), "ann".into());
    let refused = kill().await.unwrap_err().to_string();
    assert!(!refused.contains("try later"), "{refused}");
    // Nothing leaves yet: each registration adds at least one thing that waits.
    let mut told = 0;
    while tokio::time::timeout(Duration::ZERO, driver.room()).await.is_ok() {
        told += 1;
        assert!(told < 100_000, "there is no bound");
        let request = RequestId(told);
        driver.handle(Event::Registration { request, tracker: registration("t", told as u64) });
    }
    let refused = kill().await.unwrap_err().to_string();
    assert!(refused.contains("try later"), "{refused}");
    let waiting_for = tokio::spawn({
        let driver = driver.clone();
        async move { driver.room().await }
    });
    let delivering = tokio::spawn(driver.clone().deliver(outgoing));
    assert!(
        tokio::time::timeout(Duration::from_mins(1), waiting_for).await.unwrap().unwrap(),
        "it had to wait"
    );
    let refused = kill().await.unwrap_err().to_string();
    assert!(!refused.contains("try later"), "{refused}");
    delivering.abort();
}
