//! Writes comparisons as one self-contained HTML file.

pub mod archive;
pub mod html;
pub mod svg;
mod table;

use crate::{
    Outcome,
    experiment::{Comparison, Figure, TimesAlone, makespan_s, reduce_wait_s},
};
use html::escape;
use mrcore::{
    Phase, Span,
    metrics::{JOBS_SHOWN_MAX, JobFigures, stats::quantile, timeline::Timeline},
};
use std::fmt::Write as _;
pub use table::{Cell, Table, percent, show, show_change};

/// Returns a table with the difference of the mean completion time of each policy to that of the first
/// policy, as in a campaign, and whether its interval shows one.
pub fn against_first(comparison: &Comparison) -> Table {
    let first = comparison.variants.first().map_or("", |variant| variant.label.as_str());
    let mut table = Table::new(&[&format!("against {first}"), "mean completion (95% interval)", "verdict"]);
    for (at, variant) in comparison.variants.iter().enumerate().skip(1) {
        let left_out = comparison.left_out(None, at, 0);
        let (shown, verdict) = match comparison.difference(at, 0) {
            None if comparison.is_stopped(at, 0) => (Cell::from("-"), "a run was stopped by --time-limit"),
            None => (Cell::from("-"), "no job succeeded under both"),
            Some(change) => (
                Cell::change(change.mean, change.interval()),
                match change.interval() {
                    None => "only one seed: the difference may be chance",
                    Some([low, high]) if low <= 0.0 && 0.0 <= high => {
                        "no difference that these seeds can show"
                    }
                    Some([_, high]) if high < 0.0 => "faster",
                    Some(_) => "slower",
                },
            ),
        };
        let verdict = if left_out > 0 && !comparison.is_stopped(at, 0) {
            let jobs = crate::count(left_out, "job");
            format!("{verdict}; without {jobs} that did not succeed under both")
        } else {
            verdict.to_owned()
        };
        table.row(vec![variant.label.as_str().into(), shown, verdict.as_str().into()]);
    }
    table
}

/// Returns the main table, with one row per policy.
pub fn summary(comparison: &Comparison) -> Table {
    let mut table = Table::new(&[
        "policy",
        "completion, mean s",
        "p95 s",
        "waiting s",
        "reduce wait s",
        "worst slowdown",
        "locality",
        "map slots used",
        "reduce slots used",
        "preempted",
        "lost slot-seconds",
        "overhead slot-seconds",
        "deciding s",
        "makespan s",
        "failed",
        "unfinished",
    ]);
    for (at, variant) in comparison.variants.iter().enumerate() {
        let seconds = |span: Option<Span>| span.map(Span::as_secs_f64);
        let total = |of: fn(&JobFigures) -> f64| {
            comparison.figure(at, |outcome| outcome.metrics.jobs().map(|(_, job)| of(job)).sum())
        };
        let (failed, unfinished) = comparison.unfinished(at, None);
        table.row(vec![
            variant.label.as_str().into(),
            comparison.mean_over(at, None, makespan_s).into(),
            p95(comparison, at).into(),
            comparison.mean_over(at, None, |job| seconds(job.waiting())).into(),
            comparison.mean_over(at, None, reduce_wait_s).into(),
            comparison.worst_slowdown(at, None).into(),
            Cell::fraction(comparison.figure_of(at, locality)),
            Cell::fraction(comparison.utilisation(at, Phase::Map)),
            Cell::fraction(comparison.utilisation(at, Phase::Reduce)),
            total(|job| f64::from(job.preemption.preemptions())).into(),
            total(|job| job.lost.as_secs_f64()).into(),
            total(|job| job.overhead().as_secs_f64()).into(),
            comparison.figure(at, deciding_s).into(),
            makespan(comparison, at).into(),
            Cell::count(failed),
            Cell::count(unfinished),
        ]);
    }
    table
}

/// Returns why the summary lacks slowdowns; `None` if it has them.
pub fn slowdown_note(comparison: &Comparison) -> Option<&'static str> {
    if comparison.alone.is_empty() {
        Some(
            "worst slowdown is not measured, because the jobs of a group differ; `mrctl lab compare` measures the slowdown of each job",
        )
    } else if comparison.alone.contains(&TimesAlone::Stopped) {
        Some("worst slowdown is without seeds in which --time-limit stopped a job alone")
    } else {
        None
    }
}

