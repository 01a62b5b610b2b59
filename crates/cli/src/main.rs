//! The `hanare` command: runs programs with far memory, lends memory, and says what this machine allows.
//!
//! This crate parses flags, starts and ends processes, and reports their results. The engine in the program moves
//! pages, and `hanare-server` and `hanare-wire` exchange frames. Only the benchmarks access far memory and resolve
//! faults themselves, in the three files that allow unsafe code.
#![deny(unsafe_code)]

mod bench;
mod doctor;
#[cfg(test)]
mod examples;
mod fit;
mod interrupt;
mod journal;
mod key;
mod launch;
mod leftover;
mod library;
mod manual;
mod message;
mod metrics;
mod narrow;
mod output;
mod outside;
mod page;
mod park;
mod place;
mod program;
mod progress;
mod report;
mod reproduce;
mod run;
mod serve;
mod signals;
mod simulate;
mod slurm;
mod socket;
mod status;
mod streams;
mod supervise;
mod symbols;
mod top;
mod torture;
mod trace;
mod version;
mod watch;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, getrlimit};

use crate::message::say;

/// Exit code of a failure of the command itself. Some failures have other codes: see [`EXIT_CODES`].
pub(crate) const EXIT_OWN: u8 = 125;

const EXIT_CODES: &str = "\
Exit codes of 'hanare run': the program's own; 128+n when signal n killed it; 125 Hanare could not start it (bad flags, \
budget, server, trap mode); 126 the program was found but cannot run under Hanare; 127 the program was not found; \
120 a memory server was lost, sent invalid data or a wrong page, or fell silent; 121 memory servers and spill space are \
full; 123 the kernel refused a request that the run depends on.";

/// The name of the command.
const NAME: &str = "hanare";

/// Give unmodified programs more memory than one machine has.
#[derive(Parser)]
#[command(
    name = NAME,
    version = version::SHORT.as_str(),
    long_version = version::LONG.as_str(),
    propagate_version = true,
    after_help = EXIT_CODES,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Fit(Box<fit::FitArgs>),
    Launch(launch::LaunchArgs),
    Serve(serve::ServeArgs),
    Status(status::StatusArgs),
    Top(top::TopArgs),
    Park(park::ParkArgs),
    Key(key::KeyArgs),
    Doctor(doctor::DoctorArgs),
    Bench(bench::BenchArgs),
    Trace(trace::TraceArgs),
    Simulate(simulate::SimulateArgs),
    Reproduce(reproduce::ReproduceArgs),
    Place(place::PlaceArgs),
    Slurm(slurm::SlurmArgs),
    Torture(torture::TortureArgs),
    Completions(manual::CompletionsArgs),
    Manual(manual::ManualArgs),
    /// Print the version, the commit and how this command was built.
    Version,
    #[command(hide = true)]
    TortureProgram(torture::program::ProgramArgs),
}

/// Smallest stack limit, in bytes, with which the command runs on its main thread. A user may set a smaller `ulimit -s`
/// for the program. The command then runs on a thread with a stack of `STACK` bytes.
const STACK_MIN: u64 = 1 << 20;
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|limit| limit >= STACK_MIN) {
        return command();
    }
    let roomy = std::thread::Builder::new().stack_size(STACK).spawn(command);
    match roomy.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The thread has already reported its panic.
        Ok(Err(_)) => ExitCode::from(EXIT_OWN),
        Err(error) => {
            say(&format!(
                "the stack is too small, and there can be no other: {error}; raise `ulimit -s` or `ulimit -u`"
            ));
            ExitCode::from(EXIT_OWN)
        }
    }
}

fn command() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args, None).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Fit(args) => fit::fit(*args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Launch(args) => launch::launch(&args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Serve(args) => serve::serve(args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Status(args) => status::status(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Top(args) => top::top(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Park(args) => park::park(&args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Key(args) => key::key(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Doctor(args) => doctor::doctor(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Bench(args) => bench::bench(&args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Trace(args) => trace::trace(&args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Place(args) => place::place(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Slurm(args) => slurm::slurm(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Torture(args) => torture::torture(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Completions(args) => {
            manual::completions(&args, Cli::command()).map_err(|error| (EXIT_OWN, error.to_string()))
        }
        Command::Manual(args) => manual::manual(&args, Cli::command()).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Version => return print_version(&version::LONG),
        Command::TortureProgram(args) => {
            torture::program::program(&args).map_err(|error| (EXIT_OWN, error.to_string()))
        }
        Command::Simulate(args) => simulate::simulate(&args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Reproduce(args) => reproduce::reproduce(&args).map_err(|error| (error.exit_code(), error.to_string())),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err((code, message)) => {
            say(&message);
            ExitCode::from(code)
        }
    }
}

/// Prints help or the version on stdout. Prints any other error as one line on stderr, with exit code 125.
fn usage(error: &clap::Error) -> ExitCode {
    let command = command_line(std::env::args_os());
    match error.kind() {
        ErrorKind::DisplayVersion => {
            // The text begins with the name of the subcommand that was given.
            let text = error.render().to_string();
            print_version(text.split_once(' ').map_or("", |(_, version)| version.trim_end()))
        }
        ErrorKind::DisplayHelp => {
            // A reader that closes the pipe early (`hanare --help | head`) is no failure.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if command == NAME => {
            // Ignored for the same reason.
            let _ = Cli::command().print_help();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            say(&format!("no command is given; see '{command} --help'"));
            ExitCode::from(EXIT_OWN)
        }
        _ => {
            say(&message::of_usage(&error.render().to_string(), &command));
            ExitCode::from(EXIT_OWN)
        }
    }
}

fn print_version(version: &str) -> ExitCode {
    // A reader that closes the pipe early is no failure.
    let _ = writeln!(std::io::stdout(), "{NAME} {version}");
    ExitCode::SUCCESS
}

/// Returns the command that these arguments name, with its subcommands, such as `hanare trace record`.
fn command_line(args: impl Iterator<Item = OsString>) -> String {
    let mut command = Cli::command();
    let mut words = NAME.to_owned();
    for word in args.skip(1) {
        let Some(found) = word.to_str().and_then(|word| command.find_subcommand(word)) else { break };
        words += &format!(" {}", found.get_name());
        command = found.clone();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_to_read_is_that_of_the_command_that_was_typed() {
        for (typed, command) in [
            ("hanare", "hanare"),
            ("hanare --bogus run", "hanare"),
            ("hanare run --local x true", "hanare run"),
            ("hanare run run", "hanare run"),
            ("/usr/bin/hanare trace record -o x", "hanare trace record"),
        ] {
            assert_eq!(command_line(typed.split(' ').map(Into::into)), command);
        }
    }
}
