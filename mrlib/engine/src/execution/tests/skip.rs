//! Tests skip mode: records that cause errors, panics or crashes are skipped up to a limit.

use super::*;

#[test]
fn bad_records_are_skipped_up_to_the_limit_and_a_kill_is_an_error() {
    let mut here = TestIo::new();
    let source = here.file("text", b"good\nbad\nbad\nfine\n");
    let mut task = here.task(&source, 0, 100, 1);
    let error = run_map(&words(None), &task, &mut here).unwrap_err().to_string();
    assert_eq!(error, format!("record at {source}:2: this word is bad"));
    task.conf.set("skip.bad.records", "true");
    let outcome = run_map(&words(None), &task, &mut here).unwrap();
    assert_eq!((outcome.counters["SKIPPED_RECORDS"], outcome.counters["LINES"]), (2, 2));
    task.conf.set("skip.bad.records", "1");
    let error = run_map(&words(None), &task, &mut here).unwrap_err().to_string();
    assert!(error.contains("more bad records than skip.bad.records = 1"), "{error}");
    here.control.kill("killed by its user");
    let error = run_map(&words(None), &task, &mut here).unwrap_err().to_string();
    assert_eq!(error, "killed: killed by its user");
}

#[test]
fn error_for_too_many_unreadable_records_names_the_last_one() {
    let mut here = TestIo::new();
    let source = here.file("text", b"good\nmuch too long\nfine\nagain too long\nlast\n");
    let mut task = here.task(&source, 0, 100, 1);
    task.conf.set("record.bytes.max", "10");
    task.conf.set("skip.bad.records", "1");
    let error = run_map(&words(None), &task, &mut here).unwrap_err().to_string();
    let wanted = format!("the last: record at {source}:4: longer than record.bytes.max = 10");
    assert!(error.ends_with(&wanted), "{error}");
    task.conf.set("skip.bad.records", "2");
    let outcome = run_map(&words(None), &task, &mut here).unwrap();
    assert_eq!((outcome.counters["SKIPPED_RECORDS"], outcome.counters["LINES"]), (2, 3));
}

/// Panics at `bad`, and has state that would be wrong after a panic.
struct Panicky(u64);

impl Mapper for Panicky {
    fn map(
        &mut self,
        _: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let lines = context.counter("LINES");
        context.add(lines, 1);
        self.0 += 1;
        out.emit(line, &self.0.to_be_bytes())?;
        assert!(line != b"bad", "this word is bad");
        Ok(())
    }
}

#[test]
fn records_at_which_a_mapper_panics_are_skipped_up_to_the_limit() {
    let mut here = TestIo::new();
    let source = here.file("text", b"good\nbad\nfine\nbad\nlast\n");
    let job = Job::map(|_| Ok(Panicky(0)));
    let mut task = here.task(&source, 0, 100, 1);
    let error = run_map(&job, &task, &mut here).unwrap_err().to_string();
    assert!(error.starts_with(&format!("record at {source}:2: panicked at ")), "{error}");
    task.conf.set("skip.bad.records", "1");
    let error = run_map(&job, &task, &mut here).unwrap_err().to_string();
    assert!(error.contains("skip.bad.records = 1") && error.contains(&format!("{source}:4")), "{error}");
    task.conf.set("skip.bad.records", "2");
    let outcome = run_map(&job, &task, &mut here).unwrap();
    assert_eq!((outcome.counters["SKIPPED_RECORDS"], outcome.counters["LINES"]), (2, 3));
    assert_eq!(outcome.counters["MAP_OUTPUT_RECORDS"], 3, "the output of earlier runs is discarded");
}

/// Returns an error at `bad`, and panics at `worse`.
struct FlakyMapper;

impl Mapper for FlakyMapper {
    fn map(&mut self, _: &[u8], line: &[u8], out: &mut dyn Emit, _: &mut Context) -> Result<(), TaskError> {
        assert!(line != b"worse", "cannot continue");
        if line == b"bad" {
            return Err("this word is bad".into());
        }
        out.emit(line, b"")
    }
}