/// Returns the 95th percentile of the completion times of jobs, as a mean over seeds.
pub fn p95(comparison: &Comparison, at: usize) -> Figure {
    let of_seed = |outcome: &Outcome| {
        let all: Vec<f64> = outcome.metrics.jobs().filter_map(|(_, job)| makespan_s(job)).collect();
        (!all.is_empty()).then(|| quantile(&all, 0.95))
    };
    Figure { is_lower_bound: has_unfinished_jobs(comparison, at), ..comparison.figure_of(at, of_seed) }
}

/// Returns the seconds from the submission of the first job to the end of the last job, or to the
/// end of the run if jobs are still active then. The result is a mean over seeds.
pub fn makespan(comparison: &Comparison, at: usize) -> Figure {
    let of_seed = |outcome: &Outcome| {
        let jobs = || outcome.metrics.jobs().map(|(_, job)| job);
        let last = jobs().filter_map(|job| job.ended.or(job.observed_until)).max()?;
        Some(last.since(jobs().map(|job| job.submitted).min()?).as_secs_f64())
    };
    Figure { is_lower_bound: has_unfinished_jobs(comparison, at), ..comparison.figure_of(at, of_seed) }
}

/// Returns whether some job had not ended, or was not submitted, at the end of some run. Figures
/// that depend on the last jobs are then lower bounds.
fn has_unfinished_jobs(comparison: &Comparison, at: usize) -> bool {
    comparison.runs[at].iter().any(|outcome| outcome.unfinished > 0)
}

/// Returns the CPU seconds that the policy took for its decisions, with its classifications and linear
/// programs; for an external policy the real seconds until its answers.
pub fn deciding_s(outcome: &Outcome) -> f64 {
    outcome.deciding.total.as_secs_f64()
}

/// Returns the fraction of maps that ran node-local; `None` if no map was launched.
pub fn locality(outcome: &Outcome) -> Option<f64> {
    let near = outcome.metrics.jobs().map(|(_, job)| job.near);
    let sum = near.fold([0_u32; 3], |sum, near| [sum[0] + near[0], sum[1] + near[1], sum[2] + near[2]]);
    let all: u32 = sum.iter().sum();
    (all > 0).then(|| f64::from(sum[0]) / f64::from(all))
}

/// Returns a table of the mean of `of` by group and policy.
pub fn by_group(comparison: &Comparison, of: impl Fn(&JobFigures) -> Option<f64>) -> Table {
    group_table(comparison, |at, group| comparison.mean_over(at, Some(group), &of))
}

/// Like [`by_group`], but with a row per policy and a column per group, and one for all jobs. This
/// suits many policies and few groups.
pub fn by_policy(comparison: &Comparison, of: impl Fn(&JobFigures) -> Option<f64>) -> Table {
    let groups = comparison.groups.iter().map(|group| (group.as_str(), Some(group.as_str())));
    let groups: Vec<(&str, Option<&str>)> = groups.chain([("all", None)]).collect();
    let mut head = vec!["policy"];
    head.extend(groups.iter().map(|(name, _)| *name));
    let mut table = Table::new(&head);
    for (at, variant) in comparison.variants.iter().enumerate() {
        let figures = groups.iter().map(|(_, group)| Cell::from(comparison.mean_over(at, *group, &of)));
        table.row(std::iter::once(Cell::from(variant.label.as_str())).chain(figures).collect());
    }
    table
}

/// Returns a table of the largest slowdown by group and policy.
pub fn slowdowns(comparison: &Comparison) -> Table {
    group_table(comparison, |at, group| comparison.worst_slowdown(at, Some(group)))
}

fn group_table(comparison: &Comparison, of: impl Fn(usize, &str) -> Figure) -> Table {
    let mut head = vec!["group"];
    head.extend(comparison.variants.iter().map(|variant| variant.label.as_str()));
    let mut table = Table::new(&head);
    for group in &comparison.groups {
        let figures = (0..comparison.variants.len()).map(|at| Cell::from(of(at, group)));
        table.row(std::iter::once(Cell::from(group.as_str())).chain(figures).collect());
    }
    table
}

