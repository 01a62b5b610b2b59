//! The results as one self-contained HTML page: the paper's Figure 1 with a panel for each remote cost, and the table.

use std::fmt::Write;

use super::cells::Row;
use super::claims::claims;
use super::paper;
use crate::html::{STYLE, escape};

const WIDTH: f64 = 940.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 74.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;
const LEGEND: f64 = 260.0;
/// Height of a line of the legend, in pixels.
const LINE: f64 = 20.0;
/// Horizontal distance between the marks of two networks for the same scheduler, in pixels.
const APART: f64 = 16.0;

/// Makes a page with these rows. `note` is the text above the figures.
#[must_use]
pub fn page(title: &str, note: &str, rows: &[Row]) -> String {
    let title = escape(title);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n<p>{}</p>\n",
        escape(note)
    );
    for cost in distinct(rows, |row| row.cell.remote_cost_clk) {
        let of_cost: Vec<&Row> = rows.iter().filter(|row| row.cell.remote_cost_clk == cost).collect();
        panel(&mut html, cost, &of_cost);
    }
    verdicts(&mut html, rows);
    table(&mut html, rows);
    html.push_str("</body></html>\n");
    html
}

/// Returns the distinct values that `of` reads from the rows, in the order of the rows.
fn distinct<T: PartialEq>(rows: &[Row], of: impl Fn(&Row) -> T) -> Vec<T> {
    let mut found = Vec::new();
    for value in rows.iter().map(of) {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// The network and the replacement method of one line in a panel. The line has a point for each scheduler.
type Series = (String, String);

fn series(row: &Row) -> Series {
    (row.cell.network.to_string(), row.cell.replacement.name())
}

fn panel(html: &mut String, cost: u32, rows: &[&Row]) {
    let owned: Vec<Row> = rows.iter().map(|row| (*row).clone()).collect();
    let schedulers = distinct(&owned, |row| row.cell.scheduler.name);
    let networks = distinct(&owned, |row| row.cell.network.to_string());
    let methods = distinct(&owned, |row| row.cell.replacement.name());
    let step = (WIDTH - LEFT - LEGEND) / schedulers.len().max(1) as f64;
    let x = |name: &str| LEFT + step * (schedulers.iter().position(|s| *s == name).unwrap_or(0) as f64 + 0.5);
    let lines = distinct(&owned, series);
    // Networks are drawn side by side, so that their bars do not cover each other.
    let apart = APART.min(step / (networks.len() + 1) as f64);
    let aside = |network: usize| apart * (network as f64 - (networks.len() as f64 - 1.0) / 2.0);
    let height = HEIGHT.max(TOP + LINE * (lines.len() + 2) as f64);
    let _ = writeln!(
        html,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\" aria-label=\"Effective execution rate by scheduler, remote access {cost} clocks a level\">\
         <text x=\"{LEFT}\" y=\"16\" font-weight=\"bold\">Effective execution rate, remote access {cost} clk a level</text>\
         <text x=\"{:.1}\" y=\"16\" font-weight=\"bold\">network, replacement</text>",
        WIDTH - LEGEND + 16.0
    );
    axes(html, &schedulers, &x);
    for (index, line) in lines.iter().enumerate() {
        let place = |all: &[String], name: &String| all.iter().position(|other| other == name).unwrap_or(0);
        let look = Look { network: place(&networks, &line.0), method: place(&methods, &line.1), index };
        draw(html, &look, line, rows, &|name| x(name) + aside(look.network));
    }
    if rows.iter().any(|row| paper::rate(&row.cell).is_some()) {
        let network = networks.iter().position(|name| name == paper::NETWORK).unwrap_or(0);
        // The paper's figures are drawn beside the marks, so that nothing covers them.
        papers(html, rows, lines.len(), &|name| x(name) + aside(network) - apart * 0.6);
    }
    html.push_str("</svg>\n");
}

fn y(percent: f64) -> f64 {
    TOP + (1.0 - percent / 100.0) * (HEIGHT - TOP - BOTTOM)
}

fn axes(html: &mut String, schedulers: &[&str], x: &dyn Fn(&str) -> f64) {
    let right = WIDTH - LEGEND;
    for percent in (0..=100).step_by(20) {
        let at = y(f64::from(percent));
        let _ = writeln!(
            html,
            "<path d=\"M{LEFT},{at:.1}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>",
            LEFT - 6.0,
            at + 4.0
        );
    }
    for name in schedulers {
        let _ = writeln!(
            html,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            x(name),
            HEIGHT - BOTTOM + 18.0,
            escape(name)
        );
    }
    let _ = writeln!(
        html,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">scheduler</text>",
        f64::midpoint(LEFT, right),
        HEIGHT - 8.0
    );
    let middle = f64::midpoint(y(0.0), y(100.0));
    let _ = writeln!(
        html,
        "<text transform=\"translate(18,{middle:.1}) rotate(-90)\" text-anchor=\"middle\">effective execution rate</text>"
    );
}

/// The look of a line: a colour for the network, and dashes and marks for the method.
struct Look {
    network: usize,
    method: usize,
    index: usize,
}

impl Look {
    fn colour(&self) -> &'static str {
        ["#1b6ca8", "#c8553d", "#4a8f3c", "#7d4fa0", "#8a6d1f", "#3b8e8e"][self.network % 6]
    }

    fn dashes(&self) -> &'static str {
        ["2 4", "", "7 3", "10 3 2 3"][self.method % 4]
    }

    fn mark(&self, x: f64, y: f64, title: &str) -> String {
        let (colour, title) = (self.colour(), escape(title));
        let shape = match self.method % 3 {
            0 => format!(
                "circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"#fff\" stroke=\"{colour}\" stroke-width=\"1.5\""
            ),
            1 => format!("circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\""),
            _ => format!("path d=\"M{:.1},{:.1}h8l-4,-7z\" fill=\"{colour}\"", x - 4.0, y + 3.5),
        };
        let name = shape.split(' ').next().unwrap_or_default();
        format!("<{shape}><title>{title}</title></{name}>")
    }
}

