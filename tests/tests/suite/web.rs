//! `mrctl web`: pages with the same information as the commands, and their protection.

use crate::{jobs_pause, security::Lab};
use fermata_tests::{Cluster, QUICK, Ran, TIMEOUT, Up, eventually, skip};
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

const MARKUP_NAME: &str = "<script>alert(1)</script>";

/// A running `mrctl web`. Killed when dropped.
struct Pages {
    process: Child,
    port: u16,
    token: String,
    /// Cookie of the browser, after sign-in.
    cookie: OnceLock<String>,
}

struct Page {
    status: u16,
    head: String,
    body: String,
}

impl Pages {
    fn of(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("mrctl starts");
        let mut line = String::new();
        let out = process.stdout.take().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let rest =
            line.trim().strip_prefix("http://127.0.0.1:").unwrap_or_else(|| panic!("no address: {line:?}"));
        let (port, path) = rest.split_once('/').expect("a path");
        let token = path.strip_prefix("?token=").unwrap_or_default().to_owned();
        Self { process, port: port.parse().expect("a port"), token, cookie: OnceLock::new() }
    }

    /// Signs in with the token, like a browser that opens the printed address. Can be called once.
    fn sign_in(&self, path: &str) -> Page {
        let page = self.get(&format!("{path}?token={}", self.token));
        let cookie = page.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        let pair = cookie.and_then(|cookie| cookie.split(';').next()).expect("a cookie").to_owned();
        self.cookie.set(pair).expect("signed in once");
        page
    }

    /// Sends a request with this method, path and headers over a plain socket.
    fn ask(&self, method: &str, path: &str, headers: &[&str]) -> Page {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let headers = headers.iter().fold(String::new(), |all, header| all + header + "\r\n");
        write!(stream, "{method} {path} HTTP/1.1\r\n{headers}\r\n").expect("it reads");
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect("an answer");
        let text = String::from_utf8_lossy(&text).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Page { status, head: head.to_lowercase(), body: body.into() }
    }

    /// Gets a page, with the cookie if there is one.
    fn get(&self, path: &str) -> Page {
        let host = format!("Host: 127.0.0.1:{}", self.port);
        match self.cookie.get() {
            Some(cookie) => self.ask("GET", path, &[&host, &format!("Cookie: other=1; {cookie}")]),
            None => self.ask("GET", path, &[&host]),
        }
    }

