//! The tracker's mind: what runs in which slot, which orders have been taken, what has yet to be told.
//!
//! No clock, socket, process or file: events come in with the time, actions go out. What holds:
//! - an order is taken once, by number, and in order; repeats are skipped;
//! - how an attempt ended is told until the heartbeat (or registration) that carried it has been answered;
//! - one heartbeat is on its way at a time, and is sent again, the same, until it is answered;
//! - no more attempts run than there are slots;
//! - a job's files are deleted only after its last process here has gone, and nothing of it is being copied; until they
//!   are, the job is registered;
//! - no message is longer than the JobTracker reads.
//!
//! While the JobTracker does not answer, tasks keep running up to a limit: the tracker stops them before the JobTracker
//! declares the tracker lost and runs them elsewhere, so that no task runs twice. After a registration the JobTracker
//! names the attempts to stop; the end of each is reported.
//! Deliberately absent: how to reach the JobTracker again (`link`), how to run anything (`child`).

mod language;
mod taking;
mod telling;
#[cfg(test)]
mod tests;

pub use language::*;
pub use telling::ENDED_BYTES;

use crate::ids::{Attempt, Job, Phase};
use proto::mr::{MapEvent, PausedState, Progress, Recall, TaskSpec};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};
use telling::{Untold, shorten};

/// News that come this close together share a heartbeat.
pub const GAP: Duration = Duration::from_millis(2);
/// Until what could not be deleted is tried again.
const CLEAN_AGAIN_AFTER: Duration = Duration::from_mins(1);
/// The part of `lost_after` after which tasks are stopped: the rest is for ending their processes.
const ISOLATED_AT: f64 = 0.9;
/// The interval until the JobTracker names one.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Running {
    progress: Progress,
    /// Why, once it has been told to stop.
    stopped: Option<String>,
    /// Map events that it has been sent.
    told: usize,
    /// How many maps it was told of with them.
    maps: u32,
}

/// A job's map events.
#[derive(Debug, Default)]
struct MapList {
    /// Kept whole for as long as the job may start another reduce here: the JobTracker sends each entry once.
    events: Vec<MapEvent>,
    maps: u32,
}

/// What is left to do before a job is gone.
#[derive(Debug, PartialEq)]
enum Cleaning {
    /// Its processes are dying.
    Waiting,
    /// Its files are being deleted.
    Deleting,
    /// Some could not be: once more, then.
    Again(Instant),
}

impl Cleaning {
    fn again(&self) -> Option<Instant> {
        match self {
            Self::Again(due) => Some(*due),
            _ => None,
        }
    }
}

#[derive(Debug, PartialEq)]
enum Line {
    Down,
    /// A registration is on its way.
    Registering,
    Up,
}

/// The mind.
#[derive(Debug)]
pub struct Agent {
    slots: Slots,
    running: BTreeMap<Attempt, Running>,
    outputs: BTreeSet<Attempt>,
    /// Whose state is put aside here.
    checkpoints: BTreeMap<Attempt, PausedState>,
    /// What is being copied from other trackers.
    taking: BTreeSet<Attempt>,
    /// Every job that there may be something of, on disk or in memory.
    jobs: BTreeSet<Job>,
    map_lists: BTreeMap<Job, MapList>,
    cleaning: BTreeMap<Job, Cleaning>,
    /// To be told next.
    untold: Untold,
    /// On its way, not answered yet.
    on_its_way: Untold,
    line: Line,
    interval: Duration,
    seq: u64,
    acked: u64,
    sent: Option<Heartbeat>,
    next_beat: Option<Instant>,
    /// Something has happened since the last heartbeat that should not wait for the interval.
    urgent: bool,
    /// What the JobTracker gave this process.
    incarnation: u64,
    /// When the message was first sent that is to be answered next.
    asked: Option<Instant>,
    /// When the newest message was sent that the JobTracker has answered: it heard of us then, or later.
    heard: Option<Instant>,
    /// Tasks run at most this long without an answer; `None`: up to the limit that follows from `lost_after`.
    isolation_timeout: Option<Duration>,
    /// The JobTracker gives up a tracker that it has not heard for this long.
    lost_after: Option<Duration>,
}

