//! One call to the NameNode, asked again until it is answered or the deadline is over.
//!
//! Asking again is safe because every mutating request carries its id: the caller builds the request once, and
//! each attempt sends the same.

use super::wait::Wait;
use super::{Client, ClientError};
use crate::error::{Error, Kind, from_status};
use proto::dfs::name_node_client::NameNodeClient;
use std::fmt;
use std::time::{Duration, Instant};
use tonic::{Code, Request, Response, Status, transport::Channel};

pub(super) type Rpc = NameNodeClient<Channel>;

/// What is being done, for messages: a verb and its object.
#[derive(Debug, Clone, Copy)]
pub(super) struct What<'a>(pub(super) &'a str, pub(super) &'a str);

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)?;
        if self.1.is_empty() { Ok(()) } else { write!(f, " {}", self.1) }
    }
}

impl What<'_> {
    pub(super) fn bad_reply(&self, reason: impl Into<String>) -> ClientError {
        ClientError::BadReply { what: self.to_string(), reason: reason.into() }
    }
}

/// Waits between attempts: doubling, with jitter so that many clients do not come back at once.
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(25);
    const MAX: Duration = Duration::from_secs(2);

    pub(super) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// Sleeps, at most until `end`; false if that is over already.
    pub(super) async fn sleep_until(&mut self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let wait = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = (self.next * 2).min(Self::MAX);
        tokio::time::sleep(wait.min(left)).await;
        true
    }
}

enum Failed {
    For(ClientError),
    Now { reason: String, kind: Option<Kind> },
}

impl Client {
    /// Sends `request` by `send` until it is answered, refused for good, or the deadline is over.
    pub(super) async fn call<Req, Rep, F, Fut>(
        &self,
        what: What<'_>,
        request: Req,
        send: F,
    ) -> Result<Rep, ClientError>
    where
        Req: Clone,
        F: Fn(Rpc, Request<Req>) -> Fut,
        Fut: Future<Output = Result<Response<Rep>, Status>>,
    {
        let deadline = self.inner.options.config.deadline.0;
        let started = Instant::now();
        let end = started + deadline;
        // A call that hangs must leave time to ask again.
        let one = (deadline / 4).clamp(Duration::from_secs(1), Duration::from_secs(15));
        let mut backoff = Backoff::new();
        let namenode = format!("the NameNode at {}", self.inner.options.namenode);
        let mut wait = Wait::until(end, self.inner.options.listener.as_ref());
        let mut why = "it does not answer".to_owned();
        let mut received: Option<(String, Option<Kind>)> = None;
        loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let mut attempt = Request::new(request.clone());
            let user = self.acts_for.as_ref().unwrap_or(&self.inner.user);
            self.inner.options.credentials.sign(attempt.metadata_mut(), user);
            let asking = tokio::time::timeout(one.min(left), send(self.inner.rpc.clone(), attempt));
            let answer = wait.during(&namenode, &why, asking).await;
            let failed = match answer {
                Ok(Ok(reply)) => return Ok(reply.into_inner()),
                Ok(Err(status)) => self.classify(&status),
                // Cut off by the deadline: what it said before is the reason.
                Err(_) if left < one && received.is_some() => {
                    let (reason, kind) = received.take().unwrap_or_default();
                    Failed::Now { reason, kind }
                }
                Err(_) => Failed::Now { reason: format!("{namenode} does not answer"), kind: None },
            };
            match failed {
                Failed::For(error) => return Err(error),
                Failed::Now { reason: last, kind } => {
                    tracing::debug!(%what, last, "asking again");
                    why = last.strip_prefix(&format!("{namenode} ")).unwrap_or(&last).to_owned();
                    received = Some((last.clone(), kind));
                    if !wait.during(&namenode, &why, backoff.sleep_until(end)).await {
                        let seconds = started.elapsed().as_secs_f64();
                        return Err(ClientError::Deadline { what: what.to_string(), seconds, last, kind });
                    }
                }
            }
        }
    }

    /// Somebody sits and watches, and waiting would not help.
    fn is_hopeless(&self, error: &Error) -> bool {
        self.inner.options.listener.is_some() && error.kind == Kind::ManualSafemode
    }

    fn classify(&self, status: &Status) -> Failed {
        match from_status(status) {
            Some(error) if error.is_transient() && !self.is_hopeless(&error) => {
                return Failed::Now { reason: error.message, kind: Some(error.kind) };
            }
            Some(error) => return Failed::For(ClientError::Refused(error)),
            None => {}
        }
        // No kind: not the NameNode's own words but the transport's. Requests carry ids, so whatever may be
        // a lost connection is asked again; one to something else than a NameNode does not get better.
        let cause = cause_of(status);
        match status.code() {
            Code::Unimplemented => return self.wrong_peer("it does not know what NameNodes are asked"),
            _ if security::tls_mismatch(&cause).is_some() => return Failed::For(self.tls_mismatch(&cause)),
            _ if WRONG_PROTOCOL.iter().any(|text| cause.contains(text)) => return self.wrong_peer(&cause),
            _ => {}
        }
        match status.code() {
            Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::Aborted
            | Code::DeadlineExceeded => {
                let addr = &self.inner.options.namenode;
                let reason = format!("cannot reach the NameNode at {addr}: {cause}");
                Failed::Now { reason, kind: None }
            }
            Code::Unauthenticated | Code::PermissionDenied => {
                Failed::For(ClientError::Refused(Error::new(Kind::Denied, status.message())))
            }
            code => {
                let message = format!("{} ({code:?})", status.message());
                Failed::For(ClientError::Refused(Error::new(Kind::Refused, message)))
            }
        }
    }
}

impl Client {
    /// It runs, and the two do not agree on TLS.
    fn tls_mismatch(&self, cause: &str) -> ClientError {
        tls_mismatch(&self.inner.options.namenode, cause)
    }

    fn wrong_peer(&self, why: &str) -> Failed {
        let addr = &self.inner.options.namenode;
        let message = format!(
            "what answers at {addr} is not a Fermata NameNode, or one that wants TLS ({why}): name another with \
             --namenode, or set security.dir"
        );
        Failed::For(ClientError::Refused(Error::new(Kind::Refused, message)))
    }
}

/// The error for a NameNode with which there is no agreement on TLS.
pub(super) fn tls_mismatch(addr: &str, cause: &str) -> ClientError {
    let meaning = security::tls_mismatch(cause).unwrap_or("the two do not agree");
    let message = format!("no TLS with the NameNode at {addr} ({cause}): {meaning}");
    ClientError::Refused(Error::new(Kind::Denied, message))
}

/// What the transport says of a peer that does not speak its protocol.
const WRONG_PROTOCOL: [&str; 3] =
    ["frame with invalid size", "unspecific protocol error", "invalid compression flag"];

/// The innermost reason: "connection refused" rather than "transport error".
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// A status prints its metadata too; people need its message, or what is behind it.
fn cause_of(status: &Status) -> String {
    std::error::Error::source(status).map_or_else(|| status.message().to_owned(), root_cause)
}
