//! Submits a built-in program or an executable, and prints the ID of the job when it has succeeded.
//!
//! ```text
//! mrctl up --detach
//! cargo build -p fermata-client --features programs --example program
//! target/debug/examples/program .fermata/fermata.toml teragen /gen 0 rows=1000
//! target/debug/examples/program .fermata/fermata.toml terasort /sorted 2 /gen
//! target/debug/examples/program .fermata/fermata.toml ./my-job /out 1 /in user.threshold=3
//! ```

use fermata_client::{Cluster, Program, StagingFolder, Submission, Unobserved};
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [config, program, output, reduces, rest @ ..] = &args[..] else {
        return Err("usage: program CONFIG PROGRAM OUTPUT REDUCES [INPUT | NAME=VALUE]...".into());
    };
    let mut submission =
        Submission { output: output.clone(), reduces: reduces.parse()?, ..Submission::default() };
    for argument in rest {
        match argument.split_once('=') {
            Some((name, value)) => drop(submission.conf.insert(name.into(), value.into())),
            None => submission.inputs.push(argument.clone()),
        }
    }
    let program = Program::check(program, &submission)?;
    let cluster = Cluster::load(config.as_ref())?;
    let (jobs, files) = (cluster.jobtracker().await?, cluster.files().await?);
    let mut staging = StagingFolder::new(&files);
    if let Err(error) = program.stage(&mut submission, &mut staging, &cluster).await {
        staging.discard().await;
        return Err(error.into());
    }
    staging.add_to(&mut submission);
    // If the submission fails, the JobTracker deletes the staging folder after a day.
    let id = jobs.submit(submission).await?;
    let job = jobs.follow(&id, &mut Unobserved).await?;
    if job.state != "succeeded" {
        return Err(format!("{id} {}: {}", job.state, job.why).into());
    }
    println!("{id}");
    Ok(())
}
