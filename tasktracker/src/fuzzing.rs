//! Parses messages from tasks for fuzz targets, with the code of the tracker but without a socket.

use crate::{task_session, umbilical};
use proto::mr::FromTask;
use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};
use types::JobId;

/// Parses the messages in `bytes` as the umbilical reads them, and checks them as `task_session`
/// does for a task of `job_1`. Returns an error if one of the messages would have ended the
/// attempt.
pub fn messages_of_a_task(mut bytes: &[u8]) -> Result<Vec<FromTask>, String> {
    let mut messages = Vec::new();
    loop {
        // Reading from memory never waits.
        let read = pin!(umbilical::read_message(&mut bytes)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(read) = read else { unreachable!("memory is ready") };
        let Some(message) = read? else { return Ok(messages) };
        if let Some(kind) = message.kind.clone() {
            task_session::check_message(JobId(1), kind)?;
        }
        messages.push(message);
    }
}
