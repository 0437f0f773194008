//! The plain programs by themselves: `plain wordcount FILE OUT`, `plain sort FILE OUT`, and their inputs.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match plain::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("plain: {error:#}");
            ExitCode::FAILURE
        }
    }
}