#[test]
fn errors_and_panics_share_one_limit_in_either_order() {
    for text in ["bad\nworse\ngood\n", "worse\nbad\ngood\n"] {
        let mut here = TestIo::new();
        let source = here.file("text", text.as_bytes());
        let job = Job::map(|_| Ok(FlakyMapper));
        let mut task = here.task(&source, 0, 100, 1);
        task.conf.set("skip.bad.records", "1");
        let error = run_map(&job, &task, &mut here).unwrap_err().to_string();
        assert!(error.contains("more bad records than skip.bad.records = 1"), "{text:?}: {error}");
        task.conf.set("skip.bad.records", "2");
        let outcome = run_map(&job, &task, &mut here).unwrap();
        assert_eq!((outcome.counters["SKIPPED_RECORDS"], outcome.counters["MAP_OUTPUT_RECORDS"]), (2, 1));
    }
}

/// Fails at the second value of a key.
struct BadCombiner {
    panics: bool,
}

impl Reducer for BadCombiner {
    fn reduce(
        &mut self,
        _: &[u8],
        values: &mut dyn Values,
        _: &mut dyn Emit,
        _: &mut Context,
    ) -> Result<(), TaskError> {
        while values.next()?.is_some() {}
        assert!(!self.panics, "the combiner panics");
        Err("the combiner fails".into())
    }
}

#[test]
fn combiner_that_fails_or_panics_skips_no_record() {
    for (panics, why) in [(true, "the combiner panics"), (false, "the combiner fails")] {
        let mut here = TestIo::new();
        // The text is longer than the buffer, so that pairs are combined while the mapper emits.
        let source = here.file("text", &text(100_000));
        let job = Job::map(|_| Ok(Words { split_after: None })).combine(move |_| Ok(BadCombiner { panics }));
        let mut task = here.task(&source, 0, u64::MAX, 1);
        task.conf.set("skip.bad.records", "5");
        let error = run_map(&job, &task, &mut here).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("record at") && !error.contains("skip.bad.records"), "{error}");
    }
}

#[test]
fn records_at_which_a_streaming_mapper_crashes_are_found_by_bisection() {
    let mut here = TestIo::new();
    let lines: Vec<String> =
        (0..3000).map(|n| if n == 77 || n == 2500 { "bad".into() } else { format!("line {n}") }).collect();
    let source = here.file("text", (lines.join("\n") + "\n").as_bytes());
    let mut task = here.task(&source, 0, u64::MAX, 1);
    let script = "while read -r line; do [ \"$line\" = bad ] && exit 3; echo \"$line\"; done";
    task.conf.set("stream.mapper", format!("sh -c '{script}'"));
    let job = crate::registry::job("streaming", &task.conf).unwrap();
    let error = run_map(&job, &task, &mut here).unwrap_err().to_string();
    assert!(error.contains("exit status 3"), "{error}");
    task.conf.set("skip.bad.records", "5");
    let outcome = run_map(&job, &task, &mut here).unwrap();
    assert_eq!((outcome.counters["SKIPPED_RECORDS"], outcome.counters["MAP_OUTPUT_RECORDS"]), (2, 2998));
    // A program that always fails has no bad record.
    task.conf.set("stream.mapper", "sh -c 'cat > /dev/null; exit 4'");
    let job = crate::registry::job("streaming", &task.conf).unwrap();
    let error = run_map(&job, &task, &mut here).unwrap_err().to_string();
    assert!(error.contains("exit status 4"), "{error}");
    // If no single record makes the program fail, skipping does not help.
    let script = "n=0; while read -r line; do n=$((n+1)); [ $n -gt 2000 ] && exit 5; done; exit 0";
    task.conf.set("stream.mapper", format!("sh -c '{script}'"));
    let job = crate::registry::job("streaming", &task.conf).unwrap();
    let error = run_map(&job, &task, &mut here).unwrap_err().to_string();
    assert!(error.contains("exit status 5") && error.contains("no single record"), "{error}");
}
