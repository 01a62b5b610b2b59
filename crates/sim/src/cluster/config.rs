//! The settings of a simulation as a user writes them: a TOML file over the shipped one, and single settings over both.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use hanare_paging::kinds::First;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::memory::Replacement;
use super::model::{FirstTouch, Frequencies, Group, Model, Priority, Rules, Used};
use super::network::Network;
use super::references::PAGES_MAX;
use super::schedule::Info;

/// The shipped file: every setting with its default.
pub const DEFAULT: &str = include_str!("default.toml");

/// Most processes, threads and pages of all processes, and frames of all memories, that are simulated.
const PROCESSES_MAX: u64 = 1 << 13;
const THREADS_MAX: u64 = 1 << 16;
const ALL_PAGES_MAX: u64 = 1 << 23;
const FRAMES_MAX: u64 = 1 << 26;

/// Reads a file that a setting names: its text, or why it cannot be read.
pub type Loader<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// What is to be simulated.
#[derive(Clone, Debug)]
pub struct Config {
    /// Networks.
    pub networks: Vec<Network>,
    /// Schedulers.
    pub schedulers: Vec<&'static Info>,
    /// Replacement methods.
    pub replacements: Vec<Replacement>,
    /// Clocks of a remote access, a level.
    pub remote_costs: Vec<u32>,
    /// Runs of each cell, with the seeds from 1 on.
    pub seeds: u32,
    /// All other settings; its network and remote cost are those of a cell.
    pub model: Model,
    /// The file that the user gave, and the line of each group of processes in it.
    file: Option<String>,
    group_lines: Vec<usize>,
}

