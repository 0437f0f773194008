//! The periodic work of a JobTracker that leads: without a group from its start to its end, and in a
//! group for as long as each of its leaderships.

use crate::{active_jobs, driver::Driver, sweep};
use std::{convert::Infallible, sync::Arc};
use tokio::task::JoinSet;

/// Does the work of each leadership until it ends. Never returns.
pub(crate) async fn lead_loop(driver: Arc<Driver>) -> Infallible {
    let mut leaderships = driver.leaderships();
    loop {
        let leadership = *leaderships.borrow_and_update();
        // The work is aborted when this is dropped.
        let mut work = JoinSet::new();
        if let Some(leadership) = leadership {
            work.spawn(driver.clone().tick_loop(leadership));
            work.spawn(driver.clone().fence(leadership));
            work.spawn(sweep::sweep_loop(driver.clone()));
            work.spawn(active_jobs::report_loop(driver.clone(), leadership));
            work.spawn(driver.clone().watch_namenode());
        }
        leaderships.changed().await.expect("the sender is in `driver`");
    }
}
