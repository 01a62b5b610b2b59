//! Tables of figures. In a narrow terminal, the less important columns are left out.

/// A column of a table of `T`.
pub(super) struct Column<T> {
    pub(super) title: &'static str,
    pub(super) width: usize,
    /// The columns with the lowest ranks stay longest.
    pub(super) rank: usize,
    pub(super) cell: fn(&T) -> String,
    /// The value by which rows are sorted, largest first.
    pub(super) key: fn(&T) -> f64,
}

/// Returns the columns that fit into `width`, in their order. The last column of a table is always shown, and takes the
/// room that is left.
pub(super) fn fitting<T>(columns: &[Column<T>], width: usize) -> Vec<&Column<T>> {
    let mut by_rank: Vec<&Column<T>> = columns.iter().collect();
    by_rank.sort_by_key(|column| column.rank);
    let mut left = width.saturating_sub(columns.last().map_or(0, |last| last.width));
    let mut limit = 0;
    for column in &by_rank {
        if Some(column.title) == columns.last().map(|last| last.title) {
            continue;
        }
        let Some(rest) = left.checked_sub(column.width + 1) else { break };
        left = rest;
        limit = column.rank + 1;
    }
    let is_last = |column: &Column<T>| Some(column.title) == columns.last().map(|last| last.title);
    columns.iter().filter(|column| column.rank < limit || is_last(column)).collect()
}

/// Returns the head and the rows of a table, at most `width` characters wide. Numbers are at the right of their columns,
/// and the last column is at its left.
pub(super) fn table<T>(columns: &[Column<T>], rows: &[T], width: usize) -> Vec<String> {
    let shown = fitting(columns, width);
    let line = |cell: &dyn Fn(&Column<T>) -> String| {
        let cells = shown.iter().enumerate().map(|(at, column)| match at + 1 == shown.len() {
            true => cell(column),
            false => format!("{:>1$.1$}", cell(column), column.width),
        });
        let text = cells.collect::<Vec<_>>().join(" ");
        text.chars().take(width).collect::<String>()
    };
    let head = line(&|column| column.title.to_owned());
    std::iter::once(head).chain(rows.iter().map(|row| line(&|column| (column.cell)(row)))).collect()
}

/// Formats a number in at most five characters: `123`, `12.3K`, `1.2M`.
pub(super) fn count(value: f64) -> String {
    scaled(value, 1000.0, ["", "K", "M", "G", "T", "P", "E"])
}

/// Formats a number of bytes in at most five characters: `512`, `4.0K`, `256M`, `1.2G`.
pub(super) fn size(bytes: f64) -> String {
    scaled(bytes, 1024.0, ["", "K", "M", "G", "T", "P", "E"])
}

fn scaled(value: f64, base: f64, units: [&str; 7]) -> String {
    let (mut value, mut unit) = (value.max(0.0), 0);
    // From 999.5 on, rounding would add a digit.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 99.95);
    format!("{value:.digits$}{}", units[unit])
}

/// Formats a time: `7.4us`, `350us`, `1.2ms`, `3.0s`.
pub(super) fn time(us: f64) -> String {
    let (value, unit) = match us {
        999_950.0.. => (us / 1e6, "s"),
        999.5.. => (us / 1e3, "ms"),
        _ => (us, "us"),
    };
    let digits = usize::from(value < 99.95);
    format!("{value:.digits$}{unit}")
}

/// Formats how long something has run: `0:12`, `59:59`, `23:59:59`, `3d04h`.
pub(super) fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (minutes, rest) = (whole / 60, whole % 60);
    match minutes {
        0..60 => format!("{minutes}:{rest:02}"),
        60..1440 => format!("{}:{:02}:{rest:02}", minutes / 60, minutes % 60),
        _ => format!("{}d{:02}h", minutes / 1440, minutes / 60 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        let counts = [0.0, 7.4, 999.0, 1000.0, 12_345.0, 999_999.0, 1e6, 1.5e9, -1.0];
        assert_eq!(counts.map(count), ["0", "7", "999", "1.0K", "12.3K", "1.0M", "1.0M", "1.5G", "0"]);
        assert_eq!([1023.0, 4096.0, 268_435_456.0, 1.3e9].map(size), ["1.0K", "4.0K", "256M", "1.2G"]);
        assert_eq!([7.41, 350.0, 1234.0, 3e6].map(time), ["7.4us", "350us", "1.2ms", "3.0s"]);
        assert_eq!([12.9, 3599.0, 3600.0, 270_000.0].map(clock), ["0:12", "59:59", "1:00:00", "3d03h"]);
        for power in 0..63 {
            assert!(size(2_f64.powi(power) * 0.9999).len() <= 5 && count(2_f64.powi(power)).len() <= 5, "2^{power}");
        }
    }

    #[test]
    fn a_narrow_table_keeps_the_columns_that_matter() {
        let column = |title, rank| Column::<f64> { title, width: 5, rank, cell: |row| count(*row), key: |row| *row };
        let columns = [column("A", 2), column("B", 0), column("C", 1), column("D", 9)];
        let titles = |width| fitting(&columns, width).iter().map(|column| column.title).collect::<String>();
        assert_eq!(titles(usize::MAX), "ABCD");
        assert_eq!([23, 22, 17, 16, 11, 10, 0].map(titles), ["ABCD", "BCD", "BCD", "BD", "BD", "D", "D"]);
        let lines = table(&columns, &[1.0, 12_345.0], 11);
        assert_eq!(lines, ["    B D", "    1 1", "12.3K 12.3K"]);
    }
}
