//! Round ticks for the axes of a chart. This module knows numbers only: no text, no pixels.

/// Seconds between two ticks of an axis of time, up to a day.
const TIMES_S: [f64; 19] = [
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 21600.0,
    43200.0,
];
const DAY_S: f64 = 86400.0;

/// Returns round ticks from 0 to the first one that is at least `max`. The step is 1, 2 or 5 times a power of ten. Up to
/// `max`, there are at most `parts` steps.
#[must_use]
pub fn ticks(max: f64, parts: u32) -> Vec<f64> {
    let max = sane(max);
    let least = max / f64::from(parts.max(1));
    let power = 10_f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| covers(*step, least));
    up_to(max, step.unwrap_or(max))
}

/// Returns ticks as [`ticks`] does, with a power of two as step: round numbers of bytes.
#[must_use]
pub fn binary_ticks(max: f64, parts: u32) -> Vec<f64> {
    let max = sane(max).max(1.0);
    let least = (max / f64::from(parts.max(1))).max(1.0);
    up_to(max, 2_f64.powf((least.log2() - 1e-9).ceil()))
}

/// Returns ticks as [`ticks`] does, for a time in seconds: the step is one that clocks and calendars know.
#[must_use]
pub fn time_ticks(max_s: f64, parts: u32) -> Vec<f64> {
    let least = sane(max_s) / f64::from(parts.max(1));
    if least < TIMES_S[0] {
        return ticks(max_s, parts);
    }
    match TIMES_S.into_iter().find(|step| covers(*step, least)) {
        Some(step) => up_to(sane(max_s), step),
        None => ticks(sane(max_s) / DAY_S, parts).into_iter().map(|days| days * DAY_S).collect(),
    }
}

/// Returns how many decimal places the ticks need.
#[must_use]
pub fn places(ticks: &[f64]) -> usize {
    match ticks.get(1) {
        Some(step) if step.is_finite() && *step > 0.0 => (-(step.log10() + 1e-9).floor()).clamp(0.0, 12.0) as usize,
        _ => 0,
    }
}

/// Returns `max`, or 1 in place of a number that no axis can have.
fn sane(max: f64) -> f64 {
    if max.is_finite() && max > 1e-12 { max.min(1e300) } else { 1.0 }
}

fn covers(step: f64, least: f64) -> bool {
    step >= least * (1.0 - 1e-9)
}

fn up_to(max: f64, step: f64) -> Vec<f64> {
    let last = (max / step - 1e-9).ceil().clamp(1.0, 1000.0) as u32;
    (0..=last).map(|nth| f64::from(nth) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(100.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(0.9, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(7.0, 4), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(0.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(binary_ticks(300e6, 4), [0.0, 134217728.0, 268435456.0, 402653184.0]);
        assert_eq!(binary_ticks(0.0, 4), [0.0, 1.0]);
        assert_eq!(time_ticks(74.0, 5), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(time_ticks(250.0, 5), [0.0, 60.0, 120.0, 180.0, 240.0, 300.0]);
        assert_eq!(time_ticks(3.0 * 86400.0, 5), [0.0, 86400.0, 172800.0, 259200.0]);
        assert_eq!(time_ticks(0.02, 5), [0.0, 0.005, 0.01, 0.015, 0.02]);
    }

    #[test]
    fn ticks_have_the_places_that_tell_them_apart() {
        for (max, count) in [(100.0, 0), (5.0, 0), (1.0, 1), (0.9, 1), (0.05, 2), (1e9, 0)] {
            assert_eq!(places(&ticks(max, 5)), count, "{max}");
        }
        assert_eq!((places(&[]), places(&[0.0, f64::NAN])), (0, 0));
    }

    proptest! {
        #[test]
        fn every_number_has_few_ticks_that_cover_it(max: f64, parts in 1_u32..10) {
            for ticks in [ticks(max, parts), binary_ticks(max, parts), time_ticks(max, parts)] {
                prop_assert!((2..=parts as usize + 2).contains(&ticks.len()), "{max}: {ticks:?}");
                prop_assert!(ticks.iter().all(|tick| tick.is_finite()), "{max}: {ticks:?}");
                prop_assert!(ticks.windows(2).all(|pair| pair[0] < pair[1]), "{max}: {ticks:?}");
                let last = ticks[ticks.len() - 1];
                prop_assert!(!max.is_finite() || max > 1e300 || last >= max * (1.0 - 1e-6), "{max}: {ticks:?}");
            }
        }
    }
}
