//! Renders pages from the answers of the masters. These modules send no requests. All output goes
//! through `html!`, which escapes it.

pub(super) mod cluster;
pub(super) mod job;
pub(super) mod jobs;
pub(super) mod nodes;
pub(super) mod task;
pub(super) mod tasks;

use client::model::{Job, PhaseStatus};
use sim::{html, report::html::Html};
use view::status_cache::QueryError;

/// A page without the common header and footer.
pub(super) struct Frame {
    title: String,
    /// The address of the navigation entry that the page belongs to.
    section: &'static str,
    /// Whether the page reloads regularly.
    live: bool,
    main: Html,
}

impl Frame {
    fn new(title: &str, section: &'static str, live: bool, main: Html) -> Self {
        Self { title: title.into(), section, live, main }
    }

    /// Renders the complete page. `user` is the authenticated user, or empty.
    pub(crate) fn render(self, user: &str) -> Html {
        let mut page = Html::new();
        let title =
            if self.title.is_empty() { "Fermata".into() } else { format!("{} · Fermata", self.title) };
        html!(
            page,
            "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>\
             <meta name='viewport' content='width=device-width, initial-scale=1'><title>{}</title>\
             <link rel='icon' href='/icon.svg'><link rel='stylesheet' href='/style.css'>\
             <script src='/live.js' defer></script>",
            title
        );
        if self.live {
            html!(page, "<noscript><meta http-equiv='refresh' content='5'></noscript>");
        }
        html!(
            page,
            "</head><body><header><a class='brand' href='/'><img src='/icon.svg' alt=''>Fermata</a><nav>"
        );
        for (to, name) in [("/", "Cluster"), ("/nodes", "Nodes"), ("/jobs", "Jobs")] {
            let here = if to == self.section { "here" } else { "" };
            html!(page, "<a href='{}' class='{}'>{}</a>", to, here, name);
        }
        let live = if self.live { "yes" } else { "no" };
        html!(
            page,
            "</nav><span id='lost' hidden>mrctl web is unreachable; retrying</span></header>\n\
             <main data-live='{}'>{}</main>\n<footer>",
            live,
            self.main
        );
        if !user.is_empty() {
            html!(page, "as <bdi>{}</bdi> · ", user);
        }
        let version = env!("CARGO_PKG_VERSION");
        html!(page, "mrctl {} · times are UTC · <a href=''>reload</a></footer></body></html>\n", version);
        page
    }
}

/// Returns a page with only a message.
pub(super) fn message(title: &str, text: &str, live: bool) -> Frame {
    let mut main = Html::new();
    html!(main, "<h1><bdi>{}</bdi></h1><div class='note bad'>{}</div>", title, text);
    html!(main, "<p class='soft'>{}</p>", if live { "This page reloads automatically." } else { "" });
    html!(main, "<p><a href='/'>Back to the cluster</a></p>");
    Frame::new(title, "", live, main)
}

/// A box with a name, a value and a remark.
struct Tile<'a> {
    name: &'a str,
    value: String,
    /// The colour of the value: good, bad, warn, or empty.
    severity: &'a str,
    /// A remark below the value.
    more: String,
}

impl<'a> Tile<'a> {
    fn new(name: &'a str, value: impl Into<String>, more: impl Into<String>) -> Self {
        Self { name, value: value.into(), severity: "", more: more.into() }
    }

    fn severity(self, severity: &'a str) -> Self {
        Self { severity, ..self }
    }
}

fn tiles(out: &mut Html, all: impl IntoIterator<Item = Tile<'static>>) {
    html!(out, "<div class='tiles'>");
    for Tile { name, value, severity, more } in all {
        html!(
            out,
            "<div class='tile'><div class='name'>{}</div><div class='value {}'>{}</div><div class='more'>{}</div></div>",
            name,
            severity,
            value,
            more
        );
    }
    html!(out, "</div>");
}

/// A cell of a table: its CSS class and its content.
struct Cell(&'static str, Html);

fn cell(class: &'static str, text: &str) -> Cell {
    let mut own = Html::new();
    html!(own, "{}", text);
    Cell(class, own)
}

/// Returns a cell with a number, aligned to the right.
fn number_cell(text: impl ToString) -> Cell {
    cell("num", &text.to_string())
}

/// Returns a cell with a name that a user has chosen, isolated from the text direction of the page.
fn name_cell(text: &str) -> Cell {
    let mut own = Html::new();
    html!(own, "<bdi>{}</bdi>", text);
    Cell("", own)
}

fn link_cell(class: &'static str, page: &'static str, id: &str, shown: &str) -> Cell {
    let mut own = Html::new();
    html!(own, "<a href='/{}/{}'>{}</a>", page, id, shown);
    Cell(class, own)
}

/// Renders a table that scrolls if it is too wide. The columns whose names end with `#` contain
/// numbers.
fn table(out: &mut Html, id: &'static str, head: &[&'static str], rows: Vec<Vec<Cell>>) {
    html!(out, "<div class='scroll' id='{}' tabindex='0'><table><thead><tr>", id);
    for name in head {
        match name.strip_suffix('#') {
            Some(name) => html!(out, "<th class='num'>{}</th>", name),
            None => html!(out, "<th>{}</th>", *name),
        }
    }
    html!(out, "</tr></thead><tbody>");
    for row in rows {
        html!(out, "<tr>");
        for Cell(class, inner) in row {
            html!(out, "<td class='{}'>{}</td>", class, inner);
        }
        html!(out, "</tr>");
    }
    html!(out, "</tbody></table></div>");
}

