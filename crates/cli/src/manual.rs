//! `hanare manual` and `hanare completions`: the pages for `man` and the completions for shells, made from the same
//! definitions as the help.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
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
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let written = std::fs::create_dir_all(&args.folder).and_then(|()| write_pages(&command, &args.folder));
    written.map(|()| 0).map_err(|source| ManualError::Write { folder: args.folder.clone(), source })
}

fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    let shown: Vec<&Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).collect();
    shown.iter().try_for_each(|sub| write_pages(sub, folder))?;
    let man = Man::new(command.clone()).source(concat!("hanare ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    // The library's own synopsis names all flags, but not their values.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").split_whitespace().collect::<Vec<_>>().join(" ");
    Roff::new().control("SH", ["SYNOPSIS"]).text([roman(usage)]).to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if !shown.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(help) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        let help = help.to_string();
        let (heading, text) = help.split_once(":\n").unwrap_or(("Notes", &help));
        let mut section = Roff::new();
        section.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
        for line in text.lines() {
            section.text([roman(line)]);
        }
        section.control("fi", []).to_writer(&mut page)?;
    }
    std::fs::write(folder.join(man.get_filename()), page)
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
