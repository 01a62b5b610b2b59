//! How sizes are shown to people.

use std::fmt;

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// A measured size in bytes. It is shown in the largest unit (KiB, MiB, GiB, TiB) in which it is at least 1. The number
/// has one decimal digit if it is not whole. Such text is for output only. A size that a user may type is printed by
/// [`format_size`](crate::format_size). Showing it allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanSize(pub u64);

impl fmt::Display for HumanSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = 0;
        // A value from 1023.95 on would be rounded up to 1024.0 of its unit.
        while (value >= 1024.0 || unit > 0 && value >= 1023.95) && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let digits = usize::from(unit > 0 && value.fract() != 0.0);
        write!(out, "{value:.digits$} {}", UNITS[unit])
    }
}

/// Returns a [`HumanSize`] as text.
#[must_use]
pub fn human_size(bytes: u64) -> String {
    HumanSize(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_well() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (256 << 20, "256 MiB"),
            ((5 << 20) + 1, "5.0 MiB"),
            ((1 << 30) - 1, "1.0 GiB"),
            (5 << 40, "5 TiB"),
            (u64::MAX, "16777216 TiB"),
        ] {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn a_size_is_close_to_what_it_shows(bytes: u64, shift in 0_u32..64) {
            let bytes = bytes >> shift;
            let shown = human_size(bytes);
            let (number, unit) = shown.split_once(' ').unwrap();
            let factor = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|name| *name == unit).unwrap() as i32;
            let number: f64 = number.parse().unwrap();
            let error = (number * 1024_f64.powi(factor) - bytes as f64).abs();
            prop_assert!(error <= 0.051 * 1024_f64.powi(factor), "{bytes} is shown as {shown}");
            prop_assert!(number < 1024.0 || unit == "TiB", "{bytes} is shown as {shown}");
        }
    }
}
