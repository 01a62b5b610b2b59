//! Draws charts as inline SVG. Horizontal places are shares of the width, so that a chart fits every screen and its text
//! keeps its size. Vertical places are pixels.

use std::fmt::Write;

use hanare_sim::scale;
use maud::{Markup, html};

use super::words;

/// Height of the plotted area.
const HEIGHT: f64 = 180.0;
/// Space above the plotted area, for the upper half of the highest label.
const TOP: f64 = 8.0;
/// Space below the plotted area, for the labels of the horizontal axis.
const BOTTOM: f64 = 26.0;
/// Width of the plotted area, in units that the browser fits to the width of the page.
const WIDTH: f64 = 1000.0;
/// Most steps between the ticks of an axis.
const PARTS: u32 = 4;
/// Least height of a bar that stands for something.
const BAR_MIN: f64 = 1.5;

/// The unit of the values of a vertical axis.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Bytes,
    BytesPerSecond,
    PerSecond,
    Percent,
    Faults,
}

impl Unit {
    fn ticks(self, max: f64) -> Vec<f64> {
        match self {
            Unit::Bytes | Unit::BytesPerSecond => scale::binary_ticks(max, PARTS),
            _ => scale::ticks(max, PARTS),
        }
    }

    fn label(self, tick: f64, places: usize) -> String {
        let number = if tick < 1e4 { format!("{tick:.places$}") } else { words::short(tick) };
        match self {
            Unit::Bytes => words::bytes(tick),
            Unit::BytesPerSecond => format!("{}/s", words::bytes(tick)),
            Unit::PerSecond => format!("{number} /s"),
            Unit::Percent => format!("{number} %"),
            Unit::Faults => number,
        }
    }

    /// Returns a value of a chart as text.
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Unit::Bytes => words::bytes(value),
            Unit::BytesPerSecond => format!("{}/s", words::bytes(value)),
            Unit::PerSecond => format!("{} /s", words::short(value)),
            Unit::Percent => words::percent(value / 100.0),
            Unit::Faults => words::short(value),
        }
    }
}

/// How a line looks. Each is a class of the style sheet.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Look {
    /// An area in the accent colour.
    Main,
    /// An area in a lighter accent colour.
    Second,
    /// An area in the lightest accent colour.
    Third,
    /// A bold line.
    Line,
    /// A thin line.
    Thin,
    /// A thin dashed line.
    Dashed,
    /// A thin dotted line.
    Dotted,
}

impl Look {
    fn class(self) -> &'static str {
        match self {
            Look::Main => "main",
            Look::Second => "second",
            Look::Third => "third",
            Look::Line => "line",
            Look::Thin => "thin",
            Look::Dashed => "dashed",
            Look::Dotted => "dotted",
        }
    }

    pub(crate) fn is_area(self) -> bool {
        matches!(self, Look::Main | Look::Second | Look::Third)
    }
}

/// The values of one line: one for each interval.
pub(crate) struct Series {
    pub(crate) look: Look,
    pub(crate) values: Vec<f64>,
}

/// A chart of values over time.
pub(crate) struct OverTime<'a> {
    /// Name of the chart's elements in the page.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    /// A description of the chart, for readers who cannot see it.
    pub(crate) says: &'a str,
    pub(crate) unit: Unit,
    /// The ends of the intervals, in seconds, after the start of the first.
    pub(crate) bounds_s: &'a [f64],
    /// The names of the lines, with their looks.
    pub(crate) key: &'a [(&'static str, Look)],
    /// The series in the order in which they are drawn.
    pub(crate) series: &'a [Series],
}

