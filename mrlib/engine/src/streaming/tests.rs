//! Tests streaming programs: their input, their output, and how they end.

use super::*;
use mrlib_api::{Liveness, TaskControl};
use std::collections::BTreeMap;

#[derive(Default)]
struct CollectedPairs(Vec<(String, String)>);

impl Emit for CollectedPairs {
    fn emit(&mut self, key: &[u8], value: &[u8]) -> Result<(), TaskError> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.0.push((text(key), text(value)));
        Ok(())
    }
}

fn conf(settings: &[(&str, &str)]) -> Conf {
    settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Pairs, counters, status.
type MapperOutput = (CollectedPairs, BTreeMap<String, u64>, Option<String>);

/// Runs a mapper with these lines. Returns its output.
fn run_mapper<'a>(conf: &Conf, lines: impl IntoIterator<Item = &'a [u8]>) -> Result<MapperOutput, TaskError> {
    let (mut out, mut context) = (CollectedPairs::default(), Context::default());
    let mut mapper = StreamMapper::new(conf)?;
    for line in lines {
        mapper.map(b"offset", line, &mut out, &mut context)?;
    }
    mapper.finish(&mut out, &mut context)?;
    let status = context.take_status();
    Ok((out, context.counters(), status))
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn command_is_split_like_a_shell() {
    let cut = |command| split_command(command).expect("a valid command");
    assert_eq!(cut("awk -f  x.awk"), ["awk", "-f", "x.awk"]);
    assert_eq!(
        cut(r#"sed 's/a b/"c"/' "d 'e' \"f\" \g" h\ i '' j"k"l"#),
        ["sed", r#"s/a b/"c"/"#, r#"d 'e' "f" \g"#, "h i", "", "jkl"]
    );
    assert_eq!(cut("a $B '|' c \\> 'd'"), ["a", "$B", "|", "c", ">", "d"]);
    for bad in ["", "  ", "'a", "a \"b", "a \\", "a | b", "a > b", "a & b", "a; b"] {
        assert!(split_command(bad).is_err(), "{bad}");
    }
}

#[test]
fn lines_are_values_and_output_is_split_at_the_first_tab() {
    let lines: [&[u8]; 4] = [b"a\tb\tc", b"plain", b"", b"\tv"];
    let (out, _, _) = run_mapper(&conf(&[(MAPPER, "cat")]), lines).expect("cat");
    assert_eq!(out.0, pairs(&[("a", "b\tc"), ("plain", ""), ("", ""), ("", "v")]));
}

#[test]
fn records_with_keys_include_the_key() {
    let conf = conf(&[(MAPPER, "cat"), ("input.format", "keyvalue")]);
    let (out, _, _) = run_mapper(&conf, [b"v".as_slice()]).expect("cat");
    assert_eq!(out.0, pairs(&[("offset", "v")]));
    let conf = self::conf(&[(MAPPER, "cat"), ("input.format", " lines ")]);
    let (out, _, _) = run_mapper(&conf, [b"v".as_slice()]).expect("cat");
    assert_eq!(out.0, pairs(&[("v", "")]));
}

#[test]
fn last_line_needs_no_newline() {
    let (out, _, _) = run_mapper(&conf(&[(MAPPER, "printf 'a\\tb\\nc'")]), []).expect("printf");
    assert_eq!(out.0, pairs(&[("a", "b"), ("c", "")]));
}

#[test]
fn data_beyond_the_pipe_capacity_passes_both_ways() {
    // The programs write much before they read, write twice their input, or write after the end of
    // their input.
    let line = vec![b'x'; 1000];
    for (command, factor, extra) in [
        ("sh -c 'head -c 3000000 /dev/zero | tr \"\\\\0\" \"\\\\n\"; cat'", 1, 3_000_000),
        ("awk '{print; print}'", 2, 0),
        ("sh -c 'x=$(cat); echo \"$x\"'", 1, 0),
    ] {
        let (out, _, _) =
            run_mapper(&conf(&[(MAPPER, command)]), (0..3000).map(|_| line.as_slice())).expect(command);
        assert_eq!(out.0.len(), 3000 * factor + extra, "{command}");
    }
}

#[test]
fn program_that_stops_reading_succeeds() {
    let line = vec![b'x'; 1000];
    let lines = || (0..3000).map(|_| line.as_slice());
    let (out, _, _) = run_mapper(&conf(&[(MAPPER, "head -n 2")]), lines()).expect("head");
    assert_eq!(out.0.len(), 2);
    let (out, _, _) = run_mapper(&conf(&[(MAPPER, "true")]), lines()).expect("true");
    assert!(out.0.is_empty());
    let (out, _, _) =
        run_mapper(&conf(&[(MAPPER, "sh -c 'exec <&-; sleep 0.2; echo late'")]), lines()).expect("sh");
    assert_eq!(out.0, pairs(&[("late", "")]));
    // A background process keeps stdout open.
    let script = "sh -c 'sleep 600 & read x; echo done'";
    let (out, _, _) = run_mapper(&conf(&[(MAPPER, script)]), lines()).expect("sh");
    assert_eq!(out.0, pairs(&[("done", "")]));
}

/// A reducer must process the input that it has before it can be paused, so it must not have much.
#[test]
fn slow_program_gets_little_input_in_advance() {
    let script = "sh -c 'while read x; do sleep 0.02; echo $x; done'";
    let (mut out, mut context) = (CollectedPairs::default(), Context::default());
    let mut reducer = StreamReducer::new(&conf(&[(REDUCER, script), (RESTARTABLE, "true")])).expect("sh");
    let mut fed = 0;
    while out.0.len() < 20 {
        assert!(fed < 1000, "{fed} records were accepted, and {} are done", out.0.len());
        reducer.add(b"key", b"value", &mut out, &mut context).expect("sh");
        fed += 1;
    }
    reducer.save(&mut out, &mut context).expect("sh");
    assert_eq!(out.0.len(), fed);
}

#[test]
fn error_of_a_failed_program_shows_the_cause() {
    let script = "sh -c 'echo first >&2; echo the real reason >&2; exit 3'";
    let error = run_mapper(&conf(&[(MAPPER, script)]), [b"x".as_slice()]).err().expect("code 3").to_string();
    let expected = format!("stream.mapper `{script}` ended with exit status 3:\nfirst\nthe real reason");
    assert_eq!(error, expected);
    // The error of a command of several lines shows how the program ended.
    let error = run_mapper(&conf(&[(MAPPER, "sh -c '\techo why >&2\nexit 3'")]), []).err().expect("code 3");
    let error = mrlib_api::error::one_line(&error.to_string());
    assert_eq!(error, "stream.mapper `sh -c '\\techo why >&2\\nexit 3'` ended with exit status 3: why");
    let error = run_mapper(&conf(&[(MAPPER, "sh -c 'kill -9 $$'")]), []).err().expect("killed").to_string();
    let hint = "(out of memory? the limit of a task is tasktracker.task_memory_max)";
    assert!(error.ends_with(&format!("was killed by signal 9 (SIGKILL) {hint}")), "{error}");
    let error = run_mapper(&conf(&[(MAPPER, "sh -c 'kill -15 $$'")]), []).err().expect("killed").to_string();
    assert!(error.ends_with("was killed by signal 15 (SIGTERM)"), "{error}");
    // The failure is detected while there is input left, not only at the end.
    let endless = std::iter::repeat_n([b'x'; 1000].as_slice(), 1 << 30);
    let error = run_mapper(&conf(&[(MAPPER, "false")]), endless).err().expect("code 1");
    // The failure of a program is not the error of a record, which could be skipped.
    assert!(matches!(error, TaskError::Crashed { .. }), "{error}");
}

#[test]
fn error_names_the_missing_program() {
    let error = run_mapper(&conf(&[(MAPPER, "no-such-program-here")]), []).err().expect("nothing there");
    assert!(error.to_string().contains("no-such-program-here"), "{error}");
    assert!(job(&conf(&[])).expect_err("no mapper").to_string().contains("--mapper"));
    let error = job(&conf(&[(MAPPER, "cat 'x")])).expect_err("an open quote").to_string();
    assert!(error.contains("quote"), "{error}");
}

#[test]
fn counters_and_status_are_taken_from_stderr() {
    let script = "sh -c 'while read x; do echo reporter:counter:My group,lines,2 >&2; done; \
                  echo reporter:status:nearly done >&2; echo reporter:counter:nonsense >&2'";
    let lines: [&[u8]; 3] = [b"a", b"b", b"c"];
    let (_, counters, status) = run_mapper(&conf(&[(MAPPER, script)]), lines).expect("sh");
    assert_eq!(counters, BTreeMap::from([("My group:lines".to_owned(), 6)]));
    assert_eq!(status.as_deref(), Some("nearly done"));
}

#[test]
fn too_many_counters_or_long_names_are_an_error() {
    let script =
        "awk '{ for (n = 0; n < 20000; n++) print \"reporter:counter:words,w\" n \",1\" > \"/dev/stderr\" }'";
    let error = run_mapper(&conf(&[(MAPPER, script)]), [b"x".as_slice()]).err().expect("refused").to_string();
    assert!(error.contains("more than 1000 counters"), "{error}");
    let script = "awk '{ for (n = 0; n < 300; n++) x = x \"x\"; print \"reporter:counter:g,\" x \",1\" > \"/dev/stderr\" }'";
    let error = run_mapper(&conf(&[(MAPPER, script)]), [b"x".as_slice()]).err().expect("refused").to_string();
    assert!(error.contains("the limit is 256"), "{error}");
}

#[test]
fn too_long_output_line_is_an_error() {
    let conf = conf(&[(MAPPER, "head -c 300000 /dev/zero"), ("record.bytes.max", "100000")]);
    let error = run_mapper(&conf, []).err().expect("too long").to_string();
    assert!(error.contains("record.bytes.max = 100000"), "{error}");
}

#[test]
fn output_lines_are_unchanged() {
    let lines: [&[u8]; 4] = [b"a\tb\tc", b"a\t", b"\tb", b""];
    let as_keys = pairs(&[("a\tb\tc", ""), ("a\t", ""), ("\tb", ""), ("", "")]);
    let only_maps = conf(&[(MAPPER, "cat"), (COMBINER, "false"), ("job.reduces", "0")]);
    assert_eq!(run_mapper(&only_maps, lines).expect("cat").0.0, as_keys);
    let mut reducer =
        StreamReducer::new(&conf(&[(REDUCER, "printf 'a\\tb\\tc\\na\\t\\n\\tb\\n\\n'")])).expect("printf");
    let (mut out, mut context) = (CollectedPairs::default(), Context::default());
    reducer.finish(&mut out, &mut context).expect("printf");
    assert_eq!(out.0, as_keys);
}

#[test]
fn task_does_not_wait_for_background_processes() {
    let started = std::time::Instant::now();
    for redirect in ["", ">/dev/null", "2>/dev/null"] {
        let script = format!("sh -c 'sleep 600 {redirect} & echo done'");
        let (out, _, _) = run_mapper(&conf(&[(MAPPER, &script)]), []).expect("sh");
        assert_eq!(out.0, pairs(&[("done", "")]));
    }
    assert!(started.elapsed() < std::time::Duration::from_mins(1));
}

#[test]
fn task_does_not_wait_for_a_background_process_with_open_stdin() {
    let started = std::time::Instant::now();
    let line = vec![b'x'; 1000];
    let lines = || (0..3000).map(|_| line.as_slice());
    // A shell gives background processes a different stdin, so the test passes stdin as descriptor
    // 3.
    let script = "sh -c 'exec 3<&0; sleep 60 & read x; echo done'";
    let (out, _, _) = run_mapper(&conf(&[(MAPPER, script)]), lines()).expect("sh");
    assert_eq!(out.0, pairs(&[("done", "")]));
    let script = "sh -c 'exec 3<&0; sleep 60 & exit 3'";
    let error = run_mapper(&conf(&[(MAPPER, script)]), lines()).err().expect("code 3");
    assert!(error.to_string().ends_with("ended with exit status 3"), "{error}");
    assert!(started.elapsed() < std::time::Duration::from_secs(45));
}

#[test]
fn late_output_of_a_silent_program_is_read() {
    // Many programs write their output at the very end at the same time, so that the reading
    // threads are late.
    let script = "sh -c 'cat >/dev/null; sleep 1.2; echo the last message'";
    let one = || run_mapper(&conf(&[(MAPPER, script)]), [b"x".as_slice()]).expect("sh").0.0;
    let all = || {
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..100).map(|_| scope.spawn(one)).collect();
            running.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
        })
    };
    for _ in 0..3 {
        let lost = all().iter().filter(|out| **out != pairs(&[("the last message", "")])).count();
        assert_eq!(lost, 0);
    }
}

