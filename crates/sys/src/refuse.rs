//! Makes system calls fail on purpose, for tests. In debug builds, some calls of this crate then fail with errors that
//! the kernel may also return.
//!
//! `HANARE_TEST_REFUSE=SEED[:PER_MILLE[:CALL]]` enables the refusals, with CALL only those of one kind. The calls are
//! counted. The seed and the number of a call decide whether the call fails, and with which errno. Release builds do not
//! contain this code.

use crate::raw::Errno;

/// A system call that can be refused on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum Call {
    Copy,
    Move,
    WriteProtect,
    Wake,
    Register,
    ReadEvents,
    Poll,
    Protect,
    Advise,
    AdviseMany,
    Guard,
    Punch,
    Map,
    Memfd,
    Open,
    Read,
}

#[cfg(not(debug_assertions))]
mod armed {
    use super::{Call, Errno};

    #[inline]
    pub(crate) fn draw(_call: Call) -> Result<(), Errno> {
        Ok(())
    }

    #[inline]
    pub(crate) fn shorten(_call: Call, len: usize) -> usize {
        len
    }

    /// Does nothing in release builds.
    pub fn arm_from_environment() {}
}

#[cfg(debug_assertions)]
mod armed {
    use super::{Call, Errno};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const PAGE: usize = 4096;
    const PER_MILLE_DEFAULT: u64 = 20;

    /// The seed of the refusals. 0 if no call is refused.
    static SEED: AtomicU64 = AtomicU64::new(0);
    static PER_MILLE: AtomicU64 = AtomicU64::new(0);
    static CALLS: AtomicU64 = AtomicU64::new(0);
    /// The only kind of call that is refused, plus one. 0 if calls of every kind are.
    static ONLY: AtomicU64 = AtomicU64::new(0);

    /// The kinds of calls that can be chosen by name.
    const CHOSEN: [(&str, Call); 1] = [("move", Call::Move)];

    /// Enables the refusals if `HANARE_TEST_REFUSE` asks for them.
    pub fn arm_from_environment() {
        // SAFETY: the name ends with NUL. The returned string is parsed below, before other code can change the
        // environment.
        let text = unsafe { libc::getenv(c"HANARE_TEST_REFUSE".as_ptr()) };
        if text.is_null() {
            return;
        }
        // SAFETY: `text` is not null, and `getenv` returns terminated strings.
        let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_str().unwrap_or_default();
        let mut fields = text.split(':');
        let Some(Ok(seed)) = fields.next().map(str::parse::<u64>) else { return };
        PER_MILLE.store(fields.next().and_then(|field| field.parse().ok()).unwrap_or(PER_MILLE_DEFAULT), Relaxed);
        let only = fields.next().and_then(|name| CHOSEN.into_iter().find(|chosen| chosen.0 == name));
        ONLY.store(only.map_or(0, |(_, call)| call as u64 + 1), Relaxed);
        SEED.store(seed, Relaxed);
    }

    /// Decides whether the next call is refused. Returns a random number if it is refused, which then selects the
    /// errno. Otherwise returns `None`.
    fn next(call: Call) -> Option<u64> {
        let (seed, only) = (SEED.load(Relaxed), ONLY.load(Relaxed));
        if seed == 0 || only != 0 && only != call as u64 + 1 {
            return None;
        }
        let mut x = seed.wrapping_add(CALLS.fetch_add(1, Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let x = x ^ (x >> 31);
        (x % 1000 < PER_MILLE.load(Relaxed)).then_some(x / 1000)
    }

    fn errnos(call: Call) -> &'static [i32] {
        use libc::{EAGAIN, EBUSY, EEXIST, EINTR, EIO, EMFILE, ENOENT, ENOMEM, EPERM};
        match call {
            Call::Copy => &[EAGAIN, ENOMEM, EEXIST, ENOENT, EINTR],
            Call::Move => &[EAGAIN, EBUSY, ENOMEM, EEXIST, ENOENT],
            Call::WriteProtect => &[EAGAIN, ENOMEM, ENOENT, EINTR],
            Call::Wake => &[EAGAIN],
            Call::Register => &[ENOMEM, EBUSY],
            Call::ReadEvents | Call::Poll => &[EINTR, EAGAIN],
            Call::Protect => &[ENOMEM, EAGAIN],
            Call::Advise => &[EAGAIN, ENOMEM, EINTR, EBUSY],
            Call::Guard => &[EAGAIN, ENOMEM, EINTR],
            Call::AdviseMany => &[EAGAIN, EINTR, EPERM, ENOMEM],
            Call::Punch => &[EINTR, ENOMEM, EAGAIN],
            Call::Map => &[ENOMEM, EAGAIN],
            Call::Memfd => &[EMFILE, ENOMEM],
            Call::Open => &[EMFILE, ENOMEM, EINTR],
            Call::Read => &[EINTR, EIO, EAGAIN],
        }
    }

    /// Counts one call. Returns an error if this call must be refused.
    pub(crate) fn draw(call: Call) -> Result<(), Errno> {
        let Some(x) = next(call) else { return Ok(()) };
        let errnos = errnos(call);
        Err(Errno(errnos[x as usize % errnos.len()]))
    }

    /// Returns the number of bytes that a call must process. The result is `len`, or sometimes a smaller number of
    /// whole pages.
    pub(crate) fn shorten(call: Call, len: usize) -> usize {
        match next(call) {
            Some(x) if len > PAGE => PAGE * (1 + x as usize % (len / PAGE)),
            _ => len,
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn calls_are_refused_about_as_often_as_asked_and_never_unasked() {
            assert!((0..1000).all(|_| draw(Call::Copy).is_ok()), "nothing was armed");
        }
    }
}

pub use armed::arm_from_environment;
pub(crate) use armed::{draw, shorten};
