//! `mrctl fs cat`, `head` and `tail`: print verified bytes to standard output.

use super::{Outcome, copy_out, expand, expand_all, refuse_dir, report_lost};
use crate::output;
use anyhow::{Context, Result, bail};
use daemon::Bytes;
use dfs_client::{Client, ClientError, FileReader, FileStatus, error::Kind, path::DfsPath};
use flate2::write::MultiGzDecoder;
use std::{io::Write, process::ExitCode};

/// The number of lines that `head` prints by default.
const HEAD_LINES: u64 = 10;
/// The number of lines that `tail` prints by default.
const TAIL_LINES: u64 = 10;
/// The number of bytes that `tail` reads at a time.
const TAIL_STEP: u64 = 64 << 10;

/// Print files, one after another
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  mrctl fs cat /logs/today\n  mrctl fs cat '/out/part-*' | sort | head")]
pub(crate) struct Cat {
    /// Files or patterns
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Print zeros for unreadable blocks, report them on standard error, and exit with code 1
    #[arg(long)]
    skip_lost: bool,
}

/// Returns advice to append to the message of this error; empty if there is none.
pub(super) fn advice(error: &anyhow::Error) -> &'static str {
    match error.downcast_ref() {
        Some(ClientError::Read { .. }) => {
            "; to read the other blocks of the file, use `fs get` or `fs cat` with --skip-lost"
        }
        Some(error) if error.is(Kind::Quota) => {
            "; delete files there, or raise the limit: `mrctl fs quota --help`"
        }
        Some(error) if error.is(Kind::NoNodes) || matches!(error, ClientError::Write { .. }) => {
            "; `mrctl nodes` shows the DataNodes, `mrctl up` starts those of a local cluster that have died"
        }
        _ => "",
    }
}

/// Print the start of a file
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl fs head /log\n  mrctl fs head -n 100 /log\n  mrctl fs head -c 1KiB /log"
)]
pub(crate) struct Head {
    /// File
    path: String,
    /// Number of lines [default: 10]
    #[arg(short = 'n', long, value_name = "LINES")]
    lines: Option<u64>,
    /// Number of bytes instead of lines
    #[arg(short = 'c', long, value_name = "SIZE", conflicts_with = "lines")]
    bytes: Option<Bytes>,
}

/// Print the end of a file
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  mrctl fs tail /log\n  mrctl fs tail -n 100 /log\n  mrctl fs tail -c 1KiB /log"
)]
pub(crate) struct Tail {
    /// File
    path: String,
    /// Number of lines [default: 10]
    #[arg(short = 'n', long, value_name = "LINES")]
    lines: Option<u64>,
    /// Number of bytes instead of lines
    #[arg(short = 'c', long, value_name = "SIZE", conflicts_with = "lines")]
    bytes: Option<Bytes>,
}

pub(crate) async fn cat(args: Cat, client: &Client) -> Result<ExitCode> {
    let mut outcome = Outcome::default();
    let files = expand_all(client, &args.paths, &mut outcome).await?;
    let is_empty = !files.is_empty() && files.iter().all(|file| !file.is_dir && file.length == 0);
    if is_empty {
        let files = output::count(files.len() as u64, "file");
        eprintln!("mrctl: note: nothing to print: {files}, without any bytes");
    }
    for status in files {
        let opened = async {
            refuse_dir(&status, "only files can be printed")?;
            Ok(client.open(&status.path).await?)
        };
        let mut reader = match opened.await {
            Ok(reader) => reader,
            Err(error) => {
                outcome.note(error)?;
                continue;
            }
        };
        if args.skip_lost {
            reader.zero_fill_lost_blocks();
        }
        let copied = copy_out(&mut reader).await;
        // Report the skipped bytes also if the copy failed.
        if report_lost(&status.path, reader.lost()) {
            outcome.fail();
        }
        if let Err(error) = copied {
            outcome.note(error)?;
        }
    }
    Ok(outcome.code())
}

/// Returns the only file that a path or pattern names.
async fn one_file(client: &Client, path: &str) -> Result<FileStatus> {
    let mut found = expand(client, path).await?;
    match (found.pop(), found.len()) {
        (Some(status), 0) => {
            refuse_dir(&status, "only files can be printed")?;
            Ok(status)
        }
        (_, others) => bail!("{path} matches {} files: name one file", others + 1),
    }
}