fn draw(html: &mut String, look: &Look, line: &Series, rows: &[&Row], x: &dyn Fn(&str) -> f64) {
    let mine: Vec<&&Row> = rows.iter().filter(|row| series(row) == *line).collect();
    let points: Vec<String> =
        mine.iter().map(|row| format!("{:.1},{:.1}", x(row.cell.scheduler.name), y(row.rate()))).collect();
    let (colour, dashes) = (look.colour(), look.dashes());
    let _ = writeln!(
        html,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dashes}\"/>",
        points.join(" ")
    );
    for row in mine {
        let (at, rate, spread) = (x(row.cell.scheduler.name), row.rate(), row.spread());
        let title = format!("{} {} {}: {rate:.2} ± {spread:.2} %", line.0, line.1, row.cell.scheduler.name);
        let _ = writeln!(
            html,
            "<path d=\"M{at:.1},{:.1}V{:.1}\" stroke=\"{colour}\"/>{}",
            y((rate + spread).min(100.0)),
            y((rate - spread).max(0.0)),
            look.mark(at, y(rate), &title)
        );
    }
    let (x, y) = (WIDTH - LEGEND + 16.0, TOP + LINE * (look.index as f64 + 0.5));
    let _ = writeln!(
        html,
        "<path d=\"M{x:.1},{y:.1}h30\" stroke=\"{colour}\" stroke-width=\"1.8\" stroke-dasharray=\"{dashes}\"/>{}\
         <text x=\"{:.1}\" y=\"{:.1}\">{}, {}</text>",
        look.mark(x + 15.0, y, ""),
        x + 38.0,
        y + 4.0,
        escape(&line.0),
        escape(&method(&line.1))
    );
}

fn method(name: &str) -> String {
    match name {
        "lru" => "lru (method 1)".to_owned(),
        "kind" => "kind (method 3)".to_owned(),
        other => other.to_owned(),
    }
}

fn papers(html: &mut String, rows: &[&Row], lines: usize, x: &dyn Fn(&str) -> f64) {
    let cross = |html: &mut String, x: f64, y: f64| {
        let _ = write!(
            html,
            "<path d=\"M{:.1},{:.1}l8,8m0,-8l-8,8\" stroke=\"#222\" stroke-width=\"1.5\"/>",
            x - 4.0,
            y - 4.0
        );
    };
    for row in rows {
        if let Some(rate) = paper::rate(&row.cell) {
            cross(html, x(row.cell.scheduler.name), y(rate));
        }
    }
    let at = (WIDTH - LEGEND + 31.0, TOP + LINE * (lines as f64 + 1.0));
    cross(html, at.0, at.1);
    let _ = writeln!(
        html,
        "<text x=\"{:.1}\" y=\"{:.1}\">the paper's Table 3, network {}</text>",
        at.0 + 23.0,
        at.1 + 4.0,
        paper::NETWORK
    );
}

fn verdicts(html: &mut String, rows: &[Row]) {
    let claims = claims(rows);
    if claims.is_empty() {
        return;
    }
    html.push_str(
        "<h2>Claims</h2><p>Means over the seeds in points, ± their standard error; tied: within one of 0.</p>\n<ul>\n",
    );
    for claim in claims {
        let _ = writeln!(html, "<li><strong>{}</strong>: {}</li>", claim.verdict().word(), escape(&claim.line()));
    }
    html.push_str("</ul>\n");
}

fn table(html: &mut String, rows: &[Row]) {
    html.push_str("<h2>Cells</h2>\n<div style=\"overflow-x:auto;font-size:13px\"><table><thead><tr>");
    for head in [
        "network",
        "remote clk",
        "replacement",
        "scheduler",
        "rate %",
        "± sd",
        "paper %",
        "error",
        "quanta",
        "fairness",
        "disk reads",
        "copies",
        "moves",
        "replaced",
    ] {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        let cell = &row.cell;
        let paper = paper::rate(cell);
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{}</td><td>{}</td>\
             <td>{:.0}</td><td>{:.3}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td><td>{:.0}</td></tr>",
            escape(&cell.network.to_string()),
            cell.remote_cost_clk,
            escape(&cell.replacement.name()),
            escape(cell.scheduler.name),
            row.rate(),
            row.spread(),
            paper.map_or(String::new(), |paper| format!("{paper:.2}")),
            paper.map_or(String::new(), |paper| format!("{:+.2}", row.rate() - paper)),
            row.mean(|outcome| f64::from(outcome.quanta)),
            row.mean(|outcome| outcome.fairness),
            row.mean(|outcome| outcome.counts.disk_reads as f64),
            row.mean(|outcome| outcome.counts.copies as f64),
            row.mean(|outcome| outcome.counts.migrations as f64),
            row.mean(|outcome| outcome.counts.evictions as f64),
        );
    }
    html.push_str("</tbody></table></div>\n");
}
