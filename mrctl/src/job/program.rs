//! Checks the program of a job before submission, with advice for programs that are not built on
//! mrlib, and the commands of a streaming job.

use crate::output::Usage;
use anyhow::{Result, bail, ensure};
use client::{Error, Program, Submission};
use engine::registry;
use std::path::{Path, PathBuf};

/// Returns whether `program` is the name of a built-in program.
pub(super) fn is_builtin(program: &str) -> bool {
    registry::find(program).is_some()
}

/// Returns the file name of the program, without folders.
pub(super) fn short_name(program: &str) -> String {
    Path::new(program)
        .file_name()
        .map_or_else(|| program.to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Checks the program and the settings of the submission without a cluster.
pub(super) fn check(program: &str, submission: &Submission) -> Result<Program> {
    Program::check(program, submission).map_err(|error| match error {
        Error::NotAJob(why) => Usage(why + &streaming_advice(program)).into(),
        error => error.into(),
    })
}

/// Returns whether the file is a script with an interpreter line.
fn is_script(program: &str) -> bool {
    let mut start = [0; 2];
    let read =
        std::fs::File::open(program).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
    read.is_ok() && &start == b"#!"
}

/// Returns advice on how to run a program that is not built on mrlib, as the end of a message.
fn streaming_advice(program: &str) -> String {
    let name = short_name(program);
    let kind = if is_script(program) { "a script runs" } else { "other programs run" };
    format!("; {kind} by streaming: `mrctl submit streaming --mapper ./{name} --file {program} ...`")
}

/// Refuses a streaming command that tasks would not find. Prints a note about arguments that are
/// local files but are not sent with `--file`.
pub(super) fn check_stream(flag: &str, command: &str, sent: &[PathBuf]) -> Result<()> {
    let is_sent = |word: &str| sent.iter().any(|file| file.file_name() == Path::new(word).file_name());
    let words = engine::streaming::split_command(command)
        .map_err(|why| Usage(format!("--{flag} {command:?}: {why}")))?;
    let first = words[0].as_str();
    let relative = first.contains('/') && !first.starts_with('/');
    let name = short_name(first);
    if relative && !is_sent(first) {
        let why = if Path::new(first).is_file() {
            format!("{first} is not in the working folder of a task: send it there with --file {first}")
        } else {
            format!(
                "there is no local file {first}: correct the name, and send the file to the working folder of each task with --file"
            )
        };
        bail!(Usage(format!("--{flag} {command}: {why}")));
    }
    ensure!(
        !relative || first.trim_start_matches("./") == name,
        Usage(format!("--{flag} {command}: side files are in the working folder of a task: write ./{name}"))
    );
    for word in &words {
        if Path::new(word).is_file() && !word.starts_with('/') && !is_sent(word) {
            eprintln!(
                "mrctl: note: {word} is a local file; tasks find it only if you send it with --file {word}"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn refusal(result: Result<impl std::fmt::Debug>) -> String {
        let error = result.unwrap_err();
        assert_eq!(crate::output::exit_code(&error), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn missing_stream_commands_are_rejected() {
        let sent = [PathBuf::from("jobs/map.py")];
        for command in ["./map.py -v", "cat", "/bin/cat", "python3 ./map.py", "cut -d '|' -f 2"] {
            check_stream("mapper", command, &sent).unwrap();
        }
        for command in ["", "cat | sort", "cat > /tmp/x", "cat 'x"] {
            assert!(refusal(check_stream("mapper", command, &sent)).contains("--mapper"), "{command}");
        }
        let why = refusal(check_stream("mapper", "./other.py", &sent));
        assert!(why.contains("there is no local file ./other.py") && why.contains("--file"), "{why}");
        // The folder of this crate is the working folder of its tests.
        let why = refusal(check_stream("mapper", "src/main.rs", &[]));
        assert!(why.contains("working folder of a task: send it there with --file src/main.rs"), "{why}");
        assert!(refusal(check_stream("mapper", "jobs/map.py", &sent)).contains("write ./map.py"));
        let why = refusal(check_stream("mapper", "'./my map.py'", &sent));
        assert!(why.contains("there is no local file ./my map.py:"), "{why}");
        for command in ["'./my map.py' -v", r"./my\ map.py", "'my map.py'", "python3 './my map.py'"] {
            check_stream("mapper", command, &[PathBuf::from("jobs/my map.py")]).unwrap();
        }
    }

    #[test]
    fn error_for_an_unusable_program_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.py");
        let name = path.to_str().unwrap();
        let describe = |program: &str| check(program, &Submission::default());
        assert!(refusal(describe(name)).contains("the built-in programs are"));
        assert!(refusal(describe("wordcont")).contains("did you mean wordcount?"));
        std::fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        assert!(refusal(describe(name)).contains("is not executable"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let hint = refusal(describe(name));
        assert!(hint.contains("a script runs by streaming") && hint.contains("--mapper ./map.py"), "{hint}");
        assert!(refusal(describe(folder.path().to_str().unwrap())).contains("is not a file"));
        // A program built on mrlib reports its own error.
        std::fs::write(&path, "#!/bin/sh\necho '{\"error\":\"setting k is missing\"}'\nexit 2\n").unwrap();
        assert_eq!(refusal(describe(name)), format!("{name}: setting k is missing"));
    }
}
