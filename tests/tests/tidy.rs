//! Guards against dropped results of system calls. An unnoticed failure could lead to a wrong byte. Each result must be
//! used, or the comment before the call must begin with "Ignored:" and give the reason.

use std::path::{Path, PathBuf};

/// Modules in which no result may be dropped, as paths in the workspace.
const ROOMS: [&str; 10] = [
    "crates/runtime/src/view.rs",
    "crates/runtime/src/view",
    "crates/runtime/src/handler.rs",
    "crates/runtime/src/keeper.rs",
    "crates/runtime/src/engine.rs",
    "crates/runtime/src/engine",
    "crates/runtime/src/kernel.rs",
    "crates/store/src",
    "crates/sys/src",
    "crates/dsm/src/live",
];

/// Checks whether a line drops a result: by `_ =`, by `.ok();`, or by `drop(unsafe {`.
fn drops_a_result(line: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let binds_nothing = line.match_indices("_ = ").any(|(at, _)| !line[..at].ends_with(is_name));
    let is_statement = line.trim_end().ends_with(".ok();") && !line.contains(" = ") && !line.contains("return ");
    binds_nothing || is_statement || line.contains("drop(unsafe {")
}

/// Returns the lines of a source that drop a result without a reason, numbered from 1. Leaves out the tests at its end.
fn silent(source: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut reason = false;
    for (nth, line) in source.lines().enumerate() {
        let text = line.trim_start();
        if text.starts_with("#[cfg(test)]") {
            break;
        }
        if text.starts_with("//") {
            reason |= text.starts_with("// Ignored: ");
            continue;
        }
        if drops_a_result(text) && !reason {
            found.push(nth + 1);
        }
        reason = false;
    }
    found
}

fn sources(path: &Path, into: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a folder of sources") {
            sources(&entry.expect("an entry").path(), into);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
        into.push(path.to_owned());
    }
}

#[test]
fn no_result_is_dropped_in_silence_where_the_kernel_answers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut files = Vec::new();
    for room in ROOMS {
        sources(&root.join(room), &mut files);
    }
    assert!(files.len() > 40, "only {} sources were found", files.len());
    let mut silences = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).expect("a source");
        silences.extend(silent(&source).into_iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(
        silences.is_empty(),
        "results are dropped here without an 'Ignored:' that says why:\n{}",
        silences.join("\n")
    );
}

#[test]
fn what_counts_as_dropped() {
    let dropped = ["let _ = call();", "_ = unsafe { call() };", "x.inspect_err(|_| _ = undo());", "call().ok();"];
    for line in dropped {
        assert_eq!(silent(line), [1], "{line}");
        assert_eq!(
            silent(&format!("// Ignored: nothing hangs on it.\n// SAFETY: plain.\n{line}\n{line}")),
            [4],
            "{line}"
        );
    }
    for line in ["let _mask = block();", "_ => {}", "let a = b.ok();", "if let Some(_) = a {}", "let (_, b) = c;"] {
        assert!(silent(line).is_empty(), "{line}");
    }
    assert_eq!(silent("// Why.\ndrop(unsafe { call() });\n#[cfg(test)]\nlet _ = call();"), [2]);
}
