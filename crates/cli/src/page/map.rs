//! The map of addresses and time: how many faults each part of far memory had when, and whose memory it is.

use maud::{Markup, html};

use super::Record;
use super::behind;
use super::chart::{HeatMap, Hot, at};
use super::heat::{Map, Row};
use super::waited::Site;
use super::words;

/// Number of levels of heat. Each stands for four times the faults of the one before.
const LEVELS: usize = 5;
const FACTOR: f64 = 4.0;
/// Most allocations that are named.
const NAMED_MAX: usize = 8;
/// The least part of the height between two names, so that they do not overlap.
const BETWEEN: f64 = 0.08;
/// Most rows of the table behind the map.
const ROWS_MAX: usize = 100;

/// Draws the map with its key and the table behind it. Nothing if no fault was recorded.
pub(crate) fn section(record: &Record) -> Markup {
    const TITLE: &str = "Faults by address and time";
    let Some(map) = record.samples.heat.map() else { return html! {} };
    let top = map.rows.last().map_or(0.0, |row| row.to_bytes as f64);
    let end_s = map.ends_s.last().copied().unwrap_or(0.0);
    let most = most(&map);
    let named = named(&map, &record.samples.waited.sites);
    let cells: Vec<Hot> = map.rows.iter().flat_map(|row| row_of_cells(row, &map.ends_s, top, most)).collect();
    let says = format!(
        "Far memory in the order of its addresses. Memory without a fault is left out. {} had a fault. The colours are faults \
         in a second for each row of about {}.{}",
        words::bytes(top),
        words::bytes(top / map.rows.len().max(1) as f64),
        match map.processes {
            1 => String::new(),
            count => format!(" {count} processes had faults. This is the one with the most."),
        }
    );
    let heat = HeatMap {
        id: "heat",
        title: TITLE,
        says: &says,
        end_s,
        top_bytes: top,
        cells: &cells,
        beside: bands(&map, &named, top),
    };
    html! {
        section.chart #heat {
            h2 { (TITLE) }
            p { (words::unbroken(&says)) }
            ul.key {
                @for level in 1..=LEVELS {
                    li {
                        i class={ "heat heat" (level) } {}
                        "up to " (words::short(most / FACTOR.powi((LEVELS - level) as i32))) " /s"
                    }
                }
            }
            (heat.draw())
            (table(TITLE, &map, &named))
            ul.key {
                @for (letter, site) in letters(&named) {
                    li {
                        b { (letter) }
                        span { code { (words::outside(&site.place.function)) } " " (words::outside(&site.place.line_of())) }
                    }
                }
            }
        }
    }
}

/// Returns the length of each column.
fn lengths(ends_s: &[f64]) -> impl Iterator<Item = f64> {
    let starts = std::iter::once(0.0).chain(ends_s.iter().copied());
    ends_s.iter().zip(starts).map(|(end, start)| (end - start).max(1e-3))
}

/// Returns the faults in a second of the hottest cell.
fn most(map: &Map) -> f64 {
    let rates = map.rows.iter().flat_map(|row| row.faults.iter().zip(lengths(&map.ends_s)));
    rates.map(|(faults, length)| *faults as f64 / length).fold(0.0, f64::max)
}

/// Returns the cells of a row. Neighbours of one level are one cell.
fn row_of_cells(row: &Row, ends_s: &[f64], top: f64, most: f64) -> Vec<Hot> {
    let end_s = ends_s.last().copied().unwrap_or(0.0);
    let up = (at(row.from_bytes as f64, top), at(row.to_bytes as f64, top));
    let mut cells: Vec<Hot> = Vec::new();
    let mut left = 0.0;
    for ((faults, length), end) in row.faults.iter().zip(lengths(ends_s)).zip(ends_s) {
        let (right, level) = (at(*end, end_s), level(*faults as f64 / length, most));
        match cells.last_mut() {
            Some(last) if last.level == level => last.across.1 = right,
            _ => cells.push(Hot { across: (left, right), up, level }),
        }
        left = right;
    }
    cells.retain(|cell| cell.level > 0);
    cells
}

/// Returns the level of a rate. 0 is that of no fault.
fn level(rate: f64, most: f64) -> usize {
    if rate <= 0.0 {
        return 0;
    }
    let below = (most / rate).max(1.0).log(FACTOR).floor().min((LEVELS - 1) as f64);
    LEVELS - below as usize
}

/// Returns the sites that have a part of the map, those with the longest waits first.
fn named<'a>(map: &Map, sites: &'a [Site]) -> Vec<&'a Site> {
    let has_row = |site: &&Site| map.rows.iter().any(|row| map.overlap(row, site) > 0);
    sites.iter().filter(has_row).take(NAMED_MAX).collect()
}

fn letters<'a, 'b>(named: &'b [&'a Site]) -> impl Iterator<Item = (char, &'a Site)> + use<'a, 'b> {
    ('A'..='Z').zip(named.iter().copied())
}

impl Map {
    /// Returns how many bytes a row and a site have in common.
    fn overlap(&self, row: &Row, site: &Site) -> u64 {
        let common = |(offset, len): &(u64, u64), (_, other, other_len): &(usize, u64, u64)| {
            let end = offset.saturating_add(*len).min(other.saturating_add(*other_len));
            end.saturating_sub(*offset.max(other))
        };
        let own = || site.ranges.iter().filter(|range| range.0 == self.process);
        let pairs = row.ranges.iter().flat_map(|range| own().map(move |other| common(range, other)));
        pairs.fold(0, u64::saturating_add)
    }
}

