//! Checks the links between the documents, and the list of the site's pages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Returns the folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

/// Returns every document in a folder and the folders in it, without what is built.
pub(crate) fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(pages(&path));
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found
}

/// Returns a page without its code: what is in fences, indented by four, or between backticks.
fn prose(page: &str) -> Vec<String> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        fenced ^= line.starts_with("```");
        let code = fenced || line.starts_with("    ") && !line.trim_start().starts_with(['-', '*']);
        let kept = line.split('`').enumerate().map(|(nth, part)| if nth % 2 == 0 { part } else { "x" });
        lines.push(if code { String::new() } else { kept.collect() });
    }
    lines
}

/// Returns the targets of the links in a page, with their lines.
fn targets(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (nth, line) in prose(page).iter().enumerate() {
        for (at, mark) in line.match_indices("](") {
            let rest = &line[at + mark.len()..];
            let target = rest.split([')', ' ']).next().unwrap_or("");
            found.push((nth + 1, target.to_owned()));
        }
    }
    found
}

/// Returns the anchors of a page's headings, as GitHub and mdbook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut fenced = false;
    let mut found = BTreeSet::new();
    for line in page.lines() {
        fenced ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if fenced || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let slug: String = kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = counts.entry(slug.clone()).or_default();
        found.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    found
}

/// Returns why a link leads nowhere.
fn broken(page: &Path, text: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { page.to_owned() } else { page.parent().expect("a folder").join(file) };
    if !path.exists() {
        return Some("there is no such file".into());
    }
    let anchor = anchor.filter(|_| path.extension().is_some_and(|extension| extension == "md"))?;
    let other = if file.is_empty() { text.to_owned() } else { std::fs::read_to_string(&path).expect("a page") };
    (!anchors(&other).contains(anchor)).then(|| "there is no such heading".into())
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let (mut count, mut wrong) = (0, Vec::new());
    for page in pages(&root()) {
        let text = std::fs::read_to_string(&page).expect("a page");
        for (line, target) in targets(&text) {
            count += 1;
            let why = broken(&page, &text, &target);
            wrong.extend(why.map(|why| format!("{}:{line}: {target}: {why}", page.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 300, "only {count} links were found");
}

#[test]
fn every_page_is_in_the_summary_once() {
    let docs = root().join("docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("the summary");
    let mut listed: Vec<PathBuf> = targets(&summary).iter().map(|(_, target)| docs.join(target)).collect();
    listed.sort();
    for page in pages(&docs).iter().filter(|page| !page.ends_with("SUMMARY.md")) {
        assert_eq!(listed.iter().filter(|other| *other == page).count(), 1, "{} in SUMMARY.md", page.display());
    }
    let mut once = listed.clone();
    once.dedup();
    assert_eq!(listed, once, "a page is in SUMMARY.md twice");
}

#[test]
fn what_counts_as_a_link() {
    let page = "# A `b` C-d!\n[x](y.md#z) `[no](no)` [a](b)\n```\n[no](no)\n# no\n```\n    [no](no)\n## A b C-d\n";
    assert_eq!(targets(page), [(2, "y.md#z".to_owned()), (2, "b".to_owned())]);
    assert_eq!(anchors(page), ["a-b-c-d", "a-b-c-d-1"].map(String::from).into());
    let here = root().join("README.md");
    assert_eq!(broken(&here, "# A\n", "#a").or(broken(&here, "", "https://x")), None);
    for target in ["#b", "no-such-file", "docs/settings.md#no-such-heading", "docs/no-such-page.md"] {
        assert!(broken(&here, "# A\n", target).is_some(), "{target}");
    }
}
