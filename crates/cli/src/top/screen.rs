//! What `hanare top` shows on a terminal, and what its keys do. It reads no terminal and no clock.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::columns::{Column, count, fitting, size, table};
use super::lines::{COLUMNS, RunLine};
use super::members::MEMBERS;
use super::{View, nothing, servers};
use crate::watch::runs::Id;

/// Rows that the up and down keys for pages pass over.
const PAGE: usize = 10;

const HELP: &str = "\
Up Down PgUp PgDn Home End: select a run
< > F6: choose the column to sort by
I: reverse the order
P M T N: sort by STALL, FAR, TIME, PID
h F1 ?: help, q F10 Ctrl-C: quit

FAULT/s  faults per second
IN/s     bytes fetched per second
OUT/s    bytes written back per second
P50 P99  time of a fault: median, 99th %
STALL    share of the threads' time that
         was spent waiting for pages
LOCAL    far pages in local memory
BUDGET   limit of LOCAL
FAR      far memory allocated
NEAR     private memory that is not far
PROC THR processes and their threads
RES      resident memory of a process";

/// The state of the screen.
pub(super) struct Screen {
    view: View,
    /// The selected run. It stays selected wherever the order puts it.
    selected: Option<Id>,
    /// The title of the column by which runs are sorted.
    sort: &'static str,
    is_reversed: bool,
    shows_help: bool,
    /// Width of the terminal when it was last drawn.
    width: usize,
}

impl Screen {
    pub(super) fn new() -> Screen {
        let (view, selected) = (View::default(), None);
        Screen { view, selected, sort: "FAULT/s", is_reversed: false, shows_help: false, width: 80 }
    }

    /// Takes new figures.
    pub(super) fn set(&mut self, view: View) {
        self.view = view;
        self.order();
    }

    fn order(&mut self) {
        let Some(column) = COLUMNS.iter().find(|column| column.title == self.sort) else { return };
        let is_reversed = self.is_reversed;
        self.view.runs.sort_by(|a, b| {
            let order = (column.key)(b).total_cmp(&(column.key)(a)).then_with(|| a.program.cmp(&b.program));
            // Runs that are equal must not change places with each reading.
            let order = order.then_with(|| a.id.cmp(&b.id));
            if is_reversed { order.reverse() } else { order }
        });
    }

    fn at(&self) -> usize {
        self.view.runs.iter().position(|run| Some(run.id) == self.selected).unwrap_or(0)
    }

    fn select(&mut self, at: usize) {
        let last = self.view.runs.len().saturating_sub(1);
        self.selected = self.view.runs.get(at.min(last)).map(|run| run.id);
    }

    fn sort_by(&mut self, title: &'static str) {
        self.sort = title;
        self.order();
    }

    /// Moves the sort column among those that are shown and have an order.
    fn move_sort(&mut self, is_right: bool) {
        let has_order = |column: &&Column<RunLine>| !["MODE", "POLICY", "PROGRAM"].contains(&column.title);
        let shown: Vec<&Column<RunLine>> = fitting(COLUMNS, self.width).into_iter().filter(has_order).collect();
        let Some(last) = shown.len().checked_sub(1) else { return };
        let at = shown.iter().position(|column| column.title == self.sort);
        let next = match (at, is_right) {
            (Some(at), true) => {
                if at == last {
                    0
                } else {
                    at + 1
                }
            }
            (Some(0), false) => last,
            (Some(at), false) => at - 1,
            (None, _) => 0,
        };
        self.sort_by(shown[next].title);
    }

