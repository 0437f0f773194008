//! Lists the fuzz targets, writes their valid inputs, and runs them on seeded mutations. See
//! `scripts/fuzz`.

use fermata_fuzzing::{Campaign, Target, memory::CountingAllocator, target, targets};
use std::{
    fs,
    path::Path,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const USAGE: &str = "usage: fermata-fuzz list | seeds FOLDER | run SECONDS [TARGET...] | try TARGET FILE...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match &arguments[..] {
        ["list"] => {
            for target in targets() {
                println!("{}", target.name);
            }
            Ok(())
        }
        ["seeds", folder] => write_seeds(Path::new(folder)),
        ["run", seconds, names @ ..] => run(seconds, names),
        ["try", name, files @ ..] => try_files(name, files),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn named(name: &str) -> Result<Target, String> {
    target(name).ok_or_else(|| format!("{name} is not a target: see `fermata-fuzz list`"))
}

/// Writes each valid input to FOLDER/TARGET/seed-N, for a fuzzer that starts from files.
fn write_seeds(folder: &Path) -> Result<(), String> {
    for target in targets() {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        for (number, seed) in (target.seeds)().into_iter().enumerate() {
            let path = folder.join(format!("seed-{number}"));
            fs::write(&path, seed).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn run(seconds: &str, names: &[&str]) -> Result<(), String> {
    let seconds = seconds.parse().map_err(|_| format!("{seconds} is not a number of seconds"))?;
    let chosen = if names.is_empty() {
        targets()
    } else {
        names.iter().map(|name| named(name)).collect::<Result<_, _>>()?
    };
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    println!("seed {seed}");
    println!("{:<22}{:>12}{:>12}{:>10}  finding", "target", "executions", "accepted", "seconds");
    let mut found = 0;
    for target in chosen {
        let campaign = Campaign { executions: 0, time: Duration::from_secs(seconds), seed };
        let tally = campaign.run(&target);
        let finding = match &tally.finding {
            None => "none".to_owned(),
            Some((input, why)) => {
                found += 1;
                let path = format!("fuzz-{}-{seed}", target.name);
                fs::write(&path, input).map_err(|error| format!("cannot write {path}: {error}"))?;
                format!("{path}: {why}")
            }
        };
        let (executions, accepted) = (tally.executions, tally.accepted);
        println!(
            "{:<22}{executions:>12}{accepted:>12}{:>10.0}  {finding}",
            target.name,
            tally.time.as_secs_f64()
        );
    }
    if found == 0 { Ok(()) } else { Err(format!("{found} of the targets have a finding")) }
}

/// Runs a target on files, such as findings of a fuzzer.
fn try_files(name: &str, files: &[&str]) -> Result<(), String> {
    let target = named(name)?;
    for file in files {
        let input = fs::read(file).map_err(|error| format!("cannot read {file}: {error}"))?;
        let accepted = fermata_fuzzing::execute(&target, &input).is_some();
        println!("{file}: {}", if accepted { "accepted" } else { "refused" });
    }
    Ok(())
}
