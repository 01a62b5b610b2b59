//! `hanare bench servers`: how a greedy client, and strangers, slow the clients of a memory server.
//!
//! Modest clients are processes with far memory that access their pages at random, with a pause between accesses. The
//! greedy client has a session of its own and reads and writes ranges of the maximum length without a pause. The modest
//! clients are measured alternately without company, with the greedy client, and with strangers. A stranger connects and
//! is no client: it says nothing, speaks another protocol, or sends a byte of a greeting from time to time.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use clap::Args;
use hanare_server::ServerError;
use hanare_settings::{Local, Mode, PageSize, ServerSpec, Settings, SettingsError, parse_size};
use hanare_store::private::PrivateError;
use hanare_wire::limits::RANGE_MAX;
use hanare_wire::{Endpoint, LinkError, Session, SessionOptions, Wait};
use thiserror::Error;

use super::child::Run;
use super::paging::{Lender, LinkKind, PagingError, runs};
use super::pattern::OS_PAGE;
use super::sheet::Sheet;

/// Number of read requests that the greedy client keeps in flight.
const GREEDY_DEPTH: u64 = 64;
/// Number of distinct ranges that the greedy client reads and writes.
const GREEDY_RANGES: u64 = 16;
/// Pause between two connections of strangers.
const STRANGERS_PAUSE: Duration = Duration::from_micros(200);
/// Number of connections that strangers hold open, if the server lets them.
const STRANGERS_HELD: usize = 500;

const EXAMPLES: &str = "\
Examples:
  hanare bench servers
  hanare bench servers --clients 31 --touches 2000 --json";

/// Measure how a greedy client, and strangers, slow the clients of a memory server.
///
/// fault_us is the time of an access that faulted in a modest client: `alone` with one client, `modest` with all modest
/// clients, `greedy` with the greedy client beside them, `strangers` with strangers who connect 5,000 times a second at
/// most. ratio_greedy is `greedy` divided by `modest`, and ratio_strangers is `strangers` divided by `modest`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct ServersArgs {
    /// Number of modest clients.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=64))]
    clients: u32,
    /// Far memory of each modest client. Half of it is local.
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = parse_size)]
    size: u64,
    /// Number of accesses of each modest client.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    touches: u64,
    /// Pause between two accesses of a client, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 2000)]
    pause_us: u64,
    /// Number of repetitions. The figures are the median, the minimum and the maximum.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = runs())]
    runs: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The company of the modest clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    Nobody,
    Greedy,
    Strangers,
}

impl Company {
    /// Returns the hidden command that is the company.
    fn command(self) -> Option<&'static str> {
        match self {
            Company::Nobody => None,
            Company::Greedy => Some("greedy-child"),
            Company::Strangers => Some("strangers-child"),
        }
    }
}

/// The company of the modest clients, which goes on until it is killed. The help does not show it.
#[derive(Debug, Args)]
pub(crate) struct CompanyArgs {
    #[arg(long)]
    server: Endpoint,
}

