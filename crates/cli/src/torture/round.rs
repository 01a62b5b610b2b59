//! One run of a test with its servers, and the harms to them until a server can be taken in no more.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use hanare_settings::human_size;
use rustix::process::Signal;

use super::folder::Folder;
use super::plan::{Harm, Kind, Plan};
use super::run::{Report, Run, Said};
use super::servers::Server;
use super::tally::Tally;
use super::{TortureError, Wish};
use crate::interrupt::Interrupt;

/// The number of losses of one server after which a new run begins. A run takes a server in again 16 times.
const LOSSES_MAX: u32 = 13;
/// The time in which a run must check each word twice at its start, and check all words at its end.
const PASS: Duration = Duration::from_secs(120);
/// The time in which every page must have all its parts again after a harm, and the server must be taken in again.
const WHOLE: Duration = Duration::from_secs(60);
/// The time after a harm in which the run notices it.
const NOTICE: Duration = Duration::from_millis(300);
/// The time without a report after which the checking program hangs.
const SILENT: Duration = Duration::from_secs(20);
/// The time of one visit of a page after which the checking program hangs.
const HANG: Duration = Duration::from_secs(30);
/// The time in which something must pass a link, so that a bit of it is flipped.
const FLIP: Duration = Duration::from_secs(2);
/// The time in which a run that has closed its outputs must end.
const END: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(20);
/// The time between two looks at a server's sessions.
const LOOK: Duration = Duration::from_millis(200);
/// The number of lines of the run that a finding quotes.
const LINES: usize = 3;

/// Why a test ends before its time.
#[derive(Debug)]
pub(super) enum Stop {
    /// The test itself failed.
    Own(TortureError),
    /// A word was wrong, something hung, or the program did not end well.
    Found(String),
    /// The user wants no more, and has sent this signal.
    Interrupted(i32),
}

impl From<TortureError> for Stop {
    fn from(error: TortureError) -> Self {
        Stop::Own(error)
    }
}

/// One run with its servers. All its processes end when this value is dropped, the run first.
pub(super) struct Round<'a> {
    run: Run,
    servers: Vec<Server>,
    addresses: Vec<String>,
    /// The number of losses of each server.
    losses: Vec<u32>,
    wish: &'a Wish,
    folder: &'a Folder,
    interrupt: &'a Interrupt,
    plan: &'a mut Plan,
    tally: &'a mut Tally,
    /// The last harm. `None` before the first one, and at the end.
    harm: Option<Harm>,
    last: Report,
    last_at: Instant,
    /// The last lines of the run's standard error.
    lines: VecDeque<String>,
}

impl<'a> Round<'a> {
    /// Starts servers and a run.
    pub(super) fn new(
        wish: &'a Wish,
        folder: &'a Folder,
        interrupt: &'a Interrupt,
        plan: &'a mut Plan,
        tally: &'a mut Tally,
    ) -> Result<Self, Stop> {
        let mut servers = Vec::new();
        for index in 0..wish.servers {
            if let Some(signal) = interrupt.signal() {
                return Err(Stop::Interrupted(signal));
            }
            servers.push(Server::start(wish, folder, index)?);
        }
        let addresses: Vec<String> = servers.iter().map(Server::address).collect();
        let (seed, is_sealed) = (wish.seed.wrapping_add(tally.runs), tally.runs % 2 == 1);
        let run = Run::start(wish, folder, &addresses, seed, is_sealed)?;
        tally.runs += 1;
        tally.note(&format!("run {} on {}; sealed: {is_sealed}", tally.runs - 1, addresses.join(" ")));
        Ok(Self {
            run,
            losses: vec![0; servers.len()],
            servers,
            addresses,
            wish,
            folder,
            interrupt,
            plan,
            tally,
            harm: None,
            last: Report::default(),
            last_at: Instant::now(),
            lines: VecDeque::new(),
        })
    }

    /// Waits until the run has used its far memory.
    fn begin(&mut self) -> Result<(), Stop> {
        let words = self.wish.size_bytes / 4;
        if self.watch(PASS, |round| round.last.words >= words && round.last.fetched_bytes > 0)? {
            return Ok(());
        }
        let checked = self.last.words;
        let seconds = PASS.as_secs();
        Err(self.found(&format!("the program fetched no page or checked only {checked} words in {seconds} s")))
    }

