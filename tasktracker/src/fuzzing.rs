//! The parsers of messages of tasks, for fuzz targets: the same code without a socket.

use crate::{task_session, umbilical};
use proto::mr::FromTask;
use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};
use types::JobId;

/// Parses every message in `bytes` as the umbilical reads them and `task_session` checks them for a
/// task of `job_1`. Returns an error if one would have ended the attempt.
pub fn messages_of_a_task(mut bytes: &[u8]) -> Result<Vec<FromTask>, String> {
    let mut messages = Vec::new();
    loop {
        // Bytes in memory are always ready.
        let read = pin!(umbilical::read(&mut bytes)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(read) = read else { unreachable!("memory is ready") };
        let Some(message) = read? else { return Ok(messages) };
        if let Some(kind) = message.kind.clone() {
            task_session::check_message(JobId(1), kind)?;
        }
        messages.push(message);
    }
}
