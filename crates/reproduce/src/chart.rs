//! Draws bars and lines as inline SVG. Horizontal places are shares of the width, so that a chart fits every screen and
//! its text keeps its size. Vertical places are pixels.

use std::fmt::Write;

use hanare_sim::scale;
use maud::{Markup, html};

use crate::exhibit::{Bars, Lines, number};

/// Height of the plotted area.
const HEIGHT: f64 = 200.0;
/// Space above the plotted area, for the upper half of the highest label.
const TOP: f64 = 8.0;
/// Space below the plotted area, for the labels of the horizontal axis.
const BOTTOM: f64 = 26.0;
/// Width of the plotted area, in units that the browser fits to the width of the page.
const WIDTH: f64 = 1000.0;
/// Most steps between the ticks of an axis.
const PARTS: u32 = 4;
/// Part of a group's width that stays free between two groups.
const GAP: f64 = 0.16;
/// Colours of the style sheet.
pub(crate) const COLOURS: usize = 12;

/// Draws bars with their key.
pub(crate) fn bars(id: &str, bars: &Bars) -> Markup {
    let sums = (0..bars.groups.len()).map(|group| bars.series.iter().filter_map(|(_, values)| values[group]).sum());
    let highest = bars.series.iter().flat_map(|(_, values)| values.iter().flatten().copied());
    let max = if bars.is_stacked { sums.fold(0.0, f64::max) } else { highest.fold(0.0, f64::max) };
    let up = Up::to(max);
    let slot = 1.0 / bars.groups.len().max(1) as f64;
    let mut paths = vec![String::new(); bars.series.len()];
    for group in 0..bars.groups.len() {
        let mut below = 0.0;
        for (nth, (_, values)) in bars.series.iter().enumerate() {
            let Some(value) = values[group] else { continue };
            let width = slot * (1.0 - GAP) / if bars.is_stacked { 1.0 } else { bars.series.len() as f64 };
            let left = slot * (group as f64 + GAP / 2.0) + if bars.is_stacked { 0.0 } else { width * nth as f64 };
            let (low, high) = (up.y(below), up.y(below + value));
            // Ignored: writing to a string does not fail.
            let _ = write!(
                paths[nth],
                "M{:.1},{low:.1}V{high:.1}H{:.1}V{low:.1}Z",
                WIDTH * left,
                WIDTH * (left + width * 0.94)
            );
            if bars.is_stacked {
                below += value;
            }
        }
    }
    let labels: Vec<_> =
        bars.groups.iter().enumerate().map(|(nth, name)| (slot * (nth as f64 + 0.5), name.clone())).collect();
    let paths = html! { @for (nth, path) in paths.iter().enumerate() { path class=(fill(nth)) d=(path) {} } };
    html! {
        (key(bars.series.iter().map(|(name, _)| name.as_str())))
        (frame(id, &bars.title, bars.unit, &up, &labels, &paths))
    }
}

/// Draws lines with their key.
pub(crate) fn lines(id: &str, lines: &Lines) -> Markup {
    let points = || lines.lines.iter().flat_map(|(_, points)| points);
    let up = Up::to(points().filter_map(|(_, value)| *value).fold(0.0, f64::max));
    let (left, right) =
        points().fold((f64::INFINITY, 0.0_f64), |(left, right), (at, _)| (left.min(*at), right.max(*at)));
    let across = |at: f64| if right > left { (at - left) / (right - left) } else { 0.5 };
    let mut marks: Vec<f64> = points().map(|(at, _)| *at).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let labels: Vec<_> = marks.iter().map(|at| (across(*at), number(*at))).collect();
    let path = |points: &[(f64, Option<f64>)]| {
        let mut path = String::new();
        for (at, value) in points.iter().filter_map(|(at, value)| Some((at, (*value)?))) {
            let _ = write!(
                path,
                "{}{:.1},{:.1}",
                if path.is_empty() { 'M' } else { 'L' },
                WIDTH * across(*at),
                up.y(value)
            );
        }
        path
    };
    let paths = html! {
        @for (nth, (_, points)) in lines.lines.iter().enumerate() { path.line.(stroke(nth)) d=(path(points)) {} }
    };
    html! {
        (key(lines.lines.iter().map(|(name, _)| name.as_str())))
        (frame(id, &lines.title, lines.unit, &up, &labels, &paths))
        p.across { (lines.across) }
    }
}

