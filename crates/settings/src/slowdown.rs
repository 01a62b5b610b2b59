//! The slowdown that a run is to hold.

use std::fmt;
use std::str::FromStr;

use crate::ValueError;

/// Smallest and largest slowdown, in thousandths. Waits below a twentieth of the time are within the noise.
const MIN: u32 = 1_050;
const MAX: u32 = 100_000;

/// The run time of a program divided by the time that it would take without waits for pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slowdown {
    thousandths: u32,
}

impl Slowdown {
    /// Returns the slowdown in thousandths.
    #[must_use]
    pub fn thousandths(self) -> u32 {
        self.thousandths
    }

    /// Returns the share of its time that a run may stand still.
    #[must_use]
    pub fn stall_share(self) -> f64 {
        1.0 - 1_000.0 / f64::from(self.thousandths)
    }
}

impl FromStr for Slowdown {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let thousandths = text.trim().parse::<f64>().ok().map(|times| (times * 1_000.0).round());
        match thousandths {
            Some(number) if number >= f64::from(MIN) && number <= f64::from(MAX) => {
                Ok(Slowdown { thousandths: number as u32 })
            }
            _ => Err(ValueError::NotASlowdown(text.to_owned())),
        }
    }
}

impl fmt::Display for Slowdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.thousandths) / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowdowns_are_numbers_from_a_little_more_than_1() {
        for text in ["1.05", "1.2", "2", "99.999", "100"] {
            let slowdown: Slowdown = text.parse().unwrap();
            assert_eq!(slowdown.to_string(), text);
        }
        assert_eq!("2".parse::<Slowdown>().unwrap().stall_share(), 0.5);
        for text in ["", "1", "1.04", "0", "-2", "101", "nan", "inf", "1.2x", "20%"] {
            assert!(text.parse::<Slowdown>().is_err(), "{text}");
        }
    }
}
