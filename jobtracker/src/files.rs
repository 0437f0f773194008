//! The client of the file system, and retries while the NameNode is unreachable.

use dfs_client::{Client, ClientError, ClientOptions};
use mrcore::job::Job;
use std::time::Duration;

/// Waits between retries while the NameNode is unreachable; each wait is twice as long as the last.
pub(crate) struct Pause(Duration);

impl Pause {
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
    /// `cluster_id` identifies the journal. Epochs count the starts on one journal, so they fence
    /// only its processes.
    pub(crate) fn new(options: ClientOptions, cluster_id: &str) -> Self {
        Self { options, scope: format!("jobtracker-{cluster_id}"), client: tokio::sync::Mutex::default() }
    }

    /// Address of the NameNode, `host:port`.
    pub(crate) fn namenode(&self) -> &str {
        &self.options.namenode
    }

    /// Whether callers must authenticate.
    pub(crate) fn is_closed(&self) -> bool {
        self.options.credentials.name().is_some()
    }

    /// The scope of this journal's epochs and job IDs at the NameNode.
    pub(crate) fn scope(&self) -> &str {
        &self.scope
    }

    /// The token with which a task of the job calls the file system; empty in an open cluster.
    pub(crate) fn task_token(&self, job: &Job) -> String {
        let job_name = security::job_name_of(&self.scope, job.id.0.into());
        self.options.credentials.task_token(&job.spec.user, &job_name)
    }

    /// A client. An existing connection reconnects by itself.
    pub(crate) async fn client(&self) -> Result<Client, ClientError> {
        let mut client = self.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let made = Client::connect(self.options.clone()).await?;
        *client = Some(made.clone());
        Ok(made)
    }
}

/// Whether a retry may help: the NameNode is unreachable, and has not refused the call.
pub(crate) fn is_transient(error: &ClientError) -> bool {
    matches!(error, ClientError::Unreachable { .. } | ClientError::Deadline { .. })
}