#[test]
fn output_is_complete_if_a_background_process_keeps_stdout_open() {
    let script = "sh -c 'sleep 600 & cat >/dev/null; sleep 1.2; seq 10000 19999'";
    let (out, _, _) = run_mapper(&conf(&[(MAPPER, script)]), [b"x".as_slice()]).expect("sh");
    assert_eq!(out.0.len(), 10_000);
}

#[test]
fn task_waiting_for_a_program_can_be_killed() {
    let (liveness, control) = (Liveness::default(), TaskControl::default());
    let mut context = Context::new(liveness.clone(), control.clone());
    let mut mapper =
        StreamMapper::new(&conf(&[(MAPPER, "sh -c 'echo reporter:status:ready >&2; exec sleep 600'")]))
            .expect("sh");
    let reporter = std::thread::spawn(move || {
        // The status line is a sign of life; the sleep after it is not.
        while liveness.count() == 0 {
            std::thread::yield_now();
        }
        control.kill("enough");
    });
    let error = mapper.finish(&mut CollectedPairs::default(), &mut context).expect_err("the task was killed");
    reporter.join().expect("no panic");
    assert_eq!(error.to_string(), "killed: enough");
    assert_eq!(context.take_status().as_deref(), Some("ready"));
}

#[test]
fn program_gets_settings_as_environment_variables() {
    let script = "sh -c 'echo \"$my_key_1 $mapreduce_task_attempt_id $mapreduce_map_input_file \
                  $mapreduce_task_ismap $mapreduce_job_name\"'";
    let conf = conf(&[
        (MAPPER, script),
        ("my.key-1", "value"),
        ("task.attempt", "job_7.m3.0"),
        ("task.kind", "map"),
        ("map.input.file", "/in/a"),
        ("job.name", "try"),
    ]);
    let (out, _, _) = run_mapper(&conf, []).expect("sh");
    assert_eq!(out.0, pairs(&[("value job_7.m3.0 /in/a true try", "")]));
}

