//! Reports the active jobs to the NameNode. The NameNode then refuses the task tokens of all other
//! jobs.
//!
//! A report is sent as soon as a job ends, and again at a fixed interval, because a NameNode that
//! has restarted does not remember the last report.

use crate::{
    driver::Driver,
    files::{Pause, is_transient},
};
use dfs_client::{ClientError, error::Kind};
use std::{sync::Arc, time::Duration};

/// Time between two reports if no job ends.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Sends reports until this JobTracker is fenced. Returns at once in an open cluster, which has no
/// tokens.
pub(crate) async fn report_loop(driver: Arc<Driver>) {
    if !driver.files().is_closed() {
        return;
    }
    let mut pause = Pause::new();
    loop {
        // Subscribe before the report is made: a job that ends while it is sent causes the next
        // report.
        let ended = driver.job_ended();
        match report(&driver).await {
            Ok(()) => {
                pause = Pause::new();
                let _ = tokio::time::timeout(REPORT_INTERVAL, ended).await;
            }
            // A newer JobTracker has taken over. `Driver::fence` ends this process.
            Err(error) if error.is(Kind::Fenced) => return,
            Err(error) => {
                if !is_transient(&error) {
                    tracing::warn!(%error, "cannot report the active jobs to the NameNode");
                }
                pause.wait().await;
            }
        }
    }
}

async fn report(driver: &Driver) -> Result<(), ClientError> {
    // `read` waits until the jobs that it returns are durable. A job whose end is not durable yet
    // would be active again after a crash.
    let read = driver.read(|cluster| {
        let live = cluster.jobs().filter(|job| !job.is_over()).map(|job| u64::from(job.id.0));
        (cluster.epoch(), u64::from(cluster.newest_job().0) + 1, live.collect())
    });
    // The journal has failed, so the process is about to end.
    let Ok((epoch, next, live)) = read.await else { return Ok(()) };
    let client = driver.files().client().await?;
    client.report_active_jobs(driver.files().scope(), epoch, next, live).await
}
