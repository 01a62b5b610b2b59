//! Locked units: their pages stay in local memory from their first access on.

use hanare_paging::Event;
use hanare_store::Store;

use super::Engine;
use crate::view::View;

impl<V: View, S: Store> Engine<V, S> {
    /// Locks the units from `first` up to `end`, exclusive. Returns false, and locks nothing, if too much of the budget
    /// would be locked.
    pub(crate) fn lock(&self, (first, end): (u32, u32)) -> bool {
        let may = self.core.lock().pager.may_lock(first, end);
        if may {
            self.lock_again((first, end));
        }
        may
    }

    /// Locks units that were locked until they were discarded, however much of the budget is locked.
    pub(crate) fn lock_again(&self, (first, end): (u32, u32)) {
        self.in_steps(first, |first| Event::Lock { first, end });
    }

    /// Ends [`Engine::lock`] for these units.
    pub(crate) fn unlock(&self, (first, end): (u32, u32)) {
        if self.locked_units() > 0 {
            self.in_steps(first, |first| Event::Unlock { first, end });
        }
    }

    /// Returns the first run of locked units among these, as its first unit and the one past its last.
    pub(crate) fn locked_run(&self, (first, end): (u32, u32)) -> Option<(u32, u32)> {
        self.core.lock().pager.locked_run(first, end)
    }

    /// Returns the number of locked units.
    pub(crate) fn locked_units(&self) -> u32 {
        self.core.lock().pager.locked_units()
    }
}
