//! The backing store for pages that exceed `--local`: named memory servers or a private server.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use hanare_settings::fits::TooMuch;
use hanare_settings::hostfile::{Hostfile, HostfileError};
use hanare_settings::{
    DEFAULT_PREFETCH, Local, POLICIES, PREFETCHERS, Seal, ServerSpec, Settings, SettingsError, parse_size,
};
use hanare_store::private::{Private, PrivateError, PrivateOptions};
use hanare_sys::memory::{Memory, MemoryError};
use thiserror::Error;

use crate::run::servers::{self, ServersError};
use crate::run::{choices, private_memory, spill_of, warn_of_memory};

/// Default replacement policy of ranks. In a loop over more pages than fit, it keeps a part of the pages until they are
/// used again.
const DEFAULT_POLICY: &str = "lirs";
/// The variables that name the backing store to the ranks. They are removed first, because inherited values would name
/// servers of another run.
const VARIABLES: [&str; 5] = ["HANARE_SERVERS", "HANARE_KEY_FILE", "HANARE_SEAL", "HANARE_TIMEOUT", "HANARE_PRIVATE"];

#[derive(Debug, Args)]
pub(super) struct ElsewhereArgs {
    /// With --local: a memory server, and how much of it all ranks together may use. May be given several times.
    #[arg(long = "server", value_name = "HOST[:PORT][=SIZE]", requires = "local")]
    servers: Vec<ServerSpec>,
    /// With --local: a host file of 'HOST MEGABYTES' lines. The first line (the compute node) is skipped.
    #[arg(short = 'f', long, value_name = "HOSTFILE", requires = "local")]
    hostfile: Option<PathBuf>,
    /// With --local: memory limit of the private server. Default: half of the available memory that the ranks' --local
    /// leaves.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "local", conflicts_with_all = ["servers", "hostfile"])]
    memory: Option<u64>,
    /// With --local: directory of the private server's spill file, or 'none'. Default: /var/tmp if it is on a disk.
    #[arg(long, value_name = "DIR", requires = "local", conflicts_with_all = ["servers", "hostfile"])]
    spill: Option<PathBuf>,
    /// With --server: file with the key shared with the memory servers.
    #[arg(long, value_name = "FILE", requires = "local")]
    key: Option<PathBuf>,
    /// With --local: whether ranks encrypt and authenticate pages before they evict them: on, off, or auto, which is on
    /// with --key and a server on another host. Default: auto.
    #[arg(long, value_name = "on|off|auto", requires = "local")]
    seal: Option<Seal>,
    #[arg(long, value_name = "NAME", value_parser = choices::parser(POLICIES, DEFAULT_POLICY), requires = "local", help = choices::flag_help("With --local: replacement policy of shared pages", POLICIES, DEFAULT_POLICY))]
    policy: Option<String>,
    #[arg(long, value_name = "NAME", value_parser = choices::parser(PREFETCHERS, DEFAULT_PREFETCH), requires = "local", help = choices::flag_help("With --local: prefetcher of shared pages", PREFETCHERS, DEFAULT_PREFETCH))]
    prefetch: Option<String>,
}

/// The reason why there is no backing store for evicted pages.
#[derive(Debug, Error)]
pub(crate) enum ElsewhereError {
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The host file was refused.
    #[error(transparent)]
    Hostfile(#[from] HostfileError),
    /// The machine's memory size is unknown.
    #[error("{0}; give --memory")]
    Memory(#[from] MemoryError),
    /// The machine has less memory than asked for.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// A named server cannot be used.
    #[error(transparent)]
    Servers(#[from] ServersError),
    /// The private server cannot be used.
    #[error(transparent)]
    Private(#[from] PrivateError),
}

/// The backing store while the ranks run.
pub(super) enum Elsewhere {
    /// There is no backing store, because ranks keep all pages.
    Nowhere,
    Servers(Box<Settings>),
    Private(Private, Box<Settings>),
}

impl Elsewhere {
    /// Opens the backing store that the flags name, or that `HANARE_SERVERS` and its related variables name. Starts a
    /// private server if none is named.
    pub(super) fn open(args: &ElsewhereArgs, local: Option<u64>, ranks: u16) -> Result<Self, ElsewhereError> {
        let Some(local) = local else { return Ok(Elsewhere::Nowhere) };
        let budget = Local::Bytes(local.saturating_mul(u64::from(ranks)));
        let named = args.hostfile.is_some() || !args.servers.is_empty();
        let wants_private = args.memory.is_some() || args.spill.is_some();
        let mut settings = Settings::from_lookup(|variable| match variable {
            "HANARE_LOCAL" => Some(budget.to_string().into()),
            "HANARE_SERVERS" if named || wants_private => None,
            "HANARE_SERVERS" | "HANARE_KEY_FILE" | "HANARE_SEAL" | "HANARE_TIMEOUT" => std::env::var_os(variable),
            _ => None,
        })?;
        if named {
            let hosts = args.hostfile.as_deref().map(|path| Hostfile::read(path, None)).transpose()?;
            settings.servers = hosts.map(|hosts| hosts.servers).unwrap_or_default();
            settings.servers.extend(args.servers.iter().cloned());
        }
        settings.key_file = args.key.clone().or(settings.key_file);
        settings.seal = args.seal.unwrap_or(settings.seal);
        let variable = |name| std::env::var(name).ok();
        let policy = args.policy.clone().or_else(|| variable("HANARE_SHARED_POLICY"));
        settings.policy = policy.unwrap_or_else(|| DEFAULT_POLICY.to_owned());
        let prefetch = args.prefetch.clone().or_else(|| variable("HANARE_SHARED_PREFETCH"));
        settings.prefetch = prefetch.unwrap_or(settings.prefetch);
        settings.resolve_paths();
        settings.validate_values()?;
        let private = args.memory.map(|bytes| ("--memory", bytes));
        warn_of_memory(&[("--local", local)].into_iter().chain(private).collect::<Vec<_>>())?;
        if !settings.servers.is_empty() {
            servers::check(&settings)?;
            return Ok(Elsewhere::Servers(Box::new(settings)));
        }
        let memory = match args.memory {
            Some(bytes) => bytes,
            None => private_memory(Memory::now()?.available_bytes, budget),
        };
        let command = std::env::current_exe().unwrap_or_else(|_| "hanare".into());
        let spill = spill_of(args.spill.as_deref());
        let options = PrivateOptions { command: &command, memory, spill, tree: None, warm: None };
        Ok(Elsewhere::Private(Private::start(&options)?, Box::new(settings)))
    }

    /// Sets the variables that name the backing store to a rank.
    pub(super) fn set_variables(&self, command: &mut Command) {
        if !matches!(self, Elsewhere::Nowhere) {
            VARIABLES.iter().for_each(|name| _ = command.env_remove(name));
        }
        let settings = match self {
            Elsewhere::Nowhere => return,
            Elsewhere::Private(private, settings) => {
                command.env("HANARE_PRIVATE", private.socket()).env("HANARE_SEAL", settings.seal.to_string());
                settings
            }
            Elsewhere::Servers(settings) => {
                let of_servers = |name: &String| VARIABLES.contains(&name.as_str());
                command.envs(settings.to_env().into_iter().filter(|(name, _)| of_servers(name)));
                settings
            }
        };
        command.env("HANARE_SHARED_POLICY", &settings.policy).env("HANARE_SHARED_PREFETCH", &settings.prefetch);
    }

    /// Ends the private server. The caller calls this after the last rank has ended.
    pub(super) fn close(self) {
        if let Elsewhere::Private(private, _) = self {
            private.program_ended();
        }
    }
}
