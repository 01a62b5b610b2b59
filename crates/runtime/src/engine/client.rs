//! The engine as its store sees it.

use std::sync::atomic::Ordering::SeqCst;

use hanare_paging::{Event, FrameId, PageId};
use hanare_sys::futex;

use super::{Engine, writable_bytes};
use crate::counters::add;
use crate::span::Span;
use crate::store::Client;
use crate::store::remote::Read;

impl Client for Engine {
    fn frame(&self, frame: FrameId) -> *mut u8 {
        self.view.frame(frame)
    }

    fn receive(&self, read: Read, spare: *mut u8, payload: impl FnOnce(*mut u8)) -> Event {
        if let Some(frame) = read.frame {
            payload(self.view.frame(frame));
            return Event::Fetched { page: read.page, ok: true };
        }
        let span = Span { offset: self.bytes(read.page.0), len: read.bytes as usize };
        let mut certain = true;
        match self.view.receive_place(span.offset) {
            Some(place) => {
                payload(place);
                let first = writable_bytes(&read);
                let rest = Span { offset: span.offset + first, len: span.len - first };
                certain &= first == 0 || self.view.show(Span { len: first, ..span }, true);
                certain &= rest.len == 0 || self.view.show(rest, false);
            }
            None => {
                payload(spare);
                certain = self.show(&read, span, spare);
            }
        }
        if !certain {
            self.view.open(span);
        }
        Event::Arrived { page: read.page, count: read.count, certain, ok: true }
    }

    fn ended(&self, event: Event) {
        self.submit(event);
    }

    fn notify(&self, page: PageId, count: u32) {
        for unit in (page.0..page.0 + count).step_by(self.block_units as usize) {
            let bell = self.bell(unit);
            bell.fetch_add(1, SeqCst);
            if self.waiters.load(SeqCst) > 0 {
                futex::wake_all(bell);
            }
        }
    }

    fn requested(&self) {
        add(&self.counters.requests, 1);
    }
}
