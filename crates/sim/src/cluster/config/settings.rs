//! The table of all settings: for each setting its name, its valid values, and the field that stores the value.

use std::fmt;
use std::ops::RangeInclusive;

use hanare_paging::kinds::First;
use toml::de::DeValue;

use super::{Config, Loader};
use crate::cluster::memory::Replacement;
use crate::cluster::model::{FirstTouch, Frequencies, Group};
use crate::cluster::network::NetworkError;
use crate::cluster::references::PAGES_MAX;
use crate::cluster::schedule::Info;

/// One setting: its name, its valid values, and a function that sets it. If that function returns an `Err` with a text,
/// the text is added to the message.
pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) takes: &'static str,
    pub(super) set: fn(&mut Config, &Given<'_>, Loader<'_>) -> Result<(), Option<String>>,
}

/// A value as the user wrote it.
pub(super) enum Given<'a> {
    Integer(i64),
    Float(f64),
    Text(&'a str),
    Truth(bool),
    List(Vec<Given<'a>>),
    Other(&'static str),
}

impl<'a> Given<'a> {
    pub(super) fn new(value: &'a DeValue<'_>) -> Self {
        match value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map_or(Self::Other("a large number"), Self::Integer),
            DeValue::Float(number) => number.as_str().parse().map_or(Self::Other("a number"), Self::Float),
            DeValue::String(text) => Self::Text(text),
            DeValue::Boolean(truth) => Self::Truth(*truth),
            DeValue::Array(list) => Self::List(list.iter().map(|item| Self::new(item.get_ref())).collect()),
            DeValue::Datetime(_) => Self::Other("a date"),
            DeValue::Table(_) => Self::Other("a table"),
        }
    }

    /// Returns the items of a list. For any other value, returns no items.
    pub(super) fn items(&self) -> &[Self] {
        if let Self::List(items) = self { items } else { &[] }
    }

    pub(super) fn number(&self, range: RangeInclusive<u32>) -> Result<u32, Option<String>> {
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

    /// Returns true for the text `yes`, and false for the text `no`. Refuses any other value.
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
            Self::List(items) => f.write_str(if items.is_empty() { "an empty list" } else { "a list" }),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// The largest number of clocks in any setting.
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

/// All settings except those of `[[process]]`.
pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        key: "cells.networks",
        takes: "branches of each level from the root, such as \"16\", \"4x4\", \"2x2x2x2\"",
        set: |config, given, _| {
            config.networks = given.list(|item| {
                // A flat network is a number of processors, which may be written without quotes.
                let parsed = match item {
                    Given::Integer(number) => number.to_string().parse(),
                    item => item.text()?.parse(),
                };
                parsed.map_err(|error: NetworkError| Some(error.to_string()))
            })?;
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
    real!("priority.waiting", 0.0..=1.0, "a number from 0 to 1", model.priority.waiting),
    real!("priority.per_quantum", -1e6..=1e6, "a number from -1000000 to 1000000", model.priority.per_quantum),
    real!("priority.processors_unit", 1e-6..=1e6, "a number from 0.000001 to 1000000", model.priority.processors_unit),
    real!("priority.per_pages", -1e6..=1e6, "a number from -1000000 to 1000000", model.priority.per_pages),
    real!("priority.pages_unit", 1e-6..=1e9, "a number from 0.000001 to 1000000000", model.priority.pages_unit),
    real!("priority.ran_last", -1e6..=1e6, "a number from -1000000 to 1000000", model.priority.ran_last),
    real!("priority.near", -1e6..=1e6, "a number from -1000000 to 1000000", model.priority.near),
];

/// A setting of a `[[process]]` table.
pub(super) struct GroupSetting {
    pub(super) key: &'static str,
    pub(super) range: RangeInclusive<u32>,
    pub(super) set: fn(&mut Group, u32),
}

pub(super) const GROUP: &[GroupSetting] = &[
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

/// Reads weights, one on each line. The text of an error is appended to the file's name.
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

/// Returns the message about an unknown setting. The message lists the settings of its section, or all sections.
pub(super) fn unknown(key: &str) -> String {
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
