//! The client of the file system, and retries while the NameNode is unreachable.

use daemon::MasterAddrs;
use dfs_client::{Client, ClientError, ClientOptions};
use mrcore::job::Job;
use std::time::Duration;

/// Exponential backoff between retries while the NameNode is unreachable: each wait is twice as
/// long as the one before, up to a maximum.
pub(crate) struct Backoff(Duration);

impl Backoff {
    const MAX: Duration = Duration::from_secs(5);

    pub(crate) fn new() -> Self {
        Self(Duration::from_millis(100))
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(Self::MAX);
    }
}

/// The client of the file system, connected when it is first needed.
pub(crate) struct Files {
    options: ClientOptions,
    scope: String,
    client: tokio::sync::Mutex<Option<Client>>,
}

impl Files {
    /// Creates a client that is not connected yet. `cluster_id` identifies the journal. Epochs
    /// count the starts of `JobTrackers` with this journal, so the NameNode compares them only within
    /// this scope.
    pub(crate) fn new(options: ClientOptions, cluster_id: &str) -> Self {
        Self { options, scope: format!("jobtracker-{cluster_id}"), client: tokio::sync::Mutex::default() }
    }

    /// Returns the addresses of the NameNodes.
    pub(crate) fn namenodes(&self) -> &MasterAddrs {
        &self.options.namenode
    }

    /// Returns whether the cluster is closed: callers must authenticate.
    pub(crate) fn is_closed(&self) -> bool {
        self.authenticated_name().is_some()
    }

    /// Returns the name of the JobTracker in a closed cluster; None in an open cluster.
    pub(crate) fn authenticated_name(&self) -> Option<&str> {
        self.options.credentials.name()
    }

    /// Returns the name under which the NameNode keeps the epochs and job IDs of this journal.
    pub(crate) fn scope(&self) -> &str {
        &self.scope
    }

    /// Returns the token with which a task of the job calls the file system; empty in an open
    /// cluster.
    pub(crate) fn task_token(&self, job: &Job) -> String {
        let job_name = security::job_name_of(&self.scope, job.id.0.into());
        self.options.credentials.task_token(&job.spec.user, &job_name)
    }

    /// Returns the client, and connects it on the first call. A connected client reconnects by
    /// itself.
    pub(crate) async fn client(&self) -> Result<Client, ClientError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let made = Client::connect(self.options.clone()).await?;
        *client = Some(made.clone());
        Ok(made)
    }

    /// Connects a client whose calls end after `deadline` at the latest.
    pub(crate) async fn client_with_deadline(&self, deadline: Duration) -> Result<Client, ClientError> {
        let mut options = self.options.clone();
        let config = &mut options.config;
        config.deadline.0 = config.deadline.0.min(deadline);
        config.connect_timeout.0 = config.connect_timeout.0.min(deadline);
        Client::connect(options).await
    }
}

/// Returns whether a retry may help: the NameNode did not answer, so it has not refused the call.
pub(crate) fn is_transient(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Unreachable { .. } | ClientError::NoLeader { .. } | ClientError::Deadline { .. }
    )
}
