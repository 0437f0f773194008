//! A job executable for the cluster tests. It sorts lines in total order, with the contents of a
//! side file as value. With the setting `misbehaviour` it misbehaves when it reads the line `now`.

use mrlib::{Conf, Context, Emit, Job, Mapper, Reducer, TaskError, Values, settings::Kind};
use std::{fs, process::Command, thread, time::Duration};

struct Lines {
    prefix: Vec<u8>,
    misbehaviour: String,
}

impl Lines {
    fn new(conf: &Conf) -> Self {
        let misbehaviour = conf.get("misbehaviour").unwrap_or_default().to_owned();
        // Side files do not exist yet while keys are sampled.
        Self { prefix: fs::read("prefix.txt").unwrap_or_default(), misbehaviour }
    }
}

impl Mapper for Lines {
    fn divisible() -> bool {
        true
    }

    fn map(
        &mut self,
        _offset: &[u8],
        line: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        if line == b"now" {
            misbehave(&self.misbehaviour, context)?;
        }
        let value: &[u8] = if self.prefix.is_empty() { b"none" } else { &self.prefix };
        out.emit(line, value)
    }
}

fn misbehave(misbehaviour: &str, context: &mut Context) -> Result<(), TaskError> {
    match misbehaviour {
        "" => {}
        "eat" => {
            let mut eaten: Vec<Vec<u8>> = Vec::new();
            loop {
                eaten.push(vec![1; 16 << 20]);
            }
        }
        "hang" => loop {
            thread::sleep(Duration::from_secs(1));
        },
        "fork" => {
            for _ in 0..20 {
                Command::new("sleep").arg("987").spawn().map_err(TaskError::io("start sleep"))?;
            }
            context.set_status("forked");
            panic!("after forking");
        }
        "panic" => panic!("this line is bad"),
        "exit" => {
            eprintln!("the last message of the task");
            std::process::exit(3);
        }
        "signal" => {
            eprintln!("killed by the test");
            Command::new("kill").arg("-ILL").arg(std::process::id().to_string()).status().ok();
            thread::sleep(Duration::from_mins(1));
        }
        other => return Err(format!("unknown misbehaviour: {other}").into()),
    }
    Ok(())
}

struct Show;

impl Reducer for Show {
    fn reduce(
        &mut self,
        line: &[u8],
        prefixes: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        while let Some(prefix) = prefixes.next()? {
            let shown = [prefix, b" ", line].concat();
            out.emit(&shown, b"")?;
        }
        Ok(())
    }
}

fn main() {
    mrlib::run(|_: &Conf| {
        let job = Job::map(|conf| Ok(Lines::new(conf))).declare_setting(
            "misbehaviour",
            Kind::Text,
            "what to do at the line `now`",
        );
        job.reduce(|_| Ok(Show)).totally_ordered()
    })
}