/// Returns a table of the figures of each group and of all jobs under policy `at`. Times are means
/// over jobs that succeeded, so that a job that failed early does not count as fast. Locality and
/// sums include all jobs.
pub fn of_groups(comparison: &Comparison, at: usize) -> Table {
    let mut table = Table::new(&[
        "group",
        "jobs",
        "succeeded",
        "completion s",
        "waiting s",
        "execution s",
        "worst slowdown",
        "reduce wait s",
        "maps local",
        "preempted",
        "lost slot-seconds",
        "preemption latency slot-seconds",
    ]);
    let groups = comparison.groups.iter().map(|group| (group.as_str(), Some(group.as_str())));
    for (name, group) in groups.chain([("all", None)]) {
        let known = |figure: Figure| Cell::number(figure.known().map(|figure| figure.mean));
        let mean = |of: fn(&JobFigures) -> Option<f64>| {
            known(comparison.mean_over(at, group, |job| of(job).filter(|_| job.succeeded)))
        };
        let values = |of: fn(&JobFigures) -> f64| comparison.values(at, group, |job| Some(of(job)));
        let sum = |of: fn(&JobFigures) -> f64| Cell::number(Some(values(of).iter().sum::<f64>() + 0.0));
        let near: f64 = values(|job| f64::from(job.near[0])).iter().sum();
        let maps: f64 = values(|job| f64::from(job.near.iter().sum::<u32>())).iter().sum();
        table.row(vec![
            name.into(),
            Cell::count(values(|_| 1.0).len()),
            Cell::count(comparison.count(at, group, |job| job.succeeded)),
            mean(makespan_s),
            mean(|job| job.waiting().map(Span::as_secs_f64)),
            mean(|job| job.execution().map(Span::as_secs_f64)),
            known(comparison.worst_slowdown(at, group)),
            mean(reduce_wait_s),
            Cell::percent((maps > 0.0).then(|| near / maps)),
            Cell::count(values(|job| f64::from(job.preemption.preemptions())).iter().sum::<f64>() as usize),
            sum(|job| job.lost.as_secs_f64()),
            sum(|job| job.preemption_latency.as_secs_f64()),
        ]);
    }
    table
}

/// Most characters of a label in the name of a file.
const NAME_CHARS_MAX: usize = 60;

/// Returns a label as part of the name of a file. Different labels may give the same text.
pub fn file_name_part(label: &str) -> String {
    let plain =
        |letter: char| if letter.is_ascii_alphanumeric() || ".-".contains(letter) { letter } else { '_' };
    label.chars().take(NAME_CHARS_MAX).map(plain).collect()
}

/// The charts of a comparison over the jobs of all seeds.
const CHARTS: [&str; 6] = [
    "completion",
    "waiting",
    "execution",
    "completion-by-group",
    "preemptions-by-group",
    "locality-by-group",
];

/// Returns the name of the chart of the slots of a phase under policy `at`.
fn slots_chart_name(phase: Phase, at: usize, label: &str) -> String {
    // The number distinguishes policies whose labels differ only in other characters.
    format!("{phase}-slots-{}-{}", at + 1, file_name_part(label))
}

/// Returns the names of the charts of a comparison of these policies, as in [`chart_list`] without a
/// screen.
pub fn chart_names<'a>(labels: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let slots = |(at, label)| Phase::BOTH.map(|phase| slots_chart_name(phase, at, label));
    let slots = labels.into_iter().enumerate().flat_map(slots);
    CHARTS.map(str::to_owned).into_iter().chain(slots).collect()
}

/// A chart of a comparison.
#[derive(Debug)]
pub struct Chart {
    /// The name of its file, without a suffix.
    pub name: String,
    pub title: String,
    pub svg: String,
}

