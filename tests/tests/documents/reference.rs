//! Checks that the reference names each call of the headers.

use std::collections::BTreeSet;

use crate::links::root;

/// Returns the functions that a header declares or defines, whose names begin with a prefix.
fn calls(header: &str, prefix: &str) -> BTreeSet<String> {
    let mut comment = false;
    let mut found = BTreeSet::new();
    for line in header.lines() {
        comment |= line.trim_start().starts_with("/*");
        let name_end = line.find('(').filter(|_| !comment && line.starts_with(|c: char| c.is_ascii_lowercase()));
        let name = name_end.and_then(|end| line[..end].rsplit([' ', '*']).next());
        found.extend(name.filter(|name| name.starts_with(prefix)).map(str::to_owned));
        comment &= !line.contains("*/");
    }
    found
}

#[test]
fn each_call_of_the_headers_is_in_the_reference() {
    for (header, prefix, page, least) in [("dlmm.h", "dlm_", "c.md", 8), ("dsm.h", "dsm_", "shared-memory.md", 15)] {
        let header = std::fs::read_to_string(root().join("include").join(header)).expect("a header");
        let page = std::fs::read_to_string(root().join("docs").join(page)).expect("a page");
        let calls = calls(&header, prefix);
        assert!(calls.len() >= least, "only {calls:?} were found");
        let missing: Vec<_> = calls
            .iter()
            .filter(|call| !page.contains(&format!("`{call}`")) && !page.contains(&format!("`{call}(")))
            .collect();
        assert!(missing.is_empty(), "the reference lacks {missing:?}");
    }
}

#[test]
fn what_counts_as_a_call() {
    let header = "/* int x_no(void); */\n/* a\nint x_no2(void);\n */\nint x_a(int x);\nvoid *x_b(void);\n x_c();\nint y_d(void);\n";
    assert_eq!(calls(header, "x_"), ["x_a", "x_b"].map(String::from).into());
}
