//! Checks that the command accepts every command line that the README, the documents and the helps show, and that
//! docs/commands.md has the helps.

use std::path::{Path, PathBuf};

use clap::{CommandFactory, Parser};

use crate::Cli;

/// Words that stand for something in a command line of a document.
const STAND_INS: [(&str, &str); 11] = [
    ("HOST:PORT", "host:7441"),
    ("HOST", "host"),
    ("FILE", "file"),
    ("DIR", "dir"),
    ("SIZE", "64M"),
    ("N", "2"),
    ("PID", "4711"),
    ("$!", "4711"),
    ("COMMAND", "run"),
    ("[FLAGS]", ""),
    ("SECTION.NAME=V1,V2", "costs.disk_clk=1,2"),
];

/// Default of `-b` of `workloads/lu.c`. Its `-n` must be a multiple of it.
const LU_BLOCK: u64 = 32;

/// How docs/commands.md is made.
const WRITE: &str = "run HANARE_TEST_WRITE=1 cargo test -p hanare-cli examples";

const COMMANDS_HEAD: &str = "\
# Commands

What `hanare COMMAND --help` prints, for each command. [settings.md](settings.md) has the settings with their variables.
This page is made from the command: `HANARE_TEST_WRITE=1 cargo test -p hanare-cli examples`.
";

/// Returns the folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the words of a command line as a shell would take them, up to its end: a pipe, a redirection or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut blanks) = (Vec::new(), None::<String>, None, 0);
    for c in line.chars().chain([' ']) {
        match (quote, c) {
            (Some(end), _) if c == end => quote = None,
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (None, ' ') => {
                blanks += 1;
                words.extend(word.take());
                // Examples have their explanation behind several blanks.
                if blanks > 2 && words.len() > 1 {
                    break;
                }
            }
            (None, '|' | '>' | '#' | ';') if word.is_none() => break,
            (None, ';' | ')') => break,
            (_, c) => {
                blanks = 0;
                word.get_or_insert_default().push(c);
            }
        }
    }
    words.extend(word);
    words
}

/// Checks one command line that begins with `hanare`. Returns why it is refused.
fn refusal(line: &str) -> Option<String> {
    let line = words(line).into_iter().filter(|word| !matches!(word.as_str(), "..." | "&&" | "&"));
    let replaced = line.map(|word| match STAND_INS.iter().find(|(name, _)| *name == word) {
        Some((_, value)) => (*value).to_owned(),
        None => word,
    });
    let words: Vec<String> = replaced.filter(|word| !word.is_empty()).collect();
    // A mere name of a command, as in a sentence, is no command line.
    if words.len() < 2 || words.iter().any(|word| word.contains('[')) {
        return None;
    }
    match Cli::try_parse_from(&words) {
        Err(error) if error.use_stderr() => Some(format!("{}: {error}", words.join(" "))),
        _ => None,
    }
}

/// Returns the lines of the helps of a command and all its subcommands.
fn help_lines(mut command: clap::Command, into: &mut Vec<String>) {
    into.extend(command.render_long_help().to_string().lines().map(str::to_owned));
    command.get_subcommands().for_each(|below| help_lines(below.clone(), into));
}

/// Returns the pages in a folder and the folders in it.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "md");
    entries.flat_map(|path| if path.is_dir() { pages(&path) } else { vec![path] }).filter(is_page).collect()
}

/// Returns the lines of a page that may be command lines, each indented: those that are indented, and those in blocks,
/// without the prompt.
fn command_lines(page: &str) -> Vec<String> {
    let (mut fenced, mut found) = (false, Vec::new());
    for line in page.lines() {
        fenced ^= line.starts_with("```");
        let typed = line.split_once("$ ").map_or(line, |(_, typed)| typed).trim_end_matches('\\');
        match line.strip_prefix("    ") {
            Some(_) => found.push(line.to_owned()),
            None if fenced => found.push(format!("    {typed}")),
            None => {}
        }
    }
    found
}

/// Returns docs/commands.md: the help of each command.
fn commands_page() -> String {
    fn add(command: &mut clap::Command, page: &mut String) {
        let help = command.render_long_help().to_string();
        let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        let name = command.get_bin_name().unwrap_or(crate::NAME);
        *page += &format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
        command.get_subcommands_mut().filter(|below| !below.is_hide_set()).for_each(|below| add(below, page));
    }
    let mut page = String::from(COMMANDS_HEAD);
    let mut command = Cli::command().disable_help_subcommand(true).term_width(100);
    command.build();
    add(&mut command, &mut page);
    page
}

#[test]
fn the_page_of_commands_has_what_the_helps_say() {
    let path = root().join("docs/commands.md");
    if std::env::var_os("HANARE_TEST_WRITE").is_some_and(|wish| wish == "1") {
        std::fs::write(&path, commands_page()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    let said = commands_page();
    let other = page.lines().zip(said.lines()).find(|(shown, said)| shown != said);
    assert!(page == said, "docs/commands.md is not what the helps say, from {other:?} on: {WRITE}");
    assert!(page.contains("\n## hanare trace record\n") && page.contains("--redundancy <"));
}

#[test]
fn every_command_line_that_is_shown_is_accepted() {
    let pages = pages(&root().join("docs")).into_iter().chain([root().join("README.md")]);
    let mut lines: Vec<String> =
        pages.flat_map(|path| command_lines(&std::fs::read_to_string(path).unwrap())).collect();
    help_lines(Cli::command(), &mut lines);
    let mut count = 0;
    let mut refused = Vec::new();
    for line in &lines {
        let line = line.trim_start();
        // A prompt with a host's name, variables, or a command that runs hanare, may come before.
        let line = line.split_once("$  ").map_or(line, |(_, rest)| rest);
        let line = line.trim_start_matches("target/release/");
        if line.starts_with("hanare ") {
            count += 1;
            refused.extend(refusal(line));
        }
    }
    assert!(refused.is_empty(), "{refused:#?}");
    // The program lu takes only whole blocks.
    for (_, size) in lines.iter().filter_map(|line| line.split_once("lu -n ")) {
        let size: u64 = size.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap();
        assert_eq!(size % LU_BLOCK, 0, "lu -n {size}");
    }
    assert!(count > 50, "only {count} command lines were found");
}

#[test]
fn lines_are_divided_as_a_shell_does() {
    assert_eq!(words("hanare run -- sh -c 'a b' > out"), ["hanare", "run", "--", "sh", "-c", "a b"]);
    assert_eq!(words("hanare status node7      the server on node7"), ["hanare", "status", "node7"]);
    assert!(refusal("hanare run --bogus -- true").is_some_and(|why| why.contains("--bogus")));
    let page = "    a\n```console\n$ b \\\nn7$ c\n```\nd\n";
    assert_eq!(command_lines(page), ["    a", "    ```console", "    b ", "    c"]);
    assert!(refusal("hanare serve --memory lots").is_some() && refusal("hanare serve --memory 1G").is_none());
}