/// Returns the charts of a comparison. Slots over time are those of the first seed; they are also
/// shown for each job on a screen if the jobs are few.
pub fn chart_list(comparison: &Comparison, layout: &'static svg::Layout) -> Vec<Chart> {
    let labels: Vec<&str> = comparison.variants.iter().map(|variant| variant.label.as_str()).collect();
    let cdf = |x_label: &str, of: fn(&JobFigures) -> Option<f64>| {
        let values = |at: usize| comparison.values(at, None, of);
        let series: Vec<(&str, Vec<f64>)> =
            labels.iter().enumerate().map(|(at, label)| (*label, values(at))).collect();
        svg::cdf(layout, x_label, &series)
    };
    let bars = |y_label: &str, of: fn(&JobFigures) -> Option<f64>| {
        let figures = |at: usize| {
            let figure = |group: &String| comparison.mean_over(at, Some(group), of);
            let bar = |figure: Figure| (figure.mean, figure.half_width.unwrap_or(0.0));
            comparison.groups.iter().map(figure).map(bar).collect()
        };
        let series: Vec<(&str, Vec<(f64, f64)>)> =
            labels.iter().enumerate().map(|(at, label)| (*label, figures(at))).collect();
        svg::bars(layout, y_label, &comparison.groups, &series)
    };
    let chart = |name: &str, title: &str, svg: String| Chart { name: name.into(), title: title.into(), svg };
    let waiting = cdf("waiting, s", |job| job.waiting().map(Span::as_secs_f64));
    let execution = cdf("execution, s", |job| job.execution().map(Span::as_secs_f64));
    let preemptions = bars("preemptions", |job| Some(f64::from(job.preemption.preemptions())));
    let mut charts = vec![
        chart(CHARTS[0], "Completion of jobs", cdf("from submission to end, s", makespan_s)),
        chart(CHARTS[1], "Waiting, from submission to the first map", waiting),
        chart(CHARTS[2], "Execution, from the first map on", execution),
        chart(CHARTS[3], "Completion by group", bars("mean completion, s", makespan_s)),
        chart(CHARTS[4], "Mean preemptions per job, by group", preemptions),
        chart(CHARTS[5], "Locality of maps, by group", bars("node-local fraction", JobFigures::locality)),
    ];
    for (at, label) in labels.iter().enumerate() {
        let Some(outcome) = comparison.runs[at].first() else { continue };
        let which = if comparison.runs[at].len() > 1 { ", of the first seed" } else { "" };
        let faults_s: Vec<f64> = outcome.fault_times.iter().map(|at| Span(at.0).as_secs_f64()).collect();
        let is_shown_by_job = layout.is_screen() && outcome.metrics.jobs().count() <= JOBS_SHOWN_MAX;
        for phase in Phase::BOTH {
            let slots = |timeline: &Timeline| {
                let used: Vec<(&str, Vec<f64>)> = timeline.slots(phase).collect();
                let used = (timeline.step().as_secs_f64(), &*used);
                svg::stacked(layout, "slots", used, f64::from(comparison.slots[phase]), &faults_s)
            };
            let name = slots_chart_name(phase, at, label);
            let title = format!("{phase} slots over time under {label}{which}");
            charts.push(chart(&name, &title, slots(&outcome.metrics.timeline)));
            if is_shown_by_job {
                let name = format!("{name}-by-job");
                charts.push(chart(&name, "The same by job", slots(&outcome.metrics.by_job)));
            }
        }
    }
    charts
}

/// Returns the charts of a comparison for a page.
pub fn charts(comparison: &Comparison) -> String {
    let one = |chart: Chart| format!("<h3>{}</h3>{}", escape(&chart.title), chart.svg);
    chart_list(comparison, &svg::SCREEN).into_iter().map(one).collect()
}

/// Returns each text as a paragraph.
pub fn paragraphs<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut all = String::new();
    for text in texts {
        let _ = write!(all, "<p>{}</p>", escape(text));
    }
    all
}

