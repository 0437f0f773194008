//! `trial <name>`: runs one part of the trial and prints its findings.
mod bench;
mod elections;
mod gaps;
mod logs;
mod one_member;
mod reads;
mod snapshots;
mod suite;

fn main() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    if name == "suite" {
        return suite::run();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match name.as_str() {
            "bench" => bench::run(&rest).await,
            "one-member" => one_member::run().await,
            "gaps" => gaps::run().await,
            "reads" => reads::run().await,
            "elections" => elections::run(&rest).await,
            "logs" => logs::run().await,
            "snapshots" => snapshots::run().await,
            _ => eprintln!("bench | one-member | gaps | reads | elections | logs | suite | snapshots"),
        }
    });
}