/// The vertical axis.
struct Up {
    ticks: Vec<f64>,
    top: f64,
}

impl Up {
    fn to(max: f64) -> Self {
        let ticks = scale::ticks(if max.is_finite() { max } else { 1.0 }, PARTS);
        let top = ticks.last().copied().unwrap_or(1.0);
        Up { ticks, top }
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT * (1.0 - if value.is_finite() { (value / self.top).clamp(0.0, 1.0) } else { 0.0 })
    }
}

fn fill(nth: usize) -> String {
    format!("fill{}", nth % COLOURS)
}

fn stroke(nth: usize) -> String {
    format!("stroke{}", nth % COLOURS)
}

fn key<'a>(names: impl Iterator<Item = &'a str>) -> Markup {
    html! {
        ul.key { @for (nth, name) in names.enumerate() { li { i class=(fill(nth)) {} (name) } } }
    }
}

fn frame(id: &str, title: &str, unit: &str, up: &Up, labels: &[(f64, String)], paths: &Markup) -> Markup {
    let places = scale::places(&up.ticks);
    let tick_text = |tick: f64| if tick >= 1e4 { number(tick) } else { format!("{tick:.places$}") };
    let x = |share: f64| format!("{:.2}%", 100.0 * share);
    let y = |tick: f64| format!("{:.1}", TOP + up.y(tick));
    let names: Vec<&str> = labels.iter().map(|(_, name)| name.as_str()).collect();
    html! {
        svg.plot role="img" height=(TOP + HEIGHT + BOTTOM) aria-labelledby={ (id) "-title " (id) "-desc" } {
            title id={ (id) "-title" } { (title) }
            desc id={ (id) "-desc" } { "In " (unit) ", for " (names.join(", ")) ". The table below has the numbers." }
            @for tick in &up.ticks {
                line.grid x1="0" x2="100%" y1=(y(*tick)) y2=(y(*tick)) {}
                text.up x="-8" y=(y(*tick)) dy="4" { (tick_text(*tick)) " " (unit) }
            }
            svg x="0" y=(TOP) width="100%" height=(HEIGHT) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
                (paths)
            }
            @for (share, label) in labels {
                text.right x=(x(*share)) y=(TOP + HEIGHT + 18.0) { (label) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_beside_or_upon_each_other_and_missing_ones_leave_a_gap() {
        let mut shown = Bars {
            title: "Run time".to_owned(),
            unit: "s",
            groups: vec!["is".to_owned(), "cg".to_owned()],
            series: vec![("calc".to_owned(), vec![Some(1.0), None]), ("swap".to_owned(), vec![Some(3.0), Some(2.0)])],
            is_stacked: true,
        };
        let stacked = bars("a", &shown).into_string();
        // The second series begins where the first ends: a quarter of 4 s below the top of the axis.
        assert!(stacked.contains("class=\"fill1\" d=\"M40.0,150.0V0.0"), "{stacked}");
        shown.is_stacked = false;
        let beside = bars("a", &shown).into_string();
        assert!(beside.contains("class=\"fill1\" d=\"M250.0,200.0V0.0"), "{beside}");
        for part in [">calc<", ">is<", ">3 s<", "id=\"a-title\">Run time<"] {
            assert!(beside.contains(part), "{part} is not in {beside}");
        }
    }

    #[test]
    fn no_number_becomes_nan() {
        for value in [None, Some(0.0), Some(f64::NAN), Some(f64::INFINITY), Some(f64::MAX), Some(1e-12)] {
            let one = vec![("a".to_owned(), vec![value])];
            let groups = vec!["g".to_owned()];
            let shown = Bars { title: String::new(), unit: "s", groups, series: one, is_stacked: true };
            let through = Lines {
                title: String::new(),
                unit: "s",
                across: "pages",
                lines: vec![("a".to_owned(), vec![(1.0, value)])],
            };
            let text = bars("a", &shown).into_string() + &lines("a", &through).into_string();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }
}
