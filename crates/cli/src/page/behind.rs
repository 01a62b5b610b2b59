//! The table behind a chart. It is folded, and the script reads it to show the row under the pointer.

use maud::{Markup, html};

/// A row of the table.
pub(crate) struct Row {
    /// Where the row's part of the chart begins, as a share of the width. `None` if it begins at the end of the row before.
    pub(crate) from: Option<f64>,
    /// Where that part ends.
    pub(crate) to: f64,
    /// A text for each column. The first one names the row.
    pub(crate) cells: Vec<String>,
}

/// Returns the table behind the chart with this title.
pub(crate) fn table(title: &str, heads: &[&str], rows: impl IntoIterator<Item = Row>) -> Markup {
    let share = |share: f64| format!("{share:.4}");
    html! {
        p.reading aria-hidden="true" {}
        details {
            summary { "Table: " (title.to_lowercase()) }
            div.wide {
                table {
                    thead { tr { @for head in heads { th scope="col" { (head) } } } }
                    tbody {
                        @for row in rows {
                            tr data-from=[row.from.map(share)] data-x=(share(row.to)) {
                                @for (nth, cell) in row.cells.iter().enumerate() {
                                    @if nth == 0 { th scope="row" { (cell) } } @else { td { (cell) } }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
