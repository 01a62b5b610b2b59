//! `hanare manual` and `hanare completions`: the pages for `man` and the completions for shells, made from the same
//! definitions as the help.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use thiserror::Error;

use crate::NAME;

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(hanare completions bash)
  hanare completions zsh > ~/.zfunc/_hanare        with ~/.zfunc in fpath";

/// Write the manual pages of all commands into a folder, for 'man hanare'. 'make install' does so.
#[derive(Debug, Args)]
pub(crate) struct ManualArgs {
    /// The folder for the pages. It is made if it does not exist.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Print the completions of the command line for a shell. 'make install' installs them.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Why nothing, or not everything, was written.
#[derive(Debug, Error)]
pub(crate) enum ManualError {
    /// A page cannot be written.
    #[error("cannot write manual pages into {}: {source}; give a folder in which you may write", folder.display())]
    Write { folder: PathBuf, source: io::Error },
    /// Standard output cannot be written.
    #[error("cannot print: {0}")]
    Print(io::Error),
}

/// Writes a page for the command and one for each of its subcommands.
pub(crate) fn manual(args: &ManualArgs, command: Command) -> Result<u8, ManualError> {
    let written = std::fs::create_dir_all(&args.folder).and_then(|()| clap_mangen::generate_to(command, &args.folder));
    written.map(|()| 0).map_err(|source| ManualError::Write { folder: args.folder.clone(), source })
}

/// Prints the completions for a shell.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<u8, ManualError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, NAME, &mut text);
    match io::stdout().write_all(&text) {
        // A reader that closes the pipe early is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ManualError::Print(error)),
        _ => Ok(0),
    }
}
