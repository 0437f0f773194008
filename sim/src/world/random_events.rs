//! Random events of a fuzzed run, which occur for a limited time: attempts fail, hang or refuse a
//! preemption; users preempt, resume, kill and drain; trackers die or disconnect; messages are
//! repeated or late.

use super::{AgentEvent, SimEvent, World};
use crate::fault::FaultKind;
use agent::FetchFailure;
use mrcore::{
    Event, Phase, Span,
    event::{Heartbeat, Reply},
    ids::{AttemptId, JobId, TaskId},
    task::{PreemptKind, Task},
};

/// Duration of the phase in which random events occur.
const DURATION: Span = Span::secs(120);
/// Time between two rounds of random events.
const INTERVAL: Span = Span::millis(200);

impl World {
    /// Returns true with probability 1/`times` while random events occur, and false afterwards.
    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.random.as_mut().is_some_and(|rng| rng.one_in(times))
    }

    /// Returns a random index below `count`.
    fn random_index(&mut self, count: usize) -> usize {
        self.random.as_mut().map_or(0, |rng| rng.index(count.max(1)))
    }

    /// Starts random faults and requests, and schedules the next round.
    pub(super) fn random_event(&mut self) {
        if self.now >= crate::BEGINNING + DURATION && self.core.is_some() {
            return self.end_random_events();
        }
        self.queue.push(self.now + INTERVAL, SimEvent::Random);
        if self.one_in(20) {
            self.random_fault();
        }
        if self.one_in(10) {
            self.random_request();
        }
    }

    fn end_random_events(&mut self) {
        self.random = None;
        self.faults_open -= 1;
    }

    fn random_fault(&mut self) {
        let at = self.random_index(self.nodes.len());
        let node = at as u32;
        let seconds = |world: &mut Self, limit: usize| Span::secs(world.random_index(limit) as u64);
        match self.random_index(10) {
            0 => {
                let lasts = seconds(self, 4);
                self.inject_for(FaultKind::JobTracker, lasts);
            }
            1 => {
                let jobs: Vec<JobId> =
                    self.core.iter().flat_map(|core| core.cluster().jobs()).map(|job| job.id).collect();
                if !jobs.is_empty() {
                    let (job, request) = (jobs[self.random_index(jobs.len())], self.manual_request());
                    self.send_event(Event::Kill { request, job, by: "operator".into() });
                }
            }
            2 => self.random_crash(at),
            3 if self.nodes[at].can_communicate() && self.nodes[at].tracker_id.is_some() => {
                self.disconnect(at);
            }
            3 => {}
            4 => self.random_drain(at),
            5 | 6 => {
                // Kills a tracker on which a reduce is being paused.
                let pausing = |run: &super::run::Run| run.preempting == Some(PreemptKind::Pause);
                let busy = self.nodes.iter().position(|node| node.runs.iter().any(pausing));
                self.random_crash(busy.unwrap_or(at));
            }
            _ => {
                let lasts = seconds(self, 20);
                self.inject_for(FaultKind::Partition { node }, lasts);
            }
        }
    }

    /// Kills a tracker. Checkpoints that were just saved are on disk but not reported. Some files
    /// are lost.
    fn random_crash(&mut self, at: usize) {
        let node = &self.nodes[at];
        if !node.is_up() {
            return;
        }
        let pausing = node.runs.iter().filter(|run| run.preempting == Some(PreemptKind::Pause));
        for key in pausing.map(|run| run.key).collect::<Vec<_>>() {
            if self.one_in(2) {
                self.save_checkpoint(at, key);
            }
        }
        let lasts = Span::secs(self.random_index(15) as u64);
        self.inject_for(FaultKind::Tracker { node: at as u32 }, lasts);
        if self.one_in(2) {
            self.nodes[at].lose_outputs();
        }
        if self.one_in(3) {
            self.lose_checkpoints(at);
        }
    }

    /// Breaks the connection of a tracker.
    pub(super) fn disconnect(&mut self, at: usize) {
        self.close_connection(at);
        self.send_to_agent(at, AgentEvent::Disconnected);
        self.connect_again(at);
    }

    /// Drains a tracker, or cancels its drain, as a user would.
    fn random_drain(&mut self, at: usize) {
        let Some(tracker) = self.nodes[at].tracker_id else { return };
        let known = self.core.as_ref().and_then(|core| core.cluster().tracker(tracker));
        let is_draining = known.is_some_and(|tracker| tracker.drain.is_some());
        let within = (!is_draining).then(|| Span::secs(self.random_index(40) as u64));
        let (request, by) = (self.manual_request(), "operator".to_owned());
        self.send_event(Event::Drain { request, tracker, within, by });
    }

    /// Preempts a random attempt or resumes a task on hold, as a user would.
    fn random_request(&mut self) {
        let Some(core) = &self.core else { return };
        let tasks = || core.cluster().jobs().filter(|job| !job.has_ended()).flat_map(|job| &job.tasks.reduce);
        let on_hold = tasks().find(|task| task.on_hold).map(|task| task.id);
        // One attempt of the task has been paused while another, which started without a
        // checkpoint, still runs.
        let is_behind = |task: &Task| {
            task.checkpoint.is_some() && task.viable_attempts().any(|attempt| attempt.resumed_from.is_none())
        };
        let with_two_attempts: Vec<AttemptId> = tasks()
            .filter(|task| task.viable_attempts().count() > 1 || is_behind(task))
            .flat_map(|task| task.viable_attempts().map(|attempt| attempt.id))
            .collect();
        let all = || {
            core.cluster()
                .jobs()
                .filter(|job| !job.has_ended())
                .flat_map(|job| job.tasks.map.iter().chain(&job.tasks.reduce))
        };
        let running: Vec<AttemptId> =
            self.nodes.iter().flat_map(|node| &node.runs).map(|run| run.id).collect();
        // Includes ended attempts, as if the user did not know yet that they have ended.
        let any: Vec<AttemptId> =
            all().flat_map(|task| task.attempts.iter().map(|attempt| attempt.id)).collect();
        if let Some(task) = on_hold.filter(|_| self.one_in(2)) {
            return self.resume(task);
        }
        let known = if !with_two_attempts.is_empty() {
            with_two_attempts
        } else if self.one_in(5) {
            any
        } else {
            running
        };
        if known.is_empty() {
            return;
        }
        let attempt = known[self.random_index(known.len())];
        let lossless = if attempt.phase() == Phase::Map { PreemptKind::Split } else { PreemptKind::Pause };
        let kind = if self.one_in(4) { PreemptKind::Kill } else { lossless };
        let request = self.manual_request();
        let event = Event::Preemption { request, attempt, kind, by: "operator".into() };
        let reply = self.send_twice(event);
        self.count("killed by a user", kind == PreemptKind::Kill && reply == Some(Reply::Accepted));
    }

    fn resume(&mut self, task: TaskId) {
        let at = self.random_index(self.nodes.len());
        let on = self.nodes[at].tracker_id.filter(|_| self.one_in(2));
        let request = self.manual_request();
        self.send_twice(Event::Resumption { request, task, on, by: "operator".into() });
    }

    /// Sends a request twice, and checks that both replies are the same.
    pub(super) fn send_twice(&mut self, event: Event) -> Option<Reply> {
        self.send_event(event.clone());
        let first = self.last_reply.take();
        self.repeat_request(event.clone(), first.clone());
        if let Some(first) = &first
            && matches!(event, Event::Preemption { .. } | Event::Resumption { .. })
        {
            self.last_request = Some((event, first.clone()));
        }
        first
    }

    fn repeat_request(&mut self, event: Event, first: Option<Reply>) {
        if let Event::Preemption { request, .. } | Event::Resumption { request, .. } = event {
            self.manual_requests.insert(request);
        }
        self.last_reply = None;
        self.send_event(event);
        if first != self.last_reply {
            self.violation = Some(format!("a repeated request has a different reply than {first:?}"));
        }
    }

    /// Sends the last preemption or resumption again after a restart of the JobTracker, and checks
    /// that the reply is the same.
    pub(super) fn repeat_last_request(&mut self) {
        if self.random.is_some()
            && let Some((event, first)) = self.last_request.clone()
        {
            self.repeat_request(event, Some(first));
            self.count("request repeated after a restart", true);
        }
    }

    /// Repeats a heartbeat, or sends one of an earlier process. Checks that neither changes
    /// anything.
    pub(super) fn repeat_heartbeat(&mut self, heartbeat: Heartbeat) {
        let (again, late) = (self.one_in(10), heartbeat.incarnation.0 > 1 && self.one_in(20));
        let facts = self.trace.facts;
        if again {
            self.send_event(Event::Heartbeat(heartbeat.clone()));
        }
        if late {
            let mut old = heartbeat;
            (old.incarnation.0, old.seq) = (old.incarnation.0 - 1, old.seq + 100);
            self.send_event(Event::Heartbeat(old));
            self.count("late heartbeat", true);
        }
        if self.trace.facts != facts {
            self.violation = Some("a repeated or late heartbeat changed something".into());
        }
    }

    /// Returns false reports of fetch failures, at the current address of a map output or at the
    /// address of the previous process.
    pub(super) fn random_fetch_failures(&mut self, at: usize) -> Vec<FetchFailure> {
        if !self.one_in(15) {
            return Vec::new();
        }
        let outdated = self.one_in(3);
        let number = self.random_index(1 << 20);
        let Some(core) = &self.core else { return Vec::new() };
        let cluster = core.cluster();
        let reduces = self.nodes[at].runs.iter().filter(|run| run.id.phase() == Phase::Reduce);
        let failure = |run: &super::run::Run| {
            let job = cluster.job(run.id.job())?;
            let maps: Vec<_> = job.tasks.map.iter().filter_map(Task::winning_attempt).collect();
            let map = maps.get(number % maps.len().max(1))?;
            let on = &self.nodes[*self.by_tracker.get(&map.output_on)? as usize];
            let addr = on.shuffle_addr(on.starts - u32::from(outdated));
            Some(FetchFailure { reduce: run.id, map: map.id, addr })
        };
        reduces.filter_map(failure).collect()
    }
}
