//! A call to the NameNode, retried until it is answered or the deadline has passed.
//!
//! A retry is safe because every mutating request has an ID. The caller creates the request once,
//! and every attempt sends the same request.

use super::masters::{AnyReply, Boxed, CallError, SendCall, root_cause};
use super::rpc::Rpc;
use super::wait::WaitReport;
use super::{Client, ClientError, REPLY_BYTES_MAX};
use crate::error::{Error, Kind, from_status};
use proto::Reply;
use std::fmt;
use std::time::{Duration, Instant};
use tonic::{Code, Request, Status};

/// Describes a call in messages: a verb and its object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation<'a>(pub(super) &'a str, pub(super) &'a str);

impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)?;
        if self.1.is_empty() { Ok(()) } else { write!(f, " {}", self.1) }
    }
}

impl Operation<'_> {
    pub(super) fn bad_reply(&self, reason: impl Into<String>) -> ClientError {
        ClientError::BadReply { what: self.to_string(), reason: reason.into() }
    }
}

/// Waits between attempts. The wait doubles, with jitter, so that many clients do not retry at the
/// same time.
pub(super) struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    const WAIT_FIRST: Duration = Duration::from_millis(25);
    const WAIT_MAX: Duration = Duration::from_secs(2);
    /// Maximum wait for one of several NameNodes to lead: an election takes about a second.
    const WAIT_MAX_OF_SEVERAL: Duration = Duration::from_millis(400);

    pub(super) fn new() -> Self {
        Self { next: Self::WAIT_FIRST, max: Self::WAIT_MAX }
    }

    /// Sleeps for the next wait, at most until `end`. Returns false, without sleeping, if `end` has
    /// already passed.
    pub(super) async fn sleep_until(&mut self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let wait = self.next.mul_f64(rand::random_range(0.5..1.0));
        self.next = (self.next * 2).min(self.max);
        tokio::time::sleep(wait.min(left)).await;
        true
    }
}

/// How an attempt failed.
enum CallFailure {
    /// A retry would not help.
    Final(ClientError),
    /// The call may be retried.
    Transient { reason: String, kind: Option<Kind> },
}

