//! Runs the requests of clients on a runtime of their own.
//!
//! A request may wait long for the lock of a master, and then blocks a thread of its runtime. A
//! member of a group must answer the other members meanwhile, so their messages, which arrive at the
//! same port, need threads that no request uses (ADR 0039).

use std::{
    convert::Infallible,
    io,
    task::{Context, Poll},
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinSet,
};
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::NamedService,
};

/// The runtime for requests.
pub struct RequestRuntime(Option<Runtime>);

impl RequestRuntime {
    /// Starts the threads.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Some(Builder::new_multi_thread().thread_name("requests").enable_all().build()?)))
    }

    /// Returns a handle, for [`Requests`] and other work that waits for the lock of the master.
    pub fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is taken when this is dropped").handle()
    }
}

impl Drop for RequestRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // This is dropped in a task, which must not wait for the threads.
            runtime.shutdown_background();
        }
    }
}

/// A service whose methods run on the runtime for requests; without one, where they arrive.
#[derive(Clone)]
pub struct Requests<S> {
    service: S,
    runtime: Option<Handle>,
}

impl<S> Requests<S> {
    /// Wraps a service.
    pub fn of(service: S, runtime: Option<&RequestRuntime>) -> Self {
        Self { service, runtime: runtime.map(|runtime| runtime.handle().clone()) }
    }
}

impl<S: NamedService> NamedService for Requests<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Requests<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.service.call(request);
        let Some(runtime) = self.runtime.clone() else { return Box::pin(answer) };
        Box::pin(async move {
            // The call ends with this future, when the client has gone.
            let mut task = JoinSet::new();
            task.spawn_on(answer, &runtime);
            match task.join_next().await {
                Some(Ok(answer)) => answer,
                _ => Ok(Status::unavailable("the request has panicked, or this master stops").into_http()),
            }
        })
    }
}
