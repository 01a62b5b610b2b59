//! The folder of a reproduction: outcomes that survive an interruption, logs, and the files that cells leave.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json as object};
use thiserror::Error;

use crate::cell::Cell;
use crate::results::{Outcome, Results};

/// Marks a folder whose reproduction has not ended.
const UNFINISHED: &str = "unfinished";

/// The folder cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The folder holds something else, or a reproduction that has ended.
    #[error("{path} is there already; give --force to replace it, or another --out", path = path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be read, written or removed.
    #[error("cannot write {path}: {source}; check --out", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The folder of a reproduction.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Makes the folder, or goes on in one whose reproduction has not ended. With `force`, replaces what another
    /// reproduction left there.
    pub fn open(root: &Path, force: bool) -> Result<Self, StoreError> {
        let store = Store { root: root.to_owned() };
        let is_ours = store.path("cells").is_dir();
        let is_free = !root.exists() || is_empty(root);
        if !is_free && !store.path(UNFINISHED).exists() {
            // A folder of somebody else is never removed.
            if !(force && is_ours) {
                return Err(StoreError::Exists { path: root.to_owned() });
            }
            for name in ["cells", "files", "logs"] {
                store.attempt(name, |path| if path.exists() { fs::remove_dir_all(path) } else { Ok(()) })?;
            }
        }
        for name in ["cells", "files", "logs"] {
            store.attempt(name, |path| fs::create_dir_all(path))?;
        }
        store.attempt(UNFINISHED, |path| fs::write(path, ""))?;
        Ok(store)
    }

    /// Returns a path in the folder.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Writes a file whole or not at all.
    pub fn write(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let aside = self.path(&format!("{name}.new"));
        self.attempt(name, |path| {
            fs::write(&aside, text)?;
            fs::rename(&aside, path)
        })
    }

    /// Says that the reproduction has ended. Removes the files that cells left for others.
    pub fn finish(&self) -> Result<(), StoreError> {
        self.attempt("files", |path| fs::remove_dir_all(path))?;
        self.attempt(UNFINISHED, |path| fs::remove_file(path))
    }

    /// Returns what a cell gave before an interruption. `None` if it has not run, or can't be read.
    pub(crate) fn load(&self, cell: &str) -> Option<Outcome> {
        serde_json::from_str(&fs::read_to_string(self.path(&format!("cells/{cell}.json"))).ok()?).ok()
    }

    pub(crate) fn save(&self, cell: &str, outcome: &Outcome) -> Result<(), StoreError> {
        let text = serde_json::to_string_pretty(outcome).unwrap_or_default();
        self.write(&format!("cells/{cell}.json"), &text)
    }

    fn attempt(&self, name: &str, act: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), StoreError> {
        let path = self.path(name);
        act(&path).map_err(|source| StoreError::Write { path, source })
    }
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// Returns the figures of all cells as JSON: for each cell its command, and each figure's median, least and greatest
/// value.
#[must_use]
pub fn json(cells: &[Cell], results: &Results) -> String {
    let told = |cell: &Cell| {
        let outcome = results.outcome(&cell.name)?;
        let figures = names(outcome).filter_map(|name| {
            let (least, greatest) = results.spread(&cell.name, name)?;
            Some((name.clone(), object!([results.figure(&cell.name, name), least, greatest])))
        });
        let figures: serde_json::Map<String, Value> = figures.collect();
        Some(object!({
            "cell": cell.name, "command": outcome.command, "runs": outcome.runs.len(), "failed": outcome.failed,
            "figures_median_least_greatest": figures,
        }))
    };
    let all: Vec<Value> = cells.iter().filter_map(told).collect();
    serde_json::to_string_pretty(&all).unwrap_or_default() + "\n"
}

/// Returns the figures of all cells as CSV: one line a figure.
#[must_use]
pub fn csv(cells: &[Cell], results: &Results) -> String {
    let mut text = "cell,figure,median,least,greatest\n".to_owned();
    for cell in cells {
        let Some(outcome) = results.outcome(&cell.name) else { continue };
        for name in names(outcome) {
            if let (Some(median), Some((least, greatest))) =
                (results.figure(&cell.name, name), results.spread(&cell.name, name))
            {
                // Names come from texts of other programs.
                let name = name.replace('"', "\"\"");
                text += &format!("{},\"{name}\",{median},{least},{greatest}\n", cell.name);
            }
        }
    }
    text
}

/// Returns the names of the figures of a cell's first run.
fn names(outcome: &Outcome) -> impl Iterator<Item = &String> {
    outcome.runs.first().into_iter().flat_map(|run| run.keys())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_gone_on_with_until_it_has_ended_and_then_replaced_only_if_asked() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().join("out");
        let store = Store::open(&root, false).unwrap();
        let outcome = Outcome { command: vec!["is".to_owned()], ..Outcome::default() };
        store.save("a", &outcome).unwrap();
        assert_eq!(Store::open(&root, false).unwrap().load("a"), Some(outcome));
        store.finish().unwrap();
        assert!(matches!(Store::open(&root, false), Err(StoreError::Exists { .. })));
        assert_eq!(Store::open(&root, true).unwrap().load("a"), None);
    }

    #[test]
    fn a_folder_of_somebody_else_is_never_touched() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("thesis.tex"), "words").unwrap();
        for force in [false, true] {
            assert!(matches!(Store::open(place.path(), force), Err(StoreError::Exists { .. })));
        }
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
    }
}