impl OverTime<'_> {
    /// Returns the highest value of the chart.
    fn max(&self) -> f64 {
        let values = self.series.iter().flat_map(|series| series.values.iter().copied());
        values.filter(|value| value.is_finite()).fold(0.0, f64::max)
    }

    /// Draws the chart with its key.
    pub(crate) fn draw(&self) -> Markup {
        let end_s = self.bounds_s.last().copied().unwrap_or(0.0);
        let ticks = self.unit.ticks(self.max());
        let top = ticks.last().copied().unwrap_or(1.0);
        let places = scale::places(&ticks);
        let times = scale::time_ticks(end_s, PARTS).into_iter().filter(|tick| *tick <= end_s);
        let axes = Axes {
            up: ticks.iter().map(|tick| (tick / top, self.unit.label(*tick, places))).collect(),
            right: times.map(|tick| (at(tick, end_s), words::seconds(tick))).collect(),
            beside: Vec::new(),
        };
        let paths = html! {
            @for series in self.series {
                @let path = steps(self.bounds_s, &series.values, top, series.look.is_area());
                path class=(series.look.class()) d=(path) {}
            }
        };
        html! {
            ul.key {
                @for (name, look) in self.key { li { i class=(look.class()) {} (name) } }
            }
            (frame(self.id, self.title, self.says, &axes, &paths))
        }
    }
}

/// One bar of a histogram: the range of its values as shares of the width, and its count.
pub(crate) struct Bar {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) count: u64,
}

/// Draws a histogram. `right` has the labels of the horizontal axis with their shares of the width.
pub(crate) fn bars(id: &str, title: &str, described: &str, bars: &[Bar], right: Vec<(f64, String)>) -> Markup {
    let most = bars.iter().map(|bar| bar.count).max().unwrap_or(0);
    let ticks = Unit::Faults.ticks(most as f64);
    let top = ticks.last().copied().unwrap_or(1.0);
    let places = scale::places(&ticks);
    let up = ticks.iter().map(|tick| (tick / top, Unit::Faults.label(*tick, places))).collect();
    let mut path = String::new();
    for bar in bars.iter().filter(|bar| bar.count > 0) {
        let height = (HEIGHT * bar.count as f64 / top).max(BAR_MIN);
        let (from, to) = (WIDTH * bar.from, WIDTH * bar.to);
        // A hundredth of the width of a bar is left free, so that neighbours show as bars.
        // Ignored: writing to a string does not fail.
        let _ = write!(path, "M{from:.1},{HEIGHT}V{:.1}H{:.1}V{HEIGHT}Z", HEIGHT - height, to - 0.08 * (to - from));
    }
    frame(id, title, described, &Axes { up, right, beside: Vec::new() }, &html! { path class="main" d=(path) {} })
}

/// One cell of a map: its edges as shares of the width and of the height, and how hot it is, from 1 on.
pub(crate) struct Hot {
    pub(crate) across: (f64, f64),
    pub(crate) up: (f64, f64),
    pub(crate) level: usize,
}

/// A map of time and addresses.
pub(crate) struct HeatMap<'a> {
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    pub(crate) says: &'a str,
    pub(crate) end_s: f64,
    /// The bytes at the upper edge.
    pub(crate) top_bytes: f64,
    /// The cells, those of one row after one another.
    pub(crate) cells: &'a [Hot],
    /// Parts of the height, with their names.
    pub(crate) beside: Vec<((f64, f64), String)>,
}

impl HeatMap<'_> {
    /// Draws the map. Each level is one path.
    pub(crate) fn draw(&self) -> Markup {
        let levels = self.cells.iter().map(|cell| cell.level).max().unwrap_or(0);
        let mut paths = vec![String::new(); levels];
        for cell in self.cells.iter().filter(|cell| cell.level > 0) {
            let (left, right) = (WIDTH * cell.across.0, WIDTH * cell.across.1);
            let (low, high) = (HEIGHT * (1.0 - cell.up.0), HEIGHT * (1.0 - cell.up.1));
            // Ignored: writing to a string does not fail.
            let _ = write!(paths[cell.level - 1], "M{left:.1},{low:.1}V{high:.1}H{right:.1}V{low:.1}Z");
        }
        let ticks = Unit::Bytes.ticks(self.top_bytes).into_iter().filter(|tick| *tick <= self.top_bytes);
        let times = scale::time_ticks(self.end_s, PARTS).into_iter().filter(|tick| *tick <= self.end_s);
        let axes = Axes {
            up: ticks.map(|tick| (at(tick, self.top_bytes), Unit::Bytes.label(tick, 0))).collect(),
            right: times.map(|tick| (at(tick, self.end_s), words::seconds(tick))).collect(),
            beside: self.beside.clone(),
        };
        let paths = html! {
            @for (index, path) in paths.iter().enumerate() {
                path class={ "heat heat" (index + 1) } d=(path) {}
            }
        };
        frame(self.id, self.title, self.says, &axes, &paths)
    }
}

