//! Calls that drain trackers.

use super::{JobTracker, new_request_id};
use crate::rpc;
use crate::{
    Result,
    model::{DrainCost, DrainState},
};
use proto::mr as pb;
use std::time::Duration;

impl JobTracker {
    /// Starts to drain a tracker. Attempts that still run on it after `within` are killed.
    pub async fn drain(&self, node: &str, within: Duration) -> Result<DrainState> {
        let within_ms = within.as_millis() as u64;
        self.call_drain(pb::DrainTrackerRequest { node: node.into(), within_ms, ..Default::default() }).await
    }

    /// Cancels the drain of a tracker.
    pub async fn undrain(&self, node: &str) -> Result<DrainState> {
        self.call_drain(pb::DrainTrackerRequest { node: node.into(), cancel: true, ..Default::default() })
            .await
    }

    /// Returns the progress of the drain of a tracker.
    pub async fn drain_status(&self, node: &str) -> Result<DrainState> {
        self.call_drain(pb::DrainTrackerRequest {
            node: node.into(),
            status_only: true,
            ..Default::default()
        })
        .await
    }

    async fn call_drain(&self, mut message: pb::DrainTrackerRequest) -> Result<DrainState> {
        message.request_id = new_request_id();
        let reply = if message.status_only {
            self.query(rpc::drain, message).await?
        } else {
            let start = if message.cancel { "stop draining" } else { "drain" };
            let what = format!("the request to {start} {}", message.node);
            self.answer(|| what.clone(), rpc::drain, message).await?
        };
        let cost = reply.cost.unwrap_or_default();
        Ok(DrainState {
            state: reply.state,
            maps_running: reply.maps_running,
            reduces_running: reply.reduces_running,
            outputs: reply.outputs,
            output_bytes: reply.output_bytes,
            checkpoints: reply.checkpoints,
            checkpoint_bytes: reply.checkpoint_bytes,
            others: reply.others,
            cost: DrainCost {
                splits: cost.splits,
                pauses: cost.pauses,
                kills: cost.kills,
                ms_lost: cost.ms_lost,
                outputs: cost.outputs,
                output_bytes: cost.output_bytes,
                checkpoints: cost.checkpoints,
                checkpoint_bytes: cost.checkpoint_bytes,
                redone: cost.redone,
            },
        })
    }
}
