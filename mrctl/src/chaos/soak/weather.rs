//! What happens to a cluster during a round: slots are taken back, and one thing after another goes wrong for a while.

use super::{
    super::{
        deed::{Deed, perform},
        sight::{Eyes, Sight},
        site::Site,
    },
    works::Work,
};
use crate::job::{preempt::How, wire::JobTracker};
use anyhow::{Result, bail};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use serde::Serialize;
use sim::scenario::{Act, Half, Who};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const LOOK_EVERY: Duration = Duration::from_millis(150);
/// Jobs of a round take half a minute in peace.
const ROUND_WITHIN: Duration = Duration::from_mins(6);

/// What was done.
#[derive(Debug, Default, Clone, Serialize)]
pub(super) struct Tally {
    kills: u32,
    freezes: u32,
    cuts: u32,
    slow: u32,
    damaged: u32,
    restarts_of_masters: u32,
    splits: u32,
    pauses: u32,
    resumes: u32,
    attempts_killed: u32,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.kills += other.kills;
        self.freezes += other.freezes;
        self.cuts += other.cuts;
        self.slow += other.slow;
        self.damaged += other.damaged;
        self.restarts_of_masters += other.restarts_of_masters;
        self.splits += other.splits;
        self.pauses += other.pauses;
        self.resumes += other.resumes;
        self.attempts_killed += other.attempts_killed;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "kills {}, freezes {}, cuts {}, slow {}, damaged {}, masters down {}; splits {}, pauses {}, resumes {}, \
             attempts killed {}",
            self.kills,
            self.freezes,
            self.cuts,
            self.slow,
            self.damaged,
            self.restarts_of_masters,
            self.splits,
            self.pauses,
            self.resumes,
            self.attempts_killed
        )
    }
}

/// The weather of a round.
pub(super) struct Weather {
    site: Arc<Site>,
    dice: SmallRng,
    tally: Tally,
    /// What is wrong now, and when it ends.
    open: Option<(Deed, Instant)>,
    next: Instant,
}

impl Weather {
    pub(super) fn new(site: Arc<Site>, dice: &mut SmallRng) -> Self {
        let own = SmallRng::seed_from_u64(dice.random());
        let next = Instant::now() + Duration::from_secs(1);
        Self { site, dice: own, tally: Tally::default(), open: None, next }
    }

