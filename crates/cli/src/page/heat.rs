//! The faults of a run by address and time: few numbers, however long the run is and however much memory it has.

use std::collections::{BTreeMap, HashMap};

use hanare::profile::CellSeen;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Number of columns at which each two become one.
const COLUMNS_MAX: usize = 240;
/// Most columns of a map.
const DRAWN_MAX: usize = 120;
/// Most rows of a map.
const ROWS_MAX: usize = 64;

/// The faults of one interval, by the number of the cell.
#[derive(Debug, Clone, Default)]
struct Column {
    end_s: f64,
    faults: Vec<(u32, u64)>,
}

/// The faults over time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Heat {
    columns: Vec<Column>,
    /// The intervals that a column has at least. 0 counts as 1.
    merged: u32,
    /// The intervals that the last column has.
    open: u32,
    /// The cells, as they were seen last.
    cells: HashMap<u32, CellSeen>,
}

/// A row of the map.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    /// The ranges of far memory in it: offset and length in bytes.
    pub(crate) ranges: Vec<(u64, u64)>,
    /// Bytes of the ranges before this row and up to its end.
    pub(crate) from_bytes: u64,
    pub(crate) to_bytes: u64,
    /// The faults in each column.
    pub(crate) faults: Vec<u64>,
}

/// The faults of one process.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Map {
    pub(crate) process: usize,
    /// Number of processes that had faults.
    pub(crate) processes: usize,
    /// The ends of the columns.
    pub(crate) ends_s: Vec<f64>,
    /// The rows, from the lowest address on.
    pub(crate) rows: Vec<Row>,
}

impl Heat {
    /// Adds an interval that ends at `end_s`. `cells` has the faults since the start.
    pub(crate) fn push(&mut self, end_s: f64, cells: &[CellSeen]) {
        let mut faults = Vec::new();
        for cell in cells {
            let before = self.cells.insert(cell.id, *cell).map_or(0, |before| before.faults);
            let more = cell.faults.saturating_sub(before);
            if more > 0 {
                faults.push((cell.id, more));
            }
        }
        let next = Column { end_s, faults };
        match self.columns.last_mut() {
            Some(last) if self.open < self.merged => {
                *last = together(last, &next);
                self.open += 1;
            }
            _ => {
                self.columns.push(next);
                self.open = 1;
            }
        }
        if self.columns.len() == COLUMNS_MAX {
            self.columns = halved(&self.columns, 2);
            self.merged = self.merged.max(1) * 2;
            self.open = self.merged;
        }
    }

    /// Returns the map of the process that had most faults. `None` if there was no fault.
    pub(crate) fn map(&self) -> Option<Map> {
        let mut by_process: BTreeMap<usize, u64> = BTreeMap::new();
        for cell in self.cells.values() {
            let sum = by_process.entry(cell.process).or_default();
            *sum = sum.saturating_add(cell.faults);
        }
        let (&process, _) = by_process.iter().filter(|(_, faults)| **faults > 0).max_by_key(|(_, faults)| **faults)?;
        let mut cells: Vec<&CellSeen> =
            self.cells.values().filter(|it| it.process == process && it.faults > 0).collect();
        cells.sort_unstable_by_key(|cell| (cell.offset, cell.len));
        let columns = halved(&self.columns, self.columns.len().div_ceil(DRAWN_MAX).max(1));
        let (mut rows, row_of) = rows(&cells, columns.len());
        for (at, column) in columns.iter().enumerate() {
            for (id, faults) in &column.faults {
                if let Some(row) = row_of.get(id).and_then(|row| rows.get_mut(*row)) {
                    row.faults[at] = row.faults[at].saturating_add(*faults);
                }
            }
        }
        let ends_s = columns.iter().map(|column| column.end_s).collect();
        Some(Map { process, processes: by_process.len(), ends_s, rows })
    }
}

/// Returns empty rows of about equal size for cells that are sorted by address, and the row of each cell.
fn rows(cells: &[&CellSeen], columns: usize) -> (Vec<Row>, HashMap<u32, usize>) {
    let all = cells.iter().fold(0, |sum: u64, cell| sum.saturating_add(cell.len));
    let count = cells.len().clamp(1, ROWS_MAX) as u64;
    let (mut rows, mut row_of) = (Vec::<Row>::new(), HashMap::new());
    let (mut bytes, mut last) = (0_u64, None);
    for cell in cells {
        let place = (u128::from(bytes) * u128::from(count) / u128::from(all.max(1))) as u64;
        if last != Some(place) {
            last = Some(place);
            rows.push(Row { ranges: Vec::new(), from_bytes: bytes, to_bytes: bytes, faults: vec![0; columns] });
        }
        bytes += cell.len;
        if let Some(row) = rows.last_mut() {
            row.to_bytes = bytes;
            match row.ranges.last_mut() {
                Some((offset, len)) if offset.saturating_add(*len) == cell.offset => *len += cell.len,
                _ => row.ranges.push((cell.offset, cell.len)),
            }
        }
        row_of.insert(cell.id, rows.len() - 1);
    }
    (rows, row_of)
}