impl Agent {
    /// With the map outputs, the checkpoints and the jobs that an earlier start left on disk. Tasks are stopped when
    /// the JobTracker has not answered for `isolation_timeout`, and before it gives this tracker up.
    pub fn new(
        slots: Slots,
        outputs: BTreeSet<Attempt>,
        checkpoints: BTreeMap<Attempt, PausedState>,
        jobs: BTreeSet<Job>,
        isolation_timeout: Option<Duration>,
    ) -> Self {
        Self {
            slots,
            running: BTreeMap::new(),
            jobs: outputs.iter().map(|attempt| attempt.job).chain(jobs).collect(),
            outputs,
            checkpoints,
            taking: BTreeSet::new(),
            map_lists: BTreeMap::new(),
            cleaning: BTreeMap::new(),
            untold: Untold::default(),
            on_its_way: Untold::default(),
            line: Line::Down,
            interval: INTERVAL,
            seq: 0,
            acked: 0,
            sent: None,
            next_beat: None,
            urgent: false,
            incarnation: 0,
            asked: None,
            heard: None,
            isolation_timeout,
            lost_after: None,
        }
    }

    /// When to come back with a `Tick`, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let cut_off =
            self.heard.zip(self.isolation_limit()).and_then(|(heard, limit)| heard.checked_add(limit));
        let cut_off = cut_off.filter(|_| self.running.values().any(|running| running.stopped.is_none()));
        let again = self.cleaning.values().filter_map(Cleaning::again);
        [self.next_beat, cut_off].into_iter().flatten().chain(again).min()
    }

    /// How long tasks run on without an answer.
    fn isolation_limit(&self) -> Option<Duration> {
        let lost = self.lost_after.map(|lost| lost.mul_f64(ISOLATED_AT));
        self.isolation_timeout.into_iter().chain(lost).min()
    }

    /// Takes an event in; what follows from it goes to `out`.
    pub fn handle(&mut self, now: Instant, event: Event, out: &mut Vec<Action>) {
        match event {
            // Said again before the registration was read: another would be answered with orders that begin anew.
            Event::RegisterAgain if self.line == Line::Registering => {}
            Event::Connected | Event::RegisterAgain => self.register(now, out),
            Event::Registered { heartbeat, lost_after, incarnation } => {
                self.registered(now, heartbeat, lost_after, incarnation);
            }
            Event::Disconnected => self.hang_up(),
            Event::Refused(words) => self.refused(words, out),
            Event::Orders { answers, orders } => self.ordered(now, answers, orders, out),
            Event::Started(attempt) => {
                if self.running.contains_key(&attempt) {
                    self.hurry(now);
                }
            }
            Event::Progressed(attempt, progress) => {
                if let Some(running) = self.running.get_mut(&attempt) {
                    running.progress = progress;
                }
            }
            Event::Unfetched(failure) => {
                self.untold.add_failure(failure);
                self.hurry(now);
            }
            Event::Ended(attempt, ending) => self.ended(now, attempt, ending, out),
            Event::Took(attempt, result) => self.took(now, attempt, result, out),
            Event::Cleaned(job, whole) => self.cleaned(now, job, whole),
            Event::Tick => {}
        }
        self.clean_again(now, out);
        self.stop_if_cut_off(now, out);
        self.beat_if_due(now, out);
    }

    fn register(&mut self, now: Instant, out: &mut Vec<Action>) {
        self.hang_up();
        self.line = Line::Registering;
        self.asked = Some(now);
        self.on_its_way.ended = self.untold.take_ended();
        out.push(Action::Register {
            incarnation: self.incarnation,
            attempts: self.reports(),
            outputs: self.outputs.iter().copied().collect(),
            checkpoints: self.checkpoints.clone().into_iter().collect(),
            jobs: self.jobs.iter().copied().collect(),
        });
    }

    /// Orders and heartbeats are numbered anew within each registration.
    fn registered(&mut self, now: Instant, heartbeat: Duration, lost_after: Duration, incarnation: u64) {
        if self.line != Line::Registering {
            return;
        }
        self.line = Line::Up;
        self.heard = self.asked.take();
        (self.lost_after, self.incarnation) = (Some(lost_after), incarnation);
        self.on_its_way = Untold::default();
        (self.seq, self.acked) = (0, 0);
        self.interval = heartbeat.max(GAP);
        self.next_beat = Some(now);
    }

    /// What was on its way may not have arrived: it is told again.
    fn hang_up(&mut self) {
        self.line = Line::Down;
        self.next_beat = None;
        self.sent = None;
        let again = std::mem::take(&mut self.on_its_way);
        self.untold.put_back(again);
    }

    /// What runs here runs elsewhere by now.
    fn stop_if_cut_off(&mut self, now: Instant, out: &mut Vec<Action>) {
        let Some(silence) = self.heard.map(|heard| now.saturating_duration_since(heard)) else { return };
        if self.isolation_limit().is_none_or(|limit| silence < limit) {
            return;
        }
        for (attempt, running) in &mut self.running {
            if running.stopped.is_none() {
                let why = format!("cut off from the jobtracker for {:.1} s", silence.as_secs_f64());
                running.stopped = Some(why.clone());
                out.push(Action::Kill(*attempt, why));
            }
        }
    }

    fn refused(&mut self, words: String, out: &mut Vec<Action>) {
        self.hang_up();
        for (attempt, running) in &mut self.running {
            running.stopped.get_or_insert_with(|| words.clone());
            out.push(Action::Kill(*attempt, words.clone()));
        }
        out.push(Action::Exit(words));
    }

    fn ordered(&mut self, now: Instant, answers: u64, orders: Vec<(u64, Order)>, out: &mut Vec<Action>) {
        if self.line != Line::Up {
            return;
        }
        if self.sent.as_ref().is_some_and(|sent| sent.seq == answers) {
            self.sent = None;
            self.heard = self.asked.take().or(self.heard);
            self.on_its_way = Untold::default();
            self.next_beat = Some(now + if self.urgent { GAP } else { self.interval });
        }
        for (number, order) in orders {
            if number <= self.acked {
                continue;
            }
            self.acked = number;
            match order {
                Order::Launch(attempt, spec, from) => self.launch(now, attempt, spec, from, out),
                Order::Stop(attempt, how, why) => self.stop(now, attempt, how, why, out),
                Order::MapEvents(job, news) => self.learn(job, news, out),
                Order::Drop(attempt) => {
                    self.checkpoints.remove(&attempt);
                    out.push(Action::Drop(attempt));
                }
                Order::Take(attempt, source) => self.take(now, attempt, source, out),
                Order::Clean(job) => self.clean(job, out),
                Order::Unknown => {}
            }
        }
    }

    fn launch(
        &mut self,
        now: Instant,
        attempt: Attempt,
        spec: Box<TaskSpec>,
        from: Option<Origin>,
        out: &mut Vec<Action>,
    ) {
        if self.running.contains_key(&attempt) || self.tells_end_of(attempt) {
            return;
        }
        let held = self.running.keys().filter(|running| running.phase == attempt.phase).count();
        let slots = if attempt.phase == Phase::Map { self.slots.map } else { self.slots.reduce };
        let refusal = if self.cleaning.contains_key(&attempt.job) {
            Some("its job is being cleaned up".into())
        } else if held >= slots as usize {
            Some(format!("no {} slot is free, of {slots}", attempt.phase))
        } else {
            None
        };
        if let Some(why) = refusal {
            return self.tell(now, attempt, Ending::Killed(why));
        }
        let running = Running {
            progress: Progress { stage: "start".into(), ..Progress::default() },
            stopped: None,
            told: 0,
            maps: 0,
        };
        self.running.insert(attempt, running);
        self.jobs.insert(attempt.job);
        out.push(Action::Start(attempt, spec, from));
        self.spread_news(attempt.job, out);
    }

    fn stop(&mut self, now: Instant, attempt: Attempt, how: Recall, why: String, out: &mut Vec<Action>) {
        let told = self.tells_end_of(attempt);
        match self.running.get_mut(&attempt) {
            Some(running) if running.stopped.is_none() && how == Recall::Kill => {
                running.stopped = Some(why.clone());
                out.push(Action::Kill(attempt, why));
            }
            // How that went shows in its last word. Asked twice, it has heard it once.
            Some(running) if running.stopped.is_none() => out.push(Action::Ask(attempt, how, why)),
            Some(_) => {}
            None if told => {}
            None => self.tell(now, attempt, Ending::Killed("it does not run here".into())),
        }
    }

    fn tells_end_of(&self, attempt: Attempt) -> bool {
        self.untold.has(attempt) || self.on_its_way.has(attempt)
    }

    fn learn(&mut self, job: Job, news: MapNews, out: &mut Vec<Action>) {
        if self.cleaning.contains_key(&job) {
            return;
        }
        self.jobs.insert(job);
        let known = self.map_lists.entry(job).or_default();
        // Entry n is always the same: what overlaps is known, and a gap cannot be filled by guessing.
        let Some(skip) = known.events.len().checked_sub(news.first as usize) else { return };
        known.events.extend(news.events.into_iter().skip(skip));
        if news.maps > 0 {
            known.maps = news.maps;
        }
        self.spread_news(job, out);
    }

    fn spread_news(&mut self, job: Job, out: &mut Vec<Action>) {
        let Some(MapList { events, maps }) = self.map_lists.get(&job) else { return };
        for (attempt, running) in &mut self.running {
            let behind = running.told < events.len() || running.maps != *maps;
            if attempt.job == job && attempt.phase == Phase::Reduce && behind {
                let (first, new) = (running.told as u64, events[running.told..].to_vec());
                (running.told, running.maps) = (events.len(), *maps);
                out.push(Action::News(*attempt, MapNews { first, events: new, maps: *maps }));
            }
        }
    }

    fn clean(&mut self, job: Job, out: &mut Vec<Action>) {
        self.map_lists.remove(&job);
        self.outputs.retain(|attempt| attempt.job != job);
        self.checkpoints.retain(|attempt, _| attempt.job != job);
        self.untold.failures.retain(|failure| failure.reduce.job != job);
        for (attempt, running) in &mut self.running {
            if attempt.job == job && running.stopped.is_none() {
                let why = "its job is over".to_string();
                running.stopped = Some(why.clone());
                out.push(Action::Kill(*attempt, why));
            }
        }
        self.stop_taking(job, out);
        if self.cleaning.get(&job) != Some(&Cleaning::Deleting) {
            self.cleaning.insert(job, Cleaning::Waiting);
        }
        self.finish_cleaning(job, out);
    }

    fn finish_cleaning(&mut self, job: Job, out: &mut Vec<Action>) {
        let idle = !self.running.keys().chain(&self.taking).any(|attempt| attempt.job == job);
        if let Some(step @ Cleaning::Waiting) = self.cleaning.get_mut(&job)
            && idle
        {
            *step = Cleaning::Deleting;
            out.push(Action::Clean(job));
        }
    }

    /// A job of which something is left stays among those that are registered, and is tried again.
    fn cleaned(&mut self, now: Instant, job: Job, whole: bool) {
        if whole {
            self.cleaning.remove(&job);
            self.jobs.remove(&job);
        } else {
            self.cleaning.insert(job, Cleaning::Again(now + CLEAN_AGAIN_AFTER));
        }
    }

    fn clean_again(&mut self, now: Instant, out: &mut Vec<Action>) {
        for (job, step) in &mut self.cleaning {
            if step.again().is_some_and(|due| due <= now) {
                *step = Cleaning::Deleting;
                out.push(Action::Clean(*job));
            }
        }
    }

    fn ended(&mut self, now: Instant, attempt: Attempt, ending: Ending, out: &mut Vec<Action>) {
        let Some(running) = self.running.remove(&attempt) else { return };
        let ending = match (ending, running.stopped) {
            // Whatever a process says while it is being killed, it was killed.
            (Ending::Failed(_) | Ending::Fatal(_) | Ending::Killed(_), Some(why)) => Ending::Killed(why),
            (ending, _) => ending,
        };
        if !self.cleaning.contains_key(&attempt.job) {
            match &ending {
                Ending::Succeeded { output: true, .. } => drop(self.outputs.insert(attempt)),
                Ending::Paused(state) => drop(self.checkpoints.insert(attempt, state.clone())),
                _ => {}
            }
        }
        self.tell(now, attempt, ending);
        self.finish_cleaning(attempt.job, out);
    }

    fn tell(&mut self, now: Instant, attempt: Attempt, ending: Ending) {
        self.untold.ended.push(Report { attempt, status: Status::Ended(ending) });
        self.hurry(now);
    }

    /// There is something to tell; if a heartbeat is on its way, it waits for the answer.
    fn hurry(&mut self, now: Instant) {
        self.urgent = true;
        if self.line == Line::Up && self.sent.is_none() {
            let soon = now + GAP;
            self.next_beat = Some(self.next_beat.map_or(soon, |due| due.min(soon)));
        }
    }

    fn beat_if_due(&mut self, now: Instant, out: &mut Vec<Action>) {
        if self.line != Line::Up || self.next_beat.is_none_or(|due| now < due) {
            return;
        }
        self.next_beat = Some(now + self.interval);
        let heartbeat = if let Some(again) = self.sent.take() {
            Heartbeat { acked: self.acked, ..again }
        } else {
            self.asked = Some(now);
            self.new_heartbeat()
        };
        self.sent = Some(heartbeat.clone());
        out.push(Action::Beat(heartbeat));
    }

    fn new_heartbeat(&mut self) -> Heartbeat {
        self.seq += 1;
        self.on_its_way = self.untold.take();
        // What one message does not hold follows at once.
        self.urgent = !self.untold.is_empty();
        Heartbeat {
            seq: self.seq,
            acked: self.acked,
            attempts: self.reports(),
            fetch_failures: self.on_its_way.failures.iter().cloned().collect(),
        }
    }

    /// Everything that runs, and the ends that are on their way. Ends that one message does not hold are told after;
    /// until then their attempts are said to run.
    fn reports(&self) -> Vec<Report> {
        let report = |attempt, progress| Report { attempt, status: Status::Running(progress) };
        let running =
            self.running.iter().map(|(attempt, running)| report(*attempt, running.progress.clone()));
        let later = self.untold.ended.iter().map(|later| report(later.attempt, Progress::default()));
        let mut reports: Vec<Report> = running.chain(later).collect();
        shorten(&mut reports);
        reports.extend(self.on_its_way.ended.iter().cloned());
        reports
    }
}
