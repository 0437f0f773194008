//! Tests that valid scenario files are parsed, and that errors contain their line.

use super::*;

const FILE: &str = r#"
# A node dies in the middle, and comes back.
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

[[step]]
when = "job_7 has ended"
after = "2s"
do = "heal"

[[step]]
at = "2m"
do = "fill-disk"
node = "same"
leave = "64KiB"

[[fault]]
at_s = 25.0
what = "rack"
rack = 1
"#;

#[test]
fn valid_scenario_is_parsed() {
    let Scenario { steps, faults, fault_lines } = parse(FILE).expect("it reads");
    let first = Step {
        line: 3,
        when: When::Job(JobRef::Nth(1), JobMark::Maps(0.4)),
        after: Span(0),
        action: ScenarioAction::Kill { node: NodeRef::Running(JobRef::Nth(1)), daemons: Daemons::Both },
        lasts: Some(Span::secs(10)),
    };
    assert_eq!(steps[0], first);
    let second = ScenarioAction::Partition {
        from: NodeRef::Named("node2".into()),
        to: NodeRef::Named("jobtracker".into()),
        one_way: true,
    };
    assert_eq!((&steps[1].when, &steps[1].action), (&When::At(Span::millis(1500)), &second));
    assert_eq!(steps[2].when, When::Job(JobRef::Number(7), JobMark::Ended));
    assert_eq!((steps[2].after, &steps[2].action), (Span::secs(2), &ScenarioAction::Heal { node: None }));
    assert_eq!(steps[3].action, ScenarioAction::FillDisk { node: NodeRef::Same, leave: 65536 });
    assert_eq!((faults.len(), fault_lines), (1, vec![27]));
    let simulated = |step: &Step| step.action.not_simulated().is_none();
    assert_eq!(steps.iter().map(simulated).collect::<Vec<_>>(), [true, true, true, false]);
}

#[test]
fn end_of_a_job_has_one_documented_word_and_older_words() {
    for words in ["job 1 ended", "job 1 has ended", "job 1 finished", "job 1 is over"] {
        let text = format!("[[step]]\nwhen = \"{words}\"\ndo = \"kill\"\nnode = \"node2\"");
        let scenario = parse(&text).unwrap_or_else(|error| panic!("{words}: {error}"));
        assert_eq!(scenario.steps[0].when, When::Job(JobRef::Nth(1), JobMark::Ended), "{words}");
    }
    let error = parse("[[step]]\nwhen = \"job 1 done\"\ndo = \"kill\"\nnode = \"node2\"");
    assert!(error.expect_err("an unknown word").what.ends_with("or \"job 1 ended\""));
}

#[test]
fn malformed_steps_are_rejected_with_their_line() {
    let kill = "do = \"kill\"\nnode = \"node2\"";
    let cases = [
        ("x = 1", 1, "unknown field"),
        ("[[step]]\nat = 5\ndo = \"kill\"", 2, "at: invalid type: integer `5`, expected a string"),
        ("\n[[step]]\ndo = \"kill\"\nnode = \"node2\"", 2, "`at` or `when` is missing"),
        (&format!("[[step]]\nat = \"5s\"\nwhen = \"job 1 ended\"\n{kill}"), 1, "only one of the two"),
        (&format!("[[step]]\nat = \"soon\"\n{kill}"), 1, "at = \"soon\" is not a time"),
        (&format!("[[step]]\nat = \"-1s\"\n{kill}"), 1, "is not a time"),
        (&format!("[[step]]\nwhen = \"job 1 maps 400%\"\n{kill}"), 1, "from 0% to 100%"),
        (&format!("[[step]]\nwhen = \"job 0 ended\"\n{kill}"), 1, "is not a job"),
        (&format!("[[step]]\nwhen = \"job_07 ended\"\n{kill}"), 1, "is not a job"),
        (&format!("[[step]]\nwhen = \"full moon\"\n{kill}"), 1, "job 1 maps 40%"),
        ("[[step]]\nat = \"1s\"\ndo = \"meteor\"", 1, "kill, stop, cont"),
        ("[[step]]\nat = \"1s\"\ndo = \"kill\"", 1, "kill: node is missing"),
        ("[[step]]\nat = \"1s\"\ndo = \"kill\"\nnode = \"same\"", 1, "this is the first step"),
        ("[[step]]\nat = \"1s\"\ndo = \"kill\"\nnode = \"some node\"", 1, "is not a node"),
        ("[[step]]\nat = \"1s\"\ndo = \"kill\"\nnode = \"master\"", 1, "write namenode or jobtracker"),
        ("[[step]]\nat = \"1s\"\ndo = \"kill\"\nnode = \"a\"\nshare = 0.5", 1, "kill takes no share"),
        ("[[step]]\nat = \"1s\"\ndo = \"slow\"\nnode = \"a\"", 1, "for is missing"),
        ("[[step]]\nat = \"1s\"\ndo = \"slow\"\nnode = \"a\"\nshare = 2.0\nfor = \"1s\"", 1, "share = 2"),
        ("[[step]]\nat = \"1s\"\ndo = \"partition\"\nnode = \"a\"", 1, "from is missing"),
        ("[[step]]\nat = \"1s\"\ndo = \"corrupt\"\nnode = \"a\"\nblock = \"x\"", 1, "blk_NUMBER"),
        (
            "[[step]]\nat = \"1s\"\ndo = \"fill-disk\"\nnode = \"a\"\nleave = \"99999999999GiB\"",
            1,
            "too large",
        ),
        ("[[step]]\nat = \"1s\"\ndo = \"restart\"\nnode = \"a\"\nfor = \"1s\"", 1, "cannot be undone"),
        ("[[step]]\nat = \"1s\"\ndo = \"kill\"\nnode = \"a\"\ndaemon = \"namenode\"", 1, "datanode or"),
        ("[[fault]]\nat_s = -1.0\nwhat = \"job-tracker\"", 1, "not below 0"),
        ("[[fault]]\nat_s = 1.0\nwhat = \"meteor\"", 1, "meteor"),
        ("[[fault]]\nat_s = 1.0\nwhat = \"node\"\nnode = 1\nfor = \"20s\"", 5, "unknown field `for`"),
        ("[[fault]]\nat_s = 1.0\nfors = 2.0\nwhat = \"node\"\nnode = 1", 3, "unknown field `fors`"),
        (
            "[[fault]]\nat_s = 1.0\nwhat = \"node\"\nrack = 1",
            1,
            "node: node is missing, for example node = 1",
        ),
        ("[[fault]]\nat_s = 1.0\nwhat = \"rack\"\nrack = 1\nnode = 1", 1, "rack takes no node"),
        ("[[fault]]\nat_s = 1.0\nwhat = \"stop\"\nfactor = 2.0", 1, "stop takes no factor"),
        ("[[fault]]\nat_s = 1.0\nwhat = \"slow\"\nnode = 1", 1, "slow: factor is missing"),
        ("[[fault]]\nat_s = 1.0\nwhat = \"slow\"\nnode = 1\nfactor = 0.0", 1, "must be from 1 to 1000"),
        ("[[fault]]\nat_s = 1.0\nwhat = \"slow\"\nnode = 1\nfactor = 0.5", 1, "factor = 0.5 is not valid"),
    ];
    for (text, line, why) in cases {
        let error = parse(text).expect_err(text);
        assert!(error.line == line && error.what.contains(why), "{text}\n{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}
