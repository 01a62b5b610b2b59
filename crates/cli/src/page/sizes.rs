//! The section on other sizes of local memory: how long the run would have taken with them.

use hanare_settings::human_size;
use maud::{Markup, html};

use super::Record;
use super::behind::{self, Row};
use super::chart::{Curve, at};
use super::words;

const TITLE: &str = "Run time with other sizes of local memory";

/// Returns the section. It is empty if nothing was predicted.
pub(crate) fn section(record: &Record) -> Markup {
    let Some(fit) = &record.fit else { return html! {} };
    let figures = &record.figures;
    let (budget, peak) = (figures.local_bytes_budget, figures.far_bytes_peak);
    let predicted = fit.rows.iter().filter(|row| row.local_bytes > budget);
    let mut points = vec![(budget as f64, figures.elapsed_s)];
    points.extend(predicted.clone().map(|row| (row.local_bytes as f64, row.run_time_s)));
    if points.len() < 2 {
        return html! {};
    }
    let knee = match &fit.knee {
        Some(knee) => format!(
            "From {} on, at the vertical line, more memory saves less: the run would take {} there.",
            human_size(knee.local_bytes),
            words::seconds(knee.run_time_s)
        ),
        None => "Each size saves about as much as the one before.".to_owned(),
    };
    let says = format!("The run took {} with {}. {knee}", words::seconds(figures.elapsed_s), human_size(budget));
    let end = points.iter().fold(peak as f64, |most, (bytes, _)| most.max(*bytes));
    let curve = Curve {
        id: "sizes",
        title: TITLE,
        says: &says,
        points: &points,
        end_bytes: end,
        mark_bytes: fit.knee.as_ref().map(|knee| knee.local_bytes as f64),
    };
    let table = predicted.map(|row| Row {
        from: None,
        to: at(row.local_bytes as f64, end),
        cells: vec![human_size(row.local_bytes), words::seconds(row.run_time_s), format!("{:.2} x", row.slowdown)],
    });
    html! {
        section.chart #sizes {
            h2 { (TITLE) }
            p { (words::unbroken(&says)) " Predicted from this run: docs/how-to/ask-for-memory.md." }
            (curve.draw())
            (behind::table(TITLE, &["local", "run time", "slowdown"], table))
        }
    }
}