/// Returns the parts of the height that belong to a named site. A name that has no room is left out.
fn bands(map: &Map, named: &[&Site], top: f64) -> Vec<((f64, f64), String)> {
    let mut bands: Vec<((f64, f64), String)> = Vec::new();
    for row in &map.rows {
        let owner =
            letters(named).map(|(letter, site)| (map.overlap(row, site), letter)).max_by_key(|(bytes, _)| *bytes);
        let Some((1.., letter)) = owner else { continue };
        let (low, high) = (at(row.from_bytes as f64, top), at(row.to_bytes as f64, top));
        match bands.last_mut() {
            Some(((_, end), name)) if *name == letter.to_string() && (low - *end).abs() < 1e-9 => *end = high,
            _ => bands.push(((low, high), letter.to_string())),
        }
    }
    let mut last = f64::NEG_INFINITY;
    bands.retain(|((low, high), _)| {
        let middle = (low + high) / 2.0;
        let has_room = middle - last >= BETWEEN;
        last = if has_room { middle } else { last };
        has_room
    });
    bands
}

/// Returns the table behind the map.
fn table(title: &str, map: &Map, named: &[&Site]) -> Markup {
    let end_s = map.ends_s.last().copied().unwrap_or(0.0);
    let size = map.ends_s.len().div_ceil(ROWS_MAX).max(1);
    let columns: Vec<std::ops::Range<usize>> =
        (0..map.ends_s.len()).step_by(size).map(|from| from..(from + size).min(map.ends_s.len())).collect();
    let faults = |row: &Row, of: &std::ops::Range<usize>| {
        row.faults[of.clone()].iter().fold(0, |sum: u64, it| sum.saturating_add(*it))
    };
    let all = |of: &std::ops::Range<usize>| map.rows.iter().map(|row| faults(row, of)).fold(0, u64::saturating_add);
    let bytes = |of: &std::ops::Range<usize>| {
        let hot = map.rows.iter().filter(|row| faults(row, of) > 0);
        hot.map(|row| (row.to_bytes - row.from_bytes) as f64).sum::<f64>()
    };
    let hottest = |of: &std::ops::Range<usize>| {
        let row = map.rows.iter().max_by_key(|row| faults(row, of)).filter(|row| faults(row, of) > 0)?;
        let owner = letters(named)
            .max_by_key(|(_, site)| map.overlap(row, site))
            .filter(|(_, site)| map.overlap(row, site) > 0);
        Some(match owner {
            Some((letter, site)) => format!("{letter}: {}", words::outside(&site.place.function)),
            None => format!("at {}", words::bytes(row.from_bytes as f64)),
        })
    };
    let row = |of: &std::ops::Range<usize>| {
        let until = map.ends_s[of.end - 1];
        let cells = vec![
            words::moment(until),
            words::grouped(all(of)),
            words::bytes(bytes(of)),
            hottest(of).unwrap_or_default(),
        ];
        behind::Row { from: None, to: at(until, end_s), cells }
    };
    behind::table(title, &["until", "faults", "in", "most"], columns.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::super::waited::Place;
    use super::*;

    fn row(from: u64, faults: &[u64]) -> Row {
        let (from_bytes, to_bytes) = (from << 20, (from + 1) << 20);
        Row { ranges: vec![(from_bytes, 1 << 20)], from_bytes, to_bytes, faults: faults.to_vec() }
    }

    fn site(function: &str, from: u64, count: u64) -> Site {
        let place = Place {
            function: function.to_owned(),
            file: None,
            line: None,
            module: Some("prog".to_owned()),
            seconds: 1.0,
            share: 0.5,
        };
        Site { place, bytes: 0, allocations: 1, ranges: vec![(0, from << 20, count << 20)] }
    }

    #[test]
    fn levels_are_steps_of_four() {
        let levels: Vec<usize> = [0.0, 0.1, 1.0, 3.9, 4.1, 63.0, 255.0, 256.0].map(|rate| level(rate, 256.0)).to_vec();
        assert_eq!(levels, [0, 1, 1, 2, 3, 4, 5, 5], "{levels:?}");
    }

    #[test]
    fn neighbours_of_a_level_are_one_cell_and_empty_ones_none() {
        let cells = row_of_cells(&row(0, &[8, 8, 0, 1]), &[1.0, 2.0, 3.0, 4.0], 4.0 * 1048576.0, 8.0);
        let seen: Vec<_> = cells.iter().map(|cell| (cell.across, cell.up, cell.level)).collect();
        assert_eq!(seen, [((0.0, 0.5), (0.0, 0.25), 5), ((0.75, 1.0), (0.0, 0.25), 4)]);
    }

    #[test]
    fn allocations_are_named_beside_their_addresses() {
        let rows: Vec<Row> = (0..4).map(|nth| row(nth, &[1])).collect();
        let map = Map { process: 0, processes: 1, ends_s: vec![1.0], rows };
        let sites = [site("outside", 90, 1), site("<high>", 2, 2), site("low", 0, 2)];
        let named = named(&map, &sites);
        assert_eq!(named.iter().map(|it| it.place.function.as_str()).collect::<Vec<_>>(), ["<high>", "low"]);
        let bands = bands(&map, &named, 4.0 * 1048576.0);
        assert_eq!(bands, [((0.0, 0.5), "B".to_owned()), ((0.5, 1.0), "A".to_owned())]);
        let table = super::table("Map", &map, &named).into_string();
        assert!(table.contains("A: &lt;high&gt;") && table.contains(">4 MiB<"), "{table}");
    }
}
