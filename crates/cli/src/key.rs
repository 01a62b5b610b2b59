//! `hanare key`: makes the keys that memory servers and their clients share.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use hanare_wire::{Key, KeyError};
use thiserror::Error;

const EXAMPLES: &str = "\
Example:
  hanare key new ~/.hanare.key
  scp -p ~/.hanare.key node7:                      a channel that you trust
  node7$  hanare serve --listen 0.0.0.0 --key ~/.hanare.key
  hanare run --server node7 --key ~/.hanare.key -- ./simulate";

/// Make a key that memory servers and their clients share.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write a new random key to FILE, which only you can read. An existing file is never replaced.
    New(NewArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// The file to make.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Why no key was made.
#[derive(Debug, Error)]
pub(crate) enum KeyCommandError {
    /// The key file cannot be made.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Standard output cannot be written.
    #[error("cannot print: {0}")]
    Print(io::Error),
}

/// Makes a key file and says how to use it.
pub(crate) fn key(args: &KeyArgs) -> Result<u8, KeyCommandError> {
    let What::New(NewArgs { file }) = &args.what;
    Key::make_file(file)?;
    let file = file.display();
    let text = format!(
        "{file} has a new key. Copy it to each machine by a channel that you trust: scp -p {file} HOST:\n\
         the server:   hanare serve --listen 0.0.0.0 --key {file}\n\
         the program:  hanare run --server HOST --key {file} -- PROGRAM\n"
    );
    match io::stdout().write_all(text.as_bytes()) {
        // A reader that closes the pipe early is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(KeyCommandError::Print(error)),
        _ => Ok(0),
    }
}