    /// Does harm until `end`, or until a new run is due. Then lets the program check all words and end.
    pub(super) fn go(&mut self, end: Instant) -> Result<(), Stop> {
        let result = self.begin().and_then(|()| self.harm_until(end)).and_then(|()| self.finish());
        self.tally.ends(&self.last);
        result
    }

    fn harm_until(&mut self, end: Instant) -> Result<(), Stop> {
        loop {
            self.watch(self.wish.pause, |_| false)?;
            let is_over = Instant::now() >= end || self.tally.harms() >= self.wish.harms_max;
            if is_over || self.losses.iter().any(|&count| count >= LOSSES_MAX) {
                return Ok(());
            }
            let harm = self.plan.next(self.servers.len(), self.wish.redundancy.parity.into());
            self.harm = Some(harm.clone());
            self.tally.harm(harm.kind, harm.servers.len());
            self.tally.note(&format!("harm {}: {}", self.tally.harms(), self.described(&harm)));
            self.do_harm(&harm)?;
            self.tally.note("the harm is over");
            self.wait_until_whole(&harm)?;
            self.tally.note("every page has all its parts, and the servers are in use");
        }
    }

    fn do_harm(&mut self, harm: &Harm) -> Result<(), Stop> {
        match harm.kind {
            Kind::Kill => self.end_servers(harm, Signal::KILL),
            Kind::Restart => self.end_servers(harm, Signal::TERM),
            Kind::Stop => {
                self.signal(harm, Signal::STOP);
                self.watch(harm.time, |_| false)?;
                self.signal(harm, Signal::CONT);
                Ok(())
            }
            Kind::Partition => {
                self.relays(harm).for_each(|relay| relay.hold(true));
                self.watch(harm.time, |_| false)?;
                self.relays(harm).for_each(|relay| relay.hold(false));
                Ok(())
            }
            Kind::Cut => {
                self.relays(harm).for_each(super::relay::Relay::cut);
                Ok(())
            }
            Kind::Corrupt => {
                self.relays(harm).for_each(|relay| relay.flip(harm.number));
                self.watch(FLIP, |round| !round.relays(harm).any(super::relay::Relay::is_to_flip))?;
                let left = self.relays(harm).filter(|relay| relay.forget_flip()).count();
                self.tally.idle_flips += left as u64;
                Ok(())
            }
        }
    }

    fn end_servers(&mut self, harm: &Harm, signal: Signal) -> Result<(), Stop> {
        for &index in &harm.servers {
            match self.servers[index].end(signal) {
                Ok(true) => {}
                Ok(false) => return Err(self.found(&format!("server {} did not end well", self.addresses[index]))),
                Err(source) => return Err(TortureError::Start { what: "the end of a server", source }.into()),
            }
        }
        self.watch(harm.time, |_| false)?;
        for &index in &harm.servers {
            self.servers[index].start_again(self.wish, self.folder)?;
        }
        Ok(())
    }

    fn signal(&self, harm: &Harm, signal: Signal) {
        harm.servers.iter().for_each(|&index| self.servers[index].signal(signal));
    }

    fn relays<'b>(&'b self, harm: &'b Harm) -> impl Iterator<Item = &'b super::relay::Relay> {
        harm.servers.iter().filter_map(|&index| self.servers[index].relay.as_ref())
    }

    /// Waits until the harmed servers are in use again and no page lacks a part.
    fn wait_until_whole(&mut self, harm: &Harm) -> Result<(), Stop> {
        let noticed = Instant::now() + NOTICE;
        let mut looked: Option<Instant> = None;
        let is_whole = |round: &mut Self| {
            if round.last_at < noticed || round.last.behind_bytes > 0 || looked.is_some_and(|at| at.elapsed() < LOOK) {
                return false;
            }
            looked = Some(Instant::now());
            let key = round.folder.key();
            harm.servers.iter().all(|&index| round.servers[index].has_session(key))
        };
        if self.watch(WHOLE, is_whole)? {
            return Ok(());
        }
        let behind = self.last.behind_bytes;
        let away = harm.servers.iter().find(|&&index| !self.servers[index].has_session(self.folder.key()));
        let away = away.map_or(String::new(), |&index| format!(", and {} is not used again", self.addresses[index]));
        let seconds = WHOLE.as_secs();
        Err(self.found(&format!("{} of pages lack parts {seconds} s after it{away}", human_size(behind))))
    }

