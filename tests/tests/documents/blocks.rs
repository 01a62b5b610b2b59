//! Reads the blocks of a page that a test runs. CONTRIBUTING.md says how they are written.

/// A block of a page that asks for something.
pub(crate) enum Block {
    /// Commands to be run, one after the other.
    Commands(Vec<Step>),
    /// A file that the reader saves.
    File { name: String, text: String },
    /// Commands that cannot run in a test.
    NotHere { commands: usize },
}

/// A command and what it prints.
pub(crate) struct Step {
    /// The number of its line in the page.
    pub(crate) line: usize,
    /// The machine that the prompt names, or an empty string.
    pub(crate) host: String,
    pub(crate) command: String,
    /// The lines of output that the page shows; `None` where it shows none because the block is a script.
    pub(crate) output: Option<Vec<String>>,
    /// Whether each number that is shown stands for any number.
    pub(crate) numbers_vary: bool,
    /// Whether the command is repeated until its output is as shown.
    pub(crate) repeats: bool,
}

impl Step {
    fn new(line: usize, host: &str, command: &str) -> Step {
        let (host, command) = (host.to_owned(), command.to_owned());
        Step { line, host, command, output: None, numbers_vary: false, repeats: false }
    }
}

/// Returns the blocks of a page in their order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let words: Vec<&str> = info.split_whitespace().collect();
        let has = |mark: &str| words.contains(&mark);
        let mut steps = match words.first() {
            Some(&"console") => console(at + 2, &body),
            Some(&"sh") => script(at + 2, &body),
            _ => Vec::new(),
        };
        for step in &mut steps {
            (step.numbers_vary, step.repeats) = (has("numbers-vary"), has("repeat"));
        }
        if let Some(name) = words.iter().find_map(|word| word.strip_prefix("file=")) {
            let text = body.iter().map(|line| format!("{line}\n")).collect();
            found.push(Block::File { name: name.to_owned(), text });
        } else if has("not-here") {
            found.push(Block::NotHere { commands: steps.len() });
        } else if !steps.is_empty() {
            found.push(Block::Commands(steps));
        }
    }
    found
}

/// Returns the commands of a page that stand outside such blocks: indented lines that begin as a command does.
pub(crate) fn loose_commands(page: &str) -> Vec<usize> {
    let begins = ["hanare ", "target/release/hanare ", "cc ", "make ", "export ", "cargo ", "pip "];
    let mut fenced = false;
    let mut found = Vec::new();
    for (nth, line) in page.lines().enumerate() {
        fenced ^= line.starts_with("```");
        let command = line.strip_prefix("    ").map(|text| text.split_once("$  ").map_or(text, |(_, rest)| rest));
        if !fenced && command.is_some_and(|text| begins.iter().any(|begin| text.starts_with(begin))) {
            found.push(nth + 1);
        }
    }
    found
}

/// Returns the machine and the command of a line with a prompt: `$ COMMAND` or `HOST$ COMMAND`.
fn prompt(line: &str) -> Option<(&str, &str)> {
    let (host, command) = line.split_once("$ ")?;
    host.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()).then_some((host, command))
}

/// Reads a block of commands and their output.
fn console(first: usize, body: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (nth, line) in body.iter().enumerate() {
        if let Some((host, command)) = prompt(line) {
            steps.push(Step { output: Some(Vec::new()), ..Step::new(first + nth, host, command) });
        } else if let Some(step) = steps.last_mut() {
            match line.strip_prefix("> ").filter(|_| step.command.ends_with('\\')) {
                Some(rest) => step.command = format!("{}\n{rest}", step.command),
                None => step.output.as_mut().expect("a console").push((*line).to_owned()),
            }
        }
    }
    steps
}

/// Reads a block of commands without output.
fn script(first: usize, body: &[&str]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (nth, line) in body.iter().enumerate() {
        match steps.last_mut().filter(|step| step.command.ends_with('\\')) {
            Some(step) => step.command = format!("{}\n{line}", step.command),
            None if line.trim().is_empty() || line.starts_with('#') => {}
            None => steps.push(Step::new(first + nth, "", line)),
        }
    }
    steps
}

