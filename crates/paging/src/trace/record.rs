//! The recorder: a policy that passes every call on to another policy, and records the call and the answer.

use std::cell::RefCell;

use super::{Base, RECORD_MAX, Record, write_number};
use crate::policy::{Cause, Leave, Policy};
use crate::units::PageId;

/// The receiver of recorded bytes. The pager calls it at any time, so it must neither wait nor allocate.
pub trait Sink: Send {
    /// Accepts one whole record. If it returns false, it is never called again.
    fn push(&mut self, record: &[u8]) -> bool;
}

/// Records every call of a policy. If the sink accepts no more records, recording ends and the policy continues. So the
/// recording is always a prefix of the run. The memory use does not depend on the number of pages.
pub struct Recorder {
    policy: Box<dyn Policy>,
    hides: bool,
    /// The recorded output. It is in a `RefCell`, because the filter passed to `victim` is an `Fn` and must write to
    /// the tape.
    tape: RefCell<Tape>,
}

struct Tape {
    sink: Box<dyn Sink>,
    base: Base,
    open: bool,
    /// Number of latest calls of `next_to_hide` that returned no page and are not recorded yet. Most calls are of this
    /// kind, and many follow each other, so they are recorded together.
    idle: u32,
}

impl Tape {
    fn write(&mut self, record: Record) {
        if self.idle > 0 {
            let idle = std::mem::take(&mut self.idle);
            self.push(Record::NoHide(idle));
        }
        self.push(record);
    }

    fn push(&mut self, record: Record) {
        if self.open {
            let mut bytes = [0; RECORD_MAX];
            let len = write_number(self.base.encode(record), &mut bytes);
            self.open = self.sink.push(&bytes[..len]);
        }
    }
}

impl Recorder {
    /// Records the calls of this policy and its answers.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>, sink: Box<dyn Sink>) -> Self {
        let tape = Tape { sink, base: Base::default(), open: true, idle: 0 };
        Self { hides: policy.hides(), policy, tape: RefCell::new(tape) }
    }

    fn write(&mut self, record: Record) {
        self.tape.get_mut().write(record);
    }
}

impl Policy for Recorder {
    fn coming(&mut self, page: PageId) {
        self.write(Record::Coming(page));
        self.policy.coming(page);
    }

    fn wide(&mut self, page: PageId) {
        self.write(Record::Wide(page));
        self.policy.wide(page);
    }

    fn inserted(&mut self, page: PageId, cause: Cause) {
        self.write(Record::Inserted(page, cause));
        self.policy.inserted(page, cause);
    }

    fn referenced(&mut self, page: PageId, write: bool) {
        self.write(Record::Referenced(page, write));
        self.policy.referenced(page, write);
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.write(Record::Removed(page, why));
        self.policy.removed(page, why);
    }

    fn forgotten(&mut self, page: PageId) {
        self.write(Record::Forgotten(page));
        self.policy.forgotten(page);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let Self { policy, tape, .. } = self;
        let victim = policy.victim(&|page| {
            let accepted = accept(page);
            if !accepted {
                tape.borrow_mut().write(Record::Refused(page));
            }
            accepted
        });
        self.write(victim.map_or(Record::NoVictim, Record::Victim));
        victim
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        let page = self.policy.next_to_hide();
        match page {
            Some(page) => self.write(Record::Hide(page)),
            // If the policy never requests that pages be unmapped, a call that returns no page has no effect and is not
            // recorded.
            None if self.hides => {
                let tape = self.tape.get_mut();
                tape.idle += 1;
                if tape.idle == u32::MAX {
                    tape.push(Record::NoHide(u32::MAX));
                    tape.idle = 0;
                }
            }
            None => {}
        }
        page
    }

    fn hides(&self) -> bool {
        self.hides
    }

    fn tick(&mut self, now_ms: u64) {
        self.write(Record::Tick(now_ms));
        self.policy.tick(now_ms);
    }

    fn describe(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        self.policy.describe(out)
    }
}
