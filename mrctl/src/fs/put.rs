//! `mrctl fs put`: copies local files, folders or standard input to the cluster.
//!
//! All sources and destinations are checked before the first byte is copied, so that a misspelt
//! source or an existing destination changes nothing.

use super::{
    Outcome,
    dest::{self, Dest},
    lookup,
    namespace::existing_kind,
};
use crate::output::{self, Meter, Usage};
use anyhow::{Context, Result, bail};
use daemon::Bytes;
use daemon::lifecycle::end_signal;
use dfs_client::{Client, FileStatus, NodeFault, PutOptions, PutReport, PutSource, path::DfsPath};
use rustix::fs::OFlags;
use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    pin::pin,
    process::ExitCode,
    sync::Arc,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    task::JoinSet,
};

/// The number of files that are copied in parallel. Copies of small files mostly wait for disks.
const FILES_AT_ONCE: usize = 4;
const APPEND_BUFFER: usize = 1 << 20;

/// Copy local files, folders or standard input to the cluster
///
/// A file appears completely or not at all (except with --append). Missing parent folders are
/// created. The permissions of the local file are not copied.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "mrctl fs put [OPTIONS] <LOCAL>... <DEST>",
    after_help = "Examples:\n  \
    mrctl fs put data.csv /in/data.csv\n  \
    mrctl fs put *.log /logs/              into a folder, created if missing\n  \
    mrctl fs put -r corpus /corpus\n  \
    zcat dump.gz | mrctl fs put - /dump"
)]
pub(crate) struct Put {
    /// Local files, or - for standard input; then a name or a folder in the cluster
    #[arg(value_name = "PATH", num_args = 2.., required = true)]
    pub(crate) paths: Vec<String>,
    /// Copy folders and everything in them
    #[arg(short, long, short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Replace existing files
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Append to an existing file; if interrupted, the complete blocks written so far are kept
    #[arg(long, conflicts_with_all = ["force", "recursive", "replication", "block_size"])]
    pub(crate) append: bool,
    /// Number of replicas of each block
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = super::attributes::parse_replicas)]
    pub(crate) replication: Option<u32>,
    /// Block size
    #[arg(long, value_name = "SIZE")]
    pub(crate) block_size: Option<Bytes>,
    /// Print no progress bar and no summary line
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print JSON: one array of the new files
    #[arg(long)]
    pub(crate) json: bool,
}

/// One file to copy.
#[derive(Debug, PartialEq, Eq)]
struct Copy {
    /// None means standard input.
    from: Option<PathBuf>,
    to: DfsPath,
    length: Option<u64>,
}

/// All folders to create and files to copy.
#[derive(Debug, Default, PartialEq, Eq)]
struct CopyPlan {
    folders: Vec<DfsPath>,
    copies: Vec<Copy>,
}

pub(crate) async fn run(args: Put, client: &Client) -> Result<ExitCode> {
    Ok(copy_in(args, client).await?.code())
}

/// Copies local files into the cluster.
pub(crate) async fn copy_in(args: Put, client: &Client) -> Result<Outcome> {
    let (dest, sources) = args.paths.split_last().context("put needs a source and a destination")?;
    let to = DfsPath::parse(dest)?;
    sources.iter().try_for_each(|source| check_source(source, args.recursive))?;
    let existing = existing_kind(lookup(client, &to).await?.as_ref());
    let way = dest::plan(sources.len(), dest, existing)?;
    let plan = plan(sources, &to, way)?;
    if !args.force && !args.append {
        refuse_existing(client, &plan).await?;
    }
    if way == Dest::IntoNew {
        client.mkdir(&to, true).await?;
    }
    for folder in &plan.folders {
        client.mkdir(folder, true).await?;
    }
    let total = plan.copies.iter().map(|copy| copy.length).sum();
    let label = match plan.copies.as_slice() {
        [copy] => copy.to.to_string(),
        copies => format!("{} files", copies.len()),
    };
    let meter = Arc::new(Meter::new(&label, total, args.quiet || args.json));
    if args.append {
        return tokio::select! {
            result = append(plan, client, &meter) => result,
            // Dropping the writer abandons the current block. Completed blocks are kept.
            () = end_signal() => bail!("interrupted; the file keeps the complete blocks written so far"),
        };
    }
    let options = PutOptions {
        replication: args.replication,
        block_size: args.block_size.map(|size| size.0),
        overwrite: args.force,
        make_parents: true,
        mode: None,
    };
    let (reports, outcome) = copy_all(plan.copies, client, &options, &meter).await?;
    meter.print_summary();
    drop(meter);
    report_faults(reports.iter().map(|report| (&report.status.path, report.faults.as_slice())));
    if let Some(note) = missing_replicas_note(&reports) {
        eprintln!("mrctl: note: {note}");
    }
    if args.json {
        output::json(&reports)?;
    }
    Ok(outcome)
}

