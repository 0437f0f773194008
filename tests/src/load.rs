//! Clients that work while a test disturbs the masters: none of their requests may fail.

use crate::Ran;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How often each client has done its request, and how long the slowest took.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Number of requests.
    pub count: usize,
    /// How long the slowest took.
    pub slowest: Duration,
}

/// Ends the clients, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does `action` while clients create files in the folder `base`, read one of them, and submit jobs. Each
/// request is a run of `mrctl`, which must succeed; `file` is the local file to copy. Returns what was
/// created, read and submitted.
pub fn while_clients_work(
    mrctl: impl Fn(&[&str]) -> Ran + Sync,
    file: &Path,
    base: &str,
    action: impl FnOnce(),
) -> [Work; 3] {
    let (stop, local) = (AtomicBool::new(false), file.to_str().expect("a path in UTF-8"));
    let done = [(); 3].map(|()| AtomicUsize::new(0));
    let contents = std::fs::read_to_string(file).expect("the local file");
    let run = |args: &[&str]| {
        let ran = mrctl(args);
        assert_eq!(ran.code, 0, "mrctl {args:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    };
    run(&["fs", "put", local, &format!("{base}/read")]);
    let clients: [&(dyn Fn(usize) + Sync); 3] = [
        &|number| drop(run(&["fs", "put", local, &format!("{base}/created-{number}")])),
        &|_| assert_eq!(run(&["fs", "cat", &format!("{base}/read")]), contents),
        &|number| {
            let output = format!("{base}/job-{number}");
            run(&["submit", "teragen", "--output", &output, "--conf", "rows=10", "--detach"]);
        },
    ];
    let repeat = |at: usize| {
        let mut slowest = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            let since = Instant::now();
            clients[at](done[at].load(Ordering::Relaxed));
            slowest = slowest.max(since.elapsed());
            done[at].fetch_add(1, Ordering::Relaxed);
        }
        Work { count: done[at].load(Ordering::Relaxed), slowest }
    };
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        let running = [0, 1, 2].map(|at| scope.spawn(move || repeat(at)));
        let all_work = || done.iter().all(|one| one.load(Ordering::Relaxed) > 0);
        let has_failed = || running.iter().any(thread::ScopedJoinHandle::is_finished);
        crate::eventually("all clients work", || (all_work() || has_failed()).then_some(()));
        action();
        stop.store(true, Ordering::Relaxed);
        running.map(|client| client.join().unwrap_or_else(|failure| std::panic::resume_unwind(failure)))
    })
}
