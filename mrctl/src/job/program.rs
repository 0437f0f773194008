//! Checks the program of a job before submission: kind, input format, settings.

use crate::output::Usage;
use anyhow::{Result, bail, ensure};
use engine::{
    registry,
    run::{DescribeError, Description},
};
use mrlib_api::settings;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

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

/// Returns the input format of the program, and whether it has a reducer. This also checks its
/// settings and those of the engine, and that an executable can be run on this machine.
pub(super) fn describe(program: &str, conf: &BTreeMap<String, String>) -> Result<Description> {
    if let Some(builtin) = registry::find(program) {
        let conf: mrlib_api::Conf = conf.clone().into_iter().collect();
        // Check the names of settings first: if a name is misspelt, the program would report that a
        // setting is missing.
        let described = settings::check(conf.iter(), builtin.settings)
            .map_err(Into::into)
            .and_then(|()| registry::job(program, &conf))
            .and_then(|job| Description::checked(&job, &conf));
        return described.map_err(|error| Usage(error.to_string()).into());
    }
    check_file(program)?;
    let mut asking = Command::new(std::path::absolute(program)?);
    asking.arg("--describe");
    for (key, value) in conf {
        asking.arg("--conf").arg(format!("{key}={value}"));
    }
    let asked = asking.output().map_err(|error| {
        let why = format!("cannot run {program} ({error}): it may be built for another machine");
        Usage(why + &streaming_advice(program))
    })?;
    let text = String::from_utf8_lossy(&asked.stdout);
    if let Ok(description) = serde_json::from_str(&text)
        && asked.status.success()
    {
        return Ok(description);
    }
    // An error from the program itself is more precise than a guess.
    if let Ok(DescribeError { error }) = serde_json::from_str(&text) {
        bail!(Usage(format!("{program}: {error}")));
    }
    let words = String::from_utf8_lossy(&asked.stderr);
    let printed = words.lines().next().unwrap_or("it printed no description");
    bail!(Usage(format!(
        "{program} is not a job built on mrlib: unexpected answer to --describe ({printed}){}",
        streaming_advice(program)
    )))
}

/// Refuses a path that cannot be executed on any machine.
fn check_file(program: &str) -> Result<()> {
    let path = Path::new(program);
    let refuse = |why: String| Err(Usage(why).into());
    if !path.exists() {
        let names: Vec<&str> = registry::builtins().map(|builtin| builtin.name).collect();
        let near = settings::nearest(program, names.iter().copied());
        let near = near.map_or_else(String::new, |near| format!(": did you mean {near}?"));
        let names = names.join(", ");
        return refuse(format!(
            "there is no program {program:?}{near}; it is not a local file, and the built-in programs are {names}"
        ));
    }
    if !path.is_file() {
        return refuse(format!(
            "{program} is not a file: name an executable, or a built-in program (`mrctl programs`)"
        ));
    }
    if rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_err() {
        return refuse(format!(
            "{program} is not executable (use `chmod +x {program}`){}",
            streaming_advice(program)
        ));
    }
    Ok(())
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
        let conf = BTreeMap::new();
        assert!(refusal(describe(name, &conf)).contains("the built-in programs are"));
        assert!(refusal(describe("wordcont", &conf)).contains("did you mean wordcount?"));
        std::fs::write(&path, "#!/bin/sh\nexit 0\n").unwrap();
        assert!(refusal(describe(name, &conf)).contains("is not executable"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let hint = refusal(describe(name, &conf));
        assert!(hint.contains("a script runs by streaming") && hint.contains("--mapper ./map.py"), "{hint}");
        assert!(refusal(describe(folder.path().to_str().unwrap(), &conf)).contains("is not a file"));
        // A program built on mrlib reports its own error.
        std::fs::write(&path, "#!/bin/sh\necho '{\"error\":\"setting k is missing\"}'\nexit 2\n").unwrap();
        assert_eq!(refusal(describe(name, &conf)), format!("{name}: setting k is missing"));
    }

    #[test]
    fn invalid_settings_are_rejected_before_submission() {
        let check = |key: &str, value: &str| {
            refusal(describe("wordcount", &BTreeMap::from([(key.to_owned(), value.to_owned())])))
        };
        for (key, value) in [("pace.map", "xyz"), ("merge.factor", "1"), ("output.replication", "two")] {
            assert!(check(key, value).contains(key), "{key}");
        }
        assert!(check("my.own", "xyz").contains("my.own is unknown"));
        assert!(describe("wordcount", &BTreeMap::from([("user.own".into(), "xyz".into())])).is_ok());
    }
}
