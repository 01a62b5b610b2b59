//! Guards the house's plan: the rooms of a crate, its files beside `lib.rs`, need one another in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Each room of a crate and the rooms it names. What is in `name.rs` and below `name/` is one room.
type Rooms = BTreeMap<String, BTreeSet<String>>;

/// The names that `crate::` stands before: one, or those of a list in braces.
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

/// A source without its comments and the tests at its end.
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

/// Every room from which this one can be come to.
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

/// The rooms that need themselves by way of others, sorted.
fn in_circles(rooms: &Rooms) -> Vec<String> {
    rooms.keys().filter(|room| reachable(rooms, room).contains(*room)).cloned().collect()
}

#[test]
fn rooms_need_one_another_in_one_direction() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
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
