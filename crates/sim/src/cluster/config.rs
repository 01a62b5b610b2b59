//! The settings of a simulation as a user writes them. A user's TOML file overrides the shipped file, and single
//! settings override both.

mod settings;

use std::fmt;
use std::ops::Range;

use hanare_paging::kinds::First;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use self::settings::{GROUP, Given, SETTINGS, unknown};
use super::memory::Replacement;
use super::model::{FirstTouch, Frequencies, Group, Model, Priority, Rules};
use super::network::Network;
use super::schedule::Info;

/// The shipped file: every setting with its default.
pub const DEFAULT: &str = include_str!("default.toml");

/// Largest numbers of processes, of threads and pages of all processes together, and of frames of all memories
/// together.
const PROCESSES_MAX: u64 = 1 << 13;
const THREADS_MAX: u64 = 1 << 16;
const ALL_PAGES_MAX: u64 = 1 << 23;
const FRAMES_MAX: u64 = 1 << 26;

/// Reads a file that a setting names. Returns its text, or the reason why it cannot be read.
pub type Loader<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// The settings of all simulations to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Networks.
    pub networks: Vec<Network>,
    /// Schedulers.
    pub schedulers: Vec<&'static Info>,
    /// Replacement methods.
    pub replacements: Vec<Replacement>,
    /// The remote costs to simulate. Each is the number of clocks that a remote access takes for each level of the tree
    /// that it climbs.
    pub remote_costs: Vec<u32>,
    /// Number of runs of each cell. The seeds start at 1.
    pub seeds: u32,
    /// All other settings. Each cell sets its network and remote cost.
    pub model: Model,
    /// Name of the user's file, if there is one. `group_lines` holds the line number of each process group in this
    /// file.
    file: Option<String>,
    group_lines: Vec<usize>,
}

/// The reason why a setting was refused, and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file and, if the error is on one line, that line.
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

impl Default for Config {
    /// Returns the settings of the shipped file.
    fn default() -> Self {
        let mut config = Self::blank();
        // A test reads the shipped file. If the file were damaged, the checks before a run would refuse the missing
        // settings.
        if let Ok(document) = DeTable::parse(DEFAULT) {
            let _ = config.take(document.get_ref(), "", DEFAULT, &|_| Err(String::new()));
        }
        (config.file, config.group_lines) = (None, Vec::new());
        config
    }
}

impl Config {
    fn blank() -> Self {
        let priority = Priority {
            waiting: 0.0,
            per_quantum: 0.0,
            processors_unit: 1.0,
            per_pages: 0.0,
            pages_unit: 1.0,
            ran_last: 0.0,
            near: 0.0,
        };
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

    /// Returns the defaults, overridden by the settings of this file.
    ///
    /// # Errors
    /// The text is not TOML, a setting is unknown, or a value is not allowed. The message names the file, the line, and
    /// the valid settings or values.
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

    /// Sets one setting, such as `costs.disk_clk`. The value has the same form as in the file, but its quotes may be
    /// omitted.
    ///
    /// # Errors
    /// The setting is unknown, or the value is not allowed. The message lists what is valid.
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
            None => {
                // If the value is a list, the message names the first item that would also be refused alone.
                let refused = |item: &&Given<'_>| (setting.set)(&mut self.clone(), item, load) == Err(None);
                let blamed = given.items().iter().find(refused).unwrap_or(given);
                format!("{key} cannot be {blamed}; it takes {}", setting.takes)
            }
        })
    }

    fn take(&mut self, document: &DeTable<'_>, file: &str, text: &str, load: Loader<'_>) -> Result<(), ConfigError> {
        let error =
            |span: Range<usize>, what| ConfigError { place: Some((file.to_owned(), Some(line_of(text, &span)))), what };
        for (section, value) in document {
            let name: &str = section.get_ref();
            if name == "process" {
                self.take_groups(value, text).map_err(|(span, what)| error(span, what))?;
                continue;
            }
            let is_section =
                SETTINGS.iter().any(|setting| setting.key.split_once('.').is_some_and(|key| key.0 == name));
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

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// The settings are impossible together. For example, a process asks for more processors than there are or has no
    /// pages, or the simulation exceeds one of its limits.
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
        for (frequencies, pages) in
            [(&self.model.shared, group.shared_pages), (&self.model.private, group.private_pages)]
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
        ConfigError {
            place: self.file.clone().filter(|_| group.is_none() || line.is_some()).map(|file| (file, line)),
            what,
        }
    }
}

fn line_of(text: &str, span: &Range<usize>) -> usize {
    text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
}

/// Returns the keys of all settings that [`Config::set`] knows.
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
        // `Config::default` ignores errors in the shipped file. This test reports them.
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
            ("[cells]\nnetworks = []", &["line 2", "cannot be an empty list", "\"4x4\""]),
            ("[cells]\nremote_costs = [100,\n-3]", &["line 2", "cells.remote_costs cannot be -3", "from 0 to"]),
            ("[costs]\ndisk_clk = [5]", &["line 2", "costs.disk_clk cannot be a list", "whole clocks"]),
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
            // These errors are found only when all settings are known.
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
