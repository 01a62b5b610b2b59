//! The keys with which a process opens sealed units (base pages), and the one with which it seals them.
//!
//! A process makes a key of its own at its start. A forked child makes another one: parent and child count nonces from
//! the same number on, and a nonce must not be used twice with one key. The child keeps the keys of its ancestors, to
//! read their units. So a process has one key for each fork between it and the first process of its run.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hanare_sys::again;
use hanare_sys::map::{self, Advice, MapError, Mapping, page_size};
use hanare_wire::handshake::random;
use ring::aead::{AES_256_GCM, Algorithm, CHACHA20_POLY1305, LessSafeKey, UnboundKey};

use super::GuardError;
use super::seal::COUNTER_BITS;

/// The maximum number of keys of a process. Their numbers have 16 bits.
pub(super) const KEYS_MAX: usize = 1 << 16;

/// The keys are in memory of their own, which is left out of core dumps and is zeroed when they are dropped. The key
/// number `n` is at index `n`. A forked child inherits this memory.
pub(super) struct Keys {
    keys: Mapping,
    count: usize,
    /// The counter of the next nonce of the newest key. It begins at 1, so that no nonce word is 0.
    next: AtomicU64,
}

impl Keys {
    /// Makes an empty list, with which nothing can be sealed.
    pub(super) fn new() -> Result<Self, MapError> {
        let len = KEYS_MAX * size_of::<LessSafeKey>();
        let keys = Mapping::reserve(len, page_size())?;
        // SAFETY: `keys` is a new mapping of our own, and the advice changes no contents.
        let advised = again(|| unsafe { map::advise(keys.addr(), keys.len(), Advice::DontDump) });
        advised.map_err(|errno| MapError::Reserve { len, errno })?;
        Ok(Self { keys, count: 0, next: AtomicU64::new(1) })
    }

    fn at(&self, index: usize) -> *mut LessSafeKey {
        self.keys.as_ptr().cast::<LessSafeKey>().wrapping_add(index)
    }

    /// Makes a random key, which becomes the newest.
    pub(super) fn add(&mut self) -> Result<(), GuardError> {
        if self.count >= KEYS_MAX {
            return Err(GuardError::Keys);
        }
        let mut bytes = random::<32>().map_err(GuardError::Random)?;
        let key = UnboundKey::new(algorithm(), &bytes);
        // SAFETY: `bytes` is a variable of our own.
        unsafe { wipe(bytes.as_mut_ptr(), bytes.len()) };
        let key = LessSafeKey::new(key.map_err(|_| GuardError::Cipher)?);
        // SAFETY: the index is below `KEYS_MAX`, so the place is in the mapping, which has the alignment of a page. No
        // reference to the place exists, because `get` gives none from `count` on.
        unsafe { self.at(self.count).write(key) };
        self.count += 1;
        self.next = AtomicU64::new(1);
        Ok(())
    }

    /// Returns a key by its number.
    pub(super) fn get(&self, number: u16) -> Option<&LessSafeKey> {
        // SAFETY: `add` has written the keys below `count`. Nothing changes them while `self` is borrowed.
        (usize::from(number) < self.count).then(|| unsafe { &*self.at(number.into()) })
    }

    /// Returns the number of the newest key, a counter that was never returned for this key before, and the key. Returns
    /// `None` if no counter is left.
    pub(super) fn take_nonce(&self) -> Option<(u16, u64, &LessSafeKey)> {
        let number = u16::try_from(self.count.checked_sub(1)?).ok()?;
        // A counter beyond the last one is never used. So it does not matter that `next` goes on.
        let counter = self.next.fetch_add(1, Relaxed);
        (counter < 1 << COUNTER_BITS).then_some((number, counter, self.get(number)?))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // SAFETY: the keys are in the mapping of `self`, and no reference to them exists. A key needs no other cleanup.
        unsafe { wipe(self.keys.as_ptr(), self.count * size_of::<LessSafeKey>()) };
    }
}

/// Returns the cipher of this CPU. AES without its instructions would be slow.
fn algorithm() -> &'static Algorithm {
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    if has_aes { &AES_256_GCM } else { &CHACHA20_POLY1305 }
}

/// Zeroes memory in such a way that the compiler does not leave it out.
///
/// # Safety
/// The memory at `at` has `len` bytes, which nothing else accesses.
unsafe fn wipe(at: *mut u8, len: usize) {
    for index in 0..len {
        // SAFETY: the byte is in the memory that the caller passes.
        unsafe { at.add(index).write_volatile(0) };
    }
}

#[cfg(test)]
impl Keys {
    /// Sets the counter of the next nonce.
    pub(super) fn skip_to(&mut self, next: u64) {
        self.next = AtomicU64::new(next);
    }

    /// Returns a copy, as a fork makes it.
    pub(super) fn copied(&self) -> Self {
        let mut copy = Self::new().expect("room");
        for number in 0..self.count {
            let key = self.get(number as u16).expect("a key").clone();
            // SAFETY: the place is in the new mapping, and no reference to it exists.
            unsafe { copy.at(number).write(key) };
        }
        (copy.count, copy.next) = (self.count, AtomicU64::new(self.next.load(Relaxed)));
        copy
    }
}
