//! Tests of write-backs that need not be sent.

use std::sync::Mutex;

use super::*;

/// More pages than one call of [`Remote::send`] takes from the queue.
const PAGES: u32 = 3 * WRITES_AT_ONCE as u32;

/// Nobody notifies a sender again of pages that wait already. So a sender that sleeps beside them sleeps until its
/// timeout.
#[test]
fn a_sender_does_not_sleep_while_pages_wait_that_need_not_be_sent() {
    let server = Serving::start();
    let opened = vec![server.opened()];
    let (remote, mut senders) = Remote::new(opened, shape(1024, PAGES, Guarding::Sums), PAGE, SOON).expect("a store");
    let sender = &mut senders[0];
    let bytes: Vec<u8> = (0..PAGES as usize * PAGE).map(|at| (at / PAGE) as u8).collect();
    let queue = |may_be_same| {
        for index in 0..PAGES {
            let (frame, at) = (Some(FrameId { wide: false, index }), Some(bytes[index as usize * PAGE..].as_ptr()));
            let (page, spare) = (PageId(index), std::ptr::null_mut());
            let write = Write { page, bytes: PAGE as u32, frame, at, may_be_same, spare };
            // SAFETY: the bytes never change.
            let saved = unsafe { remote.write(&write, &mut |_| {}) }.expect("room");
            assert_eq!(saved, Saved::Later);
        }
    };
    for is_same in [false, true] {
        queue(is_same);
        let ends = Mutex::new(Vec::new());
        let (mut calls, end) = (0, Instant::now() + SOON);
        while ends.lock().expect("no panic").len() < PAGES as usize {
            assert!(Instant::now() < end, "the write-backs do not end");
            let mut ended = |_, _, changed| ends.lock().expect("no panic").push(changed);
            remote.send(sender, &mut ended).map_err(|error| error.to_string()).expect("a server that answers");
            calls += 1;
            let slept = remote.servers[0].writes_in_flight.load(Acquire) == 0;
            assert!(!slept || !remote.places.lock().waits_for(0), "call {calls} slept beside pages that wait");
        }
        assert!(ends.lock().expect("no panic").iter().all(|&changed| changed != is_same));
    }
    server.end();
}
