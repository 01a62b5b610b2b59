//! The figures of the paper, for comparison (paper 5, Table 3).

use super::cells::{Cell, Row};

/// The network whose rates Table 3 lists.
pub const NETWORK: &str = "16";

/// The rows of Table 3: remote cost, replacement, and the rates of algo0 to algo4 in percent. The network has one level
/// and 16 clusters.
const TABLE_3: [(u32, &str, [f64; 5]); 4] = [
    (100, "lru", [46.20, 49.12, 46.07, 46.07, 58.64]),
    (100, "kind", [85.93, 87.99, 90.41, 90.41, 95.15]),
    (300, "lru", [39.18, 36.28, 42.01, 42.01, 56.92]),
    (300, "kind", [64.69, 71.75, 78.17, 78.17, 90.21]),
];

/// Returns the effective execution rate that the paper prints for a cell, in percent.
#[must_use]
pub fn rate(cell: &Cell) -> Option<f64> {
    if cell.network.to_string() != NETWORK {
        return None;
    }
    let name = cell.replacement.name();
    let row = TABLE_3.iter().find(|(cost, replacement, _)| *cost == cell.remote_cost_clk && *replacement == name)?;
    let index = cell.scheduler.name.strip_prefix("algo")?.parse::<usize>().ok()?;
    row.2.get(index).copied()
}

/// Returns the mean absolute error of the effective rates, in points, and the number of cells compared. Only cells for
/// which the paper prints a rate are compared.
#[must_use]
pub fn error(rows: &[Row]) -> Option<(f64, usize)> {
    let errors: Vec<f64> = rows.iter().filter_map(|row| Some((row.rate() - rate(&row.cell)?).abs())).collect();
    (!errors.is_empty()).then(|| (errors.iter().sum::<f64>() / errors.len() as f64, errors.len()))
}