    /// Does what a key says. Returns true if it ends the command.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return true,
            KeyCode::Char(_) if is_control => {}
            KeyCode::Char('q') | KeyCode::F(10) => return true,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.shows_help = !self.shows_help,
            KeyCode::Esc => self.shows_help = false,
            KeyCode::Up => self.select(self.at().saturating_sub(1)),
            KeyCode::Down => self.select(self.at() + 1),
            KeyCode::PageUp => self.select(self.at().saturating_sub(PAGE)),
            KeyCode::PageDown => self.select(self.at() + PAGE),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('>' | '.') | KeyCode::Right | KeyCode::F(6) => self.move_sort(true),
            KeyCode::Char('<' | ',') | KeyCode::Left => self.move_sort(false),
            KeyCode::Char('P') => self.sort_by("STALL"),
            KeyCode::Char('M') => self.sort_by("FAR"),
            KeyCode::Char('T') => self.sort_by("TIME"),
            KeyCode::Char('N') => self.sort_by("PID"),
            KeyCode::Char('I') => {
                self.is_reversed = !self.is_reversed;
                self.order();
            }
            _ => {}
        }
        false
    }

    /// Draws everything.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        self.width = usize::from(area.width);
        let lines = match self.shows_help {
            true => HELP.lines().map(Line::from).collect(),
            false => self.lines(usize::from(area.height)),
        };
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// Returns the lines for a terminal of this height: the sums, the runs, the servers, the notes, the processes of
    /// the selected run, and the keys.
    fn lines(&self, height: usize) -> Vec<Line<'static>> {
        let mut lines = vec![Line::styled(cut(&self.sums(), self.width), Modifier::BOLD)];
        let room = height.saturating_sub(2);
        let (runs, servers) = (self.view.runs.len() + 1, self.view.servers.len());
        let for_servers = if servers == 0 { 0 } else { (servers + 1).min(room / 3) };
        let for_runs = runs.min((room - for_servers).div_ceil(2).max(2)).min(room - for_servers);
        self.add_runs(for_runs, &mut lines);
        if for_servers > 0 {
            add_table(&table(servers::COLUMNS, &self.view.servers, self.width), for_servers, &mut lines);
        }
        let mut left = (height.saturating_sub(1)).saturating_sub(lines.len());
        for note in self.view.notes.iter().take(left.min(2)) {
            lines.push(Line::from(cut(note, self.width)));
            left -= 1;
        }
        if let Some(run) = self.view.runs.get(self.at())
            && left > 2
        {
            lines.push(Line::default());
            add_table(&table(MEMBERS, &run.processes, self.width), left - 1, &mut lines);
        }
        while lines.len() + 1 < height {
            lines.push(Line::default());
        }
        let keys = format!("q Quit  h Help  <> Sort: {}  I Reverse", self.sort);
        lines.truncate(height.saturating_sub(1));
        lines.push(Line::styled(pad(&keys, self.width), Modifier::REVERSED));
        lines
    }

    /// Returns the sums over all runs that fit into the width.
    fn sums(&self) -> String {
        let runs = &self.view.runs;
        let sum = |of: fn(&RunLine) -> Option<f64>| runs.iter().filter_map(of).sum::<f64>();
        let parts = [
            format!(", {} faults/s", count(sum(|run| run.faults_per_s))),
            format!(", far {}", size(sum(|run| Some(run.far_bytes as f64)))),
            format!(", local {}", size(sum(|run| Some(run.local_bytes as f64)))),
            format!(", in {}/s", size(sum(|run| run.bytes_in_per_s))),
            format!(", out {}/s", size(sum(|run| run.bytes_out_per_s))),
        ];
        let mut text = format!("hanare: {} {}", runs.len(), if runs.len() == 1 { "run" } else { "runs" });
        for part in parts {
            if text.len() + part.len() > self.width {
                break;
            }
            text += &part;
        }
        text
    }

    /// Adds the table of runs, with the selected one in view.
    fn add_runs(&self, rows: usize, lines: &mut Vec<Line<'static>>) {
        if self.view.runs.is_empty() {
            return lines.push(Line::from(cut(&nothing(), self.width)));
        }
        let text = table(COLUMNS, &self.view.runs, self.width);
        let (at, shown) = (self.at(), rows.saturating_sub(1));
        let first = (at + 1).saturating_sub(shown.max(1));
        lines.push(Line::styled(pad(&text[0], self.width), Modifier::REVERSED));
        for (nth, row) in text.iter().skip(1).enumerate().skip(first).take(shown) {
            let style = if nth == at { Style::from(Modifier::BOLD | Modifier::UNDERLINED) } else { Style::default() };
            lines.push(Line::styled(pad(row, self.width), style));
        }
    }
}

