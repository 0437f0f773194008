//! `mrctl fs get`: copies files and folders from the cluster. A local file appears completely or
//! not at all.

use super::{
    Outcome, copy_out,
    dest::{self, Dest, Existing},
    expand_all,
    put::report_faults,
    refuse_dir, report_lost, tree,
};
use crate::output::{self, Meter, Usage};
use anyhow::{Context, Result, bail};
use daemon::lifecycle::end_signal;
use dfs_client::{Client, FileStatus, GetOptions, GetReport, path::DfsPath};
use std::{
    fs,
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    sync::Arc,
};
use tokio::task::JoinSet;

/// The number of files that are copied in parallel.
const FILES_AT_ONCE: usize = 4;

/// Copy files or folders from the cluster
///
/// With only one path, the copy goes to the current folder.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mrctl fs get [OPTIONS] <PATH>... [LOCAL]",
    after_help = "Examples:\n  \
    mrctl fs get /out/part-r-00000 result\n  \
    mrctl fs get '/out/part-*' results/       into a folder, created if missing\n  \
    mrctl fs get -r /corpus .\n  \
    mrctl fs get /dump - | gzip > dump.gz"
)]
pub(crate) struct Get {
    /// Files, folders or patterns in the cluster; then a local name or folder, or - for standard
    /// output
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<String>,
    /// Copy folders and everything in them
    #[arg(short, long, short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Replace existing local files
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Replace unreadable blocks by zeros, report them, and exit with code 1
    #[arg(long)]
    pub(crate) skip_lost: bool,
    /// Print no progress bar and no summary line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print JSON: one array of the copied files
    #[arg(long)]
    pub(crate) json: bool,
}

/// One file to copy.
#[derive(Debug, PartialEq, Eq)]
struct Copy {
    from: DfsPath,
    to: PathBuf,
    length: u64,
}

/// Options that apply to all copies of a command.
#[derive(Debug, Clone, Copy)]
struct CopyOptions {
    overwrite: bool,
    skip_lost: bool,
}

/// All folders to create and files to copy.
#[derive(Debug, Default, PartialEq, Eq)]
struct CopyPlan {
    folders: Vec<PathBuf>,
    copies: Vec<Copy>,
}

pub(crate) async fn run(args: Get, client: &Client) -> Result<ExitCode> {
    Ok(copy_out_of(args, client).await?.code())
}

/// Copies files of the cluster to this machine.
pub(crate) async fn copy_out_of(args: Get, client: &Client) -> Result<Outcome> {
    let (sources, local) = match args.paths.as_slice() {
        [only] => (std::slice::from_ref(only), "."),
        [sources @ .., local] => (sources, local.as_str()),
        [] => bail!(Usage("get: name at least one path".into())),
    };
    if local == "-" && args.json {
        bail!(Usage("--json cannot be used with -, because standard output is the file itself".into()));
    }
    let mut outcome = Outcome::default();
    let roots = expand_all(client, sources, &mut outcome).await?;
    if roots.is_empty() {
        return Ok(outcome);
    }
    if local == "-" {
        for root in roots {
            refuse_dir(&root, "only files can go to standard output")?;
            let mut reader = client.open(&root.path).await?;
            if args.skip_lost {
                reader.zero_fill_lost_blocks();
            }
            let copied = copy_out(&mut reader).await;
            if report_lost(&root.path, reader.lost()) {
                outcome.fail();
            }
            if let Err(error) = copied {
                outcome.note(error)?;
            }
        }
        return Ok(outcome);
    }
    let existing = match fs::metadata(local) {
        Ok(metadata) if metadata.is_dir() => Existing::Folder,
        Ok(_) => Existing::File,
        Err(_) => Existing::None,
    };
    let way = dest::plan(roots.len(), local, existing)?;
    let mut plan = CopyPlan::default();
    if way == Dest::IntoNew {
        plan.folders.push(local.into());
    }
    for root in roots {
        if !args.recursive {
            refuse_dir(&root, "use -r to copy it and everything in it")?;
        }
        let below = tree(client, root.clone()).await?;
        add_tree(&mut plan, &root, &below, Path::new(local), way);
    }
    refuse_overwriting(&plan, args.force)?;
    for folder in &plan.folders {
        fs::create_dir_all(folder).with_context(|| format!("cannot create folder {}", folder.display()))?;
    }
    let label = match plan.copies.as_slice() {
        [copy] => copy.from.to_string(),
        copies => format!("{} files", copies.len()),
    };
    let total = plan.copies.iter().map(|copy| copy.length).sum();
    let meter = Arc::new(Meter::new(&label, Some(total), args.quiet || args.json));
    let options = CopyOptions { overwrite: args.force, skip_lost: args.skip_lost };
    let reports = copy_all(plan.copies, client, options, &meter, &mut outcome).await?;
    meter.print_summary();
    drop(meter);
    report_faults(reports.iter().map(|report| (&report.status.path, report.faults.as_slice())));
    for report in &reports {
        if report_lost(&report.status.path, &report.lost) {
            outcome.fail();
        }
    }
    if args.json {
        output::json(&reports)?;
    }
    Ok(outcome)
}

/// Adds `root` and everything below it to the plan. The first entry of `below` is `root` itself.
fn add_tree(plan: &mut CopyPlan, root: &FileStatus, below: &[FileStatus], local: &Path, way: Dest) {
    let base = if way == Dest::Exact { local.to_owned() } else { local.join(root.path.name()) };
    for status in below {
        let rest = status.path.as_str().strip_prefix(root.path.as_str()).unwrap_or("");
        let to = match rest.trim_start_matches('/') {
            "" => base.clone(),
            rest => base.join(rest),
        };
        if status.is_dir {
            plan.folders.push(to);
        } else {
            plan.copies.push(Copy { from: status.path.clone(), to, length: status.length });
        }
    }
}