/// Why a measurement failed.
#[derive(Debug, Error)]
pub(crate) enum ServersError {
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The server could not be started.
    #[error(transparent)]
    Lender(#[from] PagingError),
    /// The greedy client's link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A client could not be started, or ended early.
    #[error("a client of the benchmark failed: {0}; run it again")]
    Client(io::Error),
    /// A client's figures could not be parsed.
    #[error("a client of the benchmark printed no figures ({0}); reinstall hanare")]
    Figures(#[from] serde_json::Error),
}

impl From<PrivateError> for ServersError {
    fn from(error: PrivateError) -> Self {
        ServersError::Lender(error.into())
    }
}

impl From<ServerError> for ServersError {
    fn from(error: ServerError) -> Self {
        ServersError::Lender(error.into())
    }
}

/// A process of this benchmark. It is killed when this value is dropped.
struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn start(command: &mut Command) -> Result<Client, ServersError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(ServersError::Client)?;
        let gone = || ServersError::Client(io::ErrorKind::BrokenPipe.into());
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or_else(gone)?);
        Ok(Client { child, input, output })
    }

    fn line(&mut self) -> Result<String, ServersError> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(ServersError::Client)?;
        if line.is_empty() { Err(ServersError::Client(io::ErrorKind::UnexpectedEof.into())) } else { Ok(line) }
    }

    fn go(&mut self) -> Result<(), ServersError> {
        self.input.as_mut().map_or(Ok(()), |input| input.write_all(b"\n")).map_err(ServersError::Client)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Ignored: both calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Measures and prints.
pub(super) fn servers(args: &ServersArgs) -> Result<u8, ServersError> {
    let mut medians: [Vec<f64>; 4] = Default::default();
    let mut tails: [Vec<f64>; 4] = Default::default();
    let mut greedy_rate = Vec::new();
    let need = u64::from(args.clients) * (args.size + (8 << 20)) + GREEDY_RANGES * u64::from(RANGE_MAX);
    for _ in 0..args.runs {
        let all = args.clients;
        let worlds = [(1, Company::Nobody), (all, Company::Nobody), (all, Company::Greedy), (all, Company::Strangers)];
        for (at, (clients, company)) in worlds.into_iter().enumerate() {
            let lender = Lender::start(LinkKind::Tcp, need)?;
            let Some(endpoint) = lender.endpoint() else { continue };
            let (runs, rate) = together(args, &endpoint, clients, company)?;
            medians[at].push(median_of(&runs, 0));
            tails[at].push(median_of(&runs, 2));
            greedy_rate.extend(rate.filter(|_| company == Company::Greedy));
        }
    }
    let ratios = |world: usize| medians[world].iter().zip(&medians[1]).map(|(with, without)| with / without).collect();
    let (ratio_greedy, ratio_strangers) = (ratios(2), ratios(3));
    let mut sheet = Sheet::default();
    sheet.count("clients", u64::from(args.clients));
    sheet.count("pause_us", args.pause_us);
    sheet.count("runs", u64::from(args.runs));
    for (name, (median, tail)) in
        ["alone", "modest", "greedy", "strangers"].into_iter().zip(medians.into_iter().zip(tails))
    {
        sheet.spread(&format!("fault_us_p50_{name}"), median);
        sheet.spread(&format!("fault_us_p99_{name}"), tail);
    }
    sheet.spread("greedy_gb_per_s", greedy_rate);
    sheet.spread("ratio_greedy", ratio_greedy);
    sheet.spread("ratio_strangers", ratio_strangers);
    sheet.print(args.json);
    Ok(0)
}

/// Runs `clients` modest clients at once and returns their figures. If they have company, also returns the rate at which
/// the server reads and writes for all clients, in GB/s.
fn together(
    args: &ServersArgs,
    endpoint: &Endpoint,
    clients: u32,
    company: Company,
) -> Result<(Vec<Run>, Option<f64>), ServersError> {
    let mut modest = Vec::new();
    for _ in 0..clients {
        modest.push(Client::start(&mut modest_command(args, endpoint)?)?);
    }
    for client in &mut modest {
        client.line()?;
    }
    let start = |command| Client::start(own_command()?.args(["bench", command, "--server"]).arg(endpoint.to_string()));
    let mut company = company.command().map(start).transpose()?;
    if let Some(company) = &mut company {
        company.line()?;
    }
    let bytes = || -> Result<u64, ServersError> {
        let status = hanare_wire::fetch_status(endpoint, None, Duration::from_secs(10))?;
        Ok(status.read_bytes + status.write_bytes)
    };
    let (began, before) = (std::time::Instant::now(), bytes()?);
    modest.iter_mut().try_for_each(Client::go)?;
    let mut runs = Vec::new();
    for client in &mut modest {
        runs.push(serde_json::from_str(&client.line()?)?);
    }
    let rate = (bytes()? - before) as f64 / began.elapsed().as_secs_f64() / 1e9;
    Ok((runs, company.map(|_| rate)))
}

fn own_command() -> Result<Command, ServersError> {
    let mut command = Command::new(std::env::current_exe().map_err(ServersError::Client)?);
    for name in Settings::VARIABLES.iter().chain(&["LD_PRELOAD"]) {
        command.env_remove(name);
    }
    Ok(command)
}

fn modest_command(args: &ServersArgs, endpoint: &Endpoint) -> Result<Command, ServersError> {
    let mut settings = Settings::new(Local::Bytes(args.size / 2));
    settings.page_size = PageSize::Fixed(OS_PAGE as u32);
    settings.mode = Mode::Auto;
    settings.servers = vec![ServerSpec { endpoint: endpoint.clone(), capacity: None }];
    settings.reserve = 1 << 30;
    settings.validate()?;
    let mut command = own_command()?;
    command.args(["bench", "paging-child", "--pattern", "rand", "--access", "r", "--stride-pages", "1", "--on-word"]);
    for (flag, number) in [("--pages", args.size / OS_PAGE), ("--touches", args.touches), ("--pause-us", args.pause_us)]
    {
        command.arg(flag).arg(number.to_string());
    }
    command.envs(settings.to_env());
    Ok(command)
}

fn median_of(runs: &[Run], percentile: usize) -> f64 {
    let mut figures: Vec<f64> = runs.iter().filter_map(|run| run.fault_us.map(|us| us[percentile])).collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Runs the greedy client: sends requests as fast as one session allows, until it is killed.
pub(super) fn greedy(args: &CompanyArgs) -> Result<u8, ServersError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|errno| ServersError::Client(errno.into()))?;
    let options = SessionOptions {
        silent_timeout: Duration::from_secs(60),
        ..SessionOptions::for_endpoint(&args.server, 2 << 20)
    };
    let (mut requests, mut replies, mut writer, _) = Session::open(&args.server, &options)?.split();
    let page = vec![7; RANGE_MAX as usize];
    let offset = |number: u64| number % GREEDY_RANGES * u64::from(RANGE_MAX);
    let wait = Wait::Block { timeout: Duration::from_secs(60) };
    for number in 0..GREEDY_RANGES {
        writer.write(number, offset(number), &[io::IoSlice::new(&page)])?;
        writer.try_ack(wait)?;
    }
    println!("ready");
    let reading = std::thread::spawn(move || -> Result<(), LinkError> {
        let mut into = vec![0; RANGE_MAX as usize];
        for number in 0..u64::MAX {
            requests.request(number, offset(number), RANGE_MAX)?;
            if number >= GREEDY_DEPTH && replies.try_header(wait)?.is_some() {
                replies.receive_payload(&mut into)?;
            }
        }
        Ok(())
    });
    for number in 0..u64::MAX {
        writer.write(number, offset(number), &[io::IoSlice::new(&page)])?;
        writer.try_ack(wait)?;
        if reading.is_finished() {
            break;
        }
    }
    Ok(0)
}

/// Runs the strangers: connects to the server again and again, until it is killed.
pub(super) fn strangers(args: &CompanyArgs) -> Result<u8, ServersError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|errno| ServersError::Client(errno.into()))?;
    let Endpoint::Tcp(address) = &args.server else {
        return Err(ServersError::Client(io::ErrorKind::InvalidInput.into()));
    };
    let mut held = VecDeque::from([TcpStream::connect(address).map_err(ServersError::Client)?]);
    println!("ready");
    for number in 0..u64::MAX {
        std::thread::sleep(STRANGERS_PAUSE);
        // A stranger who is refused, or whose connection the server has closed, is an expected one.
        if let Ok(mut stream) = TcpStream::connect(address) {
            let (Ok(()) | Err(_)) = match number % 3 {
                0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                1 => stream.write_all(b"H"),
                _ => Ok(()),
            };
            held.push_back(stream);
        }
        if held.len() > STRANGERS_HELD {
            held.pop_front();
        }
        let slow = number as usize % held.len().max(1);
        let (Ok(_) | Err(_)) = held.get_mut(slow).map_or(Ok(0), |stream| stream.write(b"N"));
    }
    Ok(0)
}
