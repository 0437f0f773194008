//! Targets for readers of texts from users and other programs: traces, histories, settings,
//! scenarios, tokens, lists.

use super::{SMALL_LIMIT, Scratch};
use crate::{Damage, Limit, Target};
use daemon::config::Config;
use security::{Access, BlockKey, BlockToken, Keyring, Purpose, Revocations, Role, Token};
use sim::workload::{history, rumen, swim};
use std::path::Path;

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "trace_swim",
        reads: "sim::workload::swim::read",
        seeds: || {
            let rows = "job0\t49\t49\t740773\t2339561\t627471\njob1\t60\t11\t300000000\t0\t900000000\n";
            vec![rows.into(), rows.replace('\n', "\r\n").into()]
        },
        body: check_swim,
        damage: Damage::Unnoticed,
        memory: TRACE_LIMIT,
    },
    Target {
        name: "trace_rumen",
        reads: "sim::workload::rumen::read",
        seeds: || vec![RUMEN.into(), RUMEN.repeat(2).into()],
        body: check_rumen,
        damage: Damage::Unnoticed,
        memory: TRACE_LIMIT,
    },
    Target {
        name: "trace_history",
        reads: "sim::workload::history::read_texts and figures",
        seeds: || vec![HISTORY.into(), HISTORY.replace("job_7", "job_8").into()],
        body: check_history,
        damage: Damage::Unnoticed,
        memory: TRACE_LIMIT,
    },
    Target {
        name: "configuration",
        reads: "daemon::config::Config: parse, check, print",
        seeds: || {
            let fair = "[scheduler]\nname = \"fair\"\n[scheduler.fair.pools.\"a.b\"]\nweight = 2\n";
            vec![Config::default().print().into(), fair.into(), b"[namenode]\nreplication = 2\n".to_vec()]
        },
        body: check_configuration,
        damage: Damage::Unnoticed,
        memory: TOML_LIMIT,
    },
    Target {
        name: "scenario",
        reads: "sim::scenario::parse, sim::profile::parse",
        seeds: || vec![SCENARIO.into(), b"[sort]\nmap_mbps = 20.0\n".to_vec()],
        body: check_scenario,
        damage: Damage::Unnoticed,
        memory: TOML_LIMIT,
    },
    Target {
        name: "token",
        reads: "security: Token::read and verify, BlockToken::from_bytes, BlockKey::check",
        seeds: token_seeds,
        body: check_token,
        damage: Damage::Refused,
        memory: SMALL_LIMIT,
    },
    Target {
        name: "revoked_list",
        reads: "security::Revocations::read",
        seeds: || {
            let hash = "1f".repeat(32);
            vec![
                format!("# Shut out\nname ann\ncredential {hash}\n").into(),
                b"name bob # left the company\n".to_vec(),
            ]
        },
        body: check_revoked,
        damage: Damage::Unnoticed,
        memory: SMALL_LIMIT,
    },
];

/// Memory limit for traces. A line of a trace can describe a million tasks, and a trace at most
/// twenty million.
const TRACE_LIMIT: Limit = Limit { fixed: 1 << 30, per_byte: 512 };
/// Memory limit for TOML. A parsed document has a node for each word.
const TOML_LIMIT: Limit = Limit { fixed: 4 << 20, per_byte: 2048 };

const RUMEN: &str = r#"{"jobID": "job_1", "user": "ann", "submitTime": 1000, "finishTime": 9000,
 "mapTasks": [{"taskID": "m0", "inputBytes": 100, "outputBytes": 50, "preferredLocations": [{"layers": ["r", "h1"]}],
  "attempts": [{"result": "FAILED", "startTime": 1000, "finishTime": 1500},
   {"result": "SUCCESS", "startTime": 2000, "finishTime": 4000}]},
  {"taskID": "m1", "inputBytes": -1, "outputBytes": -1, "attempts": []}],
 "reduceTasks": [{"taskID": "r0", "inputBytes": 50, "outputBytes": 5,
  "attempts": [{"result": "SUCCESS", "startTime": 3000, "finishTime": 8000, "sortFinished": 7000}]}]}
"#;

const HISTORY: &str = concat!(
    r#"{"format":3,"cluster":"c","job":"job_7","at_us":1000000,"spec":{"name":"sort","user":"ann","queue":"q","#,
    r#""priority":"high","program":"builtin:sort","inputs":[],"files":[],"output":"/o","reduces":1,"#,
    r#""slow_start":0.05,"speculation":false,"attempts_max":4,"conf":{},"#,
    r#""hosts":["node1"],"splits":[{"source":"/i","start":0,"end":100,"hosts":[0]}]}}"#,
    "\n",
    r#"{"at_us":2000000,"fact":{"attempt-launched":{"attempt":"job_7.m0.0","tracker":"node1","host":"node1","#,
    r#""speculative":false}}}"#,
    "\n",
    r#"{"at_us":2000000,"fact":{"attempt-launched":{"attempt":"job_7.r0.0","tracker":"node1","host":"node1","#,
    r#""speculative":false}}}"#,
    "\n",
    r#"{"at_us":4000000,"fact":{"map-split":{"attempt":"job_7.m0.0","position":50,"bytes_out":30}}}"#,
    "\n",
    r#"{"at_us":5000000,"fact":{"attempt-launched":{"attempt":"job_7.m1.0","tracker":"node1","host":"node1","#,
    r#""speculative":false}}}"#,
    "\n",
    r#"{"at_us":8000000,"fact":{"attempt-succeeded":{"attempt":"job_7.m1.0","bytes_out":20}}}"#,
    "\n",
    r#"{"at_us":12000000,"fact":{"attempt-succeeded":{"attempt":"job_7.r0.0","bytes_out":20}}}"#,
    "\n",
    r#"{"at_us":12500000,"fact":{"job-ended":{"outcome":"succeeded"}}}"#,
    "\n",
);