impl Client {
    /// Sends `request` with `send`. Retries until the NameNode answers it, refuses it permanently,
    /// or the deadline has passed.
    pub(super) async fn call<Req, Rep>(
        &self,
        what: Operation<'_>,
        request: Req,
        send: fn(&Rpc, Request<Req>) -> Reply<Rep>,
    ) -> Result<Rep, ClientError>
    where
        Req: Clone + Send + Sync,
        Rep: Send + 'static,
    {
        let attempt = |channel| -> Boxed<'static, Result<AnyReply, Status>> {
            let mut attempt = Request::new(request.clone());
            let user = self.acts_for.as_ref().unwrap_or(&self.inner.user);
            self.inner.options.credentials.sign(attempt.metadata_mut(), user);
            let reply = send(&Rpc::new(channel).max_decoding_message_size(REPLY_BYTES_MAX), attempt);
            Box::pin(async { Ok(Box::new(reply.await?.into_inner()) as AnyReply) })
        };
        let reply = self.retry(what, &attempt).await?;
        reply.downcast().map(|reply| *reply).map_err(|_| what.bad_reply("the reply has the wrong type"))
    }

    /// Makes attempts until one is answered or permanently refused, or the deadline has passed. Has
    /// no type parameters, so that only this crate compiles it.
    fn retry<'a>(
        &'a self,
        what: Operation<'a>,
        attempt: &'a SendCall<'a>,
    ) -> Boxed<'a, Result<AnyReply, ClientError>> {
        Box::pin(async move {
            let deadline = self.inner.options.config.deadline.0;
            let started = Instant::now();
            let end = started + deadline;
            // The timeout of one attempt is a fraction of the deadline, so that a call that hangs
            // can be retried.
            let one = (deadline / 4).clamp(Duration::from_secs(1), Duration::from_secs(15));
            let masters = &self.inner.masters;
            let mut backoff = Backoff::new();
            if !masters.is_single() {
                backoff.max = Backoff::WAIT_MAX_OF_SEVERAL;
            }
            let namenode = format!("the NameNode at {}", masters.addrs());
            let mut wait = WaitReport::until(end, self.inner.options.listener.as_ref());
            let mut why = "it does not answer".to_owned();
            let mut received: Option<(String, Option<Kind>)> = None;
            loop {
                let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                let answer = wait.during(&namenode, &why, masters.call(one, left, attempt)).await;
                let failed = match answer {
                    Ok(reply) => return Ok(reply),
                    Err(CallError::Status(status)) => self.classify(&status),
                    // The deadline cut this attempt short. Report the reason of the previous attempt.
                    Err(CallError::Silent) if left < one && received.is_some() => {
                        let (reason, kind) = received.take().unwrap_or_default();
                        CallFailure::Transient { reason, kind }
                    }
                    Err(CallError::Silent) => {
                        CallFailure::Transient { reason: format!("{namenode} does not answer"), kind: None }
                    }
                    Err(CallError::NoLeader(tried)) => {
                        let reason = ClientError::NoLeader { tried }.to_string();
                        CallFailure::Transient { reason, kind: None }
                    }
                };
                match failed {
                    CallFailure::Final(error) => return Err(error),
                    CallFailure::Transient { reason: last, kind } => {
                        tracing::debug!(%what, last, "retrying");
                        why = last.replace(&namenode, "it");
                        received = Some((last.clone(), kind));
                        if !wait.during(&namenode, &why, backoff.sleep_until(end)).await {
                            let seconds = started.elapsed().as_secs_f64();
                            return Err(ClientError::Deadline {
                                what: what.to_string(),
                                seconds,
                                last,
                                kind,
                            });
                        }
                    }
                }
            }
        })
    }

    /// Returns whether to fail instead of retrying: the client has a listener, so a person is
    /// waiting for the result, and only an operator can end this safemode.
    fn is_final(&self, error: &Error) -> bool {
        self.inner.options.listener.is_some() && error.kind == Kind::ManualSafemode
    }

    fn classify(&self, status: &Status) -> CallFailure {
        match from_status(status) {
            Some(error) if error.is_transient() && !self.is_final(&error) => {
                return CallFailure::Transient { reason: error.message, kind: Some(error.kind) };
            }
            Some(error) => return CallFailure::Final(ClientError::Refused(error)),
            None => {}
        }
        // A status without a kind comes from the transport and not from the NameNode. Requests have
        // IDs, so every error that may be a lost connection is retried. A wrong peer is not
        // retried.
        let cause = cause_of(status);
        match status.code() {
            Code::Unimplemented => return self.wrong_peer("it does not implement the NameNode service"),
            _ if security::tls_mismatch(&cause).is_some() => {
                return CallFailure::Final(self.tls_mismatch(&cause));
            }
            _ if WRONG_PROTOCOL_ERRORS.iter().any(|text| cause.contains(text)) => {
                return self.wrong_peer(&cause);
            }
            _ => {}
        }
        match status.code() {
            Code::Unavailable
            | Code::Unknown
            | Code::Internal
            | Code::Cancelled
            | Code::Aborted
            | Code::DeadlineExceeded => {
                let addr = self.inner.masters.addrs();
                let reason = format!("the NameNode at {addr} does not answer ({cause})");
                CallFailure::Transient { reason, kind: None }
            }
            Code::Unauthenticated | Code::PermissionDenied => {
                CallFailure::Final(ClientError::Refused(Error::new(Kind::Denied, status.message())))
            }
            code => {
                let message = format!("{} ({code:?})", status.message());
                CallFailure::Final(ClientError::Refused(Error::new(Kind::Refused, message)))
            }
        }
    }
}

impl Client {
    /// Returns the error for a NameNode that is reachable, but has a different TLS setting from
    /// this client.
    fn tls_mismatch(&self, cause: &str) -> ClientError {
        tls_mismatch(&self.inner.masters.addrs(), cause)
    }

    /// Returns the error for a stream that has ended early.
    pub(super) fn interrupted(&self, status: &Status) -> ClientError {
        from_status(status).map_or_else(
            || ClientError::Unreachable {
                addr: self.inner.masters.addr(self.inner.masters.leader().at).to_owned(),
                reason: cause_of(status),
            },
            ClientError::Refused,
        )
    }

    fn wrong_peer(&self, why: &str) -> CallFailure {
        let addr = self.inner.masters.addrs();
        let message = format!(
            "the server at {addr} is not a Fermata NameNode, or it requires TLS ({why}): give another address with \
             --namenode, or set security.dir"
        );
        CallFailure::Final(ClientError::Refused(Error::new(Kind::Refused, message)))
    }
}

/// Returns the error for the NameNode at `addr`, which has a different TLS setting from this
/// client.
pub(super) fn tls_mismatch(addr: &str, cause: &str) -> ClientError {
    let meaning = security::tls_mismatch(cause).unwrap_or("client and server have different TLS settings");
    let message = format!("cannot use TLS with the NameNode at {addr} ({cause}): {meaning}");
    ClientError::Refused(Error::new(Kind::Denied, message))
}

/// Error texts of the transport for a peer that does not use HTTP/2 or gRPC.
const WRONG_PROTOCOL_ERRORS: [&str; 3] =
    ["frame with invalid size", "unspecific protocol error", "invalid compression flag"];

/// Returns the message of a status or its cause, without the metadata that `Display` of a status
/// adds.
fn cause_of(status: &Status) -> String {
    std::error::Error::source(status).map_or_else(|| status.message().to_owned(), root_cause)
}