/// Times against sizes of memory: a line through points.
pub(crate) struct Curve<'a> {
    pub(crate) id: &'a str,
    pub(crate) title: &'a str,
    pub(crate) says: &'a str,
    /// Sizes in bytes, ascending, with their times in seconds.
    pub(crate) points: &'a [(f64, f64)],
    /// The bytes at the right edge.
    pub(crate) end_bytes: f64,
    /// A size that a vertical line marks.
    pub(crate) mark_bytes: Option<f64>,
}

impl Curve<'_> {
    /// Draws the line between its axes.
    pub(crate) fn draw(&self) -> Markup {
        let most_s = self.points.iter().map(|(_, seconds)| *seconds).filter(|it| it.is_finite()).fold(0.0, f64::max);
        let ticks = scale::ticks(most_s, PARTS);
        let top = ticks.last().copied().unwrap_or(1.0);
        let sizes = scale::binary_ticks(self.end_bytes, PARTS).into_iter().filter(|tick| *tick <= self.end_bytes);
        let axes = Axes {
            up: ticks.iter().map(|tick| (tick / top, words::seconds(*tick))).collect(),
            right: sizes.map(|tick| (at(tick, self.end_bytes), words::bytes(tick))).collect(),
            beside: Vec::new(),
        };
        let mut path = String::new();
        for (bytes, seconds) in self.points {
            let (x, y) = (WIDTH * at(*bytes, self.end_bytes), HEIGHT * (1.0 - at(*seconds, top)));
            // Ignored: writing to a string does not fail.
            let _ = write!(path, "{}{x:.1},{y:.1}", if path.is_empty() { 'M' } else { 'L' });
        }
        let mark = self.mark_bytes.map(|bytes| format!("M{:.1},0V{HEIGHT}", WIDTH * at(bytes, self.end_bytes)));
        let paths = html! {
            path.line d=(path) {}
            @if let Some(mark) = mark { path.dashed d=(mark) {} }
        };
        frame(self.id, self.title, self.says, &axes, &paths)
    }
}

/// The labels of a chart, each with its share of the height or the width.
struct Axes {
    up: Vec<(f64, String)>,
    right: Vec<(f64, String)>,
    /// Names of parts of the height, at the right edge.
    beside: Vec<((f64, f64), String)>,
}

/// Draws the axes around the paths.
fn frame(id: &str, title: &str, described: &str, axes: &Axes, paths: &Markup) -> Markup {
    let y = |share: f64| format!("{:.1}", TOP + HEIGHT * (1.0 - share));
    let x = |share: f64| format!("{:.2}%", 100.0 * share);
    html! {
        svg.plot role="img" height=(TOP + HEIGHT + BOTTOM) aria-labelledby={ (id) "-title " (id) "-desc" } {
            title id={ (id) "-title" } { (title) }
            desc id={ (id) "-desc" } { (described) }
            @for (share, label) in &axes.up {
                line.grid x1="0" x2="100%" y1=(y(*share)) y2=(y(*share)) {}
                text.up x="-8" y=(y(*share)) dy="4" { (label) }
            }
            svg x="0" y=(TOP) width="100%" height=(HEIGHT) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
                (paths)
            }
            @for (share, label) in &axes.right {
                line.tick x1=(x(*share)) x2=(x(*share)) y1=(TOP + HEIGHT) y2=(TOP + HEIGHT + 5.0) {}
                text.right x=(x(*share)) y=(TOP + HEIGHT + 20.0) { (label) }
            }
            @for ((low, high), name) in &axes.beside {
                svg x="100%" y="0" overflow="visible" {
                    line.tick x1="5" x2="5" y1=(y(*low)) y2=(y(*high)) {}
                    text.beside x="10" y=(y((low + high) / 2.0)) dy="4" { (name) }
                }
            }
            line.cursor x1="0" x2="0" y1=(TOP) y2=(TOP + HEIGHT) {}
        }
    }
}