/// Returns one column for each `size` columns.
fn halved(columns: &[Column], size: usize) -> Vec<Column> {
    let groups = columns.chunks(size);
    groups.filter_map(|group| group.iter().cloned().reduce(|a, b| together(&a, &b))).collect()
}

fn together(a: &Column, b: &Column) -> Column {
    let mut sum: BTreeMap<u32, u64> = a.faults.iter().copied().collect();
    for (id, faults) in &b.faults {
        let sum = sum.entry(*id).or_default();
        *sum = sum.saturating_add(*faults);
    }
    Column { end_s: b.end_s, faults: sum.into_iter().collect() }
}

impl Serialize for Heat {
    /// Writes the map: the ends of the columns, and for each row its ranges and its faults in each column.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let map = self.map().unwrap_or_default();
        let milli = |time: &f64| (time * 1e3).round() / 1e3;
        let ranges: Vec<&Vec<(u64, u64)>> = map.rows.iter().map(|row| &row.ranges).collect();
        let faults: Vec<&Vec<u64>> = map.rows.iter().map(|row| &row.faults).collect();
        let mut to = to.serialize_map(None)?;
        to.serialize_entry("until_s", &map.ends_s.iter().map(milli).collect::<Vec<f64>>())?;
        to.serialize_entry("rows_offset_and_bytes", &ranges)?;
        to.serialize_entry("rows_faults", &faults)?;
        to.serialize_entry("processes", &map.processes)?;
        to.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(id: u32, process: usize, offset: u64, faults: u64) -> CellSeen {
        CellSeen { id, process, offset: offset << 20, len: 1 << 20, faults }
    }

    #[test]
    fn long_runs_and_much_memory_give_few_cells_and_lose_no_fault() {
        let mut heat = Heat::default();
        let mut pushed = 0;
        for nth in 1..=3001_u64 {
            let cells: Vec<CellSeen> = (0..500).map(|id| cell(id, 0, u64::from(id) * 3, nth * u64::from(id))).collect();
            heat.push(nth as f64, &cells);
            pushed = cells.iter().map(|it| it.faults).sum();
            assert!(heat.columns.len() < COLUMNS_MAX);
        }
        let map = heat.map().unwrap();
        assert!(map.ends_s.len() <= DRAWN_MAX && map.ends_s.len() > DRAWN_MAX / 4, "{}", map.ends_s.len());
        assert!((ROWS_MAX / 2..=ROWS_MAX).contains(&map.rows.len()), "{}", map.rows.len());
        assert_eq!(map.rows.iter().flat_map(|row| &row.faults).sum::<u64>(), pushed);
        assert_eq!((map.ends_s.last(), map.rows.last().map(|row| row.to_bytes)), (Some(&3001.0), Some(499 << 20)));
        assert!(map.rows.windows(2).all(|pair| pair[0].to_bytes == pair[1].from_bytes));
    }

    #[test]
    fn the_map_is_of_the_process_with_most_faults() {
        let mut heat = Heat::default();
        assert!(heat.map().is_none());
        heat.push(1.0, &[cell(1, 0, 5, 3), cell(2, 1, 9, 4), cell(3, 1, 10, 1)]);
        heat.push(2.0, &[cell(1, 0, 5, 3), cell(2, 1, 9, 14), cell(3, 1, 10, 1)]);
        let map = heat.map().unwrap();
        assert_eq!((map.process, map.processes, map.ends_s.as_slice()), (1, 2, &[1.0, 2.0][..]));
        let rows: Vec<_> = map.rows.iter().map(|row| (row.ranges.clone(), row.faults.clone())).collect();
        assert_eq!(rows, [(vec![(9 << 20, 1 << 20)], vec![4, 10]), (vec![(10 << 20, 1 << 20)], vec![1, 0])]);
        let json = serde_json::to_value(&heat).unwrap();
        assert_eq!(json["rows_faults"], serde_json::json!([[4, 10], [1, 0]]));
    }
}
