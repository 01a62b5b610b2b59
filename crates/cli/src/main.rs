//! The `hanare` command: runs programs with far memory, lends memory, and says what this machine allows.
//!
//! This crate parses flags, starts and ends processes, and reports their results. The engine in the program moves
//! pages, and `hanare-server` and `hanare-wire` exchange frames. Only the benchmarks access far memory and resolve
//! faults themselves, in the three files that allow unsafe code.
#![deny(unsafe_code)]

mod bench;
mod doctor;
mod key;
mod launch;
mod leftover;
mod library;
mod message;
mod place;
mod program;
mod report;
mod run;
mod serve;
mod signals;
mod simulate;
mod status;
mod supervise;
mod torture;
mod trace;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use rustix::process::{Resource, getrlimit};

use crate::message::say;

/// Exit code of a failure of the command itself. Some failures have other codes: see [`EXIT_CODES`].
pub(crate) const EXIT_OWN: u8 = 125;

const EXIT_CODES: &str = "\
Exit codes of 'hanare run': the program's own; 128+n when signal n killed it; 125 Hanare could not start it (bad flags, \
budget, server, trap mode); 126 the program was found but cannot run under Hanare; 127 the program was not found; \
120 a memory server was lost, sent invalid data or a wrong page, or fell silent; 121 memory servers and spill space are \
full; 123 the kernel refused a request that the run depends on.";

/// Give unmodified programs more memory than one machine has.
#[derive(Parser)]
#[command(name = "hanare", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Launch(launch::LaunchArgs),
    Serve(serve::ServeArgs),
    Status(status::StatusArgs),
    Key(key::KeyArgs),
    Doctor(doctor::DoctorArgs),
    Bench(bench::BenchArgs),
    Trace(trace::TraceArgs),
    Simulate(simulate::SimulateArgs),
    Place(place::PlaceArgs),
    Torture(torture::TortureArgs),
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
        Command::Launch(args) => launch::launch(&args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Serve(args) => serve::serve(args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Status(args) => status::status(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Key(args) => key::key(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Doctor(args) => doctor::doctor(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Bench(args) => bench::bench(&args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Trace(args) => trace::trace(&args).map_err(|error| (error.exit_code(), error.to_string())),
        Command::Place(args) => place::place(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::Torture(args) => torture::torture(&args).map_err(|error| (EXIT_OWN, error.to_string())),
        Command::TortureProgram(args) => {
            torture::program::program(&args).map_err(|error| (EXIT_OWN, error.to_string()))
        }
        Command::Simulate(args) => simulate::simulate(&args).map_err(|error| (error.exit_code(), error.to_string())),
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
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that closes the pipe early (`hanare --help | head`) is no failure.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let command = std::env::args_os().nth(1).map_or(String::new(), |name| format!(" {}", name.display()));
            say(&format!("no command is given; see 'hanare{command} --help'"));
            ExitCode::from(EXIT_OWN)
        }
        _ => {
            say(&message::of_usage(&error.render().to_string()));
            ExitCode::from(EXIT_OWN)
        }
    }
}
