//! How long a silent peer is waited for.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// The longest wait, as a multiple of the usual one.
pub(crate) const LONGER_MAX: f64 = 4.0;
/// The number of parts of one thread in the kernel's load averages.
const LOAD_SCALE: f64 = 65536.0;

/// The number of CPUs that this process may use. 0 until a link is set up.
static CPUS: AtomicU32 = AtomicU32::new(0);

/// Notes the number of CPUs once. This reads files, so it is called only while a link is set up.
pub(crate) fn note_cpus() {
    if CPUS.load(Relaxed) != 0 {
        return;
    }
    CPUS.store(std::thread::available_parallelism().map_or(0, |cpus| cpus.get() as u32), Relaxed);
}

/// Returns how long a peer may be silent, if `silent` is the time for a machine at rest. A peer on a loaded machine may
/// be silent because it waits for a CPU. Threads were seen to wait for more than 3 s at 9 threads a CPU. So the time
/// grows with the load of this machine (the average of the last minute) for each CPU, up to four times.
#[must_use]
pub fn patience(silent: Duration) -> Duration {
    longer(silent, rustix::system::sysinfo().loads[0] as f64 / LOAD_SCALE, CPUS.load(Relaxed))
}

fn longer(silent: Duration, load: f64, cpus: u32) -> Duration {
    match cpus {
        0 => silent,
        _ => silent.mul_f64((load / f64::from(cpus)).clamp(1.0, LONGER_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_machine_gets_up_to_four_times_as_long() {
        let silent = Duration::from_secs(3);
        for (load, cpus, seconds) in [(0.0, 2, 3), (2.0, 2, 3), (4.0, 2, 6), (20.0, 2, 12), (20.0, 64, 3), (9.0, 0, 3)]
        {
            assert_eq!(longer(silent, load, cpus), Duration::from_secs(seconds), "load {load}, {cpus} CPUs");
        }
        note_cpus();
        assert!(CPUS.load(Relaxed) > 0 && patience(silent) >= silent);
    }
}
