//! Describes the state of the file system.

use crate::output;

/// Describes the used and free disk space. The NameNode counts a disk that several DataNodes share
/// only once.
fn disks(report: &dfs_client::Report) -> String {
    format!(
        "{} used, {} free of {} on {}",
        output::human(report.used),
        output::human(report.free),
        output::human(report.capacity),
        output::count(report.disks, "disk")
    )
}

/// Returns the state of the file system as rows of a table.
pub fn facts(report: &dfs_client::Report) -> Vec<(&'static str, String)> {
    let (safemode, human) = (&report.safemode, output::human);
    let folders = output::count(report.dirs, "folder");
    let mut facts = vec![
        ("file system", format!("{} (version {})", report.cluster_id, report.version)),
        ("started", output::utc(report.started_ms)),
        ("safemode", if safemode.on { format!("ON: {}", safemode.cause()) } else { "off".into() }),
        ("files", format!("{} in {folders}, {} open", report.files, report.open_files)),
        ("bytes", format!("{} in {}", human(report.bytes), output::count(report.blocks, "block"))),
        ("disks", disks(report)),
        (
            "replicas",
            format!(
                "{} under-replicated, {} over-replicated, {} missing, {} with all replicas corrupt",
                output::count(report.under_replicated, "block"),
                report.over_replicated,
                report.missing,
                report.corrupt
            ),
        ),
        ("copies", format!("{} pending, {} done", report.copies_pending, report.copies_done_total)),
        (
            "damage",
            format!(
                "{} damaged now, {} found, {} replaced",
                output::count(report.corrupt_replicas, "replica"),
                report.corrupt_found_total,
                report.corrupt_replaced_total
            ),
        ),
    ];
    facts.extend(warnings(report));
    facts
}

/// Returns warnings about possible data loss, and about replicas or nodes that do not belong to
/// this namespace, as rows of a table. A healthy cluster has none.
pub fn warnings(report: &dfs_client::Report) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if !report.lost_edits.is_empty() {
        rows.push(("lost_edits", format!("{}: the last changes before that may be lost", report.lost_edits)));
    }
    if report.future_replicas > 0 {
        let count = output::count(report.future_replicas, "replica");
        rows.push((
            "future_blocks",
            format!(
                "{count} of blocks with IDs that this NameNode never assigned: it is running from an older copy of its folder; they are kept; start it from the newest copy to get them back"
            ),
        ));
    }
    if report.stale_replicas > 0 {
        let count = output::count(report.stale_replicas, "replica");
        rows.push((
            "stale_replicas",
            format!(
                "{count} written before the NameNode was restored from an older copy of its folder, with block IDs that other blocks have now; they are kept but never served"
            ),
        ));
    }
    rows.extend(report.refused_nodes.iter().map(|why| ("refused", why.clone())));
    rows
}
