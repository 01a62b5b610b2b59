//! Tests the structure of the code. The modules of a crate are the files next to its `lib.rs`. They must not depend on
//! each other in circles. Files and functions must stay short.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Largest number of lines in a file.
const FILE_LINES_MAX: usize = 600;
/// Largest number of lines in a function, from its first line to its last brace.
const FUNCTION_LINES_MAX: usize = 70;

/// The modules of a crate, each with the modules that it names. `name.rs` and the files below `name/` are one module.
type Rooms = BTreeMap<String, BTreeSet<String>>;

/// Returns the names that follow `crate::` in a source, one by one or as a list in braces.
fn names_after_crate(source: &str) -> BTreeSet<String> {
    let first_word =
        |text: &str| text.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned);
    let mut found = BTreeSet::new();
    for (at, mark) in source.match_indices("crate::") {
        let rest = &source[at + mark.len()..];
        match rest.strip_prefix('{') {
            Some(list) => found.extend(list.split('}').next().unwrap_or("").split(',').filter_map(first_word)),
            None => found.extend(first_word(rest)),
        }
    }
    found
}

/// Returns a source without its comments, and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

fn read(path: &Path, into: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a folder of sources") {
            read(&entry.expect("an entry").path(), into);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
        into.extend(names_after_crate(&code(&std::fs::read_to_string(path).expect("a source"))));
    }
}

fn rooms(sources: &Path) -> Rooms {
    let mut rooms = Rooms::new();
    for entry in std::fs::read_dir(sources).expect("the sources of a crate") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if name != "lib" {
            read(&path, rooms.entry(name).or_default());
        }
    }
    let known: BTreeSet<String> = rooms.keys().cloned().collect();
    for (name, needs) in &mut rooms {
        needs.retain(|other| known.contains(other) && other != name);
    }
    rooms
}

/// Returns all modules that can be reached from the module `from`.
fn reachable(rooms: &Rooms, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(room) = next.pop() {
        for other in &rooms[&room] {
            if found.insert(other.clone()) {
                next.push(other.clone());
            }
        }
    }
    found
}

/// Returns the names of the modules that depend on themselves, directly or through other modules, in order.
fn in_circles(rooms: &Rooms) -> Vec<String> {
    rooms.keys().filter(|room| reachable(rooms, room).contains(*room)).cloned().collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace")
}

#[test]
fn rooms_need_one_another_in_one_direction() {
    let root = root();
    for name in ["runtime", "store", "dsm", "settings"] {
        let rooms = rooms(&root.join("crates").join(name).join("src"));
        assert!(rooms.len() > 2, "{name}: no rooms are found: {rooms:?}");
        let circles = in_circles(&rooms);
        assert!(circles.is_empty(), "crates/{name}: these need themselves by way of others: {circles:?}");
    }
}

#[test]
fn what_counts_as_a_circle() {
    let of = |edges: &[(&str, &[&str])]| -> Rooms {
        edges.iter().map(|(name, to)| ((*name).to_owned(), to.iter().map(|to| (*to).to_owned()).collect())).collect()
    };
    assert!(in_circles(&of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])])).is_empty());
    assert_eq!(in_circles(&of(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])])), ["b", "c"]);
    let source = code(
        "use crate::{one, two::Three}; // crate::four\nlet x = crate::five::f();\n#[cfg(test)]\nmod tests { use crate::six; }",
    );
    assert_eq!(names_after_crate(&source).into_iter().collect::<Vec<_>>(), ["five", "one", "two"]);
}

/// Returns the name of the function whose definition begins in `line`.
fn function_in(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let is_qualifier =
        |word: &str| word.starts_with("pub") || ["const", "async", "unsafe", "safe", "extern", "\"C\""].contains(&word);
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (before.split_whitespace().all(is_qualifier) && !name.is_empty()).then_some(name)
}

/// Returns the functions of a formatted source that are too long, each with its number of lines. A function ends at the
/// first closing brace that has the same indentation as its first line. A declaration without a body ends at a
/// semicolon.
fn long_functions(source: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function_in(line) else { continue };
        let ends = |other: &&str| {
            depth(other) == depth(line) && (other.trim_start().starts_with('}') || other.ends_with([';', '}']))
        };
        let count = 1 + lines[first..].iter().position(ends).expect("the end of a function");
        if count > FUNCTION_LINES_MAX {
            found.push((name.to_owned(), count));
        }
    }
    found
}

fn sources(path: &Path, into: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a folder of sources") {
            sources(&entry.expect("an entry").path(), into);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        into.push(path.to_owned());
    }
}

#[test]
fn files_and_functions_are_short() {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join("crates")).expect("the crates") {
        sources(&entry.expect("an entry").path(), &mut files);
    }
    sources(&root().join("tests"), &mut files);
    sources(&root().join("models").join("src"), &mut files);
    sources(&root().join("python").join("src"), &mut files);
    assert!(files.len() > 200, "only {} sources were found", files.len());
    let mut long = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).expect("a source");
        let lines = source.lines().count();
        if lines > FILE_LINES_MAX {
            long.push(format!("{}: {lines} lines", file.display()));
        }
        let functions = long_functions(&source).into_iter();
        long.extend(functions.map(|(name, lines)| format!("{}: {name} has {lines} lines", file.display())));
    }
    assert!(long.is_empty(), "these are too long; part them by what they do:\n{}", long.join("\n"));
}

#[test]
fn what_counts_as_long() {
    let function = |head: &str, lines: usize| format!("    {head} {{\n{}    }}\n", "        x();\n".repeat(lines - 2));
    for head in ["fn a()", "pub(crate) unsafe fn a<T>(x: T)", "pub const fn a()", "unsafe extern \"C\" fn a()"] {
        assert!(long_functions(&function(head, FUNCTION_LINES_MAX)).is_empty(), "{head}");
        let long = function(head, FUNCTION_LINES_MAX + 1);
        assert_eq!(long_functions(&long), [("a".to_owned(), FUNCTION_LINES_MAX + 1)], "{head}");
    }
    let over_lines = "    fn a(\n        x: u8,\n    ) {\n";
    let long = format!("{over_lines}{}    }}\n", "        x();\n".repeat(FUNCTION_LINES_MAX - 3));
    assert_eq!(long_functions(&long).len(), 1);
    let declared = format!("    fn a();\n    fn b(\n        x: u8,\n    );\n{}", "\n".repeat(FUNCTION_LINES_MAX));
    assert!(long_functions(&declared).is_empty());
    assert!(long_functions(&format!("// what fn does\n{}", "\n".repeat(FUNCTION_LINES_MAX))).is_empty());
}