/// A setting that cannot be: what, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file and, where one line is to blame, the line.
    place: Option<(String, Option<usize>)>,
    what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some((file, Some(line))) => write!(f, "{file}, line {line}: {}", self.what),
            Some((file, None)) => write!(f, "{file}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for ConfigError {}

/// One setting: how it is called, what it takes, and how it is set. `Err` says more than that the value is none of those.
struct Setting {
    key: &'static str,
    takes: &'static str,
    set: fn(&mut Config, &Given<'_>, Loader<'_>) -> Result<(), Option<String>>,
}

/// A value, as it was given.
enum Given<'a> {
    Integer(i64),
    Float(f64),
    Text(&'a str),
    Truth(bool),
    List(Vec<Given<'a>>),
    Other(&'static str),
}

impl<'a> Given<'a> {
    fn new(value: &'a DeValue<'_>) -> Self {
        match value {
            DeValue::Integer(number) => {
                i64::from_str_radix(number.as_str(), number.radix()).map_or(Self::Other("a large number"), Self::Integer)
            }
            DeValue::Float(number) => number.as_str().parse().map_or(Self::Other("a number"), Self::Float),
            DeValue::String(text) => Self::Text(text),
            DeValue::Boolean(truth) => Self::Truth(*truth),
            DeValue::Array(list) => Self::List(list.iter().map(|item| Self::new(item.get_ref())).collect()),
            DeValue::Datetime(_) => Self::Other("a date"),
            DeValue::Table(_) => Self::Other("a table"),
        }
    }

    fn number(&self, range: RangeInclusive<u32>) -> Result<u32, Option<String>> {
        match self {
            Self::Integer(number) => u32::try_from(*number).ok().filter(|number| range.contains(number)).ok_or(None),
            _ => Err(None),
        }
    }

    fn real(&self, range: RangeInclusive<f64>) -> Result<f64, Option<String>> {
        let number = match self {
            Self::Integer(number) => *number as f64,
            Self::Float(number) => *number,
            _ => return Err(None),
        };
        if range.contains(&number) { Ok(number) } else { Err(None) }
    }

    fn text(&self) -> Result<&'a str, Option<String>> {
        if let Self::Text(text) = self { Ok(text) } else { Err(None) }
    }

    /// One of two words.
    fn either(&self, no: &str, yes: &str) -> Result<bool, Option<String>> {
        match self.text()? {
            text if text == no => Ok(false),
            text if text == yes => Ok(true),
            _ => Err(None),
        }
    }

    fn list<T>(&self, item: impl Fn(&Self) -> Result<T, Option<String>>) -> Result<Vec<T>, Option<String>> {
        match self {
            Self::List(items) if !items.is_empty() => items.iter().map(item).collect(),
            Self::List(_) => Err(None),
            alone => Ok(vec![item(alone)?]),
        }
    }
}

impl fmt::Display for Given<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Float(number) => number.fmt(f),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::Truth(truth) => truth.fmt(f),
            Self::List(_) => f.write_str("the list"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// Most clocks of anything.
const CLOCKS_MAX: u32 = 1_000_000_000;

macro_rules! number {
    ($key:literal, $range:expr, $takes:literal, $($field:ident).+) => {
        Setting {
            key: $key,
            takes: $takes,
            set: |config, given, _| {
                config.$($field).+ = given.number($range)?;
                Ok(())
            },
        }
    };
}

macro_rules! real {
    ($key:literal, $range:expr, $takes:literal, $($field:ident).+) => {
        Setting {
            key: $key,
            takes: $takes,
            set: |config, given, _| {
                config.$($field).+ = given.real($range)?;
                Ok(())
            },
        }
    };
}

const CLOCKS: RangeInclusive<u32> = 0..=CLOCKS_MAX;

/// All settings but those of `[[process]]`.
const SETTINGS: &[Setting] = &[
    Setting {
        key: "cells.networks",
        takes: "branches of each level from the root, such as \"16\", \"4x4\", \"2x2x2x2\"",
        set: |config, given, _| {
            let parse = |item: &Given<'_>| item.text()?.parse().map_err(|error| Some(format!("{error}")));
            config.networks = given.list(parse as fn(&Given<'_>) -> _)?;
            Ok(())
        },
    },
    Setting {
        key: "cells.schedulers",
        takes: "names of schedulers, such as \"algo0\", \"algo4\"",
        set: |config, given, _| {
            config.schedulers = given.list(|item| Info::find(item.text()?).map_err(Some))?;
            Ok(())
        },
    },
    Setting {
        key: "cells.replacements",
        takes: "\"lru\", \"kind\", a policy, or \"kind+POLICY\"",
        set: |config, given, _| {
            config.replacements = given.list(|item| Replacement::parse(item.text()?).map_err(Some))?;
            Ok(())
        },
    },
    Setting {
        key: "cells.remote_costs",
        takes: "whole numbers of clocks from 0 to 1000000000",
        set: |config, given, _| {
            config.remote_costs = given.list(|item| item.number(CLOCKS))?;
            Ok(())
        },
    },
    number!("cells.seeds", 1..=10_000, "a whole number from 1 to 10000", seeds),
    number!("machine.memory_pages", 1..=1 << 20, "a whole number of pages from 1 to 1048576", model.memory_pages),
    number!("machine.page_bytes", 1..=1 << 30, "a whole number of bytes from 1 to 1073741824", model.page_bytes),
    number!("costs.disk_clk", CLOCKS, "whole clocks from 0 to 1000000000", model.disk_clk),
    number!("costs.communication_clk", 0..=10_000, "whole clocks from 0 to 10000", model.communication_clk),
    number!("costs.synchronisation_clk", CLOCKS, "whole clocks from 0 to 1000000000", model.sync_clk),
    number!("costs.link_clk", CLOCKS, "whole clocks from 0 to 1000000000", model.link_clk),
    number!("references.shared_percent", 0..=100, "a whole number from 0 to 100", model.shared_percent),
    number!("references.write_percent", 0..=100, "a whole number from 0 to 100", model.write_percent),
    Setting {
        key: "references.shared",
        takes: "\"uniform\", \"zipf:POWER\" with a power from 0 to 10, or \"file:PATH\"",
        set: |config, given, load| {
            config.model.shared = frequencies(given.text()?, load)?;
            Ok(())
        },
    },
    Setting {
        key: "references.private",
        takes: "\"uniform\", \"zipf:POWER\" with a power from 0 to 10, or \"file:PATH\"",
        set: |config, given, load| {
            config.model.private = frequencies(given.text()?, load)?;
            Ok(())
        },
    },
    Setting {
        key: "references.first_touch",
        takes: "\"free\" or \"disk\"",
        set: |config, given, _| {
            let disk = given.either("free", "disk")?;
            config.model.first_touch = if disk { FirstTouch::Disk } else { FirstTouch::Free };
            Ok(())
        },
    },
    Setting {
        key: "references.writers_wait",
        takes: "true or false",
        set: |config, given, _| match given {
            Given::Truth(truth) => {
                config.model.writers_wait = *truth;
                Ok(())
            }
            _ => Err(None),
        },
    },
    number!("synchronisation.every_clk", CLOCKS, "whole clocks from 0 to 1000000000", model.sync_every_clk),
    Setting {
        key: "synchronisation.threads",
        takes: "\"all\" or a number of threads from 1 to 4096",
        set: |config, given, _| {
            config.model.sync_threads = if given.text() == Ok("all") { 0 } else { given.number(1..=4096)? };
            Ok(())
        },
    },
    Setting {
        key: "replacement.first",
        takes: "\"kind\" or \"process\"",
        set: |config, given, _| {
            config.model.first = if given.either("kind", "process")? { First::Owner } else { First::Kind };
            Ok(())
        },
    },
    number!("replacement.history_pages", 0..=1 << 20, "a whole number of pages from 0 to 1048576", model.history_pages),
    number!("scheduling.quantum_clk", 1..=CLOCKS_MAX, "whole clocks from 1 to 1000000000", model.quantum_clk),
    number!("scheduling.finish_quanta", 1..=1_000_000, "a whole number from 1 to 1000000", model.finish_quanta),
    number!("scheduling.quanta_max", 1..=1_000_000, "a whole number from 1 to 1000000", model.quanta_max),
    Setting {
        key: "scheduling.arrival",
        takes: "\"shuffled\" or \"given\"",
        set: |config, given, _| {
            config.model.arrival_shuffled = given.either("given", "shuffled")?;
            Ok(())
        },
    },
    Setting {
        key: "scheduling.prefer",
        takes: "\"most-pages\" or \"any-pages\"",
        set: |config, given, _| {
            config.model.rules.prefer_most = given.either("any-pages", "most-pages")?;
            Ok(())
        },
    },
    Setting {
        key: "scheduling.lost",
        takes: "\"wait\" or \"anywhere\"",
        set: |config, given, _| {
            config.model.rules.lost_waits = given.either("anywhere", "wait")?;
            Ok(())
        },
    },
    Setting {
        key: "priority.used",
        takes: "\"effective\" or \"given\"",
        set: |config, given, _| {
            let given = given.either("effective", "given")?;
            config.model.priority.used = if given { Used::Given } else { Used::Effective };
            Ok(())
        },
    },
    real!("priority.per_quantum", -1e6..=1e6, "a number from -1000000 to 1000000", model.priority.per_quantum),
    real!("priority.processors_unit", 1e-6..=1e6, "a number from 0.000001 to 1000000", model.priority.processors_unit),
    real!("priority.per_pages", -1e6..=1e6, "a number from -1000000 to 1000000", model.priority.per_pages),
    real!("priority.pages_unit", 1e-6..=1e9, "a number from 0.000001 to 1000000000", model.priority.pages_unit),
    real!("priority.ran_last", -1e6..=1e6, "a number from -1000000 to 1000000", model.priority.ran_last),
];

/// A setting of a `[[process]]` table.
struct GroupSetting {
    key: &'static str,
    range: RangeInclusive<u32>,
    set: fn(&mut Group, u32),
}

const GROUP: &[GroupSetting] = &[
    GroupSetting { key: "processors", range: 1..=4096, set: |group, value| group.processors = value },
    GroupSetting { key: "count", range: 1..=4096, set: |group, value| group.count = value },
    GroupSetting { key: "private_pages", range: 0..=PAGES_MAX / 2, set: |group, value| group.private_pages = value },
    GroupSetting { key: "shared_pages", range: 0..=PAGES_MAX / 2, set: |group, value| group.shared_pages = value },
];

/// Reads `uniform`, `zipf:POWER` or `file:PATH`.
fn frequencies(text: &str, load: Loader<'_>) -> Result<Frequencies, Option<String>> {
    match text.split_once(':') {
        None if text == "uniform" => Ok(Frequencies::Uniform),
        Some(("zipf", power)) => {
            let power: Option<f64> = power.parse().ok().filter(|power| (0.0..=10.0).contains(power));
            power.map(Frequencies::Zipf).ok_or(None)
        }
        Some(("file", path)) => {
            let weights = weights(&load(path).map_err(Some)?).map_err(|error| Some(format!("{path}{error}")))?;
            Ok(Frequencies::Weights { file: path.to_owned(), weights })
        }
        _ => Err(None),
    }
}

/// The weights of a file, one a line; the error begins behind the file's name.
fn weights(text: &str) -> Result<Vec<f64>, String> {
    let mut weights = Vec::new();
    for (index, line) in text.lines().enumerate().take(PAGES_MAX as usize) {
        let weight = line.trim().parse::<f64>().ok().filter(|weight| (0.0..=1e12).contains(weight));
        weights.push(weight.ok_or_else(|| {
            format!(", line {}: '{}' is no weight; give a number from 0 to 1e12 on each line", index + 1, line.trim())
        })?);
    }
    Ok(weights)
}

impl Default for Config {
    /// The shipped file.
    fn default() -> Self {
        let mut config = Self::blank();
        // The shipped file is read by a test; were it damaged, the checks before a run would refuse what is left out.
        if let Ok(document) = DeTable::parse(DEFAULT) {
            let _ = config.take(document.get_ref(), "", DEFAULT, &|_| Err(String::new()));
        }
        (config.file, config.group_lines) = (None, Vec::new());
        config
    }
}

impl Config {
    fn blank() -> Self {
        let used = Used::Effective;
        let priority =
            Priority { used, per_quantum: 0.0, processors_unit: 1.0, per_pages: 0.0, pages_unit: 1.0, ran_last: 0.0 };
        let model = Model {
            network: Network::flat(1),
            memory_pages: 0,
            page_bytes: 0,
            disk_clk: 0,
            remote_clk: 0,
            communication_clk: 0,
            sync_clk: 0,
            link_clk: 0,
            quantum_clk: 0,
            finish_quanta: 0,
            quanta_max: 0,
            shared_percent: 0,
            write_percent: 0,
            shared: Frequencies::Uniform,
            private: Frequencies::Uniform,
            sync_every_clk: 0,
            sync_threads: 0,
            first_touch: FirstTouch::Free,
            writers_wait: false,
            first: First::Kind,
            history_pages: 0,
            rules: Rules { prefer_most: false, lost_waits: false },
            priority,
            arrival_shuffled: false,
            processes: Vec::new(),
        };
        Self {
            networks: Vec::new(),
            schedulers: Vec::new(),
            replacements: Vec::new(),
            remote_costs: Vec::new(),
            seeds: 0,
            model,
            file: None,
            group_lines: Vec::new(),
        }
    }

    /// The defaults with the settings of this file over them.
    ///
    /// # Errors
    /// It is no TOML, or a setting is unknown or takes no such value; the message has the file, the line, and what is
    /// valid.
    pub fn read(text: &str, file: &str, load: Loader<'_>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map(|span| line_of(text, &span));
            ConfigError { place: Some((file.to_owned(), line)), what: error.message().to_owned() }
        })?;
        config.file = Some(file.to_owned());
        config.take(document.get_ref(), file, text, load)?;
        Ok(config)
    }

    /// Sets one setting, such as `costs.disk_clk`, to a value as the file would have it; quotes may be left out.
    ///
    /// # Errors
    /// There is no such setting or it takes no such value; the message says what is valid.
    pub fn set(&mut self, key: &str, value: &str, load: Loader<'_>) -> Result<(), ConfigError> {
        let bare = |what| ConfigError { place: None, what };
        let line = format!("value = {value}");
        let given = match DeTable::parse(&line) {
            Ok(document) if document.get_ref().len() == 1 => {
                return match document.get_ref().values().next() {
                    Some(value) => self.set_given(key, &Given::new(value.get_ref()), load).map_err(bare),
                    None => Ok(()),
                };
            }
            _ => Given::Text(value.trim()),
        };
        self.set_given(key, &given, load).map_err(bare)
    }

    fn set_given(&mut self, key: &str, given: &Given<'_>, load: Loader<'_>) -> Result<(), String> {
        let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) else { return Err(unknown(key)) };
        (setting.set)(self, given, load).map_err(|more| match more {
            Some(more) => format!("{key}: {more}"),
            None => format!("{key} cannot be {given}; it takes {}", setting.takes),
        })
    }

    fn take(&mut self, document: &DeTable<'_>, file: &str, text: &str, load: Loader<'_>) -> Result<(), ConfigError> {
        let error = |span: Range<usize>, what| ConfigError {
            place: Some((file.to_owned(), Some(line_of(text, &span)))),
            what,
        };
        for (section, value) in document {
            let name: &str = section.get_ref();
            if name == "process" {
                self.take_groups(value, text).map_err(|(span, what)| error(span, what))?;
                continue;
            }
            let is_section = SETTINGS.iter().any(|setting| setting.key.split_once('.').is_some_and(|key| key.0 == name));
            let (true, DeValue::Table(table)) = (is_section, value.get_ref()) else {
                return Err(error(section.span(), unknown(name)));
            };
            for (key, value) in table {
                let full = format!("{name}.{}", key.get_ref());
                if !SETTINGS.iter().any(|setting| setting.key == full) {
                    return Err(error(key.span(), unknown(&full)));
                }
                let given = Given::new(value.get_ref());
                self.set_given(&full, &given, load).map_err(|what| error(value.span(), what))?;
            }
        }
        Ok(())
    }

    fn take_groups(&mut self, value: &Spanned<DeValue<'_>>, text: &str) -> Result<(), (Range<usize>, String)> {
        let keys = || GROUP.iter().map(|setting| setting.key).collect::<Vec<_>>().join(", ");
        let DeValue::Array(tables) = value.get_ref() else {
            return Err((value.span(), format!("[[process]] is a list of tables, each with {}", keys())));
        };
        (self.model.processes, self.group_lines) = (Vec::new(), Vec::new());
        for table in tables {
            let DeValue::Table(settings) = table.get_ref() else {
                return Err((table.span(), format!("[[process]] is a list of tables, each with {}", keys())));
            };
            let mut group = Group { processors: 0, count: 1, private_pages: 0, shared_pages: 0 };
            let mut line = line_of(text, &table.span());
            for (key, value) in settings {
                let name: &str = key.get_ref();
                let Some(setting) = GROUP.iter().find(|setting| setting.key == name) else {
                    return Err((key.span(), format!("[[process]] has no setting '{name}'; there are {}", keys())));
                };
                let given = Given::new(value.get_ref());
                let number = given.number(setting.range.clone()).map_err(|_| {
                    let (least, most) = (setting.range.start(), setting.range.end());
                    (value.span(), format!("{name} cannot be {given}; it takes a whole number from {least} to {most}"))
                })?;
                if name == "processors" {
                    line = line_of(text, &value.span());
                }
                (setting.set)(&mut group, number);
            }
            if group.processors == 0 {
                return Err((table.span(), "this [[process]] has no processors; give a number from 1 to 4096".into()));
            }
            self.model.processes.push(group);
            self.group_lines.push(line);
        }
        Ok(())
    }

    /// Checks what no setting can be checked for alone.
    ///
    /// # Errors
    /// Something is impossible: more processors asked than there are, no pages, or more of anything than is simulated.
    pub fn check(&self) -> Result<(), ConfigError> {
        let groups = &self.model.processes;
        if groups.is_empty() {
            return Err(self.error(None, "there are no processes to run; give [[process]] tables".into()));
        }
        for (index, group) in groups.iter().enumerate() {
            self.check_group(group).map_err(|what| self.error(Some(index), what))?;
        }
        let sum = |of: &dyn Fn(&Group) -> u64| groups.iter().map(of).fold(0u64, u64::saturating_add);
        let threads = |group: &Group| u64::from(group.count) * u64::from(group.processors);
        let pages = |group: &Group| {
            u64::from(group.count) * u64::from(group.shared_pages) + threads(group) * u64::from(group.private_pages)
        };
        let clusters = self.networks.iter().map(Network::clusters).max().unwrap_or(0);
        let frames = u64::from(self.model.memory_pages) + u64::from(self.model.history_pages);
        for (what, has, most) in [
            ("processes", sum(&|group| u64::from(group.count)), PROCESSES_MAX),
            ("threads", sum(&threads), THREADS_MAX),
            ("pages of processes", sum(&pages), ALL_PAGES_MAX),
            ("pages and remembered pages of all memories", frames * u64::from(clusters), FRAMES_MAX),
        ] {
            if has > most {
                return Err(self.error(None, format!("there are {has} {what}; at most {most} are simulated")));
            }
        }
        Ok(())
    }

    fn check_group(&self, group: &Group) -> Result<(), String> {
        if let Some(network) = self.networks.iter().find(|network| network.clusters() < group.processors) {
            return Err(format!(
                "a process asks for {} processors, and network {network} has {}; ask for fewer or give a larger network",
                group.processors,
                network.clusters()
            ));
        }
        if group.shared_pages + group.private_pages == 0 {
            return Err("a process has no pages; give it shared_pages or private_pages".into());
        }
        for (frequencies, pages) in [(&self.model.shared, group.shared_pages), (&self.model.private, group.private_pages)]
        {
            if let Frequencies::Weights { file, weights } = frequencies {
                let taken = weights.iter().take(pages as usize);
                if weights.len() < pages as usize {
                    return Err(format!("{file} has {} weights for {pages} pages; give one a page", weights.len()));
                }
                if pages > 0 && taken.sum::<f64>() <= 0.0 {
                    return Err(format!("the weights of {pages} pages in {file} are all 0; give one above 0"));
                }
            }
        }
        Ok(())
    }

    fn error(&self, group: Option<usize>, what: String) -> ConfigError {
        let line = group.and_then(|group| self.group_lines.get(group).copied());
        ConfigError { place: self.file.clone().filter(|_| group.is_none() || line.is_some()).map(|file| (file, line)), what }
    }
}

/// What to say of a setting that there is not: those of its section, or all sections.
fn unknown(key: &str) -> String {
    let split = |setting: &Setting| setting.key.split_once('.').unwrap_or(("", setting.key));
    let section = key.split('.').next().unwrap_or_default();
    let keys: Vec<&str> = SETTINGS.iter().map(split).filter(|(s, _)| *s == section).map(|(_, key)| key).collect();
    if keys.is_empty() {
        let mut sections: Vec<&str> = SETTINGS.iter().map(|setting| split(setting).0).collect();
        sections.dedup();
        return format!("there is no setting '{key}'; there are sections {} and process", sections.join(", "));
    }
    match key.split_once('.') {
        Some((_, name)) => format!("[{section}] has no setting '{name}'; there are {}", keys.join(", ")),
        None => format!("{section} is a section, [{section}], with {}", keys.join(", ")),
    }
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
}

/// The keys of all settings that [`Config::set`] knows.
#[must_use]
pub fn keys() -> Vec<&'static str> {
    SETTINGS.iter().map(|setting| setting.key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let load = |path: &str| match path {
            "three" => Ok("3\n0\n1.5\n".to_owned()),
            "bad" => Ok("3\nmany\n".to_owned()),
            _ => Err(format!("cannot read {path}")),
        };
        let config = Config::read(text, "a.toml", &load).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn the_shipped_file_has_every_setting_and_the_papers_tables() {
        let document = DeTable::parse(DEFAULT).unwrap();
        let mut given: Vec<String> = Vec::new();
        for (section, value) in document.get_ref() {
            if let DeValue::Table(table) = value.get_ref() {
                given.extend(table.keys().map(|key| format!("{}.{}", section.get_ref(), key.get_ref())));
            }
        }
        given.sort();
        let mut all = keys();
        all.sort_unstable();
        assert_eq!(given, all);
        // `default` drops errors; here they count.
        Config::blank().take(document.get_ref(), "", DEFAULT, &|_| Err(String::new())).unwrap();
        let config = Config::default();
        config.check().unwrap();
        let model = &config.model;
        assert_eq!((model.disk_clk, model.communication_clk, model.memory_pages), (10_000, 10, 400));
        assert_eq!((model.quantum_clk, model.finish_quanta, config.remote_costs), (100_000, 20, vec![100, 300]));
        let threads = |group: &Group| group.count * group.processors;
        assert_eq!(model.processes.iter().map(threads).sum::<u32>(), 80);
        assert_eq!(model.processes.iter().map(|group| threads(group) * group.private_pages).sum::<u32>(), 3200);
        assert_eq!(model.processes.iter().map(|group| group.count).sum::<u32>(), 10);
    }

    #[test]
    fn a_file_changes_what_it_names_and_nothing_else() {
        let text = "[costs]\ndisk_clk = 0x10\n[cells]\nnetworks = ['4x4', '8']\nschedulers = 'algo2'\n\
                    [references]\nshared = 'zipf:0.8'\nprivate = 'file:three'\n[synchronisation]\nthreads = 2\n\
                    [[process]]\nprocessors = 8\nprivate_pages = 3\n";
        let config = read(text).unwrap();
        assert_eq!(config.model.disk_clk, 16);
        assert_eq!(config.networks.iter().map(Network::clusters).collect::<Vec<_>>(), [16, 8]);
        assert_eq!((config.schedulers[0].name, config.schedulers.len()), ("algo2", 1));
        assert_eq!(config.model.shared, Frequencies::Zipf(0.8));
        assert_eq!(config.model.private.weights(3), [3.0 / 4.5, 0.0, 1.5 / 4.5]);
        assert_eq!((config.model.sync_threads, config.model.communication_clk), (2, 10));
        let group = Group { processors: 8, count: 1, private_pages: 3, shared_pages: 0 };
        assert_eq!(config.model.processes, [group]);
    }

    #[test]
    fn errors_have_the_file_the_line_and_what_is_valid() {
        for (text, parts) in [
            ("[costs]\n\ndisk_clk = -1", &["a.toml, line 3: ", "costs.disk_clk cannot be -1", "0 to 1000000000"][..]),
            ("[costs]\ndisk_clk = \"x\"", &["line 2", "cannot be \"x\"", "whole clocks"]),
            ("[costs]\ndisc_clk = 1", &["line 2", "no setting 'disc_clk'", "disk_clk, communication_clk"]),
            ("[cost]\n", &["line 1", "'cost'", "cells, machine, costs,"]),
            ("costs = 3", &["line 1", "[costs]", "disk_clk"]),
            ("[costs]\ndisk_clk = 1\ndisk_clk = 2", &["line 3", "duplicate"]),
            ("[costs\n", &["line 1"]),
            ("[cells]\nnetworks = ['4y4']", &["line 2", "'4y4'", "2x2x2x2"]),
            ("[cells]\nnetworks = []", &["line 2", "\"4x4\""]),
            ("[cells]\nschedulers = ['algo9']", &["line 2", "'algo9'", "algo0, algo1"]),
            ("[cells]\nreplacements = ['kind+best']", &["line 2", "'kind+best'", "fifo", "kind+POLICY"]),
            ("[cells]\nseeds = 0", &["line 2", "1 to 10000"]),
            ("[machine]\nmemory_pages = 0", &["line 2", "from 1 to"]),
            ("[references]\nshared = 'zipf:-1'", &["line 2", "zipf:POWER"]),
            ("[references]\nshared = 'file:none'", &["line 2", "cannot read none"]),
            ("[references]\nshared = 'file:bad'", &["line 2", "bad, line 2: 'many' is no weight"]),
            ("[references]\nwriters_wait = 1", &["line 2", "true or false"]),
            ("[synchronisation]\nthreads = 'some'", &["line 2", "\"all\" or"]),
            ("[scheduling]\nfinish_quanta = 1.5", &["line 2", "cannot be 1.5", "whole number"]),
            ("[priority]\nran_last = nan", &["line 2", "NaN"]),
            ("process = 3", &["line 1", "list of tables", "processors, count"]),
            ("[[process]]\nprocessors = 4\nthreads = 3", &["line 3", "'threads'", "processors, count"]),
            ("[[process]]\nprocessors = 4\n\n[[process]]\ncount = 2", &["line 4", "no processors"]),
            ("[[process]]\nprocessors = 5000", &["line 2", "cannot be 5000", "1 to 4096"]),
            // What only shows with everything known.
            ("[[process]]\nshared_pages = 1\nprocessors = 32", &["a.toml, line 3", "asks for 32", "network 16 has 16"]),
            ("[[process]]\nprocessors = 2", &["a.toml, line 2", "no pages"]),
            ("[references]\nprivate = 'file:three'", &["three has 3 weights for 30 pages"]),
            ("process = []", &["a.toml: ", "no processes"]),
            ("[[process]]\nprocessors = 16\ncount = 4096\nshared_pages = 100000", &["at most"]),
        ] {
            let error = read(text).map(|_| ()).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in {error:?}, of {text:?}");
            }
        }
    }

    #[test]
    fn single_settings_are_set_with_or_without_quotes() {
        let mut config = Config::default();
        let load: Loader<'_> = &|_| Err("no".to_owned());
        config.set("cells.networks", "4x4", load).unwrap();
        config.set("cells.schedulers", "['algo0', \"algo4\"]", load).unwrap();
        config.set("priority.ran_last", "3", load).unwrap();
        assert_eq!((config.networks[0].height(), config.schedulers.len()), (2, 2));
        assert!((config.model.priority.ran_last - 3.0).abs() < 1e-9);
        for (key, value, part) in [
            ("costs.disk_clk", "", "cannot be"),
            ("costs.disk_clk", "1\nx = 2", "cannot be"),
            ("costs", "1", "[costs]"),
            ("x.y", "1", "sections"),
            ("references.shared", "file:x", "no"),
        ] {
            let error = config.set(key, value, load).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
