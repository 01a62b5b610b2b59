//! `hanare doctor`: what this machine allows this user, which trap mode a run will use, and how to get a better one.

mod advice;

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use clap::Args;
use hanare::choose::{choose, obstacle, system_calls_work};
use hanare_settings::{Mode, Settings, SettingsError, human_size};
use hanare_sys::features::{DeviceNode, Features, Thp};
use hanare_sys::map::Mapping;
use hanare_sys::memory::Memory;
use hanare_sys::uffd::UffdAccess;
use serde::Serialize;
use thiserror::Error;

use crate::library;
use crate::narrow::{self, fitted};
use advice::advice;

const ALIGN: usize = 2 << 20;
/// Column in which findings begin.
const INDENT: usize = 16;

const EXAMPLES: &str = "\
Examples:
  hanare doctor                           what works, and what to do about the rest
  hanare doctor --json                    the same for programs
  HANARE_DISABLE=userfaultfd hanare doctor    as if the machine had none
Exit code 0 when 'hanare run' can work here, 125 when it cannot.";

/// Say what this machine allows this user, and how to get more.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Why there are no findings.
#[derive(Debug, Error)]
pub(crate) enum DoctorError {
    /// A variable is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The findings could not be printed.
    #[error("cannot print the findings: {0}")]
    Print(#[from] io::Error),
}

/// One trap mode.
#[derive(Serialize)]
struct ModeFinding {
    mode: String,
    works: bool,
    /// The reason why the mode does not work here; `None` if it works.
    obstacle: Option<&'static str>,
    system_calls_on_far_pages: bool,
}

/// All findings. The JSON has this structure.
#[derive(Serialize)]
struct Findings {
    kernel_release: String,
    userfaultfd_access: &'static str,
    userfaultfd_syscall: String,
    userfaultfd_device: String,
    userfaultfd_user_mode_only: String,
    device_node: String,
    unprivileged_userfaultfd: Option<u64>,
    missing: bool,
    write_protect: bool,
    #[serde(rename = "move")]
    move_: bool,
    write_protect_async: bool,
    sigbus: bool,
    thread_id: bool,
    process_madvise: bool,
    free_tables: bool,
    pagemap_scan: bool,
    guards: bool,
    call_filter: bool,
    call_dispatch: bool,
    huge_pages: &'static str,
    mappings_max: Option<u64>,
    memory_total_bytes: Option<u64>,
    memory_available_bytes: Option<u64>,
    address_space_bytes: u64,
    address_space_ok: bool,
    library: Option<String>,
    modes: Vec<ModeFinding>,
    /// The mode that a run would use. `None` if no run can work.
    mode_chosen: Option<String>,
    /// Reasons why no run can work.
    problems: Vec<String>,
    advice: Vec<String>,
}

/// Prints the findings on stdout and returns the exit code.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8, DoctorError> {
    let findings = examine()?;
    let text = if args.json {
        let mut json = serde_json::to_string_pretty(&findings).map_err(io::Error::from)?;
        json.push('\n');
        json
    } else {
        fitted(&findings.text(), narrow::width(&io::stdout()), INDENT)
    };
    match io::stdout().write_all(text.as_bytes()) {
        // A reader that closes the pipe early is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    Ok(if findings.problems.is_empty() { 0 } else { crate::EXIT_OWN })
}

fn examine() -> Result<Findings, DoctorError> {
    let settings = Settings::from_lookup(|variable| match variable {
        // A budget is required, but its size does not matter here.
        "HANARE_LOCAL" => Some("64M".into()),
        "HANARE_MODE" | "HANARE_DISABLE" | "HANARE_RESERVE" => std::env::var_os(variable),
        _ => None,
    })?;
    let features = Features::probe(&settings.disabled()?);
    let memory = Memory::now().ok();
    let reserved =
        usize::try_from(settings.reserve).ok().map(|len| Mapping::reserve(len, ALIGN).map_err(|e| e.to_string()));
    let mut problems = Vec::new();
    if let Some(Err(error)) = &reserved {
        problems.push(format!("{error}; or set HANARE_RESERVE to less"));
    }
    let found = library::find();
    if let Err(error) = &found {
        problems.push(error.to_string());
    }
    let chosen = choose(settings.mode, &features, true);
    if let Err(error) = &chosen {
        problems.push(error.to_string());
    }
    let mode_chosen = chosen.ok().filter(|_| problems.is_empty());
    let advice = advice(&features, choose(Mode::Auto, &features, true).unwrap_or(Mode::Sigsegv));
    Ok(Findings {
        userfaultfd_access: access_name(features.access),
        userfaultfd_syscall: features.syscall.to_string(),
        userfaultfd_device: features.device.to_string(),
        userfaultfd_user_mode_only: features.user_mode_only.to_string(),
        device_node: node_text(features.device_node),
        unprivileged_userfaultfd: features.unprivileged_userfaultfd,
        missing: features.missing,
        write_protect: features.wp,
        move_: features.move_,
        write_protect_async: features.wp_async,
        sigbus: features.sigbus,
        thread_id: features.thread_id,
        process_madvise: features.process_madvise,
        free_tables: features.frees_tables,
        pagemap_scan: features.pagemap_scan,
        guards: features.guards,
        call_filter: features.calls.filter,
        call_dispatch: features.calls.dispatch,
        huge_pages: thp_name(features.thp),
        mappings_max: features.max_map_count,
        memory_total_bytes: memory.map(|memory| memory.total_bytes),
        memory_available_bytes: memory.map(|memory| memory.available_bytes),
        address_space_bytes: settings.reserve,
        address_space_ok: matches!(reserved, Some(Ok(_))),
        library: found.ok().map(|path| path.display().to_string()),
        modes: [Mode::Thread, Mode::Sigbus, Mode::Sigsegv].map(|mode| mode_finding(mode, &features)).into(),
        mode_chosen: mode_chosen.map(|mode| mode.to_string()),
        problems,
        advice,
        kernel_release: features.kernel_release,
    })
}

fn mode_finding(mode: Mode, features: &Features) -> ModeFinding {
    let obstacle = obstacle(mode, features);
    ModeFinding {
        mode: mode.to_string(),
        works: obstacle.is_none(),
        obstacle,
        system_calls_on_far_pages: obstacle.is_none() && system_calls_work(mode, features),
    }
}

impl Findings {
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a String cannot fail.
        let _ = self.write_machine(&mut text).and_then(|()| self.write_verdict(&mut text));
        text
    }

