//! A set of slot numbers, stored as runs of adjacent numbers. The same-host link keeps its free and its granted slots
//! in sets of this type.

use std::collections::BTreeMap;

/// A set of numbers. Maps the first number of each run to the run's length. Runs are disjoint, and no run is adjacent
/// to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    runs: BTreeMap<u32, u32>,
}

impl Extents {
    /// Returns how many numbers the set contains.
    pub(crate) fn total(&self) -> u64 {
        self.runs.values().map(|count| u64::from(*count)).sum()
    }

    /// Returns the runs `(first, count)` in ascending order.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.runs.iter().map(|(first, count)| (*first, *count))
    }

    /// Returns the parts `(first, count)` of the given run that are not in the set.
    pub(crate) fn missing(&self, first: u32, count: u32) -> Vec<(u32, u32)> {
        let (mut at, end) = (u64::from(first), u64::from(first) + u64::from(count));
        let mut missing = Vec::new();
        let before = self.runs.range(..first).next_back();
        let within = self.runs.range(first..).take_while(|(start, _)| u64::from(**start) < end);
        for (&start, &n) in before.into_iter().chain(within) {
            let (start, run_end) = (u64::from(start), u64::from(start) + u64::from(n));
            if start > at {
                missing.push((at as u32, (start - at) as u32));
            }
            at = at.max(run_end);
        }
        if at < end {
            missing.push((at as u32, (end - at) as u32));
        }
        missing
    }

    /// Adds a run of numbers to the set, and joins the run with adjacent runs. None of the numbers may be in the set
    /// yet.
    pub(crate) fn insert(&mut self, first: u32, count: u32) {
        let (mut first, mut count) = (first, count);
        let before = self.runs.range(..first).next_back().map(|(start, n)| (*start, *n));
        if let Some((start, n)) = before.filter(|(start, n)| start + n == first) {
            self.runs.remove(&start);
            first = start;
            count += n;
        }
        if let Some(n) = self.runs.remove(&(first + count)) {
            count += n;
        }
        self.runs.insert(first, count);
    }

    /// Removes the run if it is not empty and all its numbers are in the set. Returns whether it removed the run.
    pub(crate) fn remove(&mut self, first: u32, count: u32) -> bool {
        let Some((&start, &n)) = self.runs.range(..=first).next_back() else { return false };
        let (end, run_end) = (u64::from(first) + u64::from(count), u64::from(start) + u64::from(n));
        if count == 0 || end > run_end {
            return false;
        }
        self.runs.remove(&start);
        if start < first {
            self.runs.insert(start, first - start);
        }
        if end < run_end {
            self.runs.insert(end as u32, (run_end - end) as u32);
        }
        true
    }

    /// Removes the run with the lowest numbers, but at most the first `count_max` numbers of that run. Returns the
    /// removed run `(first, count)`, or `None` if the set is empty or `count_max` is 0.
    pub(crate) fn take(&mut self, count_max: u32) -> Option<(u32, u32)> {
        let (&first, &n) = self.runs.iter().next().filter(|_| count_max > 0)?;
        let count = n.min(count_max);
        self.remove(first, count);
        Some((first, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(steps in prop::collection::vec((0u8..3, 0u32..60, 1u32..8), 0..200)) {
            let mut extents = Extents::default();
            let mut model = BTreeSet::new();
            for (step, first, count) in steps {
                let run = first..first + count;
                match step {
                    0 => if run.clone().all(|n| !model.contains(&n)) {
                        extents.insert(first, count);
                        model.extend(run);
                    },
                    1 => {
                        let held = run.clone().all(|n| model.contains(&n));
                        prop_assert_eq!(extents.remove(first, count), held);
                        if held {
                            run.for_each(|n| { model.remove(&n); });
                        }
                    }
                    _ => match extents.take(count) {
                        None => prop_assert!(model.is_empty()),
                        Some((first, n)) => {
                            prop_assert_eq!(Some(&first), model.first());
                            prop_assert!(n <= count);
                            (first..first + n).for_each(|n| assert!(model.remove(&n)));
                        }
                    },
                }
                let absent: Vec<u32> =
                    extents.missing(first, count).iter().flat_map(|&(first, n)| first..first + n).collect();
                prop_assert_eq!(absent, (first..first + count).filter(|n| !model.contains(n)).collect::<Vec<_>>());
                prop_assert_eq!(extents.total(), model.len() as u64);
                let mut end = None;
                for (&first, &n) in &extents.runs {
                    prop_assert!(n > 0 && end < Some(first), "runs that touch must be one");
                    end = Some(first + n);
                }
            }
        }
    }
}
