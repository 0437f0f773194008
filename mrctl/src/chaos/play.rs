//! A scenario as it is played: steps whose time has come are done beside the watching, and undone; what the masters say of
//! it goes into the ledger.

use super::{
    deed::{Deed, perform},
    ledger::{Ledger, Wound},
    sight::{Eyes, Sight, changes},
    site::Site,
};
use crate::output;
use anyhow::{Result, bail};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde_json::json;
use sim::{
    Span,
    scenario::{Act, Half, JobRef, Mark, Step, When, Who},
};
use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::{AbortHandle, JoinSet};

/// What is waited for is told so often.
const TELL_EVERY: Duration = Duration::from_secs(20);
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The cluster before anything is done to it.
pub(super) struct Opening {
    pub(super) nodes: Vec<String>,
    pub(super) eyes: Eyes,
    pub(super) sight: Sight,
}

/// What comes at a time.
enum Due {
    Step(usize),
    /// Of the deed of this number.
    Undo(usize),
}

/// A scenario that is being played.
pub(super) struct Play {
    site: Arc<Site>,
    file: String,
    nodes: Vec<String>,
    steps: Vec<Step>,
    ledger: Ledger,
    eyes: Eyes,
    sight: Sight,
    /// Slots of the whole cluster.
    slots: (u32, u32),
    /// Jobs in the order in which they came.
    jobs: Vec<String>,
    gone: Vec<(String, Half)>,
    /// Steps that wait for a job.
    waiting: Vec<usize>,
    timers: Vec<(Instant, Due)>,
    /// What has been done, one for each wound.
    deeds: Vec<Deed>,
    doing: JoinSet<(Deed, Result<Vec<String>>)>,
    /// Of these, what slows a node down: that ends when it is aborted.
    slowing: Vec<AbortHandle>,
    /// What has to be undone: in it before it is begun, and until its undoing is done.
    open: Vec<Deed>,
    begun: usize,
    last: Option<String>,
    dice: SmallRng,
    failed: bool,
}

/// The node of this name, or the nth.
pub(super) fn find(nodes: &[String], name: &str) -> Option<String> {
    if matches!(name, "namenode" | "jobtracker" | "master") || nodes.iter().any(|node| node == name) {
        return Some(name.to_owned());
    }
    let number: usize = name.strip_prefix("node")?.parse().ok()?;
    nodes.get(number.checked_sub(1)?).cloned()
}

fn words_for(job: &JobRef) -> String {
    match job {
        JobRef::Nth(number) => format!("job {number}"),
        JobRef::Number(number) => format!("job_{number}"),
    }
}

fn duration(span: Span) -> Duration {
    Duration::from_micros(span.0)
}

impl Play {
    pub(super) fn new(
        site: Arc<Site>,
        file: String,
        steps: Vec<Step>,
        opening: Opening,
        seed: u64,
        quiet: bool,
    ) -> Self {
        let Opening { nodes, eyes, sight } = opening;
        let running = sight.jobs.iter().filter(|job| !job.is_over()).map(|job| job.job.clone());
        Self {
            site,
            file,
            nodes,
            steps,
            ledger: Ledger::new(quiet),
            eyes,
            slots: sight.slots(),
            jobs: running.collect(),
            sight,
            gone: Vec::new(),
            waiting: Vec::new(),
            timers: Vec::new(),
            deeds: Vec::new(),
            doing: JoinSet::new(),
            slowing: Vec::new(),
            open: Vec::new(),
            begun: 0,
            last: None,
            dice: SmallRng::seed_from_u64(seed),
            failed: false,
        }
    }

    /// Something that was seen.
    pub(super) fn note(&mut self, text: String) -> Result<()> {
        self.ledger.note("seen", text)
    }

    /// Until nothing is left to do and all is well, or it takes too long. However it ends, nothing is left undone that
    /// was to be.
    pub(super) async fn play(&mut self, within: Duration) -> Result<()> {
        let played = self.act(within).await;
        let undone = self.undo_all().await;
        played.and(undone)
    }