#[test]
fn settings_do_not_override_reserved_variables() {
    let script = "sh -c 'echo \"($TASK_OF_TRACKER$FERMATA_UMBILICAL$FERMATA_X)\"'";
    let names = ["TASK_OF_TRACKER", "task.of.tracker", "TASK.OF.TRACKER", "FERMATA.UMBILICAL", "FERMATA_X"];
    let mut conf = conf(&[(MAPPER, script)]);
    for name in names {
        conf.set(name, "mine");
    }
    let (out, _, _) = run_mapper(&conf, []).expect("sh");
    assert_eq!(out.0, pairs(&[("()", "")]));
}

#[test]
fn combiner_program_gets_sorted_pairs() {
    let conf = conf(&[(MAPPER, "tr ' ' '\\n'"), (COMBINER, "uniq -c")]);
    let lines: [&[u8]; 2] = [b"b a b", b"a c b"];
    let (out, counters, _) = run_mapper(&conf, lines).expect("uniq");
    let counted: Vec<String> = out.0.iter().map(|(key, _)| key.trim().to_owned()).collect();
    assert_eq!(counted, ["2 a", "3 b", "1 c"]);
    assert_eq!(counters["COMBINE_INPUT_RECORDS"], 6);
    assert_eq!(counters["COMBINE_OUTPUT_RECORDS"], 3);
}

