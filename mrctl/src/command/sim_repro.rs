//! `mrctl repro`: repeats the experiments of a paper and compares the results with its figures,
//! simulated at the size of the paper or on a real cluster on this machine.

use super::{
    interrupt,
    outputs::{Outputs, create_folder, write},
    provenance::Provenance,
};
use crate::output::{self, SimulationProgress, Usage, positive_time, whole_number};
use anyhow::Result;
use clap::ValueEnum;
use daemon::Period;
use lab::trial;
use serde_json::{Map, Value, json};
use sim::{
    catalog,
    experiment::Step,
    profile::Profiles,
    report,
    repro::{Lab, Paper, Reproduction, laptop::Laptop},
};
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

/// Default number of seeds, and that of complete reproductions.
const SEEDS: u64 = 5;
const SEEDS_COMPLETE: u64 = 30;
/// Default real time after which a run is stopped.
const TIME_LIMIT: Period = Period::secs(30 * 60);

/// Repeat the experiments of a paper and compare the results
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    mrctl repro hsrtf\n  \
    mrctl repro fcs --seeds 3 --report fcs.html\n  \
    mrctl repro coshh --seeds 3 --json\n  \
    mrctl repro hsrtf --all --report results\n  \
    mrctl repro all --all --report results\n  \
    mrctl repro chronos --scale laptop --report chronos.html")]
pub(crate) struct Args {
    /// Paper; all four papers need --all
    #[arg(value_enum)]
    paper: PaperName,
    /// Repeat every figure and table, and show the sensitivity to assumptions; --report is then a
    /// folder
    #[arg(long)]
    all: bool,
    /// Size of the experiments
    #[arg(long, value_enum, default_value_t = Scale::Paper)]
    scale: Scale,
    /// Number of seeds (--scale paper). A seed varies placement and, except for coshh, task times; for
    /// fcs and coshh also the order of the jobs and their arrivals [default: 5; with --all: 30]
    #[arg(long, allow_negative_numbers = true, value_parser = whole_number(1..=1000))]
    seeds: Option<u64>,
    /// The first seed (--scale paper) [default: 1]
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, value_parser = whole_number(1..1 << 48))]
    first_seed: Option<u64>,
    /// Real time after which a run is stopped; its active jobs count as unfinished (--scale paper)
    /// [default: 30m]
    #[arg(long, value_name = "TIME", value_parser = positive_time)]
    time_limit: Option<Period>,
    /// File of profiles (TOML); they replace built-in ones (--scale paper, not coshh)
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// Folder for the data of the real cluster (--scale laptop) [default: the current folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write a report with charts (HTML) to this file. With --all: write PAPER.html, PAPER.json and
    /// index.html to this folder
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,
    /// Write the tables as Markdown to this file
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PaperName {
    Hsrtf,
    Chronos,
    Fcs,
    Coshh,
    /// All four papers
    All,
}