/// Returns the place of a time as a share of the width.
pub(crate) fn at(time_s: f64, end_s: f64) -> f64 {
    words::share(time_s, end_s).unwrap_or(0.0).clamp(0.0, 1.0)
}

/// Returns a path that is level within each interval. `top` is the value at the upper edge.
fn steps(bounds_s: &[f64], values: &[f64], top: f64, is_area: bool) -> String {
    let end_s = bounds_s.last().copied().unwrap_or(0.0);
    let mut path = String::new();
    let mut level = f64::NAN;
    for (value, bound) in values.iter().zip(bounds_s) {
        let y = HEIGHT * (1.0 - words::share(*value, top).unwrap_or(0.0).clamp(0.0, 1.0));
        let x = WIDTH * at(*bound, end_s);
        let up = if path.is_empty() { format!("M0,{y:.1}") } else { format!("V{y:.1}") };
        if (y - level).abs() >= 0.05 || level.is_nan() {
            path += &up;
            level = y;
        } else if let Some(flat) = path.rfind('H') {
            // The line goes on at the same level, so the end of its last piece moves.
            path.truncate(flat);
        }
        path += &format!("H{x:.1}");
    }
    if is_area && !path.is_empty() {
        path += &format!("V{HEIGHT}H0Z");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_level_within_intervals_and_has_no_needless_points() {
        assert_eq!(steps(&[1.0, 2.0, 4.0], &[0.0, 5.0, 10.0], 10.0, false), "M0,180.0H250.0V90.0H500.0V0.0H1000.0");
        assert_eq!(steps(&[1.0, 2.0, 4.0], &[5.0, 5.0, 0.0], 10.0, true), "M0,90.0H500.0V180.0H1000.0V180H0Z");
        assert_eq!(steps(&[], &[], 1.0, true), "");
        assert_eq!(steps(&[0.0], &[f64::NAN], 0.0, false), "M0,180.0H0.0");
    }

    #[test]
    fn a_chart_has_ticks_with_units_a_title_and_a_description_and_no_nan() {
        let chart = |unit, bounds_s: &[f64], values: &[f64]| {
            let series = [Series { look: Look::Main, values: values.to_vec() }];
            let (key, says) = (&[("local", Look::Main)], "A & B.");
            OverTime { id: "memory", title: "Memory", says, unit, bounds_s, key, series: &series }.draw().into_string()
        };
        let page = chart(Unit::Bytes, &[30.0, 74.0], &[1e6, 300e6]);
        for part in
            [">128 MiB<", ">384 MiB<", ">20 s<", ">60 s<", "id=\"memory-title\">Memory<", ">A &amp; B.<", ">local<"]
        {
            assert!(page.contains(part), "{part} is not in {page}");
        }
        assert!(!page.contains(">80 s<"), "{page}");
        for unit in [Unit::Bytes, Unit::BytesPerSecond, Unit::PerSecond, Unit::Percent, Unit::Faults] {
            for values in [&[][..], &[f64::NAN], &[f64::INFINITY], &[0.0], &[f64::MAX], &[1e-9]] {
                for bounds_s in [&[][..], &[0.0], &[f64::NAN], &[1e9]] {
                    let page = chart(unit, bounds_s, values);
                    assert!(!page.contains("NaN") && !page.contains(">inf"), "{page}");
                }
            }
        }
    }

    #[test]
    fn rare_faults_have_a_visible_bar() {
        let all = [Bar { from: 0.0, to: 0.5, count: 1_000_000 }, Bar { from: 0.5, to: 1.0, count: 1 }];
        let page = bars("latency", "Latency", "", &all, vec![(0.0, "1 µs".to_owned())]).into_string();
        assert!(page.contains("M0.0,180V0.0H460.0V180Z") && page.contains("M500.0,180V178.5H"), "{page}");
        assert!(page.contains(">1 M<") && page.contains(">1 µs<"), "{page}");
    }
}