    async fn act(&mut self, within: Duration) -> Result<()> {
        let began = Instant::now();
        for (index, step) in self.steps.iter().enumerate() {
            match step.when {
                When::At(at) => {
                    self.timers.push((began + duration(at) + duration(step.after), Due::Step(index)));
                }
                When::Job(..) => self.waiting.push(index),
            }
        }
        for step in &self.steps {
            if let When::Job(job, _) = &step.when {
                eprintln!("mrctl: {}:{}: waits for {}", self.file, step.line, words_for(job));
            }
        }
        let mut end = std::pin::pin!(crate::command::end_signal());
        let mut told = Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                Some(done) = self.doing.join_next(), if !self.doing.is_empty() => {
                    let (deed, result) = done?;
                    self.done(deed, result)?;
                    continue;
                }
                () = &mut end => bail!("interrupted: undone, but for what is named here"),
            }
            self.look().await?;
            self.conditions();
            self.timers().await?;
            if self.at_rest()? {
                return Ok(());
            }
            if began.elapsed() > within {
                return self.give_up(within);
            }
            if told.elapsed() > TELL_EVERY {
                told = Instant::now();
                eprintln!("mrctl: waits for at most {} s: {}", within.as_secs(), self.awaited().join("; "));
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        let now = self.eyes.look(&self.sight).await;
        for (node, text) in changes(&self.sight, &now) {
            self.ledger.noticed(node.as_deref(), &text);
            self.ledger.note("seen", text)?;
        }
        for job in &now.jobs {
            if !self.jobs.contains(&job.job) && self.sight.jobs.iter().all(|was| was.job != job.job) {
                self.jobs.push(job.job.clone());
            }
        }
        self.sight = now;
        Ok(())
    }

    fn job_id(&self, job: &JobRef) -> Option<String> {
        match job {
            JobRef::Nth(number) => self.jobs.get(*number as usize - 1).cloned(),
            JobRef::Number(_) => Some(words_for(job)),
        }
    }

    fn has_come(&self, job: &JobRef, mark: Mark) -> bool {
        let Some(id) = self.job_id(job) else { return false };
        let Some(job) = self.sight.jobs.iter().find(|job| job.job == id) else { return false };
        let done = |phase: &crate::job::model::Phase, part: f64| {
            f64::from(phase.done) >= part * f64::from(phase.total)
        };
        match mark {
            Mark::Submitted => true,
            Mark::Maps(part) => done(&job.maps, part),
            Mark::Reduces(part) => done(&job.reduces, part),
            Mark::Over => job.is_over(),
        }
    }

    fn conditions(&mut self) {
        let due = |index: &usize| match &self.steps[*index].when {
            When::Job(job, mark) => self.has_come(job, *mark),
            When::At(_) => false,
        };
        let (due, waiting): (Vec<usize>, Vec<usize>) = self.waiting.iter().partition(|index| due(index));
        self.waiting = waiting;
        for index in due {
            let at = Instant::now() + duration(self.steps[index].after);
            self.timers.push((at, Due::Step(index)));
        }
    }