impl PaperName {
    /// Returns the paper; `None` for all papers.
    fn paper(self) -> Option<Paper> {
        match self {
            PaperName::Hsrtf => Some(Paper::Hsrtf),
            PaperName::Chronos => Some(Paper::Chronos),
            PaperName::Fcs => Some(Paper::Fcs),
            PaperName::Coshh => Some(Paper::Coshh),
            PaperName::All => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scale {
    /// The cluster and jobs of the paper, simulated
    Paper,
    /// A real cluster of eight nodes on this machine, with jobs that take minutes
    Laptop,
}

impl Args {
    /// Refuses flags that would have no effect.
    fn check(&self) -> Result<(), Usage> {
        let no_use = |what: &str, why: &str| Err(Usage(format!("{what} has no effect {why}: omit it")));
        if matches!(self.paper, PaperName::All) && !self.all {
            return Err(Usage("all papers are repeated only completely: add --all".into()));
        }
        // A paper whose results are in the folder is not repeated, so it would be missing there.
        if matches!(self.paper, PaperName::All) && (self.json || self.markdown.is_some()) {
            return Err(Usage("--json and --markdown are only for one paper: give its name".into()));
        }
        match self.scale {
            Scale::Laptop if self.all => {
                no_use("--all", "with --scale laptop, which has few experiments of a paper")
            }
            Scale::Laptop if self.seeds.is_some() => {
                no_use("--seeds", "with --scale laptop, where each policy runs once on a real cluster")
            }
            Scale::Laptop if self.first_seed.is_some() => {
                no_use("--first-seed", "with --scale laptop, which has no seeds")
            }
            Scale::Laptop if self.time_limit.is_some() => {
                no_use("--time-limit", "with --scale laptop, where the real cluster ends by itself")
            }
            Scale::Laptop if self.profiles.is_some() => {
                no_use("--profiles", "with --scale laptop, where tasks take the planned time")
            }
            Scale::Paper if self.dir.is_some() => {
                no_use("--dir", "with --scale paper, which is a simulation and stores no data")
            }
            Scale::Paper if self.profiles.is_some() && matches!(self.paper, PaperName::Coshh) => {
                no_use("--profiles", "for coshh, whose times are those of table 4 of the paper")
            }
            _ => Ok(()),
        }
    }
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode> {
    args.check()?;
    let papers = args.paper.paper().map_or_else(|| Paper::ALL.to_vec(), |paper| vec![paper]);
    let folder = args.report.as_deref().filter(|_| args.all);
    if let Some(folder) = folder {
        create_folder("--report", folder)?;
    }
    let report = args.report.clone().filter(|_| !args.all);
    let inputs: Vec<PathBuf> = args.profiles.iter().cloned().collect();
    let pages = papers.iter().flat_map(|paper| ["html", "json"].map(|kind| file_name(*paper, kind)));
    Outputs::new(&inputs)
        .files(&[("--report", &report), ("--markdown", &args.markdown)])
        .in_folder("--report", folder, pages.chain([INDEX.to_owned()]))
        .check()?;
    if let Some(path) = &args.profiles {
        let workloads: Vec<&str> = papers.iter().flat_map(|paper| paper.workloads()).copied().collect();
        let user = if args.all && papers.len() > 1 { "repro all" } else { papers[0].name() };
        catalog::check_profiles(path, user, &workloads).map_err(|error| Usage(error.to_string()))?;
    }
    let profiles = catalog::profiles(args.profiles.as_deref()).map_err(|error| Usage(error.to_string()))?;
    let made = Made::of(args)?;
    match args.scale {
        Scale::Paper => interrupt::end_at_first_signal(),
        // The function that runs a trial stops its cluster.
        Scale::Laptop => interrupt::end_at_second_signal("stopping the cluster", || {}),
    }
    for paper in papers {
        if let Some(file) = folder.filter(|_| made.is_done(folder, paper, args)) {
            let file = file_of(file, paper, "json");
            eprintln!("mrctl: {} has the results of this commit; delete it to repeat them", file.display());
            continue;
        }
        let reproduction = match args.scale {
            Scale::Paper => simulate(paper, args, &made, &profiles)?,
            Scale::Laptop => {
                let dir = args.dir.as_deref().unwrap_or_else(|| Path::new("."));
                on_this_machine(paper, dir).await?
            }
        };
        // Files first: standard output may be closed early.
        if let Some(folder) = folder {
            let archive = made.with_provenance(reproduction.archive());
            write(&file_of(folder, paper, "html"), &reproduction.html(&made.provenance.line()))?;
            write(&file_of(folder, paper, "json"), &report::archive::text(&archive.into()))?;
        } else if let Some(path) = &args.report {
            write(path, &reproduction.html(&made.provenance.line()))?;
        }
        if let Some(path) = &args.markdown {
            write(path, &reproduction.markdown(&made.provenance.line()))?;
        }
        if args.json {
            output::json(&made.with_provenance(reproduction.json()))?;
        } else {
            output::line(reproduction.text())?;
        }
    }
    if let Some(folder) = folder {
        write(&folder.join(INDEX), &index(folder))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn simulate(paper: Paper, args: &Args, made: &Made, profiles: &Profiles) -> Result<Reproduction> {
    let runs = SimulationProgress::new();
    let watch = |title: &str, step: Step<'_>| runs.count_run(title, step);
    let lab = Lab::new(profiles, made.seeds, args.all, &watch);
    let time_limit = args.time_limit.unwrap_or(TIME_LIMIT).0;
    Ok(paper.reproduce(&lab.with_first_seed(made.first_seed).with_time_limit(time_limit))?)
}

/// The page that lists the papers of a folder.
const INDEX: &str = "index.html";

fn file_name(paper: Paper, kind: &str) -> String {
    format!("{}.{kind}", paper.name())
}

fn file_of(folder: &Path, paper: Paper, kind: &str) -> PathBuf {
    folder.join(file_name(paper, kind))
}

/// How results are made.
struct Made {
    provenance: Provenance,
    date: String,
    /// Whether the results are simulated: only then there are seeds.
    is_simulated: bool,
    seeds: u64,
    first_seed: u64,
}

impl Made {
    fn of(args: &Args) -> Result<Self> {
        let seeds = args.seeds.unwrap_or(if args.all { SEEDS_COMPLETE } else { SEEDS });
        let date = output::utc(output::now_ms());
        let first_seed = args.first_seed.unwrap_or(1);
        let is_simulated = args.scale == Scale::Paper;
        let provenance = Provenance::of_this_process().with_files(args.profiles.as_deref())?;
        Ok(Self { provenance, date, is_simulated, seeds, first_seed })
    }

    /// Adds how results were made to their fields.
    fn with_provenance(&self, results: Map<String, Value>) -> Map<String, Value> {
        let Provenance { command, version, commit, files, .. } = &self.provenance;
        let made = [
            ("command", json!(command)),
            ("version", json!(version)),
            ("commit", json!(commit)),
            ("date", json!(self.date)),
        ];
        let seeds = [("seeds", json!(self.seeds)), ("first_seed", json!(self.first_seed))];
        let files = (!files.is_empty()).then(|| ("files", json!(files)));
        let made = made.into_iter().chain(files).chain(seeds.into_iter().filter(|_| self.is_simulated));
        made.map(|(key, value)| (key.to_owned(), value)).chain(results).collect()
    }

    /// Returns whether the folder has the results of a paper, made by this commit with these
    /// seeds. Only for all papers, so that a run that was interrupted continues. A single paper is
    /// always repeated, and so is a paper with profiles of the user, which may have changed.
    fn is_done(&self, folder: Option<&Path>, paper: Paper, args: &Args) -> bool {
        let applies = args.paper.paper().is_none() && args.profiles.is_none();
        let found = folder.filter(|_| applies).and_then(|folder| read(folder, paper));
        found.is_some_and(|found| {
            found["commit"] == self.provenance.commit
                && found["version"] == self.provenance.version
                && found["seeds"] == self.seeds
                && found["first_seed"] == self.first_seed
                && self.provenance.is_of_commit()
        })
    }
}

/// Reads the results of a paper; `None` if the folder has none.
fn read(folder: &Path, paper: Paper) -> Option<Value> {
    serde_json::from_str(&std::fs::read_to_string(file_of(folder, paper, "json")).ok()?).ok()
}

/// Returns a page with a row for each paper whose results are in the folder.
fn index(folder: &Path) -> String {
    let mut body =
        String::from("<table><tr><th>paper</th><th>numbers</th><th>agree</th><th>made by</th></tr>");
    for paper in Paper::ALL {
        let Some(found) = read(folder, paper) else { continue };
        let claims = found["claims"].as_array().map_or(&[][..], Vec::as_slice);
        let agrees = |claim: &&Value| {
            let rules = if claim["literal"].is_null() { "ours" } else { "literal" };
            claim[rules]["verdict"].as_str().is_some_and(|text| text.starts_with("agrees"))
        };
        let agree = claims.iter().filter(agrees).count();
        let text = |key: &str| report::html::escape(found[key].as_str().unwrap_or("-"));
        let _ = write!(
            body,
            "<tr><td><a href='{0}.html'>{1}</a> (<a href='{0}.json'>data</a>)</td><td>{2}</td><td>{agree}</td>\
             <td>{3}, commit {4}, {5}</td></tr>",
            paper.name(),
            text("title"),
            claims.len(),
            text("command"),
            text("commit"),
            text("date"),
        );
    }
    body += "</table>";
    report::page("Reproduced papers", &body)
}

async fn on_this_machine(paper: Paper, dir: &Path) -> Result<Reproduction> {
    let Some(laptop) = Laptop::of(paper) else {
        let name = paper.name();
        return Err(Usage(format!("{name} needs machines of different speeds: try --scale paper")).into());
    };
    let mut outcomes = Vec::new();
    for trial in laptop.trials() {
        let began = Instant::now();
        let ran = trial::run(&trial, dir).await?;
        eprintln!("{}: {:.0} s", trial.name, began.elapsed().as_secs_f64());
        outcomes.push(ran.outcome);
    }
    Ok(laptop.conclude(outcomes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn check(line: &str) -> Result<(), String> {
        let cli = Cli::try_parse_from(std::iter::once("repro").chain(line.split(' ')));
        cli.expect("the line parses").args.check().map_err(|usage| usage.to_string())
    }

    #[test]
    fn index_lists_the_papers_whose_results_are_in_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let found = json!({ "title": "FCS & co", "commit": "abc", "seeds": 30,
            "claims": [
                { "literal": { "verdict": "agrees" }, "ours": { "verdict": "differs" } },
                { "literal": null, "ours": { "verdict": "differs" } },
            ] });
        std::fs::write(dir.path().join("fcs.json"), found.to_string()).unwrap();
        std::fs::write(dir.path().join("coshh.json"), "not JSON").unwrap();
        let page = index(dir.path());
        assert!(page.contains("<a href='fcs.html'>FCS &amp; co</a>"), "{page}");
        assert!(page.contains("<td>2</td><td>1</td>") && !page.contains("coshh"), "{page}");
    }

    /// Runs are stopped at once, so the numbers mean nothing, but every file is written.
    #[tokio::test]
    async fn report_folder_has_a_page_and_the_data_of_a_paper_with_their_provenance() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, page) = (dir.path().join("out"), dir.path().join("page.md"));
        let line =
            format!("hsrtf --all --seeds 1 --report {} --markdown {}", folder.display(), page.display());
        let mut cli = Cli::try_parse_from(std::iter::once("repro").chain(line.split(' '))).unwrap();
        // All runs are stopped at once.
        cli.args.time_limit = Some(Period::secs(0));
        run(&cli.args).await.unwrap();
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let data: Value = serde_json::from_str(&text("hsrtf.json")).unwrap();
        for key in ["command", "version", "commit", "date", "setting"] {
            assert!(data[key].is_string(), "{key}");
        }
        assert_eq!((&data["seeds"], &data["first_seed"]), (&json!(1), &json!(1)));
        for key in ["claims", "tables", "runs"] {
            assert!(!data[key].as_array().unwrap().is_empty(), "{key}");
        }
        let version = format!("version {}", data["version"].as_str().unwrap());
        let page = std::fs::read_to_string(&page).unwrap();
        for text in [text("hsrtf.html"), page] {
            assert!(text.contains(&version) && text.contains("Figures and tables of the paper"));
        }
        assert!(text("index.html").contains("<a href='hsrtf.html'>"));
    }

    #[test]
    fn json_has_the_provenance_with_the_checksum_of_the_profiles() {
        let found = |line: &[&str]| {
            let cli = Cli::try_parse_from(["repro", "fcs"].iter().chain(line)).unwrap();
            let claims = Map::from_iter([("claims".to_owned(), json!([]))]);
            Made::of(&cli.args).unwrap().with_provenance(claims)
        };
        let plain = found(&[]);
        for key in ["command", "version", "commit"] {
            assert!(plain[key].is_string(), "{key}");
        }
        assert!(plain["claims"].is_array() && !plain.contains_key("files"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.toml");
        std::fs::write(&path, "abc").unwrap();
        let path = path.to_str().unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(found(&["--profiles", path])["files"], json!([{ "path": path, "sha256": sha256 }]));
    }

    #[test]
    fn flags_without_effect_are_rejected() {
        for good in [
            "fcs --seeds 2 --profiles p.toml",
            "fcs --first-seed 31 --time-limit 10m",
            "coshh --seeds 3",
            "fcs --scale laptop --dir d",
            "hsrtf",
            "all --all --report d",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, what) in [
            ("fcs --scale laptop --seeds 3", "--seeds has no effect"),
            ("fcs --scale laptop --first-seed 3", "--first-seed has no effect"),
            ("fcs --scale laptop --time-limit 1h", "--time-limit has no effect"),
            ("fcs --scale laptop --profiles p.toml", "--profiles has no effect"),
            ("coshh --profiles p.toml", "--profiles has no effect for coshh"),
            ("fcs --dir d", "--dir has no effect"),
            ("fcs --all --scale laptop", "--all has no effect"),
            ("all --all --json", "--json and --markdown are only for one paper"),
            ("all --all --markdown m.md", "--json and --markdown are only for one paper"),
            ("all --report d", "all papers are repeated only completely"),
        ] {
            let error = check(bad).expect_err(bad);
            assert!(error.starts_with(what), "{bad}: {error}");
        }
    }
}