/// Adds the first rows of a table.
fn add_table(text: &[String], rows: usize, lines: &mut Vec<Line<'static>>) {
    for (nth, row) in text.iter().take(rows).enumerate() {
        let style = if nth == 0 { Style::from(Modifier::UNDERLINED) } else { Style::default() };
        lines.push(Line::styled(row.clone(), style));
    }
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

fn pad(text: &str, width: usize) -> String {
    format!("{text:width$.width$}")
}

#[cfg(test)]
mod tests {
    use super::super::lines::example;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    fn screen(programs: &[(u32, &str, f64)]) -> Screen {
        let runs = programs.iter().map(|(pid, program, rate)| example(*pid, program, *rate)).collect();
        let mut screen = Screen::new();
        screen.set(View::new(Duration::from_secs(1), runs, Vec::new(), Vec::new()));
        screen
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(row).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> bool {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn narrow_and_wide_terminals_are_readable() {
        let mut screen = screen(&[(4711, "sort", 12_345.0), (815, "xz", 99_999.0)]);
        for (width, titles) in [
            (40, vec!["PID", "FAULT/s", "IN/s", "STALL", "PROGRAM"]),
            (80, vec!["PID", "FAULT/s", "IN/s", "OUT/s", "P50", "P99", "STALL", "LOCAL", "FAR", "NEAR", "PROGRAM"]),
        ] {
            let rows = drawn(&mut screen, width, 20);
            titles.iter().for_each(|title| assert!(rows[1].contains(title), "{title} at {width}: {rows:#?}"));
            assert!(rows[2].contains("xz") && rows[2].contains("45%") && rows[3].contains("12.3K"), "{rows:#?}");
            assert!(rows[19].contains("q Quit"), "{rows:#?}");
        }
        let rows = drawn(&mut screen, 200, 20);
        COLUMNS.iter().for_each(|column| assert!(rows[1].contains(column.title), "{rows:#?}"));
        assert!(rows.iter().any(|row| row.contains("PARENT")), "{rows:#?}");
    }

    #[test]
    fn no_size_of_a_terminal_panics() {
        for (width, height) in (0..60).flat_map(|width| [0, 1, 2, 3, 4, 5, 9].map(|height| (width, height))) {
            let mut screen = screen(&[(1, "a", 1.0), (2, "b", 2.0), (3, "c", 3.0)]);
            drawn(&mut screen, width.max(1), height.max(1));
            press(&mut screen, KeyCode::F(6));
            press(&mut screen, KeyCode::End);
            drawn(&mut screen, width.max(1), height.max(1));
        }
    }

    #[test]
    fn keys_select_sort_and_end() {
        let mut screen = screen(&[(1, "a", 1.0), (2, "b", 3.0), (3, "c", 2.0)]);
        let order = |screen: &Screen| screen.view.runs.iter().map(|run| run.program.clone()).collect::<String>();
        assert_eq!(order(&screen), "bca");
        press(&mut screen, KeyCode::Down);
        assert_eq!(screen.at(), 1);
        press(&mut screen, KeyCode::Char('N'));
        assert_eq!((order(&screen).as_str(), screen.at()), ("cba", 0));
        press(&mut screen, KeyCode::Char('I'));
        assert_eq!((order(&screen).as_str(), screen.at()), ("abc", 2));
        press(&mut screen, KeyCode::Char('<'));
        assert_ne!(screen.sort, "PID");
        press(&mut screen, KeyCode::F(6));
        assert_eq!(screen.sort, "PID");
        assert!(HELP.lines().all(|line| line.len() <= 40));
        press(&mut screen, KeyCode::Char('h'));
        assert!(drawn(&mut screen, 60, 20).iter().any(|row| row.contains("99th %")));
        assert!(!press(&mut screen, KeyCode::Esc) && !press(&mut screen, KeyCode::Char('x')));
        assert!(press(&mut screen, KeyCode::Char('q')) && press(&mut screen, KeyCode::F(10)));
        assert!(screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(!screen.key(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn the_selected_run_of_many_is_in_view() {
        let programs: Vec<(u32, String)> = (1..=100).map(|pid| (pid, format!("p{pid}."))).collect();
        let rows: Vec<(u32, &str, f64)> = programs.iter().map(|(pid, name)| (*pid, name.as_str(), 0.0)).collect();
        let mut screen = screen(&rows);
        press(&mut screen, KeyCode::End);
        let last = screen.view.runs[99].program.clone();
        let rows = drawn(&mut screen, 80, 12);
        assert!(rows[1..8].iter().any(|row| row.contains(&last)), "{rows:#?}");
    }
}