#[test]
fn keys_of_several_fields_environment_and_exit_status_are_settings() {
    let several = conf(&[
        (MAPPER, "cat"),
        ("input.format", "keyvalue"),
        (fields::MAP_INPUT_SEPARATOR, "."),
        (fields::MAP_OUTPUT_SEPARATOR, "."),
        (fields::MAP_OUTPUT_FIELDS, "2"),
    ]);
    let (out, _, _) = run_mapper(&several, [b"b.c".as_slice()]).expect("cat");
    assert_eq!(out.0, pairs(&[("offset.b", "c")]));

    let environment = conf(&[(MAPPER, "sh -c 'echo \"$LC_X\"'"), (ENVIRONMENT, r#"{"LC_X": "v 1"}"#)]);
    let (out, _, _) = run_mapper(&environment, []).expect("sh");
    assert_eq!(out.0, pairs(&[("v 1", "")]));
    for text in ["[]", r#"{"FERMATA_X": "1"}"#, r#"{"a=b": "1"}"#, r#"{"a": 1}"#] {
        assert!(job(&conf(&[(MAPPER, "cat"), (ENVIRONMENT, text)])).is_err(), "{text}");
    }

    assert!(run_mapper(&conf(&[(MAPPER, "false")]), []).is_err());
    assert!(run_mapper(&conf(&[(MAPPER, "false"), (EXIT_STATUS, "false")]), []).is_ok());
    for (name, value) in [
        (fields::MAP_OUTPUT_SEPARATOR, ""),
        (fields::MAP_OUTPUT_FIELDS, "x"),
        (fields::SORT_FIELDS, "-k0"),
        (fields::KEY_SEPARATOR, "ab"),
    ] {
        assert!(job(&conf(&[(MAPPER, "cat"), (name, value)])).is_err(), "{name}");
    }
}
