//! A failed write or sync is permanent for the log: nothing more is acknowledged.

use crate::common::{append, open, read, record};
use fermata_journal::{AppendError, crash::CrashDisk};
use std::{sync::Arc, time::Duration};

/// The operations of a batch: a write (0), a sync (1), and a write of the commit point (2).
fn failing_at(operation: u64) {
    let disk = CrashDisk::new();
    let log = open(&disk);
    append(&log, 3);
    disk.fail_after(operation);
    let seq = log.append(&record(4)).unwrap();
    let failed = log.sync(seq).unwrap_err();
    let file = if operation < 2 { "edits-" } else { "COMMIT" };
    assert!(failed.reason.contains("injected") && failed.reason.contains(file), "{failed}");
    // The disk works again, but the log does not.
    assert!(matches!(log.append(&record(5)), Err(AppendError::Failed(_))));
    assert!(log.rotate().is_err());
    assert_eq!(log.durable(), 3);
    log.sync(3).unwrap();
    assert!(log.close().is_err());
    assert!((3..=4).contains(&read(&disk).unwrap().check()));
}

#[test]
fn a_failed_write_fails_the_log() {
    failing_at(0);
}

#[test]
fn a_failed_sync_fails_the_log() {
    failing_at(1);
}

#[test]
fn a_failed_write_of_the_commit_point_fails_the_log() {
    failing_at(2);
}

#[test]
fn a_failed_rotation_fails_the_log() {
    for operation in 0..8 {
        let disk = CrashDisk::new();
        let log = open(&disk);
        append(&log, 3);
        disk.fail_after(operation);
        assert!(log.rotate().is_err(), "operation {operation}");
        assert!(log.append(b"x").is_err());
        assert!(log.check().is_err(), "although nothing was pending");
        drop(log);
        assert_eq!(read(&disk).unwrap().check(), 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_reaches_every_waiter_and_the_owner() {
    let disk = CrashDisk::new();
    let log = Arc::new(open(&disk));
    let seq = log.append(&record(1)).unwrap();
    log.wait_durable(seq).await.unwrap();
    disk.crash_after(1);
    let owner = tokio::spawn({
        let log = Arc::clone(&log);
        async move { log.failed().await }
    });
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let log = Arc::clone(&log);
            // The first append in a failing batch fails the log for later ones.
            tokio::spawn(async move {
                match log.append(b"lost") {
                    Ok(seq) => log.wait_durable(seq).await.is_err(),
                    Err(AppendError::Failed(_)) => true,
                    Err(error) => panic!("{error}"),
                }
            })
        })
        .collect();
    let all = async {
        for waiter in waiters {
            assert!(waiter.await.unwrap(), "no record is reported durable");
        }
        owner.await.unwrap()
    };
    let failed = tokio::time::timeout(Duration::from_secs(30), all).await.expect("every waiter is notified");
    assert!(failed.reason.contains("crashed"), "{failed}");
    log.wait_durable(1).await.unwrap();
    assert_eq!(log.durable(), 1);
}

#[test]
fn a_snapshot_that_fails_leaves_nothing_behind() {
    // The operations: create (0), then the write of the footer, its sync, the rename.
    for operation in 1..4 {
        let disk = CrashDisk::new();
        let log = open(&disk);
        append(&log, 3);
        let upto = log.rotate().unwrap();
        disk.fail_after(operation);
        let mut writer = log.snapshot_writer(upto).unwrap();
        writer.push(b"state").unwrap();
        assert!(writer.finish().is_err(), "operation {operation}");
        let left: Vec<_> = disk.files().into_keys().filter(|name| name.contains("snapshot")).collect();
        assert!(left.is_empty(), "operation {operation} left {left:?}");
    }
}
