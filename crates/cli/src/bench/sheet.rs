//! The figures of a benchmark in order, as a table for people or as flat JSON for programs.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// Median and extremes of a figure over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Returns the median and extremes of the figures. `None` if there are none. The median of an even number of
    /// figures is the mean of the two in the middle.
    pub(super) fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_by(f64::total_cmp);
        let (min, max) = (*figures.first()?, *figures.last()?);
        let middle = figures.len() / 2;
        let odd = figures.len() % 2 == 1;
        let median = if odd { figures[middle] } else { f64::midpoint(figures[middle - 1], figures[middle]) };
        Some(Spread { median, min, max })
    }
}

/// One line of a sheet.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Count(u64),
    Flag(bool),
    Spread(Spread),
    /// This machine or this run does not have the figure.
    Absent,
}

/// Named figures. A spread becomes three JSON keys: `name` (the median), `name_min` and `name_max`.
#[derive(Debug, Default)]
pub(super) struct Sheet(Vec<(String, Value)>);

impl Sheet {
    pub(super) fn text(&mut self, name: &str, text: impl Into<String>) {
        self.0.push((name.to_owned(), Value::Text(text.into())));
    }

    pub(super) fn count(&mut self, name: &str, count: u64) {
        self.0.push((name.to_owned(), Value::Count(count)));
    }

    pub(super) fn flag(&mut self, name: &str, flag: bool) {
        self.0.push((name.to_owned(), Value::Flag(flag)));
    }

    /// Adds the spread of a figure. Marks the figure as absent if `figures` is empty.
    pub(super) fn spread(&mut self, name: &str, figures: Vec<f64>) {
        self.0.push((name.to_owned(), Spread::of(figures).map_or(Value::Absent, Value::Spread)));
    }

    /// Prints the sheet on stdout. A reader that closes the pipe early is no failure.
    pub(super) fn print(&self, json: bool) {
        use std::io::Write;
        let text = match serde_json::to_string_pretty(self) {
            Ok(text) if json => format!("{text}\n"),
            _ => self.table(),
        };
        let _ = std::io::stdout().write_all(text.as_bytes());
    }

    fn table(&self) -> String {
        let mut table = format!("{:32}{:>14}{:>14}{:>14}\n", "", "median", "min", "max");
        for (name, value) in &self.0 {
            table += &match value {
                Value::Text(text) => format!("{name:32}{text:>14}\n"),
                Value::Count(count) => format!("{name:32}{count:>14}\n"),
                Value::Flag(flag) => format!("{name:32}{:>14}\n", if *flag { "yes" } else { "no" }),
                Value::Absent => format!("{name:32}{:>14}\n", "-"),
                Value::Spread(Spread { median, min, max }) => {
                    format!("{name:32}{:>14}{:>14}{:>14}\n", short(*median), short(*min), short(*max))
                }
            };
        }
        table
    }
}

impl Serialize for Sheet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in &self.0 {
            match value {
                Value::Text(text) => map.serialize_entry(name, text)?,
                Value::Count(count) => map.serialize_entry(name, count)?,
                Value::Flag(flag) => map.serialize_entry(name, flag)?,
                Value::Absent => map.serialize_entry(name, &None::<f64>)?,
                Value::Spread(Spread { median, min, max }) => {
                    map.serialize_entry(name, &rounded(*median))?;
                    map.serialize_entry(&format!("{name}_min"), &rounded(*min))?;
                    map.serialize_entry(&format!("{name}_max"), &rounded(*max))?;
                }
            }
        }
        map.end()
    }
}

/// Rounds to four decimals: a tenth of a nanosecond when the unit is microseconds.
fn rounded(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

fn short(figure: f64) -> String {
    if figure.abs() >= 1e5 { format!("{figure:.0}") } else { format!("{figure:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_runs() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
    }

    #[test]
    fn json_is_flat_and_in_order() {
        let mut sheet = Sheet::default();
        sheet.text("pattern", "seq");
        sheet.spread("trap_us", vec![1.00004, 3.0, 2.0]);
        sheet.spread("fault_us", vec![]);
        sheet.flag("verified", true);
        let json = serde_json::to_string(&sheet).unwrap();
        assert_eq!(
            json,
            r#"{"pattern":"seq","trap_us":2.0,"trap_us_min":1.0,"trap_us_max":3.0,"fault_us":null,"verified":true}"#
        );
        assert!(sheet.table().contains("trap_us"));
    }
}
