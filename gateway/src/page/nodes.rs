//! `/nodes`: the data and attempts of each node, and the state of the file system.

use super::{Cell, Frame, Tile, cell, chip, error_note, facts, name_cell, number_cell, table, tiles};
use client::model::Tracker;
use dfs_client::{NodeReport, Report};
use sim::{html, report::html::Html};
use view::{
    files,
    nodes::{self, Row},
    output,
    status_cache::Overview,
};

/// The largest number of slots that are drawn. More slots are shown as a number.
const SLOTS_DRAWN_MAX: u32 = 24;
/// The largest number of nodes in a table.
const NODES_MAX: usize = 1000;

pub(crate) fn page(all: &Overview) -> Frame {
    let mut main = Html::new();
    html!(main, "<h1>Nodes</h1>");
    for error in all.query_errors() {
        error_note(&mut main, error);
    }
    slots_table(&mut main, all);
    if let Ok(report) = &all.files {
        html!(main, "<h2>File system</h2>");
        file_system_tiles(&mut main, report);
        datanodes_table(&mut main, &report.nodes);
        html!(main, "<h2>Report</h2>");
        facts(&mut main, files::facts(report));
    }
    Frame::new("Nodes", "/nodes", true, main)
}

fn file_system_tiles(out: &mut Html, report: &Report) {
    let live = report.nodes.iter().filter(|node| nodes::state_name(node.state) == "live").count();
    let severity = |count: u64, bad: &'static str| if count > 0 { bad } else { "good" };
    let percent = 100.0 * report.used as f64 / report.capacity.max(1) as f64;
    let all = [
        Tile::new("Capacity", output::human(report.capacity), format!("{} free", output::human(report.free))),
        Tile::new("Used by blocks", output::human(report.used), format!("{percent:.1}%")),
        Tile::new("DataNodes live", format!("{live} of {}", report.nodes.len()), ""),
        Tile::new("Files", report.files.to_string(), output::human(report.bytes)),
        Tile::new(
            "Under-replicated",
            report.under_replicated.to_string(),
            format!("blocks of {}", report.blocks),
        )
        .severity(severity(report.under_replicated, "warn")),
        Tile::new(
            "Missing",
            report.missing.to_string(),
            format!("and {} with all replicas corrupt", report.corrupt),
        )
        .severity(severity(report.missing + report.corrupt, "bad")),
    ];
    tiles(out, all);
}

/// Renders the table of nodes with the use of their slots.
pub(super) fn slots_table(out: &mut Html, all: &Overview) {
    let datanodes = all.files.as_ref().map_or(&[][..], |report| &report.nodes);
    let trackers = all.trackers.as_deref().unwrap_or_default();
    let rows = nodes::merge_by_name(datanodes, trackers);
    if rows.is_empty() {
        html!(out, "<p class='soft'>No node is known.</p>");
        return;
    }
    let count = rows.len();
    let row = |row: Row<'_>| {
        let (name, datanode, tracker) = match row {
            Row::Datanode { datanode, tracker } => (datanode.address.node.as_str(), Some(datanode), tracker),
            Row::Tracker { node, tracker } => (node, None, Some(tracker)),
        };
        node_row(name, datanode, tracker)
    };
    let rows = rows.into_iter().take(NODES_MAX).map(row).collect();
    let head = ["Node", "TaskTracker", "Maps", "Reduces", "Heartbeat#", "DataNode", "Used#", "Free#"];
    table(out, "nodes", &head, rows);
    if count > NODES_MAX {
        html!(out, "<p class='soft'>{} more: <code>mrctl nodes</code> lists them.</p>", count - NODES_MAX);
    }
}

fn node_row(name: &str, datanode: Option<&NodeReport>, tracker: Option<&Tracker>) -> Vec<Cell> {
    let none = || cell("", "");
    let state = |state: &str| {
        let mut out = Html::new();
        html!(out, "{}", chip(state));
        Cell("", out)
    };
    let mut row = vec![name_cell(name)];
    match tracker {
        Some(own) => row.extend([
            state(&own.state),
            slots("map", own.maps_running, own.map_slots),
            slots("reduce", own.reduces_running, own.reduce_slots),
            number_cell(nodes::tracker_heartbeat(own)),
        ]),
        None => row.extend([none(), none(), none(), none()]),
    }
    match datanode {
        Some(own) => row.extend([
            state(nodes::state_name(own.state)),
            number_cell(output::human(own.used)),
            number_cell(output::human(own.free)),
        ]),
        None => row.extend([none(), none(), none()]),
    }
    row
}

/// Renders a square for each slot, filled if an attempt runs in it.
fn slots(kind: &'static str, used: u32, all: u32) -> Cell {
    let mut out = Html::new();
    if all > SLOTS_DRAWN_MAX {
        html!(out, "{} of {}", used, all);
        return Cell("flat", out);
    }
    let shown = all.max(used);
    html!(
        out,
        "<svg class='slots' viewBox='0 0 {} 12' width='{}' height='12' role='img' aria-label='{} of {} in use'>",
        (shown * 14).max(1),
        shown * 14,
        used,
        all
    );
    for at in 0..shown {
        let class = if at < used { kind } else { "free" };
        html!(
            out,
            "<rect class='{}' x='{}' y='1' width='10' height='10' rx='2'/>",
            class,
            f64::from(at * 14) + 0.5
        );
    }
    html!(out, "</svg> <span class='soft'>{}/{}</span>", used, all);
    Cell("flat", out)
}

fn datanodes_table(out: &mut Html, all: &[NodeReport]) {
    if all.is_empty() {
        html!(out, "<p class='soft'>No DataNode has registered yet.</p>");
        return;
    }
    let row = |row: Row<'_>| match row {
        Row::Tracker { .. } => None,
        Row::Datanode { datanode: own, .. } => Some(vec![
            name_cell(&own.address.node),
            name_cell(&own.address.host),
            name_cell(&own.address.rack),
            number_cell(nodes::of_volumes(own, |own| output::human(own.capacity))),
            number_cell(nodes::of_volumes(own, |own| output::human(own.used))),
            number_cell(nodes::of_volumes(own, |own| own.blocks.to_string())),
            number_cell(nodes::heartbeat(own.last_heartbeat_ms_ago)),
            cell("", &nodes::note(own)),
        ]),
    };
    let rows = nodes::merge_by_name(all, &[]).into_iter().filter_map(row).take(NODES_MAX).collect();
    let head = ["DataNode", "Host", "Rack", "Capacity#", "Used#", "Blocks#", "Heartbeat#", "Note"];
    table(out, "stored", &head, rows);
}