/// Fails if the source cannot be copied.
fn check_source(source: &str, recursive: bool) -> Result<()> {
    let refuse = |why: String| Err(Usage(format!("{source}{why}")).into());
    let path = Path::new(source);
    match fs::metadata(path) {
        _ if source == "-" => Ok(()),
        Err(error) if is_dangling_link(path, &error) => refuse(" is a dangling link".into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            refuse(": there is no such local file".into())
        }
        Err(error) => refuse(format!(": {error}")),
        Ok(about) if about.is_dir() && !recursive => {
            refuse(" is a folder: use -r to copy it and everything in it".into())
        }
        Ok(about) if !about.is_dir() && !about.is_file() => {
            refuse(" is neither a file nor a folder: pipe it to standard input (-)".into())
        }
        Ok(_) => Ok(()),
    }
}

/// Returns whether the error means that the path is a symbolic link to a missing file.
fn is_dangling_link(path: &Path, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && path.is_symlink()
}

fn plan(sources: &[String], to: &DfsPath, way: Dest) -> Result<CopyPlan> {
    let mut plan = CopyPlan::default();
    for source in sources {
        if source == "-" {
            if way != Dest::Exact {
                bail!("{to} is a folder: standard input needs the path of a file");
            }
            plan.copies.push(Copy { from: None, to: to.clone(), length: None });
            continue;
        }
        let path = Path::new(source);
        let target = match way {
            Dest::Exact => to.clone(),
            Dest::Into | Dest::IntoNew => to.join(&file_name_of(path)?)?,
        };
        add(&mut plan, path, target)?;
    }
    Ok(plan)
}

/// Returns the file name of a local path. Paths such as `.` and `dir/..` are resolved first.
fn file_name_of(path: &Path) -> Result<String> {
    let real;
    let name = if let Some(name) = path.file_name() {
        name
    } else {
        real = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
        real.file_name().with_context(|| format!("{} has no name that the copy could get", path.display()))?
    };
    match name.to_str() {
        Some(name) => Ok(name.to_owned()),
        None => bail!(Usage(format!("{}: the name is not UTF-8: rename it", path.display()))),
    }
}

fn add(plan: &mut CopyPlan, path: &Path, to: DfsPath) -> Result<()> {
    let refuse = |why: &str| Err(Usage(format!("{} {why}", path.display())).into());
    let metadata = match fs::metadata(path) {
        Err(error) if is_dangling_link(path, &error) => {
            return refuse("is a dangling link: remove or fix it");
        }
        metadata => metadata.with_context(|| format!("cannot find {}", path.display()))?,
    };
    if metadata.is_file() {
        plan.copies.push(Copy { from: Some(path.into()), to, length: Some(metadata.len()) });
        return Ok(());
    }
    if !metadata.is_dir() {
        return refuse(
            "is a pipe, socket or device: only files and folders can be copied; move it elsewhere",
        );
    }
    plan.folders.push(to.clone());
    let unreadable = || format!("cannot read folder {}", path.display());
    let entries: Result<Vec<_>, _> = fs::read_dir(path).with_context(unreadable)?.collect();
    let mut entries = entries.with_context(unreadable)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // A link may point to a parent folder. The copy would then never end.
        if path.is_symlink() && path.is_dir() {
            let why = "is a link to a folder: copy that folder by its own path";
            bail!(Usage(format!("{} {why}", path.display())));
        }
        add(plan, &path, to.join(&file_name_of(&path)?)?)?;
    }
    Ok(())
}

async fn refuse_existing(client: &Client, plan: &CopyPlan) -> Result<()> {
    for copy in &plan.copies {
        if client.exists(&copy.to).await? {
            bail!("{} exists: replace it with --force, or add to it with --append", copy.to);
        }
    }
    Ok(())
}

