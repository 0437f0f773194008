//! Command line of the plain programs (`plain wordcount FILE OUT`, `plain sort FILE OUT`) and of
//! the generators of their inputs.

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
