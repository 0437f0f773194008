//! The tracker's mind: what runs in which slot, which orders have been taken, what has yet to be told.
//!
//! No clock, socket, process or file: events come in with the time, actions go out. What holds:
//! - an order is taken once, by number, and in order; repeats are skipped;
//! - how an attempt ended is told until the heartbeat (or registration) that carried it has been answered;
//! - one heartbeat is on its way at a time, and is sent again, the same, until it is answered;
//! - no more attempts run than there are slots;
//! - a job's files are deleted only after its last process here has gone.
//!
//! While the JobTracker is away everything goes on; after the next registration it says what to stop.
//! Deliberately absent: how to reach the JobTracker again (`link`), how to run anything (`child`).

#[cfg(test)]
mod tests;

use crate::ids::{Attempt, Job, Phase};
use proto::mr::{MapEvent, Progress, TaskResult, TaskSpec};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// News that come this close together share a heartbeat.
pub const GAP: Duration = Duration::from_millis(2);
/// The interval until the JobTracker names one.
const INTERVAL: Duration = Duration::from_secs(1);

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// There is a line to the JobTracker.
    Connected,
    /// It took the registration.
    Registered {
        /// How often it wants to hear of us.
        heartbeat: Duration,
    },
    /// It does not know us any more.
    RegisterAgain,
    /// It has spoken its last word to us.
    Refused(String),
    /// Orders, as the answer to a heartbeat unless `answers` is 0.
    Orders {
        /// Which heartbeat.
        answers: u64,
        /// What to do, numbered.
        orders: Vec<(u64, Order)>,
    },
    /// The line broke.
    Disconnected,
    /// A process has been given its attempt.
    Started(Attempt),
    /// It came further.
    Progressed(Attempt, Progress),
    /// A reduce could not fetch a map's output.
    Unfetched {
        /// Who wanted it.
        reduce: Attempt,
        /// Whose output.
        map: Attempt,
    },
    /// Its process is gone, and so is its folder.
    Ended(Attempt, Ending),
    /// Time has passed.
    Tick,
}

/// What the JobTracker wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// Run this.
    Launch(Attempt, Box<TaskSpec>),
    /// Stop this, and say when it is gone. Splitting and pausing will be other ways to stop.
    Stop(Attempt, String),
    /// Entries of a job's map events, for its reduces.
    MapEvents(Job, u64, Vec<MapEvent>),
    /// Delete whatever is left of a job.
    Clean(Job),
    /// Not understood; taken, so that it is not sent for ever.
    Unknown,
}

/// How an attempt came to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// All its work is done.
    Succeeded {
        /// What it has to show.
        result: TaskResult,
        /// Whether this tracker now has map output of it.
        output: bool,
    },
    /// It did not work out, and why.
    Failed(String),
    /// It was stopped.
    Killed(String),
}

/// Something to be done, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Run an attempt.
    Start(Attempt, Box<TaskSpec>),
    /// End it at once.
    Kill(Attempt, String),
    /// Tell a reduce about maps.
    News {
        /// Whom.
        reduce: Attempt,
        /// The number of the first.
        first: u64,
        /// The news.
        events: Vec<MapEvent>,
    },
    /// Delete a job's files; nothing of it runs any more.
    Clean(Job),
    /// Say who we are and what we have.
    Register {
        /// Running, or ended and not yet told.
        attempts: Vec<Report>,
        /// Maps whose output is here.
        outputs: Vec<Attempt>,
    },
    /// The regular word.
    Beat(Heartbeat),
    /// The end, with the reason; everything that runs has been killed before.
    Exit(String),
}

/// The regular word.
#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    /// Counts up from 1 within a registration.
    pub seq: u64,
    /// The newest order taken.
    pub acked: u64,
    /// What attempts do and did.
    pub attempts: Vec<Report>,
    /// Reduce and map: output that could not be fetched.
    pub fetch_failures: Vec<(Attempt, Attempt)>,
}

/// What is said of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Which.
    pub attempt: Attempt,
    /// What.
    pub status: Status,
}

/// The states that the JobTracker is told. All but `Running` mean that the process is gone and the slot is free.
#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    /// It is this far.
    Running(Progress),
    /// It is over.
    Ended(Ending),
}

/// How many attempts run at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Maps.
    pub map: u32,
    /// Reduces.
    pub reduce: u32,
}

#[derive(Debug)]
struct Running {
    progress: Progress,
    /// Why, once it has been told to stop.
    stopped: Option<String>,
    /// Map events that it has been sent.
    told: usize,
}

