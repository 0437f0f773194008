//! Tests that the log fails permanently after a failed write or sync: no further record is
//! acknowledged.

use crate::common::{append, open, read, record};
use fermata_journal::{AppendError, crash::CrashDisk};
use std::{sync::Arc, time::Duration};

/// Makes one disk operation of a batch fail, and checks that the log fails. The operations are:
/// write (0), sync (1), write of the commit point (2).
fn check_failure_of_operation(operation: u64) {
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
    check_failure_of_operation(0);
}

#[test]
fn a_failed_sync_fails_the_log() {
    check_failure_of_operation(1);
}

#[test]
fn a_failed_write_of_the_commit_point_fails_the_log() {
    check_failure_of_operation(2);
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
        assert!(log.check().is_err(), "the log has failed although no record was pending");
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
            // Once the first batch has failed, later appends are refused.
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
fn a_failed_snapshot_leaves_no_file() {
    // The disk operations of a snapshot: create (0), write (1), sync (2), rename (3).
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