/// Renders a list of names and values.
fn facts(out: &mut Html, rows: impl IntoIterator<Item = (&'static str, String)>) {
    html!(out, "<dl>");
    for (name, value) in rows {
        html!(out, "<dt>{}</dt><dd><bdi>{}</bdi></dd>", name, value);
    }
    html!(out, "</dl>");
}

fn error_note(out: &mut Html, error: &QueryError) {
    let severity = if matches!(error, QueryError::Unavailable(_)) { "bad" } else { "" };
    html!(out, "<div class='note {}'>{}</div>", severity, error.describe());
}

/// Renders a coloured label for a state.
fn chip(state: &str) -> Html {
    let severity = match state {
        "running" | "committing" | "launching" => "run",
        "succeeded" | "done" | "live" | "up" => "good",
        "failed" | "lost" | "dead" | "down" => "bad",
        "paused" | "pausing" => "paused",
        "suspect" | "awaited" | "draining" | "drained" | "stopping" | "splitting" => "warn",
        _ => "",
    };
    let mut out = Html::new();
    html!(out, "<span class='chip {}'>{}</span>", severity, state);
    out
}

/// Renders a progress bar of a phase: done, running, paused.
fn bar(phase: &PhaseStatus) -> Html {
    let mut out = Html::new();
    let total = f64::from(phase.total.max(1));
    let part = |count: u32| 100.0 * (f64::from(count) / total).clamp(0.0, 1.0);
    let done = part(phase.done);
    let on_hold = part(phase.paused).min(100.0 - done);
    let running = (100.0 * phase.progress.clamp(0.0, 1.0) - done).clamp(0.0, 100.0 - done);
    html!(
        out,
        "<svg class='bar' viewBox='0 0 100 6' preserveAspectRatio='none' role='img' aria-label='{} of {} done'>\
         <rect class='track' width='100' height='6'/><rect class='done' width='{}' height='6'/>\
         <rect class='part' x='{}' width='{}' height='6'/><rect class='held' x='{}' width='{}' height='6'/></svg>",
        phase.done,
        phase.total,
        done,
        done,
        running,
        100.0 - on_hold,
        on_hold
    );
    out
}

/// Returns a cell with the progress bar and the numbers of a phase.
fn progress_cell(phase: &PhaseStatus) -> Cell {
    let mut out = Html::new();
    if phase.total == 0 {
        html!(out, "<span class='soft'>none</span>");
        return Cell("", out);
    }
    html!(out, "<div class='progress'>{}<span>{}/{}</span></div>", bar(phase), phase.done, phase.total);
    if phase.paused > 0 {
        html!(out, "<span class='chip paused'>{} paused</span>", phase.paused);
    }
    Cell("", out)
}

/// Returns the cells for ID, name and user of a job.
fn job_cells(job: &Job) -> [Cell; 3] {
    [link_cell("id", "job", &job.job, &job.job), name_cell(&job.name), name_cell(&job.user)]
}

/// Renders links to the other pages of a long list.
fn pager(out: &mut Html, (page, pages): (usize, usize), address: &str) {
    if pages < 2 {
        return;
    }
    html!(out, "<p class='filters'><span>Page {} of {}</span>", page, pages);
    let glue = if address.contains('?') { "&" } else { "?" };
    for (to, name) in
        [(1, "first"), (page.saturating_sub(1), "previous"), (page + 1, "next"), (pages, "last")]
    {
        if (1..=pages).contains(&to) && to != page {
            html!(out, "<a href='{}{}page={}'>{}</a>", address, glue, to, name);
        }
    }
    html!(out, "</p>");
}

/// Returns the entries of one page of a list, with the number of the page and the number of pages.
fn page_of<T>(all: &[T], page: usize, size: usize) -> (&[T], (usize, usize)) {
    let pages = all.len().div_ceil(size).max(1);
    let page = page.clamp(1, pages);
    let from = (page - 1) * size;
    (&all[from..all.len().min(from + size)], (page, pages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_list_is_divided_into_pages() {
        let all: Vec<u32> = (0..25).collect();
        assert_eq!(page_of(&all, 1, 10), (&all[..10], (1, 3)));
        assert_eq!(page_of(&all, 3, 10), (&all[20..], (3, 3)));
        assert_eq!(page_of(&all, 99, 10).1, (3, 3));
        assert_eq!(page_of(&all, 0, 10).1, (1, 3));
        assert_eq!(page_of::<u32>(&[], 7, 10), (&[][..], (1, 1)));
        let mut out = Html::new();
        pager(&mut out, (2, 3), "/job/job_1?state=failed");
        assert!(out.as_str().contains("href='/job/job_1?state=failed&amp;page=3'>next"), "{}", out.as_str());
    }

    #[test]
    fn page_is_complete_escaped_and_reloads_only_if_live() {
        let page = message("<b>", "x & y", false).render("ann<").into_string();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(page.contains("&lt;b&gt;") && page.contains("x &amp; y") && page.contains("ann&lt;"));
        assert!(page.contains("data-live='no'") && !page.contains("http-equiv"));
        assert!(message("x", "y", true).render("").into_string().contains("http-equiv='refresh'"));
    }

    #[test]
    fn progress_bar_stays_within_its_track() {
        let phase =
            PhaseStatus { total: 4, done: 4, paused: 9, progress: f64::NAN, ..PhaseStatus::default() };
        let shown = bar(&phase).into_string();
        assert!(
            !shown.contains("NaN") && !shown.contains("'-") && shown.contains("x='100.0' width='0.0'"),
            "{shown}"
        );
    }
}
