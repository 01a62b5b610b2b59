//! `hanare slurm`: prints a job script for Slurm. The job's first node computes, and its other nodes lend their memory.
//!
//! The script is for its user to read and to change. Its beginning has the settings, and follows from the flags. The
//! rest, `slurm/job.sh`, is the same for all jobs.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use hanare_settings::{Local, Redundancy, human_size, parse_size};
use thiserror::Error;

/// The part of the script that is the same for all jobs.
const JOB: &str = include_str!("slurm/job.sh");

/// Smallest memory of a job on a node, in bytes. Less leaves a server next to nothing to lend.
const MEM_MIN: u64 = 128 << 20;

const EXAMPLES: &str = "\
Examples:
  hanare slurm --nodes 4 --mem 64G --time 2:00:00 -- ./simulate 'input 7.dat' > job.sh
  sbatch job.sh                                        after a look into it
  hanare slurm --nodes 3 --mem 32G --local 24G --partition long -- ./fold -n 8 | sbatch
  hanare slurm --nodes 6 --mem 32G --redundancy parity:4+1 -- ./fold | sbatch

The program has the --local memory of the first node, and most of the memory of each other node: 4 nodes of 64G give it 32G \
and three times 59.9G. The script needs bash, and a folder that all nodes share to submit it from. This command must \
be at the same path on every node. Flags of sbatch may also be given to sbatch: sbatch --account=physics job.sh. \
docs/slurm.md explains the script.";

/// Print a Slurm job script that lends the memory of the job's other nodes to a program on its first node.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SlurmArgs {
    /// Number of nodes. One runs the program; each other node lends its memory.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1025))]
    nodes: u32,
    /// Memory of the job on each node, at least 128M.
    #[arg(long, value_name = "SIZE", value_parser = parse_mem)]
    mem: u64,
    /// Local memory for far pages on the first node: a size, or a share of what the program allocates (25%). Default: half
    /// of --mem. The program's near memory needs the rest.
    #[arg(long, value_name = "SIZE|PERCENT", allow_negative_numbers = true)]
    local: Option<Local>,
    /// Number of CPUs of the job on each node. Default: Slurm's, which is often 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cpus: Option<u32>,
    /// Time limit in a form that sbatch takes: MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS. Default: the partition's.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    time: Option<String>,
    /// The partition. Default: the cluster's.
    #[arg(long, value_name = "NAME", value_parser = parse_partition)]
    partition: Option<String>,
    /// Parts of each page on the other nodes: none, mirror or parity:K+M, as for 'hanare run'. The job survives the loss
    /// of M other nodes. Default: none.
    #[arg(long, value_name = "none|mirror|parity:K+M", default_value = "none")]
    redundancy: Redundancy,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Why no script was printed.
#[derive(Debug, Error)]
pub(crate) enum SlurmError {
    /// There are fewer other nodes than parts of a page.
    #[error("--redundancy {redundancy} needs {needed} memory servers, and --nodes {nodes} gives {}; ask for --nodes {}",
        nodes - 1, needed + 1)]
    FewNodes { redundancy: Redundancy, needed: u32, nodes: u32 },
    /// The local memory is larger than the job's memory.
    #[error("--local {} does not fit into --mem {}; make --local smaller, or ask for more memory", human_size(*local), human_size(*mem))]
    TooMuchLocal { local: u64, mem: u64 },
    /// The path of this command is unknown.
    #[error("cannot find out where this command is: {0}; start it by its full path")]
    Command(io::Error),
    /// An argument cannot be written into a script.
    #[error("cannot write an argument of PROGRAM into a script: {0}; pass it to the program in a file")]
    Quote(#[from] shlex::QuoteError),
    /// Standard output cannot be written.
    #[error("cannot print: {0}")]
    Print(io::Error),
}

/// Prints the script.
pub(crate) fn slurm(args: &SlurmArgs) -> Result<u8, SlurmError> {
    args.check()?;
    let command = std::env::current_exe().map_err(SlurmError::Command)?;
    let text = script(args, command.as_os_str().as_bytes())?;
    match io::stdout().write_all(&text) {
        // A reader that closes the pipe early is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(SlurmError::Print(error)),
        _ => Ok(0),
    }
}

impl SlurmArgs {
    /// Checks what no flag alone shows.
    fn check(&self) -> Result<(), SlurmError> {
        let (redundancy, needed, nodes) = (self.redundancy, u32::from(self.redundancy.parts()), self.nodes);
        if needed > nodes - 1 {
            return Err(SlurmError::FewNodes { redundancy, needed, nodes });
        }
        match self.local {
            Some(Local::Bytes(local)) if local >= self.mem => Err(SlurmError::TooMuchLocal { local, mem: self.mem }),
            _ => Ok(()),
        }
    }

    /// Returns the lines with the flags of sbatch.
    fn directives(&self) -> String {
        let flag = |name: &str, value: &Option<String>| {
            value.as_ref().map_or(String::new(), |value| format!("#SBATCH --{name}={value}\n"))
        };
        let mem = Local::Bytes(self.mem).to_string();
        let mut lines = format!("#SBATCH --nodes={}\n#SBATCH --ntasks-per-node=1\n#SBATCH --mem={mem}\n", self.nodes);
        lines += &flag("cpus-per-task", &self.cpus.map(|count| count.to_string()));
        lines += &flag("time", &self.time);
        lines += &flag("partition", &self.partition);
        if !self.redundancy.is_none() {
            lines += "#SBATCH --no-kill\n";
        }
        lines + "#SBATCH --signal=B:TERM@60\n"
    }