async fn copy_all(
    copies: Vec<Copy>,
    client: &Client,
    options: &PutOptions,
    meter: &Arc<Meter>,
) -> Result<(Vec<PutReport>, Outcome)> {
    let mut outcome = Outcome::default();
    let mut reports = Vec::new();
    let mut running = JoinSet::new();
    let mut left = copies.into_iter();
    let mut stop = pin!(end_signal());
    loop {
        while running.len() < FILES_AT_ONCE
            && let Some(copy) = left.next()
        {
            let (client, options, meter) = (client.clone(), options.clone(), Arc::clone(meter));
            running.spawn(async move {
                let from = copy.from.clone();
                let source = match copy.from {
                    Some(path) => PutSource::File(path),
                    None => PutSource::Reader(Box::new(standard_input()?)),
                };
                let report = client.put(source, &copy.to, options, &*meter).await?;
                anyhow::Ok((from, report))
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
                Ok((from, report)) => {
                    if let Some(note) = from.and_then(|from| growth_note(&from, &report.status)) {
                        eprintln!("mrctl: note: {note}");
                    }
                    reports.push(report);
                }
                Err(error) => outcome.note(error)?,
            },
        }
    }
    reports.sort_by(|one, other| one.status.path.cmp(&other.status.path));
    Ok((reports, outcome))
}

/// Returns a note if the local file has grown while it was copied.
fn growth_note(from: &Path, stored: &FileStatus) -> Option<String> {
    let now = fs::metadata(from).ok()?.len();
    let FileStatus { path, length, .. } = stored;
    let from = from.display();
    let bytes = output::count(*length, "byte");
    (now > *length).then(|| format!("{from} grew while it was copied: {path} has its first {bytes}"))
}

/// Returns standard input as an unbuffered file.
pub(crate) fn standard_input() -> Result<tokio::fs::File> {
    let owned = std::io::stdin().as_fd().try_clone_to_owned().context("cannot use standard input")?;
    if is_stdin_placeholder(&owned) {
        bail!("standard input is closed: pipe data to it, or use `< /dev/null` for an empty file");
    }
    Ok(tokio::fs::File::from_std(owned.into()))
}

/// Returns whether standard input was closed. The Rust runtime then opens `/dev/null` in its place,
/// for reading and writing. A redirection with `<` opens `/dev/null` only for reading.
fn is_stdin_placeholder(file: &OwnedFd) -> bool {
    let writable = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    let null = || {
        rustix::fs::stat("/dev/null").is_ok_and(|null| {
            rustix::fs::fstat(file)
                .is_ok_and(|about| about.st_rdev == null.st_rdev && about.st_mode == null.st_mode)
        })
    };
    writable && null()
}

async fn append(plan: CopyPlan, client: &Client, meter: &Meter) -> Result<Outcome> {
    for copy in plan.copies {
        let mut source: Box<dyn AsyncRead + Send + Unpin> = match &copy.from {
            None => Box::new(standard_input()?),
            Some(path) => Box::new(
                tokio::fs::File::open(path)
                    .await
                    .with_context(|| format!("cannot open {}", path.display()))?,
            ),
        };
        let mut writer = client.append(&copy.to).await?;
        let mut buffer = vec![0; APPEND_BUFFER];
        loop {
            let read = match source.read(&mut buffer).await {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) => {
                    writer.abort().await?;
                    let from = copy.from.as_deref().unwrap_or(Path::new("standard input"));
                    let (from, to) = (from.display(), &copy.to);
                    bail!("cannot read {from}: {error}; {to} keeps the complete blocks written so far");
                }
            };
            writer.write(&buffer[..read]).await?;
            dfs_client::Progress::advance(meter, read as u64);
        }
        writer.close().await?;
    }
    Ok(Outcome::default())
}

/// Prints notes about nodes that failed although the copy succeeded.
pub(super) fn report_faults<'a>(files: impl Iterator<Item = (&'a DfsPath, &'a [NodeFault])>) {
    for (path, faults) in files {
        for NodeFault { node, reason } in faults {
            eprintln!("mrctl: note: {path} was copied without {node}: {reason}");
        }
    }
}