const SCENARIO: &str = r#"
[[step]]
when = "job 1 maps reach 40%"
do = "kill"
node = "any running job 1"
for = "10s"

[[step]]
at = "1500ms"
do = "partition"
node = "node2"
from = "jobtracker"
one_way = true

[[fault]]
at_s = 25.0
what = "rack"
rack = 1
"#;

/// Checks that an accepted workload can be simulated: its jobs are in order and within the limits.
fn check_workload(workload: &sim::Workload) {
    assert!(!workload.jobs.is_empty(), "a trace without jobs was accepted");
    assert!(workload.jobs.is_sorted_by_key(|job| job.at), "jobs are not in order");
    for job in &workload.jobs {
        assert!(job.maps.len() + job.reduces.len() <= 1_000_000, "a job with too many tasks");
        assert!(
            job.maps.iter().all(|map| map.work_s.is_finite() && map.work_s >= 0.0),
            "the work of a map is negative or not finite"
        );
        let sane = |fixed: f32| fixed.is_finite() && fixed >= 0.0;
        assert!(
            job.reduces.iter().all(|reduce| sane(reduce.fixed_s) && sane(reduce.share)),
            "the work of a reduce is negative or not finite"
        );
    }
}

fn check_swim(input: &[u8]) -> Option<Vec<u8>> {
    let scaling = swim::Scaling { bytes: 1.0, block: 128 << 20, reduces_max: 100 };
    let path = Scratch::with(|scratch| scratch.file("trace.tsv", input));
    check_workload(&swim::read(&path, scaling).ok()?);
    Some(Vec::new())
}

fn check_rumen(input: &[u8]) -> Option<Vec<u8>> {
    let path = Scratch::with(|scratch| scratch.file("trace.json", input));
    check_workload(&rumen::read(&path).ok()?.workload);
    Some(Vec::new())
}

fn check_history(input: &[u8]) -> Option<Vec<u8>> {
    let text = String::from_utf8_lossy(input).into_owned();
    let figures = history::figures("a job", &text);
    let read = history::read_texts(&[("a job".to_owned(), text)]).ok()?;
    assert!(figures.is_ok(), "the history can be read as a workload, but not as metrics");
    check_workload(&read.workload);
    let _ = (read.calibrate(false), read.calibrate(true));
    Some(Vec::new())
}

fn check_configuration(input: &[u8]) -> Option<Vec<u8>> {
    let path = Path::new("/etc/fermata/fermata.toml");
    let text = std::str::from_utf8(input).ok()?;
    let config = match Config::parse(text, path) {
        Ok(config) => config,
        Err(error) => {
            let words = error.to_string();
            assert!(
                words.starts_with("/etc/fermata/fermata.toml:"),
                "the error does not contain the line: {words}"
            );
            assert!(!words.contains('\n'), "the error has several lines: {words}");
            return None;
        }
    };
    let printed = config.print();
    let again = Config::parse(&printed, path).unwrap_or_else(|error| panic!("{error} in\n{printed}"));
    assert_eq!(again, config, "parsing the printed settings gives different settings");
    config.check().ok()?;
    Some(Vec::new())
}

fn check_scenario(input: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(input).ok()?;
    let (scenario, profiles) = (sim::scenario::parse(text), sim::profile::parse(text));
    if let Err(error) = &scenario {
        assert!(error.line >= 1 && error.line <= text.split('\n').count(), "line {} of {text:?}", error.line);
    }
    (scenario.is_ok() || profiles.is_ok()).then(Vec::new)
}

fn token_seeds() -> Vec<Vec<u8>> {
    let keys = Keyring::from_secret(b"secret");
    let sign = |role, job| {
        let token = Token { role, name: "ann".into(), job, expires: u64::MAX / 2 };
        token.sign(&keys).expect("there is a key").into_bytes()
    };
    vec![sign(Role::User, None), sign(Role::Task, Some("job_7".to_owned())), sign(Role::Admin, None)]
}

/// Checks that a token is accepted only if it was signed. Returns the content of the token.
fn check_token(input: &[u8]) -> Option<Vec<u8>> {
    let keys = Keyring::from_secret(b"secret");
    // Checks the same for a block token.
    let block = BlockToken::from_bytes(input);
    let blocks = BlockKey::new(keys.get(Purpose::Block).cloned());
    assert!(
        blocks.check(block, 7, 11, Access::Write).is_err(),
        "a block token without a signature was accepted"
    );
    let text = std::str::from_utf8(input).ok()?;
    if let Ok(token) = Token::read(text) {
        let signed = token.sign(&keys).expect("there is a key");
        assert_eq!(
            Token::read(&signed).as_ref(),
            Ok(&token),
            "signing and reading the token again gives a different token"
        );
    }
    let token = Token::verify(text, &keys).ok()?;
    Some(format!("{token:?}").into_bytes())
}

fn check_revoked(input: &[u8]) -> Option<Vec<u8>> {
    let all = Scratch::with(|scratch| Revocations::read(&scratch.file("revoked", input))).ok()?;
    let again = Scratch::with(|scratch| {
        let path = scratch.path().join("again");
        all.write(&path).expect("the disk has space");
        Revocations::read(&path).expect("a list that was just written is valid")
    });
    assert_eq!(again, all, "writing and reading the list again gives a different list");
    Some(Vec::new())
}
