//! Submits a word count and prints the result.
//!
//! ```text
//! mrctl up --detach && mrctl fs put -r docs /docs
//! cargo run -p fermata-client --example submit -- .fermata/fermata.toml /docs /counts
//! ```

use fermata_client::{
    Cluster, JobTracker, Observer, Submission, files::path::DfsPath, model::Job, scheduling::Reason,
};
use std::{error::Error, io::Write as _, time::Duration};

/// Prints the progress of a job.
struct ProgressPrinter;

impl Observer for ProgressPrinter {
    fn status(&mut self, job: &Job) {
        let percent = |progress: f64| progress * 100.0;
        eprintln!("maps {:.0} %, reduces {:.0} %", percent(job.maps.progress), percent(job.reduces.progress));
    }

    fn unreachable(&mut self, tracker: &JobTracker, job: &str, timeout: Duration) {
        eprintln!("{} does not answer; retrying {job} for {} s", tracker.addr(), timeout.as_secs());
    }

    fn reachable(&mut self, tracker: &JobTracker) {
        eprintln!("{} is reachable again", tracker.addr());
    }

    fn waits(&mut self, job: &str, reasons: &[Reason]) {
        for reason in reasons {
            eprintln!("{job} waits: {}", reason.text);
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [config, input, output] = &args[..] else { return Err("usage: submit CONFIG INPUT OUTPUT".into()) };
    let cluster = Cluster::load(config.as_ref())?;
    let jobs = cluster.jobtracker().await?;
    let id = jobs
        .submit(Submission {
            name: "words".into(),
            builtin: Some("wordcount".into()),
            inputs: vec![input.clone()],
            output: output.clone(),
            reduces: 1,
            ..Submission::default()
        })
        .await?;
    let job = jobs.follow(&id, &mut ProgressPrinter).await?;
    if job.state != "succeeded" {
        return Err(format!("{id} {}: {}", job.state, job.why).into());
    }
    let files = cluster.files().await?;
    let mut part = files.open(&DfsPath::parse(&format!("{output}/part-r-00000"))?).await?;
    while let Some(bytes) = part.next().await? {
        std::io::stdout().write_all(&bytes)?;
    }
    Ok(())
}