    fn write_machine(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "kernel          {}", self.kernel_release)?;
        writeln!(out, "userfaultfd     system call        {}", self.userfaultfd_syscall)?;
        writeln!(out, "                /dev/userfaultfd   {} ({})", self.userfaultfd_device, self.device_node)?;
        writeln!(out, "                user mode only     {}", self.userfaultfd_user_mode_only)?;
        let features = [
            ("missing", self.missing),
            ("write-protect", self.write_protect),
            ("move", self.move_),
            ("write-protect async", self.write_protect_async),
            ("sigbus", self.sigbus),
            ("thread id", self.thread_id),
            ("process_madvise", self.process_madvise),
            ("free tables", self.free_tables),
            ("pagemap scan", self.pagemap_scan),
            ("guards", self.guards),
            ("call filter", self.call_filter),
            ("call dispatch", self.call_dispatch),
        ];
        let named = |wanted| {
            let names: Vec<&str> = features.iter().filter(|(_, has)| *has == wanted).map(|(name, _)| *name).collect();
            if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
        };
        writeln!(out, "kernel has      {}", named(true))?;
        writeln!(out, "kernel lacks    {}", named(false))?;
        writeln!(out, "huge pages      {}", self.huge_pages)?;
        if let (Some(available), Some(total)) = (self.memory_available_bytes, self.memory_total_bytes) {
            writeln!(out, "memory          {} available of {}", human_size(available), human_size(total))?;
        }
        let verdict = if self.address_space_ok { "can be reserved" } else { "cannot be reserved" };
        writeln!(out, "address space   {} {verdict}", human_size(self.address_space_bytes))?;
        writeln!(out, "library         {}", self.library.as_deref().unwrap_or("not found"))
    }

    /// Says which system calls on absent far pages work in a mode in which the kernel's accesses do not trap.
    fn served(&self, mode: &str) -> &'static str {
        match (mode, self.call_filter, self.call_dispatch) {
            ("sigbus", true, true) => "system calls on absent far pages are trapped and served",
            ("sigbus", false, true) => {
                "a system call that the C library makes within another function (as in fread) fails on an absent far page; \
                 with CAP_SYS_ADMIN, as root has it, it works"
            }
            ("sigbus", true, false) => {
                "system calls on absent far pages are trapped and served if their arguments point there themselves"
            }
            _ => {
                "a system call on an absent far page works only if it is the C library's function for it that is called"
            }
        }
    }

    fn write_verdict(&self, out: &mut String) -> fmt::Result {
        for finding in &self.modes {
            let name = &finding.mode;
            match finding.obstacle {
                Some(obstacle) => writeln!(out, "mode {name:<10} does not work: {obstacle}")?,
                None if finding.system_calls_on_far_pages => {
                    writeln!(out, "mode {name:<10} works, system calls on far pages too")?;
                }
                None => writeln!(out, "mode {name:<10} works; {}", self.served(name))?,
            }
        }
        match &self.mode_chosen {
            Some(mode) => writeln!(out, "a run will use  {mode}")?,
            None => writeln!(out, "a run will not work")?,
        }
        for problem in &self.problems {
            writeln!(out, "problem         {problem}")?;
        }
        for line in &self.advice {
            writeln!(out, "advice          {line}")?;
        }
        Ok(())
    }
}

fn access_name(access: UffdAccess) -> &'static str {
    match access {
        UffdAccess::Syscall => "syscall",
        UffdAccess::Device => "device",
        UffdAccess::UserModeOnly => "user_mode_only",
        UffdAccess::None => "none",
    }
}

fn thp_name(thp: Thp) -> &'static str {
    match thp {
        Thp::Always => "always",
        Thp::Madvise => "madvise",
        Thp::Never => "never",
        Thp::Unavailable => "unavailable",
    }
}

fn node_text(node: DeviceNode) -> String {
    match node {
        DeviceNode::Absent => "no such device".to_owned(),
        DeviceNode::Present { mode, uid, gid, .. } => format!("mode {mode:o}, owner {uid}:{gid}"),
    }
}
