//! Tells the file system which jobs are not over, so that the tokens of tasks open nothing once their job is.
//!
//! At once when a job has ended, and again and again, because a NameNode that was started anew knows nothing of it.

use crate::{
    driver::Driver,
    output::{Pause, is_transient},
};
use dfs::{client::ClientError, error::Kind};
use std::{sync::Arc, time::Duration};

/// A NameNode is told again after this long.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Tells it forever. In an open cluster there are no tokens.
pub(crate) async fn report_loop(driver: Arc<Driver>) {
    if !driver.files().is_closed() {
        return;
    }
    let mut pause = Pause::new();
    loop {
        // Heard from here on: a job that ends while the others are told is told next.
        let ended = driver.job_ended();
        match report(&driver).await {
            Ok(()) => {
                pause = Pause::new();
                let _ = tokio::time::timeout(REPORT_INTERVAL, ended).await;
            }
            // Another has taken over, and what becomes of this process is for the fence to say.
            Err(error) if error.is(Kind::Fenced) => return,
            Err(error) => {
                if !is_transient(&error) {
                    tracing::warn!(%error, "cannot report the active jobs");
                }
                pause.wait().await;
            }
        }
    }
}

async fn report(driver: &Driver) -> Result<(), ClientError> {
    // What is not durable is not told: a job that has ended in memory alone goes on after a crash.
    let read = driver.read(|cluster| {
        let live = cluster.jobs().filter(|job| !job.is_over()).map(|job| u64::from(job.id.0));
        (cluster.epoch(), u64::from(cluster.newest_job().0) + 1, live.collect())
    });
    // The journal has failed: the process ends.
    let Ok((epoch, next, live)) = read.await else { return Ok(()) };
    let client = driver.files().client().await?;
    client.report_active_jobs(driver.files().scope(), epoch, next, live).await
}
