//! Tests of threads: the CPUs on which they run, and their number. There is only one test function, because it counts
//! all threads of the process. A second test would run in a further thread and change the count.

use hanare_sys::thread;
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

#[test]
fn threads_are_counted_placed_and_named() {
    let before = thread::count();
    assert!(before >= 1);
    let barrier = Arc::new(Barrier::new(4));
    let others: Vec<_> = (0..3)
        .map(|_| {
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || {
                barrier.wait();
                barrier.wait();
            })
        })
        .collect();
    barrier.wait();
    assert_eq!(thread::count(), before + 3);
    barrier.wait();
    for other in others {
        other.join().unwrap();
    }

    let (sender, receiver) = mpsc::channel();
    let pinned = std::thread::spawn(move || {
        let allowed = thread::cpus_allowed();
        let cpu = thread::current_cpu();
        thread::set_name("a (strange) name that is too long");
        thread::set_affinity(&[cpu]).unwrap();
        assert_eq!(thread::current_cpu(), cpu);
        let watch = thread::CpuWatch::open(thread::gettid()).unwrap();
        assert_eq!(thread::cpu_of(thread::gettid()), Some(cpu));
        assert_eq!((watch.cpu(), watch.cpu()), (Some(cpu), Some(cpu)));
        let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert_eq!(name.trim_end(), "a (strange) nam");
        assert!(thread::set_affinity(&[]).is_err());
        assert!(thread::set_affinity(&[1 << 20]).is_err());
        thread::set_affinity_all().unwrap();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).unwrap();
        let bits: u32 = cpus.chars().filter_map(|digit| digit.to_digit(16)).map(u32::count_ones).sum();
        sender.send((thread::gettid(), watch, bits as usize, allowed)).unwrap();
    });
    pinned.join().unwrap();
    let (gone, watch, bits, allowed) = receiver.recv().unwrap();
    assert_eq!(bits, allowed);
    // `join` may return a short time before the thread disappears from /proc, so the test waits.
    let start = Instant::now();
    while thread::cpu_of(gone).is_some() || watch.cpu().is_some() {
        assert!(start.elapsed() < Duration::from_secs(20), "a thread that has ended is still there");
        std::thread::yield_now();
    }

    ways_to_run();
}

/// Checks the scheduling policies. The test above calls this function. If this function were a test, it would run in a
/// further thread, and the test above would count this thread.
fn ways_to_run() {
    std::thread::spawn(|| {
        // SAFETY: the call takes and returns only integers. 0 stands for the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        assert!(thread::set_prompt());
        assert_eq!(policy(), libc::SCHED_OTHER);
        assert!(thread::set_patient());
        assert_eq!(policy(), libc::SCHED_BATCH);
        assert!(!thread::set_patient(), "it has another way to run already");
        // A new thread inherits SCHED_BATCH from this one. The new thread must be able to return to SCHED_OTHER.
        std::thread::spawn(move || {
            assert!(thread::set_prompt());
            // SAFETY: the call takes and returns only integers. 0 stands for the calling thread.
            assert_eq!(unsafe { libc::sched_getscheduler(0) }, libc::SCHED_OTHER);
        })
        .join()
        .unwrap();
    })
    .join()
    .unwrap();
}