pub(crate) async fn head(args: Head, client: &Client) -> Result<ExitCode> {
    let status = one_file(client, &args.path).await?;
    if let Some(bytes) = args.bytes {
        print(client, &status.path, Some((0, bytes.0.min(status.length)))).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut left = args.lines.unwrap_or(HEAD_LINES);
    let mut reader = client.open(&status.path).await?;
    let mut out = output::stdout();
    while left > 0
        && let Some(bytes) = reader.next().await?
    {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        for line in lines.take(usize::try_from(left).unwrap_or(usize::MAX)) {
            out.write_all(line)?;
            left -= u64::from(line.ends_with(b"\n"));
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a file, or the range of its bytes with this offset and length.
pub(crate) async fn print(client: &Client, path: &DfsPath, range: Option<(u64, u64)>) -> Result<()> {
    let mut reader = client.open(path).await?;
    if let Some((offset, length)) = range {
        reader.select(offset, length);
    }
    copy_out(&mut reader).await
}

/// Prints a file, decompressed if its name ends in `.gz` or it begins with the bytes of gzip.
pub(crate) async fn print_text(client: &Client, path: &DfsPath) -> Result<()> {
    let mut reader = client.open(path).await?;
    let mut out = output::stdout();
    let mut decoder = None;
    let mut first = true;
    while let Some(bytes) = reader.next().await? {
        if std::mem::take(&mut first) {
            if bytes.starts_with(b"SEQ") {
                bail!("{path} is a sequence file, which only Hadoop can read: copy it with get");
            }
            if bytes.starts_with(&[0x1f, 0x8b]) {
                decoder = Some(MultiGzDecoder::new(Vec::new()));
            }
        }
        match &mut decoder {
            None => out.write_all(&bytes)?,
            Some(decoder) => {
                decoder.write_all(&bytes).with_context(|| format!("cannot decompress {path}"))?;
                out.write_all(&std::mem::take(decoder.get_mut()))?;
            }
        }
    }
    if let Some(decoder) = decoder {
        out.write_all(&decoder.finish().with_context(|| format!("cannot decompress {path}"))?)?;
    }
    Ok(out.flush()?)
}

pub(crate) async fn tail(args: Tail, client: &Client) -> Result<ExitCode> {
    let status = one_file(client, &args.path).await?;
    let mut reader = client.open(&status.path).await?;
    let from = match args.bytes {
        Some(bytes) => reader.len().saturating_sub(bytes.0),
        None => offset_of_last_lines(&mut reader, args.lines.unwrap_or(TAIL_LINES)).await?,
    };
    reader.seek(from);
    copy_out(&mut reader).await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the offset at which the last `lines` lines begin. Reads backwards, so that the end of a
/// large file is found quickly.
async fn offset_of_last_lines(reader: &mut FileReader, lines: u64) -> Result<u64> {
    let mut finder = LineFinder::new(lines);
    let mut end = reader.len();
    let mut buffer = vec![0; TAIL_STEP as usize];
    while end > 0 {
        let begin = end.saturating_sub(TAIL_STEP);
        let piece = &mut buffer[..(end - begin) as usize];
        let read = reader.read_at(begin, piece).await?;
        if let Some(at) = finder.search(&piece[..read], begin, end == reader.len()) {
            return Ok(at);
        }
        end = begin;
    }
    Ok(if lines == 0 { reader.len() } else { 0 })
}

/// Searches backwards for the start of the last lines.
struct LineFinder {
    left: u64,
}

impl LineFinder {
    fn new(lines: u64) -> Self {
        Self { left: lines }
    }

    /// Searches `piece`, which begins at `offset` of the file. `last` means that `piece` is the end
    /// of the file, where a newline ends the last line and does not start another.
    fn search(&mut self, piece: &[u8], offset: u64, last: bool) -> Option<u64> {
        if self.left == 0 {
            return Some(offset + piece.len() as u64);
        }
        let skip = usize::from(last && piece.last() == Some(&b'\n'));
        for at in (0..piece.len() - skip).rev() {
            if piece[at] == b'\n' {
                self.left -= 1;
                if self.left == 0 {
                    return Some(offset + at as u64 + 1);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &[u8], lines: u64, step: usize) -> u64 {
        let mut finder = LineFinder::new(lines);
        let mut end = text.len();
        while end > 0 {
            let begin = end.saturating_sub(step);
            if let Some(at) = finder.search(&text[begin..end], begin as u64, end == text.len()) {
                return at;
            }
            end = begin;
        }
        if lines == 0 { text.len() as u64 } else { 0 }
    }

    #[test]
    fn quota_errors_and_missing_datanodes_get_advice() {
        let refused = |kind| ClientError::Refused(dfs_client::error::Error::new(kind, "x")).into();
        assert!(advice(&refused(Kind::Quota)).contains("raise the limit"));
        assert!(advice(&refused(Kind::NoNodes)).contains("`mrctl up`"));
        let (path, node) = (dfs_client::path::DfsPath::root(), String::new());
        let write =
            ClientError::Write { path, block: dfs_client::ids::BlockId(1), node, reason: String::new() };
        assert!(advice(&write.into()).contains("`mrctl up`"));
        assert_eq!(advice(&refused(Kind::NotFound)), "");
    }

    #[test]
    fn start_of_the_last_lines_is_found() {
        let text = b"one\ntwo\n\nthree\n";
        for step in 1..=text.len() {
            assert_eq!(find(text, 0, step), 15);
            assert_eq!(find(text, 1, step), 9, "step {step}");
            assert_eq!(find(text, 2, step), 8);
            assert_eq!(find(text, 3, step), 4);
            assert_eq!(find(text, 4, step), 0);
            assert_eq!(find(text, 99, step), 0);
        }
        assert_eq!(find(b"a\nb", 1, 2), 2);
        assert_eq!(find(b"", 1, 2), 0);
    }
}
