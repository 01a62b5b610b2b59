//! Prints the counters of each rank as a table. The times of memory barriers and fault handlers are split as in the
//! paper on SCASH.

use std::fmt::Write;

use serde_json::Value;

/// The columns. Each has its heading, its key in the ranks' counters, and the divisor that converts the counter to its
/// unit.
const COLUMNS: [(&str, &str, f64); 17] = [
    ("barriers", "barriers", 1.0),
    ("barrier ms", "barrier_ns", 1e6),
    ("update ms", "update_ns", 1e6),
    ("read faults", "read_faults", 1.0),
    ("write faults", "write_faults", 1.0),
    ("fault ms", "fault_ns", 1e6),
    ("share ms", "share_ns", 1e6),
    ("shares", "page_shares", 1.0),
    ("updates", "page_updates", 1.0),
    ("diffs", "diffs", 1.0),
    ("locks", "locks", 1.0),
    ("frames", "frames_sent", 1.0),
    ("sent KiB", "bytes_sent", 1024.0),
    ("dropped", "pages_dropped", 1.0),
    ("out", "pages_out", 1.0),
    ("written", "pages_out_written", 1.0),
    ("back", "pages_back", 1.0),
];

/// Returns the table of the counters. `counts` is a JSON array with an object for each rank that reached
/// `dsm_shutdown`. Barrier time includes update time, and fault time includes share time.
pub(super) fn table(counts: &str, ranks: u16) -> String {
    let rows: Vec<Value> = serde_json::from_str(counts).unwrap_or_default();
    let mut out = format!("{:>5}", "rank");
    for (heading, ..) in COLUMNS {
        let _ = write!(out, "  {heading:>12}");
    }
    out.push('\n');
    let mut sums = [0.0; COLUMNS.len()];
    for row in &rows {
        let _ = write!(out, "{:>5}", row["rank"].as_u64().unwrap_or_default());
        for ((_, key, unit), sum) in COLUMNS.iter().zip(&mut sums) {
            let figure = row[key].as_f64().unwrap_or_default() / unit;
            *sum += figure;
            let _ = write!(out, "  {}", cell(figure, *unit));
        }
        out.push('\n');
    }
    let _ = write!(out, "{:>5}", "all");
    for ((.., unit), sum) in COLUMNS.iter().zip(sums) {
        let _ = write!(out, "  {}", cell(sum, *unit));
    }
    out.push('\n');
    if rows.len() < usize::from(ranks) {
        let _ = writeln!(out, "{} of {ranks} ranks did not reach dsm_shutdown", usize::from(ranks) - rows.len());
    }
    out
}

fn cell(figure: f64, unit: f64) -> String {
    let digits = if unit > 1.0 { 3 } else { 0 };
    format!("{figure:>12.digits$}")
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
        assert!(text.ends_with("1 of 3 ranks did not reach dsm_shutdown\n"));
    }
}