/// Refuses to overwrite local files without `force`. Called before the first byte is copied.
fn refuse_overwriting(plan: &CopyPlan, force: bool) -> Result<()> {
    for copy in &plan.copies {
        let above = copy.to.parent().filter(|above| *above != Path::new(""));
        if let Some(above) =
            above.filter(|above| !above.is_dir() && !plan.folders.iter().any(|one| one == above))
        {
            let above = above.display();
            bail!(Usage(format!(
                "there is no local folder {above}: create it first, or end the name with /"
            )));
        }
        let Ok(existing) = fs::metadata(&copy.to) else { continue };
        let to = copy.to.display();
        if existing.is_dir() {
            bail!(Usage(format!("{to} is a folder: give the file another name")));
        }
        if !existing.is_file() {
            bail!(Usage(format!(
                "{to} is not a regular file: write to - (standard output) and redirect that"
            )));
        }
        if !force {
            bail!(Usage(format!("{to} exists: replace it with --force, or give another name")));
        }
    }
    Ok(())
}

async fn copy_all(
    copies: Vec<Copy>,
    client: &Client,
    copy_options: CopyOptions,
    meter: &Arc<Meter>,
    outcome: &mut Outcome,
) -> Result<Vec<GetReport>> {
    let mut reports = Vec::new();
    let mut running = JoinSet::new();
    let mut left = copies.into_iter();
    let mut stop = pin!(end_signal());
    loop {
        while running.len() < FILES_AT_ONCE
            && let Some(copy) = left.next()
        {
            let (client, meter) = (client.clone(), Arc::clone(meter));
            running.spawn(async move {
                let options = GetOptions { overwrite: copy_options.overwrite };
                if copy_options.skip_lost {
                    client.get_skipping_lost(&copy.from, &copy.to, options, &*meter).await
                } else {
                    client.get(&copy.from, &copy.to, options, &*meter).await
                }
            });
        }
        let next = tokio::select! {
            next = running.join_next() => next,
            () = &mut stop => {
                running.shutdown().await;
                bail!("interrupted; unfinished files were removed");
            }
        };
        match next {
            None => break,
            Some(done) => match done.context("a copy ended early")? {
                Ok(report) => reports.push(report),
                Err(error) => outcome.note(error.into())?,
            },
        }
    }
    reports.sort_by(|one, other| one.status.path.cmp(&other.status.path));
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dfs_client::ids::FileId;

    fn status(path: &str, is_dir: bool) -> FileStatus {
        FileStatus {
            path: DfsPath::parse(path).unwrap(),
            is_dir,
            file_id: FileId(1),
            length: 7,
            replication: 2,
            block_size: 1 << 20,
            owner: "me".into(),
            group: "us".into(),
            mode: 0o644,
            modified_ms: 0,
            accessed_ms: 0,
            open: false,
            blocks: 1,
            quota: None,
        }
    }

    fn planned_paths(root: &FileStatus, below: &[FileStatus], way: Dest) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let mut plan = CopyPlan::default();
        add_tree(&mut plan, root, below, Path::new("out"), way);
        (plan.folders, plan.copies.into_iter().map(|copy| copy.to).collect())
    }

    #[test]
    fn folder_structure_is_kept() {
        let root = status("/a/b", true);
        let below = [root.clone(), status("/a/b/c", true), status("/a/b/c/d", false)];
        let (folders, files) = planned_paths(&root, &below, Dest::Into);
        assert_eq!(folders, ["out/b", "out/b/c"].map(PathBuf::from));
        assert_eq!(files, ["out/b/c/d"].map(PathBuf::from));
        let (folders, files) = planned_paths(&root, &below, Dest::Exact);
        assert_eq!(folders, ["out", "out/c"].map(PathBuf::from));
        assert_eq!(files, ["out/c/d"].map(PathBuf::from));
    }

    #[test]
    fn file_gets_the_exact_destination_or_keeps_its_name_in_a_folder() {
        let root = status("/a/b", false);
        let below = [root.clone()];
        assert_eq!(planned_paths(&root, &below, Dest::Exact).1, [PathBuf::from("out")]);
        assert_eq!(planned_paths(&root, &below, Dest::Into).1, [PathBuf::from("out/b")]);
    }

    #[test]
    fn the_root_folder_can_be_copied() {
        let root = status("/", true);
        let below = [root.clone(), status("/x", false)];
        let (folders, files) = planned_paths(&root, &below, Dest::Into);
        assert_eq!(folders, [PathBuf::from("out/")]);
        assert_eq!(files, [PathBuf::from("out/x")]);
    }

    #[test]
    fn existing_local_files_are_not_overwritten_without_force() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("x");
        fs::write(&to, "").unwrap();
        let copies = vec![Copy { from: DfsPath::parse("/x").unwrap(), to, length: 1 }];
        let mut plan = CopyPlan { folders: vec![], copies };
        assert!(refuse_overwriting(&plan, false).is_err());
        let nowhere =
            vec![Copy { from: DfsPath::parse("/x").unwrap(), to: folder.path().join("no/x"), length: 1 }];
        let mut nowhere = CopyPlan { folders: vec![], copies: nowhere };
        assert!(
            refuse_overwriting(&nowhere, false).unwrap_err().to_string().contains("there is no local folder")
        );
        nowhere.folders.push(folder.path().join("no"));
        refuse_overwriting(&nowhere, false).unwrap();
        refuse_overwriting(&plan, true).unwrap();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        plan.copies[0].to = socket;
        assert!(refuse_overwriting(&plan, true).unwrap_err().to_string().contains("is not a regular file"));
    }
}
