//! The report as one page that needs nothing else.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart;
use crate::exhibit::{Exhibit, Shown, Table, or_dash};
use crate::papers::Paper;
use crate::results::Results;

const STYLE: &str = include_str!("style.css");

/// The circumstances of a reproduction.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    /// The command that makes the page again.
    pub command: String,
    /// The machine, in words.
    pub machine: String,
    /// The version of Hanare.
    pub version: String,
    /// When the page was written.
    pub written_at: String,
    /// How long the runs took, in words.
    pub took: String,
}

/// How the claims of some exhibits were judged.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Tally {
    held: usize,
    failed: usize,
    unjudged: usize,
}

impl Tally {
    fn of<'a>(exhibits: impl Iterator<Item = &'a Exhibit>, results: &Results) -> Self {
        let mut tally = Tally::default();
        for claim in exhibits.flat_map(|exhibit| &exhibit.claims) {
            match claim.judge(results) {
                Some(verdict) if verdict.holds => tally.held += 1,
                Some(_) => tally.failed += 1,
                None => tally.unjudged += 1,
            }
        }
        tally
    }

    fn words(self) -> String {
        let all = self.held + self.failed + self.unjudged;
        let unjudged = match self.unjudged {
            0 => String::new(),
            count => format!(", {count} could not be judged"),
        };
        format!("{} of {all} claims hold here{unjudged}.", self.held)
    }
}

/// Returns the page about these papers.
#[must_use]
pub fn page(papers: &[Paper], results: &Results, setting: &Setting) -> String {
    let tally = Tally::of(papers.iter().flat_map(|paper| &paper.exhibits), results);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                // An XML parser wants the end of the element.
                (PreEscaped("<meta charset=\"utf-8\"/>"))
                (PreEscaped("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>"))
                title { "The papers, reproduced – Hanare" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "The papers behind Hanare, reproduced" }
                    p.answer { (tally.words()) }
                    (index(papers, results))
                }
                main { @for paper in papers { (of_paper(paper, results)) } }
                (footer(setting))
            }
        }
    };
    page.into_string() + "\n"
}