    async fn timers(&mut self) -> Result<()> {
        let now = Instant::now();
        let mut due: Vec<(Instant, Due)> = self.timers.extract_if(.., |(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        for (_, what) in due {
            match what {
                Due::Step(index) => self.begin(index).await?,
                Due::Undo(number) => {
                    let undo = self.open.iter().find(|deed| deed.number == number).map(Deed::undo);
                    if let Some(undo) = undo {
                        self.spawn(undo);
                    }
                }
            }
        }
        Ok(())
    }

    /// A step's time has come.
    async fn begin(&mut self, index: usize) -> Result<()> {
        let step = self.steps[index].clone();
        let node = match step.act.node() {
            Some(who) => self.resolve(who).await,
            None => Some(String::new()),
        };
        let to = match &step.act {
            Act::Partition { to, .. } => self.resolve(&to.clone()).await,
            _ => Some(String::new()),
        };
        let (Some(node), Some(to)) = (node, to) else {
            self.failed = true;
            return self
                .ledger
                .note("done", format!("{}:{}: no node is left to choose from", self.file, step.line));
        };
        if !node.is_empty() {
            self.last = Some(node.clone());
        }
        let lasts = step.lasts.map(duration);
        let chance = self.dice.random();
        self.begun += 1;
        let (number, line) = (self.begun, step.line);
        let deed = Deed { number, line, act: step.act, node, to, lasts, chance, is_end: false };
        if deed.wounds() {
            self.open.push(deed.clone());
        }
        if matches!(deed.act, Act::Slow { .. }) {
            // It is over when it has been done.
            self.hurt(&deed)?;
        }
        self.spawn(deed);
        Ok(())
    }

    fn spawn(&mut self, deed: Deed) {
        let site = self.site.clone();
        let slows = matches!(deed.act, Act::Slow { .. });
        let doing = self.doing.spawn(async move {
            let result = perform(&site, &deed).await;
            (deed, result)
        });
        if slows {
            self.slowing.push(doing);
        }
    }

    async fn resolve(&mut self, who: &Who) -> Option<String> {
        match who {
            Who::Named(name) => find(&self.nodes, name),
            Who::Same => self.last.clone(),
            Who::Any => self.by_chance(&self.alive()),
            Who::Running(job) => {
                let busy = match self.job_id(job) {
                    Some(id) => self.running_on(&id).await,
                    None => Vec::new(),
                };
                let alive = self.alive();
                let busy: Vec<String> = alive.iter().filter(|node| busy.contains(node)).cloned().collect();
                self.by_chance(if busy.is_empty() { &alive } else { &busy })
            }
        }
    }

    fn alive(&self) -> Vec<String> {
        let up = |node: &&String| self.gone.iter().all(|(gone, _)| gone != *node);
        self.nodes.iter().filter(up).cloned().collect()
    }

    fn by_chance(&mut self, among: &[String]) -> Option<String> {
        let number: u64 = self.dice.random();
        among.get((number % among.len().max(1) as u64) as usize).cloned()
    }

    async fn running_on(&self, job: &str) -> Vec<String> {
        let Ok(tracker) = self.eyes.jobtracker().await else { return Vec::new() };
        let tasks = tracker.tasks(job).await.unwrap_or_default();
        let attempts = tasks.into_iter().flat_map(|task| task.attempts);
        attempts.filter(|attempt| attempt.state == "running").map(|attempt| attempt.tracker).collect()
    }

    /// Writes down that something was done.
    fn hurt(&mut self, deed: &Deed) -> Result<()> {
        let undoing = matches!(deed.act, Act::Cont { .. } | Act::Restart { .. } | Act::Heal { .. });
        let hidden = matches!(deed.act, Act::Corrupt { .. });
        let quiet = matches!(deed.act, Act::FillDisk { .. } | Act::Slow { .. });
        self.ledger.steps.push(Wound {
            line: deed.line,
            verb: deed.act.verb(),
            node: deed.sufferer().to_owned(),
            at_s: self.ledger.now_s(),
            noticed_s: None,
            given_up_s: None,
            undone_s: None,
            whole_s: None,
            hidden,
            undoing: undoing || quiet || deed.is_between_nodes(),
        });
        self.deeds.push(deed.clone());
        if matches!(deed.act, Act::Slow { .. }) {
            let text = format!("{} is slow [{}:{}]", deed.node, self.file, deed.line);
            return self.ledger.note("done", text);
        }
        let node = deed.sufferer().to_owned();
        match &deed.act {
            Act::Kill { half, .. } | Act::Stop { half, .. } => self.gone.push((node, *half)),
            Act::Partition { .. } if !deed.is_between_nodes() => self.gone.push((node, Half::Whole)),
            Act::Cont { half, .. } | Act::Restart { half, .. } => self.back(&node, *half),
            Act::Heal { .. } => self.mended(&node),
            _ => {}
        }
        Ok(())
    }

    /// A node's daemons are there again.
    fn back(&mut self, node: &str, half: Half) {
        let now = self.ledger.now_s();
        self.gone.retain(|(gone, which)| gone != node || (half != Half::Whole && *which != half));
        for wound in self.ledger.steps.iter_mut().filter(|wound| wound.node == node && !wound.undoing) {
            wound.undone_s.get_or_insert(now);
        }
    }

    /// Links work again: of this node, or of all.
    fn mended(&mut self, node: &str) {
        let now = self.ledger.now_s();
        let cut = |wound: &&mut Wound| wound.verb == "partition" && (node.is_empty() || wound.node == node);
        for wound in self.ledger.steps.iter_mut().filter(cut) {
            wound.undone_s.get_or_insert(now);
            self.gone.retain(|(gone, _)| *gone != wound.node);
        }
    }

    /// A deed is done, or could not be.
    fn done(&mut self, deed: Deed, result: Result<Vec<String>>) -> Result<()> {
        let lines = match result {
            Ok(lines) => lines,
            Err(error) => {
                self.failed = true;
                let (verb, why) = (deed.act.verb(), output::chain(&error));
                return self.ledger.note("done", format!("{}:{}: {verb}: {why}", self.file, deed.line));
            }
        };
        if deed.is_end {
            self.open.retain(|open| open.number != deed.number);
            let now = self.ledger.now_s();
            match &deed.act {
                Act::Kill { half, .. } | Act::Stop { half, .. } => self.back(&deed.node, *half),
                Act::Partition { .. } => self.mended(deed.sufferer()),
                _ => {
                    let own = self.deeds.iter().position(|done| done.number == deed.number);
                    if let Some(wound) = own {
                        self.ledger.steps[wound].undone_s = Some(now);
                    }
                }
            }
            return self.ledger.note("undone", lines.join(", "));
        }
        if matches!(deed.act, Act::Slow { .. }) {
            let now = self.ledger.now_s();
            for (wound, own) in self.ledger.steps.iter_mut().zip(&self.deeds) {
                if own.line == deed.line && own.node == deed.node {
                    wound.undone_s.get_or_insert(now);
                }
            }
            return self.ledger.note("undone", format!("{} runs freely again", deed.node));
        }
        self.hurt(&deed)?;
        if let Some(lasts) = deed.lasts {
            self.timers.push((Instant::now() + lasts, Due::Undo(deed.number)));
        }
        self.ledger.note("done", format!("{} [{}:{}]", lines.join(", "), self.file, deed.line))
    }

    /// Whether nothing is left to do or to wait for.
    fn at_rest(&mut self) -> Result<bool> {
        let undoing = self.timers.iter().any(|(_, due)| matches!(due, Due::Undo(_)));
        let quiet = self.doing.is_empty() && !undoing;
        if !quiet || self.ledger.unnoticed().is_some() || self.sight.trouble(self.slots, &self.gone).is_some()
        {
            return Ok(false);
        }
        self.ledger.whole()?;
        Ok(self.timers.is_empty() && self.waiting.is_empty())
    }

    fn give_up(&mut self, within: Duration) -> Result<()> {
        self.failed = true;
        let why = self.awaited().join("; ");
        self.ledger.note("done", format!("gives up after {} s: {why}", within.as_secs()))
    }

    /// What has not come yet.
    fn awaited(&self) -> Vec<String> {
        let mut why: Vec<String> = Vec::new();
        why.extend(self.waiting.iter().map(|index| format!("line {} has not come", self.steps[*index].line)));
        let unseen = self.ledger.unnoticed().map(|wound| format!("line {} is not noticed", wound.line));
        why.extend(unseen);
        why.extend(self.sight.trouble(self.slots, &self.gone));
        why
    }

    /// Whatever is open, and what is under way when that is done. What cannot be undone, or told, keeps nothing else from
    /// being undone.
    async fn undo_all(&mut self) -> Result<()> {
        self.slowing.drain(..).for_each(|slow| slow.abort());
        let mut told = Ok(());
        while let Some(done) = self.doing.join_next().await {
            if let Ok((deed, result)) = done {
                told = told.and(self.done(deed, result));
            }
        }
        for undo in self.open.iter().rev().map(Deed::undo).collect::<Vec<_>>() {
            let result = perform(&self.site, &undo).await;
            told = told.and(self.done(undo, result));
        }
        for left in &self.open {
            let (verb, node) = (left.act.verb(), left.sufferer());
            eprintln!("mrctl: {}:{}: {verb} of {node} could not be undone: see to it", self.file, left.line);
        }
        told
    }

    /// Prints what came of it.
    pub(super) fn tell(&self, as_json: bool) -> Result<ExitCode> {
        let jobs = self.sight.jobs.iter().filter(|job| self.jobs.contains(&job.job));
        let well = !self.failed && self.ledger.steps.iter().all(|wound| wound.whole_s.is_some());
        if as_json {
            let jobs: Vec<_> = jobs
                .map(|job| {
                    json!({ "job": job.job, "name": job.name, "state": job.state, "seconds": job.seconds(),
                            "killed_attempts": job.maps.killed_attempts + job.reduces.killed_attempts,
                            "failed_attempts": job.maps.failed_attempts + job.reduces.failed_attempts })
                })
                .collect();
            let Ledger { timeline, steps, .. } = &self.ledger;
            output::json(&json!({ "whole": well, "steps": steps, "timeline": timeline, "jobs": jobs }))?;
        } else {
            self.ledger.print()?;
        }
        Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

#[cfg(test)]
mod tests;
