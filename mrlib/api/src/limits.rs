//! Limits for the reports of a task. A task with too many counters or output files, or with a
//! counter name that is too long, fails; longer texts are shortened. The TaskTracker and the
//! JobTracker apply the limits too, because a task may be any program.

/// Maximum number of counters of a task.
pub const COUNTERS_MAX: usize = 1000;
/// Maximum length of the name of a counter, in bytes.
pub const COUNTER_NAME_BYTES_MAX: usize = 256;
/// Maximum number of output files of a task.
const PIECES_MAX: usize = 10_000;
/// Maximum length of the paths of all output files of a task together, in bytes. The JobTracker
/// stores them until the job is forgotten.
const PIECES_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a status line in bytes. A longer status line is truncated.
pub const STATUS_BYTES_MAX: usize = 1 << 10;
/// Maximum length of an error message in bytes. The middle of a longer message is omitted.
pub const FAILURE_BYTES_MAX: usize = 16 << 10;

const OMISSION_MARK: &str = "\n[...]\n";

/// Truncates a status line.
pub fn truncate_status(mut status: String) -> String {
    status.truncate(start_of(&status, STATUS_BYTES_MAX).len());
    status
}

/// Shortens an error message: keeps its start, which has the cause, and its end.
pub fn truncate_failure(why: String) -> String {
    truncate_failure_to(why, FAILURE_BYTES_MAX)
}

/// Does the same as [`truncate_failure`], with the limit `bytes_max`.
pub fn truncate_failure_to(why: String, bytes_max: usize) -> String {
    // The message may contain output of a program and is shown on terminals, so control characters
    // are replaced.
    let why: String = why
        .chars()
        .map(|one| if is_terminal_control(one) { char::REPLACEMENT_CHARACTER } else { one })
        .collect();
    if why.len() <= bytes_max {
        return why;
    }
    let half = (bytes_max - OMISSION_MARK.len()) / 2;
    let tail = (why.len() - half..why.len()).find(|at| why.is_char_boundary(*at)).unwrap_or(why.len());
    [start_of(&why, half), OMISSION_MARK, &why[tail..]].concat()
}

fn is_terminal_control(one: char) -> bool {
    one.is_control() && !matches!(one, '\n' | '\t')
}

/// Returns the start of a text, at most `bytes_max` bytes.
pub fn start_of(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// Checks the number of the counters of a task and the lengths of their names.
pub fn check_counters<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Result<(), String> {
    if names.len() > COUNTERS_MAX {
        return Err(too_many_counters());
    }
    for name in names {
        check_counter_name(name)?;
    }
    Ok(())
}

/// Returns the error for too many counters.
pub fn too_many_counters() -> String {
    format!("more than {COUNTERS_MAX} counters in one task: use a reducer to count many different things")
}

/// Checks the length of the name of a counter.
pub fn check_counter_name(name: &str) -> Result<(), String> {
    if name.len() <= COUNTER_NAME_BYTES_MAX {
        return Ok(());
    }
    let start = start_of(name, 40);
    Err(format!(
        "the name of counter \"{start}...\" has {} bytes: the limit is {COUNTER_NAME_BYTES_MAX}",
        name.len()
    ))
}

/// Checks the number of the output files of a task and the lengths of their paths.
pub fn check_pieces(paths: &[String]) -> Result<(), String> {
    if paths.len() > PIECES_MAX {
        return Err(format!("the task wrote {} output files: the maximum is {PIECES_MAX}", paths.len()));
    }
    let bytes: usize = paths.iter().map(String::len).sum();
    if bytes > PIECES_BYTES_MAX {
        return Err(format!(
            "the paths of the output files of the task have {bytes} bytes: the maximum is {PIECES_BYTES_MAX}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_keeps_its_start_and_its_last_part() {
        let text = format!("begin{}end", "ü".repeat(FAILURE_BYTES_MAX));
        let short = truncate_failure(text);
        assert!(short.len() <= FAILURE_BYTES_MAX, "{}", short.len());
        assert!(short.starts_with("beginü") && short.ends_with("üend") && short.contains(OMISSION_MARK));
        assert_eq!(truncate_failure("as it is".into()), "as it is");
        assert_eq!(truncate_status("ü".repeat(600)).len(), STATUS_BYTES_MAX);
    }

    #[test]
    fn too_many_counters_and_long_names_are_errors() {
        let names: Vec<String> = (0..=COUNTERS_MAX).map(|n| n.to_string()).collect();
        assert!(check_counters(names[1..].iter().map(String::as_str)).is_ok());
        assert!(check_counters(names.iter().map(String::as_str)).unwrap_err().contains("1000 counters"));
        let long = "x".repeat(COUNTER_NAME_BYTES_MAX + 1);
        assert!(check_counters([long.as_str()].into_iter()).unwrap_err().contains("257 bytes"));
    }

    #[test]
    fn too_many_output_files_and_long_paths_are_errors() {
        assert!(check_pieces(&vec!["/out/p".into(); PIECES_MAX]).is_ok());
        assert!(
            check_pieces(&vec![String::new(); PIECES_MAX + 1]).unwrap_err().contains("10001 output files")
        );
        let long = "x".repeat(PIECES_BYTES_MAX / 2);
        assert!(check_pieces(&[long.clone(), long.clone()]).is_ok());
        assert!(check_pieces(&[long.clone(), long, "x".into()]).unwrap_err().contains("1048577 bytes"));
    }
}