fn index(papers: &[Paper], results: &Results) -> Markup {
    html! {
        section #claims {
            h2 { "All claims" }
            div.wide {
                table.text {
                    thead { tr { th scope="col" { "" } th scope="col" { "claim" } th scope="col" { "measured here" } } }
                    tbody {
                        @for exhibit in papers.iter().flat_map(|paper| &paper.exhibits) {
                            @for claim in &exhibit.claims {
                                @let verdict = claim.judge(results);
                                tr {
                                    td { (mark(verdict.as_ref().map(|verdict| verdict.holds))) }
                                    td { a href={ "#" (exhibit.id) } { (claim.text) } }
                                    td { (verdict.map_or("a cell failed".to_owned(), |verdict| verdict.measured)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn mark(holds: Option<bool>) -> Markup {
    match holds {
        Some(true) => html! { b.holds title="holds" { "✓" } },
        Some(false) => html! { b.fails title="does not hold" { "✗" } },
        None => html! { b.unjudged title="not judged" { "?" } },
    }
}

fn of_paper(paper: &Paper, results: &Results) -> Markup {
    html! {
        section id={ "paper" (paper.number) } {
            h2.paper { "Paper " (paper.number) ": " (paper.title) }
            p { (paper.authors) ". " (Tally::of(paper.exhibits.iter(), results).words()) }
            @for exhibit in &paper.exhibits { (of_exhibit(exhibit, results)) }
        }
    }
}

fn of_exhibit(exhibit: &Exhibit, results: &Results) -> Markup {
    let (_, name) = exhibit.id.split_once('.').unwrap_or(("", &exhibit.id));
    html! {
        section.exhibit id=(exhibit.id) {
            h3 { (titled(name)) ": " (exhibit.title) }
            @if !exhibit.there.is_empty() { p { b { "There: " } (exhibit.there) } }
            @if !exhibit.here.is_empty() { p { b { "Here: " } (exhibit.here) } }
            @for (nth, shown) in exhibit.shown(results).iter().enumerate() {
                (of_shown(&format!("{}-{nth}", exhibit.id), shown))
            }
            @for claim in &exhibit.claims {
                @let verdict = claim.judge(results);
                p.claim {
                    (mark(verdict.as_ref().map(|verdict| verdict.holds))) " " (claim.text) " "
                    @match &verdict {
                        Some(verdict) => span.measured { (verdict.measured) "." },
                        None => span.measured { "Not judged: a cell failed, see below." },
                    }
                    @if let (Some(cause), Some(false)) = (claim.cause, verdict.as_ref().map(|verdict| verdict.holds)) {
                        " " span.cause { "Cause: " (cause) }
                    }
                }
            }
            (cells(exhibit, results))
        }
    }
}

/// Returns the name of an exhibit as papers write it: `figure7` is "Figure 7".
fn titled(name: &str) -> String {
    let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let (word, number) = name.split_at(digits);
    let mut letters = word.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{} {number}", letters.as_str()).trim_end().to_owned()
}

fn of_shown(id: &str, shown: &Shown) -> Markup {
    match shown {
        Shown::Bars(bars) => {
            let mut head = vec![""];
            head.extend(bars.series.iter().map(|(name, _)| name.as_str()));
            let rows = bars.groups.iter().enumerate().map(|(group, name)| {
                let values = bars.series.iter().map(|(_, values)| or_dash(values[group]));
                std::iter::once(name.clone()).chain(values).collect()
            });
            let table = Table::new(format!("{} ({})", bars.title, bars.unit), &head, rows.collect());
            drawn(&bars.title, &chart::bars(id, bars), &table)
        }
        Shown::Lines(lines) => {
            let mut head = vec![lines.across];
            head.extend(lines.lines.iter().map(|(name, _)| name.as_str()));
            let places = lines.lines.iter().max_by_key(|(_, points)| points.len());
            let rows = places.into_iter().flat_map(|(_, points)| points).map(|(at, _)| {
                let value = |points: &[(f64, Option<f64>)]| points.iter().find(|(x, _)| x == at).and_then(|(_, y)| *y);
                let values = lines.lines.iter().map(|(_, points)| or_dash(value(points)));
                std::iter::once(or_dash(Some(*at))).chain(values).collect()
            });
            let table = Table::new(format!("{} ({})", lines.title, lines.unit), &head, rows.collect());
            drawn(&lines.title, &chart::lines(id, lines), &table)
        }
        Shown::Table(table) => html! { figure { figcaption { (table.title) } (of_table(table)) } },
    }
}

fn drawn(title: &str, chart: &Markup, table: &Table) -> Markup {
    html! {
        figure {
            figcaption { (title) }
            (chart)
            details { summary { "Numbers" } (of_table(table)) }
        }
    }
}

fn of_table(table: &Table) -> Markup {
    html! {
        div.wide {
            table {
                thead { tr { @for name in &table.head { th scope="col" { (name) } } } }
                tbody {
                    @for row in &table.rows {
                        tr { @for (nth, cell) in row.iter().enumerate() {
                            @if nth == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                        } }
                    }
                }
            }
        }
    }
}

/// The commands of an exhibit, those that failed first.
fn cells(exhibit: &Exhibit, results: &Results) -> Markup {
    let failed = |cell: &str| results.outcome(cell).and_then(|outcome| outcome.failed.as_ref());
    html! {
        @for cell in &exhibit.cells {
            @if let Some(reason) = failed(&cell.name) { p.failed { "Failed: " code { (cell.name) } ": " (reason) } }
        }
        details {
            summary { "The commands: " (exhibit.cells.len()) " cells" }
            ul.commands {
                @for cell in &exhibit.cells {
                    @if let Some(outcome) = results.outcome(&cell.name) {
                        li { b { (cell.name) } " " code { (outcome.command.join(" ")) } }
                    }
                }
            }
        }
    }
}

fn footer(setting: &Setting) -> Markup {
    html! {
        footer {
            dl {
                dt { "Command" } dd { code { (setting.command) } }
                dt { "Written" } dd { (setting.written_at) }
                dt { "Runs took" } dd { (setting.took) }
                dt { "Hanare" } dd { (setting.version) }
                dt { "Machine" } dd { (setting.machine) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_exhibits_are_written_as_in_papers() {
        assert_eq!(["figure7", "table3", "map"].map(titled), ["Figure 7", "Table 3", "Map"]);
    }
}