    /// Until these jobs are over; what was seen last.
    pub(super) async fn until_over(
        &mut self,
        eyes: &mut Eyes,
        mut sight: Sight,
        works: &[Work],
    ) -> Result<Sight> {
        let deadline = Instant::now() + ROUND_WITHIN;
        loop {
            sight = eyes.look(&sight).await;
            let open: Vec<&str> = works
                .iter()
                .map(|work| work.id.as_str())
                .filter(|id| sight.jobs.iter().all(|job| job.job != *id || !job.is_over()))
                .collect();
            if open.is_empty() {
                return Ok(sight);
            }
            if Instant::now() > deadline {
                bail!("{} not over after {} s", open.join(", "), ROUND_WITHIN.as_secs());
            }
            if sight.trackers.is_some()
                && let Ok(tracker) = eyes.jobtracker().await
            {
                self.take_slots(&tracker, &open).await;
            }
            self.faults(&sight).await?;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes some slots back, and lets some of what was paused go on. What comes too late is refused.
    async fn take_slots(&mut self, tracker: &JobTracker, jobs: &[&str]) {
        let job = jobs[self.dice.random_range(0..jobs.len())];
        let Ok(tasks) = tracker.tasks(job).await else { return };
        for task in tasks {
            if task.state == "paused" && self.dice.random_bool(0.5) {
                let done = tracker.resume(&task.task, None).await.is_ok();
                self.tally.resumes += u32::from(done);
            }
            let Some(attempt) = task.attempts.iter().rfind(|attempt| attempt.state == "running") else {
                continue;
            };
            if !self.dice.random_bool(0.15) {
                continue;
            }
            let how = match task.task.contains(".m") {
                _ if self.dice.random_bool(0.1) => How::Kill,
                true => How::Split,
                false => How::Pause,
            };
            let done = u32::from(tracker.preempt(&attempt.attempt, how).await.is_ok());
            match how {
                How::Kill => self.tally.attempts_killed += done,
                How::Split => self.tally.splits += done,
                How::Pause => self.tally.pauses += done,
            }
        }
    }

    /// Ends what has lasted long enough, or begins something.
    async fn faults(&mut self, sight: &Sight) -> Result<()> {
        let now = Instant::now();
        match self.open.take() {
            Some((deed, until)) if until > now => self.open = Some((deed, until)),
            Some((deed, _)) => {
                perform(&self.site, &deed.undo()).await?;
                self.pause();
            }
            None if now >= self.next => self.begin(sight).await?,
            None => {}
        }
        Ok(())
    }

    fn pause(&mut self) {
        self.next = Instant::now() + Duration::from_millis(self.dice.random_range(300..4000));
    }

    async fn begin(&mut self, sight: &Sight) -> Result<()> {
        let nodes = self.site.nodes()?;
        let node = nodes[self.dice.random_range(0..nodes.len())].clone();
        let who = Who::Named(node.clone());
        let lasts = Duration::from_millis(self.dice.random_range(500..7000));
        let half = [Half::Whole, Half::Datanode, Half::Tasktracker][self.dice.random_range(0..3)];
        let machines = matches!(*self.site, Site::Machines(_));
        let (act, node, to) = match self.dice.random_range(0..if machines { 10 } else { 8 }) {
            0..=2 => {
                self.tally.kills += 1;
                (Act::Kill { node: who, half }, node, String::new())
            }
            3 | 4 => {
                self.tally.freezes += 1;
                (Act::Stop { node: who, half }, node, String::new())
            }
            5 => {
                // A replica is damaged only while all others are there.
                if sight.blocks_trouble().is_some()
                    || sight.nodes().values().any(|one| one.datanode != "live")
                {
                    return Ok(());
                }
                let chance = self.dice.random();
                let act = Act::Corrupt { node: who, block: None, cut: self.dice.random_bool(0.3) };
                let deed = Deed { chance, ..deed(act, node, String::new(), None) };
                // A node without blocks has none to damage.
                self.tally.damaged += u32::from(perform(&self.site, &deed).await.is_ok());
                self.pause();
                return Ok(());
            }
            6 => {
                self.tally.restarts_of_masters += 1;
                let name = if self.dice.random_bool(0.5) { "jobtracker" } else { "namenode" }.to_owned();
                (Act::Kill { node: Who::Named(name.clone()), half: Half::Whole }, name, String::new())
            }
            7 => {
                self.tally.slow += 1;
                let share = self.dice.random_range(0.1..0.6);
                let act = Act::Slow { node: who, share };
                let lasts = Some(lasts.min(Duration::from_secs(3)));
                let deed = deed(act, node, String::new(), lasts);
                perform(&self.site, &deed).await?;
                self.pause();
                return Ok(());
            }
            _ => {
                self.tally.cuts += 1;
                let one_way = self.dice.random_bool(0.5);
                let to = "master".to_owned();
                (Act::Partition { from: who, to: Who::Named(to.clone()), one_way }, node, to)
            }
        };
        let deed = deed(act, node, to, Some(lasts));
        perform(&self.site, &deed).await?;
        self.open = Some((deed, Instant::now() + lasts));
        Ok(())
    }

    /// Ends whatever is still wrong; what was done.
    pub(super) async fn clear(mut self) -> Result<Tally> {
        if let Some((deed, _)) = self.open.take() {
            perform(&self.site, &deed.undo()).await?;
        }
        Ok(self.tally)
    }
}

/// One of no scenario.
fn deed(act: Act, node: String, to: String, lasts: Option<Duration>) -> Deed {
    Deed { number: 0, line: 0, act, node, to, lasts, chance: 0, is_end: false }
}
