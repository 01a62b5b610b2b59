//! The results as one self-contained HTML page: a plot of miss ratios over local memory, and the table.

use std::fmt::Write;

use crate::policies::Row;
use crate::scale;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 16.0;
const LEGEND: f64 = 180.0;
/// Most parts into which ticks divide an axis.
const PARTS: u32 = 5;

pub(crate) const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222;background:#fff}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:right}\
th:first-child,td:first-child{text-align:left}\
svg{max-width:100%;height:auto}svg text{font-size:12px;fill:#222}";

/// Makes a page with these rows. Miss ratios are relative to `references`.
#[must_use]
pub fn page(title: &str, note: &str, rows: &[Row], references: u64) -> String {
    let title = escape(title);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n<p>{}</p>\n",
        escape(note)
    );
    plot(&mut html, rows, references.max(1) as f64);
    table(&mut html, rows);
    html.push_str("</body></html>\n");
    html
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a colour that differs clearly from its neighbours in the list.
fn colour(index: usize) -> String {
    format!("hsl({:.0},70%,{}%)", (index as f64 * 137.5) % 360.0, 35 + index % 3 * 10)
}

fn plot(html: &mut String, rows: &[Row], references: f64) {
    let most = rows.iter().map(|row| row.figures.misses as f64 / references).fold(0.0, f64::max);
    let right = rows.iter().map(|row| row.local_percent).fold(100.0, f64::max);
    let ratios = scale::ticks(100.0 * most, PARTS);
    let top = ratios.last().map_or(1.0, |last| last / 100.0);
    let x = |percent: f64| LEFT + percent / right * (WIDTH - LEFT - LEGEND);
    let y = |ratio: f64| TOP + (1.0 - ratio / top) * (HEIGHT - TOP - BOTTOM);
    let _ = writeln!(
        html,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\" \
         aria-label=\"Miss ratio by policy over local memory\">"
    );
    let places = scale::places(&ratios);
    for ratio in ratios {
        let (at_y, end) = (y(ratio / 100.0), x(right));
        let _ = writeln!(
            html,
            "<path d=\"M{LEFT},{at_y:.1}H{end:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio:.places$} %</text>",
            LEFT - 6.0,
            at_y + 4.0,
        );
    }
    for percent in scale::ticks(right, PARTS).into_iter().filter(|percent| *percent <= right) {
        let _ = writeln!(
            html,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{percent:.0} %</text>",
            x(percent),
            HEIGHT - BOTTOM + 18.0,
        );
    }
    let _ = writeln!(
        html,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">local memory; up: misses per reference</text>",
        x(right / 2.0),
        HEIGHT - 4.0
    );
    for (index, policy) in policies(rows).into_iter().enumerate() {
        line(html, rows, index, policy, &|row| (x(row.local_percent), y(row.figures.misses as f64 / references)));
    }
    html.push_str("</svg>\n");
}

fn line(html: &mut String, rows: &[Row], index: usize, policy: &str, at: &dyn Fn(&Row) -> (f64, f64)) {
    let colour = colour(index);
    let mut points: Vec<(f64, f64)> = rows.iter().filter(|row| row.policy == policy).map(at).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ =
        write!(html, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>", path.join(" "));
    for (x, y) in points {
        let _ = write!(
            html,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"><title>{}</title></circle>",
            escape(policy)
        );
    }
    let (x, y) = (WIDTH - LEGEND + 24.0, TOP + 16.0 * (index as f64 + 0.5));
    let _ = writeln!(
        html,
        "<path d=\"M{:.1},{y:.1}h18\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        x,
        x + 24.0,
        y + 4.0,
        escape(policy)
    );
}

/// Returns the policies in the order of their first rows.
fn policies(rows: &[Row]) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for row in rows {
        if !found.contains(&row.policy.as_str()) {
            found.push(&row.policy);
        }
    }
    found
}

fn table(html: &mut String, rows: &[Row]) {
    html.push_str("<table><thead><tr>");
    for head in ["policy", "local %", "pages", "misses", "transfers in", "write-backs", "protects", "x Simple", "x OPT"]
    {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        let figures = row.figures;
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{:.1}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.3}</td><td>{:.3}</td></tr>",
            escape(&row.policy),
            row.local_percent,
            row.local_pages,
            figures.misses,
            figures.transfers_in,
            figures.write_backs,
            figures.protects,
            row.ratio_to_simple,
            row.ratio_to_opt,
        );
    }
    html.push_str("</tbody></table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Figures;

    #[test]
    fn the_page_has_a_line_a_policy_a_row_a_result_and_nothing_from_elsewhere() {
        let row = |policy: &str, percent: f64, misses| Row {
            policy: policy.to_owned(),
            local_percent: percent,
            local_pages: 10,
            figures: Figures { misses, ..Figures::default() },
            ratio_to_simple: 1.0,
            ratio_to_opt: 1.5,
        };
        let rows = [row("lru", 25.0, 900), row("opt", 25.0, 600), row("lru", 50.0, 300), row("opt", 50.0, 200)];
        let html = page("<script>", "a & b", &rows, 1000);
        assert_eq!(html.matches("<polyline").count(), 2);
        assert_eq!(html.matches("<tr><td>").count(), 4);
        assert!(html.contains("&lt;script&gt;") && !html.contains("<script>") && html.contains("a &amp; b"));
        assert!(!html.contains("http") && !html.contains("src=") && !html.contains("NaN"));
        // A row with twice the misses has a point twice as high above the axis.
        assert!(html.contains("<td>900</td>"));
        assert!(!page("empty", "", &[], 0).contains("NaN"));
    }
}