/// Returns a note about the file with the fewest replicas, if it has fewer than it should have.
fn missing_replicas_note(reports: &[PutReport]) -> Option<String> {
    let short = |report: &&PutReport| report.replicas_min.is_some_and(|has| has < report.status.replication);
    let (worst, files) = (
        reports.iter().filter(short).min_by_key(|report| report.replicas_min)?,
        reports.iter().filter(short).count(),
    );
    let FileStatus { path, replication, .. } = &worst.status;
    let has = worst.replicas_min.unwrap_or(0);
    let others = match files - 1 {
        0 => String::new(),
        others => format!(" (and {})", output::count(others as u64, "more file")),
    };
    Some(format!(
        "{path}{others} has {has} of {replication} replicas so far; the others follow when enough nodes are available"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> DfsPath {
        DfsPath::parse(text).unwrap()
    }

    fn sources(paths: &[&Path]) -> Vec<String> {
        paths.iter().map(|path| path.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn folder_structure_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("corpus");
        fs::create_dir_all(folder.join("sub/empty")).unwrap();
        fs::write(folder.join("b"), "bb").unwrap();
        fs::write(folder.join("sub/a"), "a").unwrap();
        let texts = sources(&[&folder]);

        let into = plan(&texts, &path("/in"), Dest::Into).unwrap();
        let folders = ["/in/corpus", "/in/corpus/sub", "/in/corpus/sub/empty"].map(path);
        assert_eq!(into.folders, folders);
        let to: Vec<(&str, Option<u64>)> =
            into.copies.iter().map(|copy| (copy.to.as_str(), copy.length)).collect();
        assert_eq!(to, [("/in/corpus/b", Some(2)), ("/in/corpus/sub/a", Some(1))]);

        let exact = plan(&texts, &path("/in"), Dest::Exact).unwrap();
        assert_eq!(exact.copies[0].to, path("/in/b"));
    }

    #[test]
    fn link_to_a_parent_folder_is_refused() {
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("loop")).unwrap();
        let error = plan(&sources(&[root.path()]), &path("/in"), Dest::Exact).unwrap_err().to_string();
        assert!(error.contains("is a link to a folder"), "{error}");
    }

    #[test]
    fn error_names_the_entry_that_cannot_be_copied() {
        let root = tempfile::tempdir().unwrap();
        let refusal = || {
            let error = plan(&sources(&[root.path()]), &path("/in"), Dest::Exact).unwrap_err();
            assert_eq!(output::exit_code(&error), 2, "{error}");
            error.to_string()
        };
        let socket = root.path().join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let text = refusal();
        assert!(
            text.contains("socket is a pipe, socket or device") && !text.contains("pipe it to"),
            "{text}"
        );
        fs::remove_file(&socket).unwrap();
        let dangling = root.path().join("dangling");
        std::os::unix::fs::symlink(root.path().join("absent"), &dangling).unwrap();
        assert!(refusal().contains("dangling is a dangling link"), "{}", refusal());
        let alone = check_source(dangling.to_str().unwrap(), false).unwrap_err().to_string();
        assert!(alone.ends_with("dangling is a dangling link"), "{alone}");
    }

    #[test]
    fn names_that_are_not_utf8_are_usage_errors() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let error = file_name_of(&Path::new("in").join(OsStr::from_bytes(b"odd-\xff"))).unwrap_err();
        assert!(error.to_string().ends_with("the name is not UTF-8: rename it"), "{error}");
        assert_eq!(output::exit_code(&error), 2);
    }

    #[test]
    fn standard_input_needs_the_path_of_a_file() {
        let texts = ["-".to_owned()];
        let exact = plan(&texts, &path("/in"), Dest::Exact).unwrap();
        assert_eq!(exact.copies, [Copy { from: None, to: path("/in"), length: None }]);
        assert!(plan(&texts, &path("/in"), Dest::Into).is_err());
    }

    #[test]
    fn closed_stdin_differs_from_empty_stdin() {
        let open =
            |write| OwnedFd::from(fs::File::options().read(true).write(write).open("/dev/null").unwrap());
        assert!(is_stdin_placeholder(&open(true)));
        assert!(!is_stdin_placeholder(&open(false)));
        assert!(!is_stdin_placeholder(&OwnedFd::from(tempfile::tempfile().unwrap())));
    }

    #[test]
    fn error_names_the_invalid_source() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        for (source, why) in [
            ("/no/such/file", "/no/such/file: there is no such local file"),
            (folder, "is a folder: use -r to copy it and everything in it"),
            ("/dev/null", "/dev/null is neither a file nor a folder: pipe it to standard input (-)"),
        ] {
            let error = check_source(source, false).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
            assert_eq!(output::exit_code(&error), 2);
        }
        check_source(folder, true).unwrap();
        check_source("-", false).unwrap();
    }
}
