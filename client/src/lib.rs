//! The Rust client of a Fermata cluster.
//!
//! [`Cluster`] finds the masters in a `fermata.toml`. [`JobTracker`] submits, watches, preempts and
//! kills jobs, and reads their logs and histories. [`files::Client`] reads and writes files.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use fermata_client::{Cluster, Submission, Unobserved};
//!
//! let cluster = Cluster::load(".fermata/fermata.toml".as_ref())?;
//! let jobs = cluster.jobtracker().await?;
//! let id = jobs
//!     .submit(Submission {
//!         builtin: Some("wordcount".into()),
//!         inputs: vec!["/books".into()],
//!         output: "/counts".into(),
//!         reduces: 1,
//!         ..Submission::default()
//!     })
//!     .await?;
//! let job = jobs.follow(&id, &mut Unobserved).await?;
//! println!("{id} {} after {:.1} s", job.state, job.seconds());
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `programs`, `Program` checks a built-in program or an executable before it is
//! submitted, and uploads what it needs, as `mrctl submit` does. Without the feature, this crate
//! does not depend on the task engine; then it cannot submit `teragen` and `terasort` without their
//! input and split keys, and the caller describes an executable in [`Submission`].
//!
//! `client/examples/submit.rs` and `client/examples/program.rs` are complete programs. This crate
//! does not find clusters that `mrctl up` has started (`lab/clusters` does), and does not suggest
//! `mrctl` commands for its calls (`client/view` does).

#![warn(missing_docs)]

mod cluster;
mod error;
mod follow;
mod jobtracker;
pub mod model;
#[cfg(feature = "programs")]
mod program;
mod rpc;
pub mod scheduling;
mod staging;
mod submission;

/// The client of the file system.
pub use dfs_client as files;

pub use cluster::{Cluster, credentials};
pub use error::{Error, Result};
pub use follow::{Observer, Unobserved};
pub use jobtracker::{JobTracker, Watch, channel, notify_if_slow};
#[cfg(feature = "programs")]
pub use program::Program;
pub use security::Role;
pub use staging::StagingFolder;
pub use submission::Submission;
pub use types::PreemptKind;
