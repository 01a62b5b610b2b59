//! Parses a user's choice of a policy or a prefetcher, `name[:param=value,...]`, and describes the valid choices.

use std::fmt::Write;

/// Largest number of parameters of one choice.
const PARAMS_MAX: usize = 4;

/// A parameter: a whole number within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Name of the parameter.
    pub name: &'static str,
    /// The meaning of the parameter, with its unit.
    pub help: &'static str,
    /// The parameter's default value.
    pub default: u64,
    /// The parameter's smallest value.
    pub min: u64,
    /// The parameter's largest value.
    pub max: u64,
}

/// The space that a policy or prefetcher is built for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Number of units in the far space. The number of every page is below it.
    pub units: u32,
    /// Number of units of one block. The adjacent pages of one block may become one huge page.
    pub block_units: u32,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Whether unmapping a page for reference sampling is as cheap as moving it.
    pub hides: bool,
}

/// A policy or prefetcher that a user can choose by name, and its constructor.
#[derive(Debug)]
pub struct Info<T: ?Sized> {
    /// Name of the policy or prefetcher.
    pub name: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    /// The paper or program from which the policy or prefetcher comes.
    pub source: &'static str,
    /// Parameters of the policy or prefetcher.
    pub params: &'static [Param],
    /// Builds the policy or prefetcher.
    pub build: fn(Space, &Values) -> Box<T>,
}

/// The values of all parameters. A parameter that the user did not give has its default.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    params: &'static [Param],
    values: [u64; PARAMS_MAX],
}

impl Values {
    pub(crate) fn defaults(params: &'static [Param]) -> Self {
        let mut values = [0; PARAMS_MAX];
        for (value, param) in values.iter_mut().zip(params) {
            *value = param.default;
        }
        Self { params, values }
    }

    /// Returns the value of a parameter, or 0 if there is no such parameter.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.params.iter().position(|param| param.name == name).map_or(0, |index| self.values[index])
    }
}

/// Why a description is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecError(String);

impl SpecError {
    pub(crate) fn new(message: String) -> Self {
        Self(message)
    }
}

impl std::fmt::Display for SpecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

/// Returns the names of all choices, as a list for people.
#[must_use]
pub fn names<T: ?Sized>(infos: &[&Info<T>]) -> String {
    infos.iter().map(|info| info.name).collect::<Vec<_>>().join(", ")
}

pub(crate) fn parse<T: ?Sized>(
    what: &str,
    infos: &[&'static Info<T>],
    text: &str,
) -> Result<(&'static Info<T>, Values), SpecError> {
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let Some(info) = infos.iter().find(|info| info.name == name) else {
        return Err(SpecError(format!("no {what} is called '{name}'; there are {}", names(infos))));
    };
    let mut values = Values::defaults(info.params);
    for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
        set(info, &mut values, part)?;
    }
    Ok((info, values))
}

fn set<T: ?Sized>(info: &Info<T>, values: &mut Values, part: &str) -> Result<(), SpecError> {
    let (name, value) = part.split_once('=').unwrap_or((part, ""));
    let Some(index) = info.params.iter().position(|param| param.name == name) else {
        return Err(SpecError(format!("{} has no parameter '{name}'; {}", info.name, takes(info))));
    };
    let param = &info.params[index];
    match value.parse() {
        Ok(value) if (param.min..=param.max).contains(&value) => {
            values.values[index] = value;
            Ok(())
        }
        _ => Err(SpecError(format!(
            "{}: {name}={value} is not a whole number from {} to {}",
            info.name, param.min, param.max
        ))),
    }
}

fn takes<T: ?Sized>(info: &Info<T>) -> String {
    let mut text = String::from("it takes ");
    for (index, param) in info.params.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}{} ({} to {}, else {})", param.name, param.min, param.max, param.default);
    }
    if info.params.is_empty() { "it takes none".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{POLICIES, build};

    const SPACE: Space = Space { units: 64, block_units: 1, seed: 1, hides: true };

    #[test]
    fn every_policy_is_built_by_its_name_and_has_bounds_around_its_defaults() {
        for info in POLICIES {
            assert!(build(info.name, SPACE).is_ok(), "{}", info.name);
            assert!(info.params.len() <= PARAMS_MAX);
            for param in info.params {
                assert!((param.min..=param.max).contains(&param.default), "{}:{}", info.name, param.name);
                assert!(build(&format!("{}:{}={}", info.name, param.name, param.max), SPACE).is_ok());
                let too_much = format!("{}:{}={}", info.name, param.name, u128::from(param.max) + 1);
                assert!(build(&too_much, SPACE).is_err(), "{too_much}");
            }
        }
    }

    #[test]
    fn what_is_unknown_is_answered_with_what_is_valid() {
        let error = |text| build(text, SPACE).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error("best").contains("fifo"), "{}", error("best"));
        assert!(error("fifo:depth=3").contains("it takes none"), "{}", error("fifo:depth=3"));
        for text in ["", ":", "fifo:", "fifo:=", "lru:x", "\u{0}"] {
            assert!(!error(text).is_empty(), "{text:?}");
        }
    }
}