/// Whether output is what a page shows. A line `...` stands for any lines, `[..]` for any part of a line. If numbers
/// vary, each number in the page stands for any number, with any unit.
pub(crate) fn is_as_shown(shown: &[String], output: &[String], numbers_vary: bool) -> bool {
    let Some((first, rest)) = shown.split_first() else { return output.is_empty() };
    if first.trim() == "..." {
        return (0..=output.len()).any(|skipped| is_as_shown(rest, &output[skipped..], numbers_vary));
    }
    output.split_first().is_some_and(|(line, others)| {
        let plain = |line: &str| {
            let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
            if numbers_vary { without_numbers(&words) } else { words }
        };
        let same = line_is_as_shown(&plain(first), &plain(line));
        same && is_as_shown(rest, others, numbers_vary)
    })
}

fn line_is_as_shown(shown: &str, line: &str) -> bool {
    match shown.split_once("[..]") {
        None => shown == line,
        Some((begin, end)) => line.strip_prefix(begin).is_some_and(|rest| {
            let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            ends.into_iter().any(|at| line_is_as_shown(end, &rest[at..]))
        }),
    }
}

/// Replaces each number, with its unit, by `#`.
fn without_numbers(line: &str) -> String {
    const UNITS: [&str; 9] = ["KiB", "MiB", "GiB", "bytes", "us", "ms", "s", "B", "%"];
    let mut plain = String::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let within_word = plain.ends_with(|c: char| c.is_ascii_alphabetic());
        if !c.is_ascii_digit() || within_word {
            plain.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ',');
        let after = rest.strip_prefix(' ').unwrap_or(rest);
        let unit = UNITS.iter().filter_map(|unit| after.strip_prefix(unit));
        let ends = |after: &&str| !after.starts_with(|c: char| c.is_ascii_alphanumeric());
        rest = unit.into_iter().find(ends).unwrap_or(rest);
        plain.push('#');
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn blocks_are_read_as_they_are_written() {
        let page = "```console numbers-vary\n$ one \\\n> two\nsaid\nnode7$ three\n```\n\n```sh not-here\nfour\n# why\n\
                    five\n```\n```c file=x.c\nint x;\n```\n```text\nhanare nothing\n```\n";
        let found = blocks(page);
        let [Block::Commands(steps), Block::NotHere { commands: 2 }, Block::File { name, text }] = &found[..] else {
            panic!("{} blocks", found.len())
        };
        assert_eq!((steps[0].line, steps[0].command.as_str()), (2, "one \\\ntwo"));
        assert!(steps[0].numbers_vary && !steps[0].repeats);
        assert_eq!((steps[0].output.as_deref(), steps[1].host.as_str()), (Some(&lines(&["said"])[..]), "node7"));
        assert_eq!((name.as_str(), text.as_str()), ("x.c", "int x;\n"));
        assert_eq!(loose_commands(&format!("{page}    hanare doctor\n    node7$  hanare top\n    text\n")), [19, 20]);
    }

    #[test]
    fn what_counts_as_shown() {
        let is = |shown: &[&str], output: &[&str], vary| is_as_shown(&lines(shown), &lines(output), vary);
        assert!(is(&["a   b"], &["a b"], false) && !is(&["a"], &["b"], false));
        assert!(!is(&[], &["a"], false) && !is(&["a"], &[], false) && !is(&["a"], &["a", "b"], false));
        assert!(is(&["...", "b", "..."], &["a", "b"], false) && !is(&["...", "b"], &["a", "c"], false));
        assert!(is(&["a [..] c"], &["a b c"], false) && !is(&["a [..] c"], &["a b d"], false));
        assert!(is(&["took 12.5 MiB, 3 %"], &["took 900 KiB, 14 %"], true));
        assert!(!is(&["took 12.5 MiB"], &["took 12.4 MiB"], false) && !is(&["took 1 page"], &["took 2 bytes"], true));
        assert!(!is(&["far 1 s"], &["near 1 s"], true) && is(&["x2 1s"], &["x2 5s"], true));
    }
}