/// Returns a complete page.
pub fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{0}</title><style>\
         body{{font-family:sans-serif;max-width:60em;margin:2em auto;line-height:1.45}}\
         table{{border-collapse:collapse;margin:1em 0;font-size:90%;display:block;overflow-x:auto}}\
         td,th{{border-bottom:1px solid #ddd;padding:.25em .6em;text-align:right}}\
         td:first-child,th:first-child{{text-align:left}}\
         </style></head><body><h1>{0}</h1>{body}</body></html>\n",
        escape(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Setup,
        experiment::{Experiment, Variant},
        profile,
        workload::papers,
    };
    use mrcore::PerPhase;

    /// Runs two small jobs, submitted after 49 and 59 s; the second has no reduces.
    fn two_jobs(limit_s: u64) -> Comparison {
        let profiles = profile::built_in();
        let experiment = Experiment {
            setup: Setup::even(2, PerPhase { map: 2, reduce: 1 }, "fifo"),
            faults: None,
            workload: &|seed| {
                let mut workload = papers::hsrtf(&profiles, seed);
                workload.jobs.drain(..29);
                (workload.jobs[0].at, workload.jobs[1].at) = (Span::secs(49), Span::secs(59));
                workload.jobs[1].reduces.clear();
                workload
            },
            users: Vec::new(),
            variants: vec![Variant::plain("fifo")],
            seeds: 1..3,
            limit: Some(Span::secs(limit_s)),
            alone: false,
            monitor: None,
        };
        experiment.run().expect("it runs")
    }

    #[test]
    fn makespan_is_from_the_first_submission_to_the_last_end() {
        let comparison = two_jobs(100_000);
        let of = |outcome: &Outcome| {
            let times = outcome.metrics.jobs().map(|(_, job)| (job.submitted, job.ended.expect("it ends")));
            let (came, ended): (Vec<_>, Vec<_>) = times.unzip();
            ended.into_iter().max()?.since(came.into_iter().min()?).as_secs_f64().into()
        };
        let (whole, p95) = (makespan(&comparison, 0), p95(&comparison, 0));
        assert_eq!(whole, comparison.figure_of(0, of));
        assert!(
            whole.mean < comparison.runs[0][0].end.since(mrcore::Time(1_000_000)).as_secs_f64(),
            "the makespan starts at time 0, not at the first submission"
        );
        assert!(!whole.is_lower_bound && !p95.is_lower_bound && p95.mean <= whole.mean);
    }

    #[test]
    fn figures_of_unfinished_runs_are_marked_as_lower_bounds() {
        // At 52 s the first job has not ended, and the second is not submitted.
        let comparison = two_jobs(52);
        let (whole, most) = (makespan(&comparison, 0), p95(&comparison, 0));
        assert!(whole.is_lower_bound && most.is_lower_bound, "{whole:?} {most:?}");
        assert!((whole.mean - 3.0).abs() < 1.1, "expected the time from 49 to 52 s: {whole:?}");
        let table = summary(&comparison);
        let cell = |name: &str| {
            let at = table.head.iter().position(|head| head == name).expect("a column");
            table.rows[0][at].text().to_owned()
        };
        assert!(cell("makespan s").starts_with('≥') && cell("p95 s").starts_with('≥'));
        let none = summary(&two_jobs(20));
        assert_eq!(
            (none.json()[0]["makespan s"].clone(), none.json()[0]["locality"].clone()),
            Default::default()
        );
    }

    #[test]
    fn mean_reduce_wait_ignores_jobs_without_reduces() {
        let comparison = two_jobs(100_000);
        let first = |outcome: &Outcome| {
            let (_, job) = outcome.metrics.jobs().next().expect("the first");
            reduce_wait_s(job).expect("it has reduces")
        };
        let wait = comparison.mean_over(0, None, reduce_wait_s);
        assert_eq!(
            wait,
            comparison.figure(0, first),
            "the second job has no reduces and must not be in the mean"
        );
        assert_eq!(comparison.values(0, None, reduce_wait_s).len(), 2, "one value per seed");
    }

    #[test]
    fn missing_slowdowns_have_a_reason() {
        let mut comparison = two_jobs(100_000);
        assert!(slowdown_note(&comparison).is_some_and(|note| note.contains("the jobs of a group differ")));
        let known = TimesAlone::Groups([("small".to_owned(), Span::secs(1))].into());
        comparison.alone = vec![known.clone(), known.clone()];
        assert_eq!(slowdown_note(&comparison), None);
        comparison.alone = vec![known, TimesAlone::Stopped];
        assert!(slowdown_note(&comparison).is_some_and(|note| note.contains("--time-limit")));
    }

    #[test]
    fn charts_have_files_of_their_own_and_wide_tables_scroll() {
        let comparison = two_jobs(100_000);
        let names = |layout| -> Vec<String> {
            chart_list(&comparison, layout).into_iter().map(|chart| chart.name).collect()
        };
        let column = names(&svg::COLUMN);
        let slots: Vec<&str> = column.iter().skip(6).map(String::as_str).collect();
        assert_eq!(slots, ["map-slots-1-fifo", "reduce-slots-1-fifo"]);
        assert_eq!(column[..2], ["completion", "waiting"]);
        assert_eq!(names(&svg::SCREEN).len(), column.len() + 2, "also by job");
        let page = page("t", &charts(&comparison));
        assert!(page.contains("<h3>map slots over time under fifo, of the first seed</h3><svg"), "{page}");
        assert!(page.contains("overflow-x:auto"));
        assert_eq!(file_name_part("fcs[a=1|2]/x"), "fcs_a_1_2__x");
    }

    #[test]
    fn table_is_written_as_text_markdown_and_html() {
        let mut table = Table::new(&["policy", "s"]);
        table.row(vec!["fifo".into(), "12".into()]);
        table.row(vec!["a<b".into(), "3".into()]);
        assert_eq!(table.text(), "policy   s\nfifo    12\na<b      3\n");
        assert!(table.markdown().starts_with("| policy | s |\n|---|---|\n"));
        assert!(table.html().contains("<td>a&lt;b</td>"));
        let figure = Figure { mean: 12.345, half_width: Some(0.5), is_lower_bound: false, seeds: 3 };
        assert_eq!(show(figure), "12.3 ±0.50");
        assert_eq!(show(Figure { half_width: None, is_lower_bound: true, ..figure }), "≥12.3");
    }
}