#[derive(Debug, PartialEq)]
enum Line {
    Down,
    /// A registration is on its way.
    Registering,
    Up,
}

/// Something told whose answer is awaited.
#[derive(Debug, Default)]
struct Untold {
    /// How attempts ended.
    ended: Vec<Report>,
    failures: Vec<(Attempt, Attempt)>,
}

/// The mind.
#[derive(Debug)]
pub struct Agent {
    slots: Slots,
    running: BTreeMap<Attempt, Running>,
    outputs: BTreeSet<Attempt>,
    /// Kept whole for as long as the job may start another reduce here: the JobTracker sends each entry once.
    map_events: BTreeMap<Job, Vec<MapEvent>>,
    cleaning: BTreeSet<Job>,
    /// The newest ending of each job that has not been cleaned. Told again with each registration: a job that ended
    /// while we were away is known by it, and its files are ordered away.
    last: BTreeMap<Job, Report>,
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
}

impl Agent {
    /// With what an earlier start left on disk.
    pub fn new(slots: Slots, outputs: BTreeSet<Attempt>) -> Self {
        Self {
            slots,
            running: BTreeMap::new(),
            outputs,
            map_events: BTreeMap::new(),
            cleaning: BTreeSet::new(),
            last: BTreeMap::new(),
            untold: Untold::default(),
            on_its_way: Untold::default(),
            line: Line::Down,
            interval: INTERVAL,
            seq: 0,
            acked: 0,
            sent: None,
            next_beat: None,
            urgent: false,
        }
    }