    /// Lets the program check all words and end.
    fn finish(&mut self) -> Result<(), Stop> {
        self.harm = None;
        self.run.ask_to_end();
        self.watch(PASS, |round| round.last.is_done)?;
        if !self.last.is_done {
            return Err(self.found(&format!("the program did not end within {} s", PASS.as_secs())));
        }
        match self.exit_code() {
            Ok(Some(0)) => Ok(()),
            Ok(Some(code)) => Err(self.found(&format!("the program ended with exit code {code}"))),
            Ok(None) => Err(self.found(&format!("the run did not end within {} s", END.as_secs()))),
            Err(source) => Err(TortureError::Start { what: "the end of the run", source }.into()),
        }
    }

    fn exit_code(&mut self) -> io::Result<Option<u8>> {
        let began = Instant::now();
        loop {
            let code = self.run.end()?;
            if code.is_some() || began.elapsed() > END {
                return Ok(code);
            }
            std::thread::sleep(TICK);
        }
    }

    /// Hears the run until `is_done`, or for this time. Returns whether it is done.
    fn watch(&mut self, limit: Duration, mut is_done: impl FnMut(&mut Self) -> bool) -> Result<bool, Stop> {
        let began = Instant::now();
        loop {
            if let Some(signal) = self.interrupt.signal() {
                return Err(Stop::Interrupted(signal));
            }
            if is_done(self) {
                return Ok(true);
            }
            let Some(left) = limit.checked_sub(began.elapsed()) else { return Ok(false) };
            match self.run.next(left.min(TICK)) {
                Some(Some(Said::Report(report))) => self.hear(report)?,
                Some(Some(Said::Line(line))) => self.hear_line(line),
                Some(None) => {}
                None => return Err(self.ended_early()),
            }
            if self.last_at.elapsed() > SILENT {
                return Err(self.found(&format!("the program has said nothing for {} s", SILENT.as_secs())));
            }
        }
    }

    fn ended_early(&mut self) -> Stop {
        match self.exit_code() {
            Ok(code) if self.last == Report::default() => {
                let code = code.map_or_else(String::new, |code| format!("exit code {code}; "));
                TortureError::Run(format!("{code}{}", self.quoted())).into()
            }
            Ok(Some(code)) => self.found(&format!("the run ended with exit code {code}")),
            Ok(None) => self.found("the run closed its outputs and did not end"),
            Err(source) => TortureError::Start { what: "the end of the run", source }.into(),
        }
    }

    fn hear(&mut self, report: Report) -> Result<(), Stop> {
        self.tally.report(self.harm.as_ref().map(|harm| harm.kind), &report);
        self.last = report;
        self.last_at = Instant::now();
        self.tally.show(&self.last);
        if let Some(wrong) = self.last.wrong.clone() {
            return Err(self.found(&wrong));
        }
        if u128::from(self.last.stall_us) > HANG.as_micros() {
            return Err(self.found(&format!("a page took more than {} s", HANG.as_secs())));
        }
        Ok(())
    }

    fn hear_line(&mut self, line: String) {
        let is_of = |address: &String| line.contains(&format!("lost memory server {address} "));
        if let Some(index) = self.addresses.iter().position(is_of) {
            self.losses[index] += 1;
            if self.harm.as_ref().is_none_or(|harm| !harm.servers.contains(&index)) {
                self.tally.lost_unharmed += 1;
            }
        }
        self.tally.note(&line);
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    fn described(&self, harm: &Harm) -> String {
        let names: Vec<&str> = harm.servers.iter().map(|&index| self.addresses[index].as_str()).collect();
        format!("{} of {} for {} ms", harm.kind.name(), names.join(", "), harm.time.as_millis())
    }

    fn quoted(&self) -> String {
        self.lines.iter().map(String::as_str).collect::<Vec<_>>().join(" | ")
    }

    /// Makes a finding of what happened after the last harm.
    fn found(&self, what: &str) -> Stop {
        let after = self.harm.as_ref().map_or(String::new(), |harm| format!(" after a {}", self.described(harm)));
        let lines = if self.lines.is_empty() { String::new() } else { format!("; it said: {}", self.quoted()) };
        Stop::Found(format!("{what}{after}{lines}"))
    }
}