    /// Returns the flags of `hanare run` as words of a shell.
    fn run_flags(&self) -> String {
        let local = self.local.unwrap_or(Local::Bytes(self.mem / 2));
        let mut flags = format!("--local {local} --report");
        if !self.redundancy.is_none() {
            flags += &format!(" --redundancy {}", self.redundancy);
        }
        flags
    }
}

/// Returns the script. `command` is the path of this command on every node.
fn script(args: &SlurmArgs, command: &[u8]) -> Result<Vec<u8>, SlurmError> {
    let quoter = shlex::bytes::Quoter::new();
    let program = quoter.join(args.program.iter().map(|word| word.as_bytes()))?;
    let mut text = b"#!/bin/bash\n\
        # A Slurm job: its first node runs a program, and its other nodes lend their memory to it.\n\
        # Submit it with 'sbatch FILE', from a folder that all nodes share. Change it as you need; docs/slurm.md explains it.\n"
        .to_vec();
    text.extend(args.directives().bytes());
    text.extend(b"set -euo pipefail\n\n# At this path on every node.\nhanare=");
    text.extend(quoter.quote(command)?.iter());
    text.extend(b"\n# Flags of 'hanare run'. --report prints a summary at the end of the job's output.\n");
    text.extend(format!("run_flags=({})\n", args.run_flags()).bytes());
    text.extend(b"# The program and its arguments, quoted for bash.\n# shellcheck disable=SC2016\nprogram=(");
    text.extend(program);
    text.extend(b")\n\n");
    text.extend(JOB.bytes());
    Ok(text)
}

/// Parses the memory of a node. Slurm counts it in whole megabytes.
fn parse_mem(text: &str) -> Result<u64, String> {
    match parse_size(text).map_err(|error| error.to_string())? {
        size if size >= MEM_MIN => Ok(size >> 20 << 20),
        _ => Err(format!("a node needs {} at least", human_size(MEM_MIN))),
    }
}

/// Checks the characters of a time limit. Slurm checks the rest.
fn parse_time(text: &str) -> Result<String, String> {
    let is_time = text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || matches!(c, ':' | '-'));
    if is_time { Ok(text.to_owned()) } else { Err("write 90 (minutes), 2:00:00 or 1-12 (days-hours)".to_owned()) }
}

/// Checks the characters of a list of partitions, so that sbatch takes it as it is.
fn parse_partition(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ',' | '+' | '@' | ':' | '/');
    if !text.is_empty() && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("a partition's name has letters, digits, '-', '_' and '.'; 'sinfo' lists the partitions".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Alone {
        #[command(flatten)]
        args: SlurmArgs,
    }

    fn args(line: &[&str]) -> SlurmArgs {
        let words = ["slurm", "--nodes", "4", "--mem", "1.5G"].iter().chain(line).copied();
        Alone::try_parse_from(words).expect("valid flags").args
    }

    fn printed(line: &[&str]) -> String {
        String::from_utf8(script(&args(line), b"/opt/far memory/hanare").unwrap()).unwrap()
    }

    #[test]
    fn flags_become_lines_of_the_script() {
        let text = printed(&[
            "--cpus",
            "3",
            "--time",
            "1-12",
            "--partition",
            "long",
            "--redundancy",
            "parity:2+1",
            "--",
            "a b",
            "it's",
            "$HOME",
            "",
        ]);
        let settings: Vec<&str> = text.lines().take_while(|line| !line.starts_with("# The address")).collect();
        for line in [
            "#SBATCH --nodes=4",
            "#SBATCH --mem=1536M",
            "#SBATCH --cpus-per-task=3",
            "#SBATCH --time=1-12",
            "#SBATCH --partition=long",
            "#SBATCH --no-kill",
            "hanare='/opt/far memory/hanare'",
            "run_flags=(--local 768M --report --redundancy parity:2+1)",
            "program=('a b' \"it's\" '$HOME' '')",
        ] {
            assert!(settings.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn what_is_not_asked_for_is_left_to_slurm() {
        let text = printed(&["--local", "25%", "true"]);
        for word in ["--cpus-per-task=3", "#SBATCH --time", "#SBATCH --partition", "--no-kill", "--redundancy"] {
            assert!(!text.contains(word), "{word} is in\n{text}");
        }
        assert!(text.contains("run_flags=(--local 25% --report)\n"), "{text}");
    }

    #[test]
    fn a_value_cannot_add_lines_to_the_script() {
        assert!(parse_time("1:00\nrm").is_err() && parse_time("").is_err() && parse_time("soon").is_err());
        assert!(parse_partition("a\nb").is_err() && parse_partition("a b").is_err() && parse_partition("").is_err());
        assert_eq!(
            (parse_time("2-0:30:00"), parse_partition("gpu,long-x")),
            (Ok("2-0:30:00".into()), Ok("gpu,long-x".into()))
        );
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let refusal = |line: &[&str]| args(line).check().expect_err("refused").to_string();
        assert_eq!(
            refusal(&["--redundancy", "parity:4+1", "true"]),
            "--redundancy parity:4+1 needs 5 memory servers, and --nodes 4 gives 3; ask for --nodes 6"
        );
        assert!(refusal(&["--local", "2G", "true"]).starts_with("--local 2 GiB does not fit into --mem 1.5 GiB"));
        assert!(args(&["--redundancy", "parity:2+1", "--local", "1G", "true"]).check().is_ok());
    }
}
