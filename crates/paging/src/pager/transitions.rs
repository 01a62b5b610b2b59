//! The states of a page as two tables. One lists the allowed changes of state. The other lists, for each completion,
//! the states in which it may arrive.
//!
//! Debug builds check every change and every completion against these tables. A completion that does not fit the page's
//! state was reported twice, or belongs to no action in progress.

use super::Pager;
use super::page::WRITING;
use crate::config::State::{self, *};
use crate::event::Event;
use crate::units::PageId;

/// A change of a page's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
    /// The event that causes the change.
    pub when: &'static str,
}

const fn from(from: State, to: State, when: &'static str) -> Transition {
    Transition { from, to, when }
}

/// All allowed changes of state.
pub const TRANSITIONS: [Transition; 26] = [
    from(Untouched, Fetching, "fault: room was found, the page is filled with zeroes"),
    from(Untouched, Resident, "adopted: a child found it in view"),
    from(Remote, Fetching, "fault or prefetch: room was found, its bytes are requested"),
    from(Remote, Untouched, "discard"),
    from(Fetching, Installing, "Fetched into a frame, and a thread waits"),
    from(Fetching, Staged, "Fetched into a frame, and nobody waits"),
    from(Fetching, Resident, "Arrived in view"),
    from(Fetching, Remote, "failed: requested again if a thread waits"),
    from(Fetching, Untouched, "failed, and the server holds nothing"),
    from(Installing, Resident, "Arrived in view"),
    from(Resident, Opening, "fault: the first write"),
    from(Opening, Resident, "Opened"),
    from(Resident, Hiding, "the policy wants to see the next access"),
    from(Hiding, Staged, "Hidden"),
    from(Hiding, Resident, "Hidden, refused"),
    from(Resident, TakingOut, "evicted, discarded, parked, or sent away before a fork"),
    from(TakingOut, Resident, "TakenOut, refused: a transfer holds it"),
    from(TakingOut, Staged, "TakenOut, dirty: its frame is written back. Or refused, of a page hidden in place"),
    from(TakingOut, Installing, "TakenOut into a frame, and a thread waits"),
    from(TakingOut, Remote, "TakenOut, and the server holds its bytes"),
    from(TakingOut, Untouched, "TakenOut, and nothing is to be kept"),
    from(Staged, Installing, "fault: minor, its bytes are in the frame"),
    from(Staged, Fetching, "fault: minor, copied from a frame that is being written back"),
    from(Staged, TakingOut, "evicted or discarded where it was hidden in place"),
    from(Staged, Remote, "WrittenBack; or fetched ahead and given up"),
    from(Staged, Untouched, "discard, or WrittenBack after one"),
];

/// The completions of actions on a page, and the states in which they may arrive.
pub const COMPLETIONS: [(&str, &[State]); 6] = [
    ("Fetched", &[Fetching]),
    ("Arrived", &[Fetching, Installing]),
    ("Opened", &[Opening]),
    ("TakenOut", &[TakingOut]),
    ("Hidden", &[Hiding]),
    // While a frame is written back, its page may give up the frame and reach any of these states.
    ("WrittenBack", &[Untouched, Fetching, Installing, Resident, Opening, TakingOut, Staged]),
];

impl Pager {
    /// Whether an event may arrive in the present state of its page. Only completions are restricted.
    pub(super) fn is_legal(&self, event: &Event) -> bool {
        let (name, first, count) = match *event {
            Event::Fetched { page, .. } => ("Fetched", page, 1),
            Event::Arrived { page, count, .. } => ("Arrived", page, count),
            Event::Opened { page } => ("Opened", page, 1),
            Event::TakenOut { page, .. } => ("TakenOut", page, 1),
            Event::Hidden { page, .. } => ("Hidden", page, 1),
            Event::WrittenBack { page, .. } => ("WrittenBack", page, 1),
            _ => return true,
        };
        let states =
            COMPLETIONS.iter().find(|(completion, _)| *completion == name).map_or(&[][..], |(_, states)| states);
        let is_written = name != "WrittenBack" || self.has(first, WRITING);
        is_written && (first.0..first.0 + count).all(|unit| states.contains(&self.state(PageId(unit))))
    }
}

/// Whether this change of state is allowed.
pub(super) fn is_known(from: State, to: State) -> bool {
    TRANSITIONS.iter().any(|known| known.from == from && known.to == to)
}
