//! Records the maximum of each quantity that the pager bounds in one step, such as its number of victims. Compares the
//! maxima with the bounds.

use hanare_paging::{Action, Event, Progress, limits};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    victims: usize,
    hides: usize,
    frees: usize,
    fetched: u32,
    /// Whether a discard needed more than one step.
    has_continued: bool,
    /// Whether a fault was refused because the queue of faults that wait for memory was full.
    has_turned_away: bool,
}

impl Reached {
    /// Records one step. `is_open` says whether the page of a fault is accessible after the step.
    pub(super) fn note(&mut self, event: Event, progress: Progress, actions: &[Action], is_open: bool) {
        let count = |is: fn(&Action) -> bool| actions.iter().filter(|action| is(action)).count();
        if !matches!(event, Event::Park { .. }) {
            self.victims = self.victims.max(count(|action| matches!(action, Action::TakeOut { .. })));
        }
        self.hides = self.hides.max(count(|action| matches!(action, Action::Hide { .. })));
        self.frees = self.frees.max(count(|action| matches!(action, Action::FreeFrame { .. })));
        let fetched = actions.iter().map(|action| if let Action::Fetch { count, .. } = action { *count } else { 0 });
        self.fetched = self.fetched.max(fetched.sum());
        self.has_continued |= matches!((event, progress), (Event::Discard { .. }, Progress::Continue(_)));
        let is_wake = |action: &Action| matches!(action, Action::Wake { .. });
        self.has_turned_away |= !is_open && actions.iter().any(is_wake);
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self {
            victims: self.victims.max(other.victims),
            hides: self.hides.max(other.hides),
            frees: self.frees.max(other.frees),
            fetched: self.fetched.max(other.fetched),
            has_continued: self.has_continued || other.has_continued,
            has_turned_away: self.has_turned_away || other.has_turned_away,
        }
    }

    /// Returns the names of the bounds that were not reached.
    pub(super) fn missed(&self) -> Vec<&'static str> {
        let bounds = [
            ("victims", self.victims >= limits::VICTIMS_MAX),
            ("hides", self.hides >= limits::HIDES_MAX),
            ("frees", self.frees >= limits::FREES_MAX as usize),
            ("fetched ahead", self.fetched >= limits::PREFETCH_UNITS_MAX),
            ("units of a discard", self.has_continued),
            ("faults that wait for room", self.has_turned_away),
        ];
        bounds.iter().filter(|(_, is_reached)| !is_reached).map(|(name, _)| *name).collect()
    }
}