    /// When to come back with a `Tick`, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.next_beat
    }

    /// Takes an event in; what follows from it goes to `out`.
    pub fn handle(&mut self, now: Instant, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Connected | Event::RegisterAgain => self.register(out),
            Event::Registered { heartbeat } => self.registered(now, heartbeat),
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
            Event::Unfetched { reduce, map } => {
                self.untold.failures.push((reduce, map));
                self.hurry(now);
            }
            Event::Ended(attempt, ending) => self.ended(now, attempt, ending, out),
            Event::Tick => {}
        }
        self.beat_if_due(now, out);
    }

    fn register(&mut self, out: &mut Vec<Action>) {
        self.hang_up();
        self.line = Line::Registering;
        self.on_its_way.ended = std::mem::take(&mut self.untold.ended);
        let mut attempts = self.reports_of_running();
        attempts.extend(self.on_its_way.ended.iter().cloned());
        let told: BTreeSet<Job> = attempts.iter().map(|report| report.attempt.job).collect();
        attempts.extend(self.last.values().filter(|report| !told.contains(&report.attempt.job)).cloned());
        out.push(Action::Register { attempts, outputs: self.outputs.iter().copied().collect() });
    }

    /// Orders and heartbeats are numbered anew within each registration.
    fn registered(&mut self, now: Instant, heartbeat: Duration) {
        if self.line != Line::Registering {
            return;
        }
        self.line = Line::Up;
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
        let mut again = std::mem::take(&mut self.on_its_way);
        again.ended.append(&mut self.untold.ended);
        again.failures.append(&mut self.untold.failures);
        self.untold = again;
    }

    fn refused(&mut self, words: String, out: &mut Vec<Action>) {
        self.hang_up();
        out.extend(self.running.keys().map(|attempt| Action::Kill(*attempt, words.clone())));
        out.push(Action::Exit(words));
    }

    fn ordered(&mut self, now: Instant, answers: u64, orders: Vec<(u64, Order)>, out: &mut Vec<Action>) {
        if self.line != Line::Up {
            return;
        }
        if self.sent.as_ref().is_some_and(|sent| sent.seq == answers) {
            self.sent = None;
            self.on_its_way = Untold::default();
            self.next_beat = Some(now + if self.urgent { GAP } else { self.interval });
        }
        for (number, order) in orders {
            if number <= self.acked {
                continue;
            }
            self.acked = number;
            match order {
                Order::Launch(attempt, spec) => self.launch(now, attempt, spec, out),
                Order::Stop(attempt, why) => self.stop(now, attempt, why, out),
                Order::MapEvents(job, first, events) => self.learn(job, first, events, out),
                Order::Clean(job) => self.clean(job, out),
                Order::Unknown => {}
            }
        }
    }

    fn launch(&mut self, now: Instant, attempt: Attempt, spec: Box<TaskSpec>, out: &mut Vec<Action>) {
        let over = self.untold.ended.iter().chain(&self.on_its_way.ended).any(|told| told.attempt == attempt);
        if self.running.contains_key(&attempt) || over {
            return;
        }
        let held = self.running.keys().filter(|running| running.phase == attempt.phase).count();
        let slots = if attempt.phase == Phase::Map { self.slots.map } else { self.slots.reduce };
        let refusal = if self.cleaning.contains(&attempt.job) {
            Some("its job is being cleaned up".into())
        } else if held >= slots as usize {
            Some(format!("all {slots} {} slots are taken", attempt.phase))
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
        };
        self.running.insert(attempt, running);
        out.push(Action::Start(attempt, spec));
        self.spread_news(attempt.job, out);
    }

    fn stop(&mut self, now: Instant, attempt: Attempt, why: String, out: &mut Vec<Action>) {
        match self.running.get_mut(&attempt) {
            Some(running) if running.stopped.is_none() => {
                running.stopped = Some(why.clone());
                // The one way to stop so far. A split or a pause will be asked of the process here instead.
                out.push(Action::Kill(attempt, why));
            }
            Some(_) => {}
            None => {
                let told = self.untold.ended.iter().chain(&self.on_its_way.ended);
                if !told.clone().any(|told| told.attempt == attempt) {
                    self.tell(now, attempt, Ending::Killed("it does not run here".into()));
                }
            }
        }
    }

    fn learn(&mut self, job: Job, first: u64, events: Vec<MapEvent>, out: &mut Vec<Action>) {
        let known = self.map_events.entry(job).or_default();
        // Entry n is always the same: what overlaps is known, and a gap cannot be filled by guessing.
        let Some(skip) = known.len().checked_sub(first as usize) else { return };
        known.extend(events.into_iter().skip(skip));
        self.spread_news(job, out);
    }

    fn spread_news(&mut self, job: Job, out: &mut Vec<Action>) {
        let Some(known) = self.map_events.get(&job) else { return };
        for (attempt, running) in &mut self.running {
            if attempt.job == job && attempt.phase == Phase::Reduce && running.told < known.len() {
                let (first, events) = (running.told as u64, known[running.told..].to_vec());
                running.told = known.len();
                out.push(Action::News { reduce: *attempt, first, events });
            }
        }
    }

    fn clean(&mut self, job: Job, out: &mut Vec<Action>) {
        self.map_events.remove(&job);
        self.outputs.retain(|attempt| attempt.job != job);
        for (attempt, running) in &mut self.running {
            if attempt.job == job && running.stopped.is_none() {
                let why = "its job is over".to_string();
                running.stopped = Some(why.clone());
                out.push(Action::Kill(*attempt, why));
            }
        }
        self.cleaning.insert(job);
        self.finish_cleaning(job, out);
    }

    fn finish_cleaning(&mut self, job: Job, out: &mut Vec<Action>) {
        let idle = !self.running.keys().any(|attempt| attempt.job == job);
        if idle && self.cleaning.remove(&job) {
            self.last.remove(&job);
            out.push(Action::Clean(job));
        }
    }

    fn ended(&mut self, now: Instant, attempt: Attempt, ending: Ending, out: &mut Vec<Action>) {
        let Some(running) = self.running.remove(&attempt) else { return };
        let ending = match (ending, running.stopped) {
            // Whatever a process says while it is being killed, it was killed.
            (Ending::Failed(_) | Ending::Killed(_), Some(why)) => Ending::Killed(why),
            (ending, _) => ending,
        };
        if matches!(ending, Ending::Succeeded { output: true, .. }) && !self.cleaning.contains(&attempt.job) {
            self.outputs.insert(attempt);
        }
        self.last.insert(attempt.job, Report { attempt, status: Status::Ended(ending.clone()) });
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
        let heartbeat = match self.sent.take() {
            Some(again) => Heartbeat { acked: self.acked, ..again },
            None => self.new_heartbeat(),
        };
        self.sent = Some(heartbeat.clone());
        out.push(Action::Beat(heartbeat));
    }

    fn new_heartbeat(&mut self) -> Heartbeat {
        self.seq += 1;
        self.urgent = false;
        self.on_its_way = std::mem::take(&mut self.untold);
        let mut attempts = self.reports_of_running();
        attempts.extend(self.on_its_way.ended.iter().cloned());
        Heartbeat {
            seq: self.seq,
            acked: self.acked,
            attempts,
            fetch_failures: self.on_its_way.failures.clone(),
        }
    }

    fn reports_of_running(&self) -> Vec<Report> {
        let report = |(attempt, running): (&Attempt, &Running)| Report {
            attempt: *attempt,
            status: Status::Running(running.progress.clone()),
        };
        self.running.iter().map(report).collect()
    }
}