    /// Waits until a page contains this text.
    fn page_with(&self, path: &str, words: &str) -> Page {
        eventually(&format!("{path} says {words}"), || {
            Some(self.get(path)).filter(|page| page.body.contains(words))
        })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pages(cluster: &Cluster) -> Pages {
    Pages::of(cluster.command(&["web", "--port", "0"]))
}

/// Starts a job whose maps are split, and whose reduce is paused twice and then on hold.
fn job_with_preemptions(cluster: &Cluster) -> String {
    let slow = ["--conf", "pace.map=60KiB", "--conf", "slow.start=0", "--conf", "pace.reduce=40KiB"];
    let words =
        ["wordcount", "--reduces", "1", "--input", "/text", "--output", "/out", "--name", MARKUP_NAME];
    let job = cluster.detach(&[&words[..], &slow].concat());
    eventually("a map is split", || {
        let ran: Ran = cluster.try_mrctl(&["preempt", &format!("{job}.m0.0"), "--how", "split"]);
        (ran.code == 0).then_some(())
    });
    jobs_pause::pause(cluster, &format!("{job}.r0"), "shuffle");
    cluster.mrctl(&["resume", &format!("{job}.r0")]);
    jobs_pause::pause(cluster, &format!("{job}.r0"), "reduce");
    job
}

#[test]
fn pages_show_what_commands_show() {
    let settings = format!("{QUICK}[jobtracker]\nheartbeat = \"200ms\"\njobs_kept = 1\n");
    let cluster = Cluster::up(Up { nodes: 2, block_size: "256KiB", settings: &settings, ..Up::default() });
    fs::write(cluster.path("text"), jobs_pause::lines(15_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let pages = pages(&cluster);
    pages.sign_in("/");
    let job = job_with_preemptions(&cluster);

    let shown = cluster.json(&["job", &job]);
    let cost = &shown["preemption"];
    assert!(cost["splits"].as_u64() >= Some(1) && cost["pauses"].as_u64() == Some(2), "{shown}");
    let page = pages.page_with(&format!("/job/{job}"), "1 paused");
    let tile = |name: &str, value: &str| {
        let text = format!("<div class='name'>{name}</div><div class='value ");
        let (_, rest) = page.body.split_once(&text).unwrap_or_else(|| panic!("no {name}: {}", page.body));
        let rest = rest.split_once('>').unwrap().1;
        assert!(rest.starts_with(&format!("{value}</div>")), "{name}: {value}: {rest:.80}");
    };
    for (name, key) in [
        ("Splits of maps", "splits"),
        ("Pauses of reduces", "pauses"),
        ("Resumes", "resumes"),
        ("Kills", "kills"),
    ] {
        tile(name, &cost[key].to_string());
    }
    tile("Work lost", "0 B");
    let seconds = |key: &str| format!("in {:.2} s</div>", cost[key].as_u64().unwrap() as f64 / 1000.0);
    assert!(page.body.contains(&seconds("ms_saved")) && page.body.contains(&seconds("ms_lost")));
    assert!(page.body.contains("Checkpoints") && page.body.contains("slot free after"), "{}", page.body);
    // The page contains the chart, the tree of ranges, the pauses and the reasons.
    for part in [
        "class='split'",
        "class='pause'",
        "class='gap'",
        "└ ",
        "class='range'",
        "paused until `mrctl resume`",
    ] {
        assert!(page.body.contains(part), "no {part}: {}", page.body);
    }
    let why = cluster.json(&["why", &job]);
    let last = why["recent_events"].as_array().unwrap().last().unwrap()["text"].as_str().unwrap().to_owned();
    let escaped = last.replace('\'', "&#39;").replace('"', "&quot;");
    assert!(page.body.contains(&escaped), "no {last}: {}", page.body);
    for place in ["/".to_owned(), "/jobs".into(), format!("/job/{job}")] {
        let page = pages.get(&place);
        assert!(page.status == 200 && page.body.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{place}");
        assert!(!page.body.contains(MARKUP_NAME), "{place} contains the unescaped name of a job");
    }
    let task = pages.get(&format!("/task/{job}.r0"));
    assert!(task.status == 200 && task.body.matches("slot free after").count() >= 2, "{}", task.body);
    assert!(task.body.contains("until `mrctl resume`") && task.body.contains("id='log'"));
    let attempt = pages.get(&format!("/task/{job}.m0.0?stream=stdout"));
    assert!(attempt.status == 200 && attempt.body.contains("split into"), "{}", attempt.body);
    let nodes = pages.get("/nodes");
    assert!(nodes.body.contains("node2") && nodes.body.contains("Under-replicated"), "{}", nodes.body);

    check_top_shows_the_job(&cluster, &job);
    check_pages_while_a_master_is_down(&cluster, &pages, &job);
    cluster.mrctl(&["resume", &format!("{job}.r0")]);
    jobs_pause::await_success(&cluster, &job);
    assert!(pages.page_with(&format!("/job/{job}"), "data-live='no'").body.contains("succeeded"));
    // After two more jobs, the job is only in the history.
    for at in ["/a", "/b"] {
        cluster.succeed(&["wordcount", "--input", "/text", "--output", at]);
    }
    assert!(cluster.refused(1, &["job", &job]).contains("no longer in memory"));
    let page = pages.page_with(&format!("/job/{job}"), "from its history");
    for part in ["class='split'", "class='pause'", "└ ", "2 paused", "&lt;script&gt;"] {
        assert!(page.body.contains(part), "no {part} in history: {}", page.body);
    }
    check_web_ends_by_a_signal(pages);
}

/// Opens pages in a real browser: they are complete, and the console has no error, for example a
/// violation of the content security policy.
#[test]
#[ignore = "needs Chromium: see scripts/nightly"]
fn pages_work_in_a_browser() {
    let is_installed = Command::new("chromium").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_installed {
        return skip("chromium", "chromium is not installed");
    }
    let cluster = Cluster::up(Up { nodes: 2, block_size: "256KiB", settings: QUICK, ..Up::default() });
    fs::write(cluster.path("text"), jobs_pause::lines(15_000)).unwrap();
    cluster.mrctl(&["fs", "put", "text", "/text"]);
    let job = job_with_preemptions(&cluster);
    let job_page = format!("/job/{job}");
    for (path, words) in
        [("/", job.as_str()), ("/jobs", &job), (&job_page, "class=\"pause\""), ("/nodes", "node2")]
    {
        for size in ["390,844", "1280,800"] {
            // The token in the address is valid once, so each visit has its own server.
            let pages = pages(&cluster);
            let profile = cluster.path("browser");
            let mut browser = Command::new("chromium");
            browser.args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--enable-logging=stderr",
                "--dump-dom",
            ]);
            // Virtual time, in ms: the script of the page loads it again after 2 s.
            browser.args([&format!("--window-size={size}"), "--virtual-time-budget=5000"]);
            browser.arg(format!("--user-data-dir={}", profile.display()));
            browser.arg(format!("http://127.0.0.1:{}{path}?token={}", pages.port, pages.token));
            let ran: Ran = browser.output().expect("chromium starts").into();
            assert!(
                ran.code == 0 && ran.stdout.contains(words),
                "{path}: no {words}: {}{}",
                ran.stdout,
                ran.stderr
            );
            assert!(!ran.stderr.contains("CONSOLE"), "{path}: {}", ran.stderr);
        }
    }
}

fn check_top_shows_the_job(cluster: &Cluster, job: &str) {
    let shown = cluster.mrctl(&["top", "--once"]);
    assert!(
        shown.lines().any(|line| line.starts_with(&format!("{job} "))) && shown.contains("node2"),
        "{shown}"
    );
    let glance = cluster.json(&["top"]);
    assert!(glance["jobs"][0]["job"] == job && glance["jobs"][0]["preemption"]["pauses"] == 2, "{glance}");
    assert!(glance["slots"]["maps"][1].as_u64() >= Some(2), "{glance}");
    assert_eq!(glance["files"]["nodes"].as_array().map(Vec::len), Some(2), "{glance}");
    assert_eq!(glance["files"]["disks"], 1, "both nodes are on one file system: {glance}");
    assert!(cluster.refused(2, &["top", "--every", "10ms"]).contains("at least 1s"));
}

fn check_pages_while_a_master_is_down(cluster: &Cluster, pages: &Pages, job: &str) {
    cluster.mrctl(&["chaos", "kill", "jobtracker"]);
    for asks in [&["top", "--once"][..], &["health", "jobtracker"]] {
        let why = cluster.refused(1, asks);
        assert!(why.contains("JobTracker") || why.contains("jobtracker"), "{asks:?}: {why}");
    }
    let page = pages.page_with(&format!("/job/{job}"), "again with `mrctl up`");
    assert!(page.status == 503 && page.body.contains("data-live='yes'"), "{} {}", page.status, page.body);
    let page = pages.page_with("/", ">down<");
    assert!(page.status == 200 && page.body.contains(">up<"), "the NameNode is up: {}", page.body);
    assert!(page.body.contains("again with `mrctl up`"), "what to do is missing: {}", page.body);
    cluster.mrctl(&["chaos", "restart", "jobtracker"]);
    let page = pages.page_with(&format!("/job/{job}"), "1 paused");
    assert_eq!(page.status, 200);
    cluster.mrctl(&["chaos", "kill", "namenode"]);
    // The first page may still be from before the restart of the JobTracker.
    let page = eventually("the page shows the job and what is down", || {
        let page = pages.get("/");
        (page.body.contains(job) && page.body.contains("the NameNode at")).then_some(page)
    });
    assert!(page.status == 200 && page.body.contains("again with `mrctl up`"), "{}", page.body);
    cluster.mrctl(&["chaos", "restart", "namenode"]);
    eventually("the NameNode is back", || (!pages.get("/").body.contains(">down<")).then_some(()));
}

fn check_web_ends_by_a_signal(mut pages: Pages) {
    let interrupt = Command::new("kill").args(["-INT", &pages.process.id().to_string()]).status().unwrap();
    assert!(interrupt.success());
    let code = eventually("mrctl web ends", || pages.process.try_wait().unwrap());
    assert_eq!(code.code(), Some(0));
}

#[test]
fn only_local_reads_are_served() {
    let cluster = Cluster::up(Up { nodes: 1, replication: 1, open: true, ..Up::default() });
    let pages = pages(&cluster);
    assert!(pages.token.is_empty(), "an open cluster's pages are open");
    let own = format!("Host: 127.0.0.1:{}", pages.port);
    let page = pages.get("/");
    assert_eq!(page.status, 200, "{}", page.body);
    for header in ["content-security-policy: default-src 'none'", "nosniff", "no-referrer", "no-store"] {
        assert!(page.head.contains(header), "no {header}: {}", page.head);
    }
    // A host name that resolves to this machine does not suffice.
    for host in [format!("Host: evil.example:{}", pages.port), "Host: 127.0.0.1:1".into(), "X: y".into()] {
        let page = pages.ask("GET", "/", &[&host]);
        assert!([400, 403].contains(&page.status) && !page.body.contains("node1"), "{host}: {}", page.status);
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let page = pages.ask(method, "/", &[&own, "Content-Length: 0"]);
        assert!(page.status == 405 && page.head.contains("allow: get, head"), "{method}: {}", page.status);
    }
    let head = pages.ask("HEAD", "/", &[&own]);
    assert!(head.status == 200 && head.body.is_empty(), "{}", head.body);
    for (path, words) in [
        ("/job/job_99", "there is no job_99"),
        ("/job/%3Cb%3E", "job"),
        ("/task/job_99.m0", "there is no job_99"),
        ("/task/", "no such page"),
        ("/nonsense", "no such page"),
        ("/../etc/passwd", "no such page"),
    ] {
        let page = pages.get(path);
        assert!(page.status == 404 && page.body.contains(words), "{path}: {} {}", page.status, page.body);
    }
    for (path, kind) in
        [("/style.css", "text/css"), ("/live.js", "text/javascript"), ("/icon.svg", "image/svg")]
    {
        assert!(pages.get(path).head.contains(kind), "{path}");
    }
    // Very long headers are rejected, and silent connections time out.
    let long = format!("X: {}", "x".repeat(100_000));
    let mut stream = TcpStream::connect(("127.0.0.1", pages.port)).unwrap();
    let _ = write!(stream, "GET / HTTP/1.1\r\n{own}\r\n{long}\r\n\r\n");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(!answer.contains(" 200 "), "{answer}");
    let used = cluster.refused(1, &["web", "--port", &pages.port.to_string()]);
    assert!(used.contains("in use") && used.contains("--port 0"), "{used}");
    assert!(cluster.refused(2, &["web", "--cluster", "x", "--namenode", "h:1"]).contains("give one of them"));
}

#[test]
fn pages_of_a_closed_cluster_are_private() {
    let lab = Lab::up(true, "");
    let text = lab.cluster.path("text");
    fs::write(&text, "one two two\n").unwrap();
    for user in ["ann", "bob"] {
        let home = format!("/home/{user}");
        lab.cluster.mrctl(&["fs", "mkdir", "-p", &home]);
        lab.cluster.mrctl(&["fs", "chown", user, &home]);
    }
    lab.done("ann", &["fs", "put", text.to_str().unwrap(), "/home/ann/a"]);
    lab.done("ann", &["submit", "wordcount", "--input", "/home/ann/a", "--output", "/home/ann/out"]);
    let pages_of = |user: &str| {
        let config = lab.config_of(user, false);
        let folder = config.strip_suffix("/fermata.toml").unwrap().to_owned();
        Pages::of(lab.cluster.command(&["web", "--port", "0", "--cluster", &folder]))
    };
    for master in ["namenode", "jobtracker"] {
        assert_eq!(lab.cluster.json(&["health", master])["serves"], true);
        // Clients that do not have the keys of the master use their own.
        lab.done("ann", &["health", master]);
    }
    let (ann, bob) = (pages_of("ann"), pages_of("bob"));
    assert!(ann.token.len() == 32 && ann.token != bob.token);
    for path in ["/", "/jobs", "/job/job_1", "/?token=wrong"] {
        let page = ann.get(path);
        assert!(
            page.status == 403 && !page.body.contains("job_1") && !page.body.contains("ann"),
            "{path}: {}",
            page.body
        );
    }
    let first = ann.sign_in("/job/job_1");
    assert!(first.status == 303 && first.head.contains("location: /job/job_1\r\n"), "{}", first.head);
    assert!(first.head.contains("samesite=strict") && first.head.contains("httponly"), "{}", first.head);
    // The token is valid once, and not as a cookie.
    let host = format!("Host: 127.0.0.1:{}", ann.port);
    assert_eq!(ann.ask("GET", &format!("/?token={}", ann.token), &[&host]).status, 403);
    let as_cookie = format!("Cookie: fermata_{}={}", ann.port, ann.token);
    assert_eq!(ann.ask("GET", "/", &[&host, &as_cookie]).status, 403);
    let page = ann.get("/job/job_1");
    assert!(
        page.status == 200 && page.body.contains("/home/ann/out") && page.body.contains("as <bdi>ann"),
        "{}",
        page.body
    );
    assert!(ann.get("/task/job_1.m0").body.contains("id='log'"));
    // Of a job of another user only the existence, owner and progress are shown.
    bob.sign_in("/");
    let page = bob.get("/job/job_1");
    assert!(page.status == 200 && page.body.contains("bob may not"), "{}", page.body);
    assert!(!page.body.contains("/home/ann") && !page.body.contains("job_1.m0"), "{}", page.body);
    let task = bob.get("/task/job_1.m0");
    assert!(task.status == 403 && task.body.contains("bob may not"), "{}", task.body);
    let (_, of_ann) = ann.cookie.get().unwrap().split_once('=').unwrap();
    let another = format!("Cookie: fermata_{}={of_ann}", bob.port);
    assert_eq!(bob.ask("GET", "/", &[&format!("Host: localhost:{}", bob.port), &another]).status, 403);
}
