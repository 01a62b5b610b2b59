//! Prints the most important counters of each rank as a table.

use hanare_settings::human_size;
use serde_json::Value;

/// A column of the table.
struct Column {
    heading: &'static str,
    width: usize,
    /// Key in the ranks' counters.
    key: &'static str,
    kind: Kind,
}

/// The unit of a counter.
enum Kind {
    Number,
    Ns,
    Bytes,
}

/// The columns that matter most. With the ranks' numbers, they fit 80 columns of a terminal. `--stats-json` has all
/// counters.
const COLUMNS: [Column; 6] = [
    Column { heading: "barriers", width: 10, key: "barriers", kind: Kind::Number },
    Column { heading: "barrier ms", width: 12, key: "barrier_ns", kind: Kind::Ns },
    Column { heading: "read faults", width: 13, key: "read_faults", kind: Kind::Number },
    Column { heading: "write faults", width: 14, key: "write_faults", kind: Kind::Number },
    Column { heading: "fault ms", width: 12, key: "fault_ns", kind: Kind::Ns },
    Column { heading: "sent", width: 12, key: "bytes_sent", kind: Kind::Bytes },
];

/// Returns the table of the counters. `counts` is a JSON array with an object for each rank that reached
/// `dsm_shutdown`.
pub(super) fn table(counts: &str, ranks: u16) -> String {
    let rows: Vec<Value> = serde_json::from_str(counts).unwrap_or_default();
    let mut out = format!("{:>5}", "rank");
    out.extend(COLUMNS.iter().map(|Column { heading, width, .. }| format!("{heading:>width$}")));
    out.push('\n');
    let mut sums = [0_u64; COLUMNS.len()];
    for row in &rows {
        out += &format!("{:>5}", row["rank"].as_u64().unwrap_or_default());
        for (column, sum) in COLUMNS.iter().zip(&mut sums) {
            let figure = row[column.key].as_u64().unwrap_or_default();
            *sum = sum.saturating_add(figure);
            out += &cell(column, figure);
        }
        out.push('\n');
    }
    out += &format!("{:>5}", "all");
    out.extend(COLUMNS.iter().zip(sums).map(|(column, sum)| cell(column, sum)));
    out += "\n--stats-json FILE writes all counters\n";
    if rows.len() < usize::from(ranks) {
        out += &format!("{} of {ranks} ranks did not reach dsm_shutdown\n", usize::from(ranks) - rows.len());
    }
    out
}

fn cell(column: &Column, figure: u64) -> String {
    let text = match column.kind {
        Kind::Number => figure.to_string(),
        Kind::Ns => format!("{:.3}", figure as f64 / 1e6),
        Kind::Bytes => human_size(figure),
    };
    format!(" {text:>width$}", width = column.width - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_lines_and_sums_the_last() {
        let counts =
            r#"[{"rank":0,"barriers":3,"barrier_ns":1500000,"diffs":2},{"rank":2,"barriers":4,"barrier_ns":500000}]"#;
        let text = table(counts, 3);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..3], ["0", "3", "1.500"]);
        assert_eq!(lines[2][..3], ["2", "4", "0.500"]);
        assert_eq!(lines[3][..3], ["all", "7", "2.000"]);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.ends_with("1 of 3 ranks did not reach dsm_shutdown\n"));
    }
}
