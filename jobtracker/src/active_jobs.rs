//! Reports the active jobs to the NameNode. The NameNode then refuses the task tokens of all other
//! jobs.
//!
//! A report is sent as soon as a job ends or another NameNode leads, and again at a fixed interval,
//! because a NameNode that has restarted does not remember the last report.

use crate::{
    driver::{Driver, Leadership},
    files::{Backoff, is_transient},
};
use dfs_client::{ClientError, error::Kind};
use std::{sync::Arc, time::Duration};

/// Time between two reports if no job ends.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Sends reports until this JobTracker is fenced, because a newer one has taken over. Returns at
/// once in an open cluster, which has no tokens.
pub(crate) async fn report_loop(driver: Arc<Driver>, leadership: Leadership) {
    if !driver.files().is_closed() {
        return;
    }
    driver.await_accepted().await;
    let mut backoff = Backoff::new();
    loop {
        // Subscribe before the report is made, so that a job that ends while the report is sent
        // causes another report.
        let job_ended = driver.job_ended();
        match send_report(&driver, leadership).await {
            Ok(leader_changed) => {
                backoff = Backoff::new();
                tokio::select! {
                    () = tokio::time::sleep(REPORT_INTERVAL) => {}
                    () = job_ended => {}
                    () = leader_changed => {}
                }
            }
            Err(error) if error.is(Kind::Fenced) => return driver.fenced(leadership, &error).await,
            Err(error) => {
                if !is_transient(&error) {
                    tracing::warn!(%error, "cannot report the active jobs to the NameNode");
                }
                backoff.wait().await;
            }
        }
    }
}

/// Sends a report. Returns a future that completes when another NameNode leads than before it.
async fn send_report(
    driver: &Driver,
    leadership: Leadership,
) -> Result<impl Future<Output = ()> + use<>, ClientError> {
    let client = driver.files().client().await?;
    let leader_changed = client.leader_changed();
    // `read` waits until the returned state is durable. A job whose end is not durable yet would be
    // active again after a crash.
    let read = driver.read(|cluster| {
        let live = cluster.jobs().filter(|job| !job.has_ended()).map(|job| u64::from(job.id.0));
        (driver.leadership(), u64::from(cluster.newest_job().0) + 1, live.collect())
    });
    // If the journal has failed, the process is about to end. If another member of the group leads, it
    // reports.
    if let Ok((now, next, live)) = read.await
        && now == Some(leadership)
    {
        client.report_active_jobs(driver.files().scope(), leadership.start, next, live).await?;
    }
    Ok(leader_changed)
}
