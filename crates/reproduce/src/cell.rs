//! One command whose figures are kept.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::results::Results;

/// Bytes to which shares of local memory are rounded down: the largest page that cells use.
const GRAIN: u64 = 64 << 10;

/// One command whose figures are kept.
///
/// Words of the command have parts in braces, which stand for what only the run knows:
///
/// | part | is |
/// | --- | --- |
/// | `{hanare}` | the `hanare` command |
/// | `{work}` | the folder of the workloads |
/// | `{json}` | the file into which the command writes its figures |
/// | `{file}` | a file that this cell leaves for others |
/// | `{file:CELL}` | that file of another cell |
/// | `{share:CELL:PERCENT}` | this percentage of the far memory that the program of another cell had, in bytes |
/// | `{pages:CELL:PERCENT:BYTES}` | the same in pages of so many bytes |
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The name, of words with dots. Cells of one name are one cell.
    pub name: String,
    /// The words of the command.
    pub command: Vec<String>,
    /// How often it runs. The figures are medians.
    pub runs: u32,
    /// The longest time that one run may take.
    pub limit: Duration,
}

/// Where the parts of a command lie.
#[derive(Debug, Clone)]
pub struct Places {
    /// The `hanare` command.
    pub hanare: PathBuf,
    /// The folder of the workloads.
    pub workloads: PathBuf,
    /// The folder for files that cells leave for others.
    pub files: PathBuf,
}

impl Places {
    pub(crate) fn json_of(&self, cell: &str) -> PathBuf {
        self.files.join(format!("{cell}.json"))
    }

    fn file_of(&self, cell: &str) -> PathBuf {
        self.files.join(cell)
    }
}

impl Cell {
    /// Makes a cell that runs `runs` times, with the words of `command` separated by blanks.
    pub(crate) fn new(name: impl Into<String>, runs: u32, limit: Duration, command: &str) -> Self {
        Cell { name: name.into(), command: command.split_whitespace().map(str::to_owned).collect(), runs, limit }
    }

    /// Makes a cell whose command is a script for the shell.
    pub(crate) fn script(name: impl Into<String>, runs: u32, limit: Duration, script: &str) -> Self {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        Cell { name: name.into(), command, runs, limit }
    }

    /// Returns the command to run. An error says which figure of another cell is missing.
    pub(crate) fn resolve(&self, places: &Places, results: &Results) -> Result<Vec<String>, String> {
        self.command.iter().map(|word| self.resolve_word(word, places, results)).collect()
    }

    fn resolve_word(&self, word: &str, places: &Places, results: &Results) -> Result<String, String> {
        let mut text = String::new();
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('{') {
            let Some((part, behind)) = after.split_once('}') else { break };
            text += before;
            text += &self.resolve_part(part, places, results)?;
            rest = behind;
        }
        Ok(text + rest)
    }

    fn resolve_part(&self, part: &str, places: &Places, results: &Results) -> Result<String, String> {
        let shown = |path: &Path| path.to_string_lossy().into_owned();
        let far_bytes = |cell: &str| {
            let bytes = results.figure(cell, "far_bytes_peak");
            bytes.map(|bytes| bytes as u64).ok_or_else(|| format!("{cell} has no figures"))
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
        match part.split(':').collect::<Vec<_>>()[..] {
            ["hanare"] => Ok(shown(&places.hanare)),
            ["work"] => Ok(shown(&places.workloads)),
            ["json"] => Ok(shown(&places.json_of(&self.name))),
            ["file"] => Ok(shown(&places.file_of(&self.name))),
            ["file", cell] => Ok(shown(&places.file_of(cell))),
            ["share", cell, percent] => {
                Ok((far_bytes(cell)? / 100 * number(percent)? / GRAIN * GRAIN).max(GRAIN).to_string())
            }
            ["pages", cell, percent, bytes] => {
                let share = (far_bytes(cell)? / 100 * number(percent)? / GRAIN * GRAIN).max(GRAIN);
                Ok((share / number(bytes)?.max(1)).to_string())
            }
            _ => Ok(format!("{{{part}}}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Outcome;
    use std::collections::BTreeMap;

    #[test]
    fn parts_in_braces_are_filled_in() {
        let places = Places { hanare: "/bin/hanare".into(), workloads: "/w".into(), files: "/out/files".into() };
        let figures = BTreeMap::from([("far_bytes_peak".to_owned(), 10_000_000.0)]);
        let mut results = Results::default();
        results.put("peak.is".to_owned(), Outcome::of(vec![figures], Vec::new()));
        let resolve = |command: &str| {
            Cell::new("a.b", 1, Duration::from_secs(1), command).resolve(&places, &results).map(|words| words.join(" "))
        };
        assert_eq!(
            resolve("{hanare} run --local {share:peak.is:50} --stats-json={json} -- {work}/is 16").unwrap(),
            "/bin/hanare run --local 4980736 --stats-json=/out/files/a.b.json -- /w/is 16"
        );
        assert_eq!(
            resolve("-o {file} {file:c} {pages:peak.is:50:16384}p").unwrap(),
            "-o /out/files/a.b /out/files/c 304p"
        );
        assert_eq!(resolve("--local {share:peak.cg:50}").unwrap_err(), "peak.cg has no figures");
        // The shell's own braces stay.
        assert_eq!(resolve("a{b}").unwrap(), "a{b}");
    }
}
