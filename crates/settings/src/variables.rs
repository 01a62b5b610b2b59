//! The names of all variables of Hanare, to find those that a user has mistyped.

use std::ffi::OsString;

use hanare_sys::features::Disabled;

use crate::similar::nearest;
use crate::{Mode, Settings};

/// Beginning of the names of all variables of Hanare.
const PREFIX: &str = "HANARE_";
/// Beginnings of the names of variables that only tests read.
const OF_TESTS: [&str; 3] = ["HANARE_TEST_", "HANARE_FUZZ_", "HANARE_SYS_TEST_"];
/// The variables that [`Settings`] does not read.
const OTHERS: [&str; 18] = [
    "HANARE_BIN",
    "HANARE_BIND",
    "HANARE_COUNTS",
    "HANARE_HOME_POLICY",
    "HANARE_LAUNCHER",
    "HANARE_LIB",
    "HANARE_LIMITS",
    "HANARE_MEET",
    "HANARE_PROTOCOL",
    "HANARE_RANK",
    "HANARE_RANK0",
    "HANARE_RANKS",
    "HANARE_SHARED_BYTES",
    "HANARE_SHARED_LOCAL_BYTES",
    "HANARE_SHARED_POLICY",
    "HANARE_SHARED_PREFETCH",
    "HANARE_TRANSFER",
    "HANARE_TRUSTED_NETWORK",
];
/// Variables whose names are not to be proposed, because Hanare sets them itself.
const INTERNAL: [&str; 10] = [
    "HANARE_COUNTS",
    "HANARE_LAUNCHER",
    "HANARE_LIMITS",
    "HANARE_MEET",
    "HANARE_PRIVATE",
    "HANARE_RANK",
    "HANARE_RANKS",
    "HANARE_STATS_FD",
    "HANARE_STATS_PID",
    "HANARE_TRACE",
];

/// Returns a line for people about the variables of an environment that begin as those of Hanare, and that nothing
/// reads. `None` if there are none.
#[must_use]
pub fn unknown_variables(environment: &Environment) -> Option<String> {
    let known = || Settings::VARIABLES.into_iter().chain(OTHERS);
    let name = |(name, _): &(OsString, OsString)| name.to_str().map(str::to_owned);
    let is_unknown = |name: &String| {
        name.starts_with(PREFIX)
            && !OF_TESTS.iter().any(|start| name.starts_with(start))
            && known().all(|known| known != name)
    };
    let mut unknown: Vec<String> = environment.0.iter().filter_map(name).filter(is_unknown).collect();
    unknown.sort();
    let proposed = || known().filter(|name| !INTERNAL.contains(name));
    let shown = unknown.iter().map(|name| match nearest(name, proposed()) {
        Some(near) => format!("{name} (did you mean {near}?)"),
        None => name.clone(),
    });
    let names = shown.collect::<Vec<_>>().join(", ");
    match unknown.len() {
        0 => None,
        1 => Some(format!("the variable {names} is ignored: Hanare has none of this name; see 'hanare run --help'")),
        _ => {
            Some(format!("the variables {names} are ignored: Hanare has none of these names; see 'hanare run --help'"))
        }
    }
}

/// The settings that a process needs before all others. [`Settings`] explains each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Brief {
    /// `None` if the variable is not set. `hanare run` always sets it.
    pub mode: Option<Mode>,
    pub far: usize,
    pub near: u64,
    pub disabled: Disabled,
}

/// The environment variables of a process, as they were when the process started. The program may change its
/// environment later.
#[derive(Debug)]
pub struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// Makes an environment from pairs of a name and a value.
    #[must_use]
    pub fn of(variables: Vec<(OsString, OsString)>) -> Self {
        Self(variables)
    }

    /// Returns the value of a variable, or `None` if the variable is not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<OsString> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(names: &[&str]) -> Option<String> {
        unknown_variables(&Environment::of(names.iter().map(|name| (name.into(), "1".into())).collect()))
    }

    #[test]
    fn a_mistyped_variable_is_named_with_the_right_one() {
        let line = told(&["HANARE_LOCALL", "PATH", "HANARE_LOCAL"]).unwrap();
        assert!(line.starts_with("the variable HANARE_LOCALL (did you mean HANARE_LOCAL?) is ignored"), "{line}");
        let line = told(&["HANARE_ZZZ", "HANARE_MODES"]).unwrap();
        assert!(line.contains("HANARE_MODES (did you mean HANARE_MODE?), HANARE_ZZZ are ignored"), "{line}");
        assert!(told(&["HANARE_TRACES"]).unwrap().starts_with("the variable HANARE_TRACES is ignored"));
    }

    #[test]
    fn variables_that_something_reads_are_not_named() {
        let read: Vec<&str> = Settings::VARIABLES.into_iter().chain(OTHERS).collect();
        assert_eq!(told(&read), None);
        assert_eq!(told(&["HANARE_TEST_SEEDS", "HANARE", "HANARE_FUZZ_INPUT"]), None);
    }

    /// The list must have every variable that the documentation names.
    #[test]
    fn the_documented_variables_are_known() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let mut count = 0;
        for file in ["settings.md", "shared-memory.md"] {
            let text = std::fs::read_to_string(docs.join(file)).unwrap();
            for name in
                text.split('`').filter_map(|part| part.split('=').next()).filter(|part| part.starts_with(PREFIX))
            {
                let name: String =
                    name.chars().take_while(|c| c.is_ascii_uppercase() || "_0123456789".contains(*c)).collect();
                assert_eq!(told(&[&name]), None, "{file}");
                count += 1;
            }
        }
        assert!(count > 40, "{count}");
    }
}
