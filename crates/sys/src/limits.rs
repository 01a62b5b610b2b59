//! The program's limits on address space and data (RLIMIT_AS, RLIMIT_DATA), kept apart from Hanare's own mappings.
//!
//! The kernel counts all of Hanare's mappings against the program's limits. Only some bytes in these mappings belong to
//! the program: its far bytes (bytes in paged memory). So this module sets the kernel's limit to `program's limit +
//! Hanare's mappings - far bytes`. It does so whenever one of these three values changes. The program sees the limit
//! that it set itself. The kernel's hard limit is never lowered. Otherwise the soft limit could not be raised again
//! when Hanare's mappings grow.
//!
//! An adjusted limit has [`MARK`] in its low bits, which the kernel ignores. A program that is executed under an
//! adjusted limit finds its own limit in its environment ([`VARIABLE`]).
//!
//! This module uses no lock and no allocation. Threads that change the byte counts at the same time may set limits in
//! any order. After setting a limit, each thread checks whether the counts have changed meanwhile, and then sets the
//! limit again ([`enforce`]). So the last limit set is right.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use crate::raw::{self, Errno};

/// The resource that a limit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The bytes of all mappings (RLIMIT_AS).
    Space,
    /// The bytes of private writable mappings (RLIMIT_DATA).
    Data,
}

impl Kind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Space, Self::Data];

    /// Returns the kind of this kernel resource number. Returns `None` for any other resource.
    #[must_use]
    pub fn of(resource: c_int) -> Option<Self> {
        match resource as u32 {
            libc::RLIMIT_AS => Some(Self::Space),
            libc::RLIMIT_DATA => Some(Self::Data),
            _ => None,
        }
    }

    fn number(self) -> usize {
        match self {
            Self::Space => libc::RLIMIT_AS as usize,
            Self::Data => libc::RLIMIT_DATA as usize,
        }
    }
}

/// A limit in bytes, laid out as the kernel's `struct rlimit64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Limit {
    /// The limit that the kernel enforces.
    pub soft: u64,
    /// The value up to which `soft` may be raised.
    pub hard: u64,
}

/// The value that means no limit.
pub const UNLIMITED: u64 = u64::MAX;
/// The name of the environment variable that tells an executed program its own limits.
pub const VARIABLE: &str = "HANARE_LIMITS";

const PAGE: u64 = 4096;
/// The low bits of every limit that this module adjusted. They distinguish such a limit from one that the program set.
const MARK: u64 = 0x5a7;
/// A limit in bytes that no process reaches. Unlike [`UNLIMITED`], it can contain the mark.
const VAST: u64 = 1 << 62;

fn marked(bytes: u64) -> u64 {
    (bytes / PAGE * PAGE) | MARK
}

/// The program's limit of one kind, and the byte counts from which the kernel's limit follows.
struct Account {
    soft: AtomicU64,
    hard: AtomicU64,
    /// The bytes that Hanare has mapped for itself.
    held: AtomicU64,
    /// The program's far bytes (its bytes in paged memory), which lie inside Hanare's mappings.
    lent: AtomicU64,
    /// The number of changes of the other fields so far.
    changes: AtomicU32,
}

impl Account {
    const fn new() -> Self {
        Self {
            soft: AtomicU64::new(UNLIMITED),
            hard: AtomicU64::new(UNLIMITED),
            held: AtomicU64::new(0),
            lent: AtomicU64::new(0),
            changes: AtomicU32::new(0),
        }
    }

    /// Returns the soft limit that the kernel must enforce, or [`UNLIMITED`].
    fn enforced(&self) -> u64 {
        match self.soft.load(SeqCst) {
            UNLIMITED => UNLIMITED,
            soft => {
                let bytes = soft.saturating_add(self.held.load(SeqCst)).saturating_sub(self.lent.load(SeqCst));
                marked(bytes.min(VAST))
            }
        }
    }
}

static SPACE: Account = Account::new();
static DATA: Account = Account::new();
/// Whether the program has a limit of at least one kind.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);
/// The id of the process whose limits this module keeps. 0 if it keeps no limits.
static PROCESS: AtomicI32 = AtomicI32::new(0);

fn account(kind: Kind) -> &'static Account {
    match kind {
        Kind::Space => &SPACE,
        Kind::Data => &DATA,
    }
}

fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Returns the kernel's limit for this process.
fn kernel_limit(kind: Kind) -> Result<Limit, Errno> {
    let mut limit = Limit { soft: UNLIMITED, hard: UNLIMITED };
    // SAFETY: the kernel writes the answer to `limit`, a local struct.
    unsafe { raw::syscall(libc::SYS_prlimit64, [0, kind.number(), 0, &raw mut limit as usize, 0, 0]) }?;
    Ok(limit)
}

fn set_kernel_limit(kind: Kind, limit: Limit) -> Result<(), Errno> {
    // SAFETY: the kernel only reads `limit`, a local struct.
    unsafe { raw::syscall(libc::SYS_prlimit64, [0, kind.number(), &raw const limit as usize, 0, 0, 0]) }.map(drop)
}

/// Sets the soft limit. If the hard limit is lower, raises the hard limit too. If the kernel does not allow that, the
/// soft limit becomes equal to the hard limit.
fn set_soft(kind: Kind, soft: u64) -> Result<(), Errno> {
    let hard = kernel_limit(kind)?.hard;
    if soft <= hard {
        return set_kernel_limit(kind, Limit { soft, hard });
    }
    set_kernel_limit(kind, Limit { soft, hard: soft }).or_else(|_| set_kernel_limit(kind, Limit { soft: hard, hard }))
}

/// Sets the kernel's limit to the value that follows from the program's limit and the byte counts. Repeats this if one
/// of them changed meanwhile.
fn enforce(kind: Kind) -> Result<(), Errno> {
    let account = account(kind);
    loop {
        let changes = account.changes.load(SeqCst);
        set_soft(kind, account.enforced())?;
        if account.changes.load(SeqCst) == changes {
            return Ok(());
        }
    }
}

/// Changes the account of this kind by calling `change`. If the program has a limit, adjusts the kernel's limit as
/// well.
fn change(kind: Kind, change: impl FnOnce(&Account)) {
    let account = account(kind);
    change(account);
    if is_limited() {
        account.changes.fetch_add(1, SeqCst);
        // Ignored: the kernel accepts every soft limit up to the hard one. If the kernel refused a limit, the old limit
        // would stay, and mappings could fail.
        enforce(kind).unwrap_or(());
    }
}

// ---- what Hanare holds ----------------------------------------------------------------------------------------------

/// Makes one of Hanare's own mappings of `len` bytes by calling `map`. No limit of the program prevents the mapping.
/// `data` says whether the mapping is private and writable.
///
/// # Errors
/// The error of `map`.
pub fn holding<T, E>(len: usize, data: bool, mut map: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    hold(len, data);
    let mut answer = map();
    // A program may set a limit below what it already uses. Then the kernel refuses Hanare's mapping too. So the limits
    // are raised during a second attempt.
    if answer.is_err() && is_limited() {
        for kind in Kind::ALL {
            raise(kind);
        }
        answer = map();
        for kind in Kind::ALL {
            change(kind, |_| ());
        }
    }
    if answer.is_err() {
        give_back(len, data);
    }
    answer
}

/// Adds `len` to the bytes that Hanare has mapped for itself.
pub fn hold(len: usize, data: bool) {
    for kind in kinds(data) {
        change(kind, |account| {
            account.held.fetch_add(len as u64, SeqCst);
        });
    }
}

/// Subtracts `len` from the bytes that Hanare has mapped for itself, after Hanare has unmapped them.
pub fn give_back(len: usize, data: bool) {
    for kind in kinds(data) {
        change(kind, |account| {
            account.held.fetch_sub(len as u64, SeqCst);
        });
    }
}

fn kinds(data: bool) -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().take(if data { 2 } else { 1 })
}

/// Sets the number of far bytes in Hanare's mappings. `space` is the number of all far bytes. `data` is the number of
/// far bytes in mappings that the kernel counts as data.
pub fn lend(space: u64, data: u64) {
    for (kind, bytes) in [(Kind::Space, space), (Kind::Data, data)] {
        if account(kind).lent.load(Relaxed) != bytes {
            change(kind, |account| account.lent.store(bytes, SeqCst));
        }
    }
}

// ---- the program's limits -------------------------------------------------------------------------------------------

/// Checks whether the program has a limit of at least one kind.
#[inline]
pub fn is_limited() -> bool {
    IS_LIMITED.load(Relaxed)
}

/// Checks whether `len` more bytes of far memory are within the program's limits. It makes a mapping of this size and
/// removes it, because only the kernel knows all other mappings of the program.
#[must_use]
pub fn has_room(len: usize) -> bool {
    if !is_limited() {
        return true;
    }
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: the kernel chooses a free address, so no existing mapping changes. Only the new mapping is removed, and
    // no other code knows it.
    unsafe {
        let Ok(addr) = raw::syscall(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]) else { return false };
        raw::syscall(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]).is_ok()
    }
}

/// Returns the program's limits at its start. If a limit of the kernel is marked as adjusted, the limit in `variable`
/// replaces it.
fn at_start(variable: Option<&str>) -> Result<[Limit; 2], Errno> {
    let carried = variable.and_then(parse);
    let mut limits = [Limit { soft: UNLIMITED, hard: UNLIMITED }; 2];
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        let kernel = kernel_limit(kind)?;
        let carried = carried.map(|limits| limits[at]);
        let soft = carried.filter(|_| is_marked(kernel)).map_or(kernel.soft, |carried| carried.soft);
        let hard = carried.map_or(kernel.hard, |carried| carried.hard.min(kernel.hard)).max(soft);
        limits[at] = Limit { soft, hard };
    }
    Ok(limits)
}

fn is_marked(kernel: Limit) -> bool {
    kernel.soft % PAGE == MARK && kernel.soft != UNLIMITED
}

/// Records this process's limits and adjusts the kernel's limits from now on.
///
/// # Errors
/// The kernel's error.
pub fn begin(variable: Option<&str>) -> Result<(), Errno> {
    for (kind, limit) in Kind::ALL.into_iter().zip(at_start(variable)?) {
        account(kind).soft.store(limit.soft, SeqCst);
        account(kind).hard.store(limit.hard, SeqCst);
    }
    PROCESS.store(process(), SeqCst);
    look();
    if is_limited() { Kind::ALL.into_iter().try_for_each(enforce) } else { Ok(()) }
}

fn look() {
    IS_LIMITED.store(Kind::ALL.iter().any(|&kind| account(kind).soft.load(SeqCst) != UNLIMITED), SeqCst);
}

/// Returns the numbers of bytes that the kernel counts for this process: first of all mappings, then of data and
/// stacks. Returns `None` if `/proc/self/statm` cannot be read, for example because no descriptor is free.
fn counted() -> Option<[u64; 2]> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/self/statm", flags, rustix::fs::Mode::empty()).ok()?;
    let mut text = [0u8; 128];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let mut pages =
        std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    Some([pages.next()?? * PAGE, pages.nth(4)?? * PAGE])
}

/// The number of bytes that the kernel counted before a fork, without those that Hanare had mapped for itself. One
/// number for each [`Kind`], or [`UNLIMITED`] if it is unknown.
static NEAR: [AtomicU64; 2] = [const { AtomicU64::new(UNLIMITED) }; 2];

/// Records how many of the process's bytes are not Hanare's. The caller is about to fork. The child inherits only some
/// of Hanare's mappings, and computes their size with this number.
pub fn forking() {
    let counted = counted();
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        let near = counted.map(|bytes| bytes[at].saturating_sub(account(kind).held.load(SeqCst)));
        NEAR[at].store(near.unwrap_or(UNLIMITED), SeqCst);
    }
}

/// Adjusts the limits in a forked child, so that the child has its parent's limits.
pub fn forked() {
    if PROCESS.load(SeqCst) == 0 {
        return;
    }
    PROCESS.store(process(), SeqCst);
    let near = NEAR.each_ref().map(|near| near.swap(UNLIMITED, SeqCst));
    if let Some(counted) = near.iter().all(|&near| near != UNLIMITED).then(counted).flatten() {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            change(kind, |account| account.held.store(counted[at].saturating_sub(near[at]), SeqCst));
        }
    }
}

/// Checks whether this module keeps the limits of this process, or those of a parent that shares its memory with this
/// process (vfork).
pub fn are_kept() -> bool {
    PROCESS.load(SeqCst) != 0
}

/// Checks whether this module keeps the limits of the calling process itself. Returns false in a child that shares its
/// parent's memory until it executes a program (vfork).
fn is_kept() -> bool {
    PROCESS.load(SeqCst) == process()
}

/// Returns the limit as the program knows it.
///
/// # Errors
/// The kernel's error.
pub fn get(kind: Kind) -> Result<Limit, Errno> {
    let kernel = kernel_limit(kind)?;
    let is_ours = is_kept() || PROCESS.load(SeqCst) != 0 && is_marked(kernel);
    let account = account(kind);
    let own = Limit { soft: account.soft.load(SeqCst), hard: account.hard.load(SeqCst) };
    Ok(if is_ours { own } else { kernel })
}

/// Sets the program's limit.
///
/// # Errors
/// The errors of setrlimit(2).
pub fn set(kind: Kind, limit: Limit) -> Result<(), Errno> {
    if limit.soft > limit.hard {
        return Err(Errno(libc::EINVAL));
    }
    if !are_kept() {
        return set_kernel_limit(kind, limit);
    }
    if !is_kept() {
        // This is a child that shares its parent's memory and is about to execute a program. It must keep its hard
        // limit. The executed program raises its soft limit up to the hard limit for its own far memory.
        let hard = kernel_limit(kind)?.hard;
        return set_kernel_limit(kind, Limit { soft: limit.soft.min(hard), hard });
    }
    let account = account(kind);
    if limit.hard > account.hard.load(SeqCst) && !may_raise() {
        return Err(Errno(libc::EPERM));
    }
    account.hard.store(limit.hard, SeqCst);
    account.soft.store(limit.soft, SeqCst);
    account.changes.fetch_add(1, SeqCst);
    look();
    enforce(kind)
}

/// Checks whether this thread may raise hard limits (CAP_SYS_RESOURCE).
fn may_raise() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_SYS_RESOURCE: u32 = 24;
    let (header, mut sets) = ([VERSION_3, 0], [[0u32; 3]; 2]);
    let args = [&raw const header as usize, &raw mut sets as usize, 0, 0, 0, 0];
    // SAFETY: `header` and the two triples in `sets` have the layout of version 3 of the call.
    unsafe { raw::syscall(libc::SYS_capget, args) }.is_ok() && sets[0][0] & (1 << CAP_SYS_RESOURCE) != 0
}

/// Sets the kernel's soft limits to the program's own, before this process executes another program. If the execution
/// fails, the caller calls [`executing_failed`].
pub fn executing() {
    if PROCESS.load(SeqCst) == 0 || !is_limited() {
        return;
    }
    for kind in Kind::ALL {
        // Ignored: if the call fails, the limit stays marked. The executed program then finds its own limit in
        // [`VARIABLE`].
        let own = get(kind).map_or(UNLIMITED, |own| own.soft);
        if own != UNLIMITED {
            set_soft(kind, own).unwrap_or(());
        }
    }
}

/// Adjusts the kernel's limits again after a failed execution.
pub fn executing_failed() {
    if is_kept() && is_limited() {
        for kind in Kind::ALL {
            change(kind, |_| ());
        }
    }
}

/// Raises the limits of this process to the maximum. A program that this process starts inherits the raised limits. It
/// finds its original limits in the variable [`VARIABLE`], whose value this function returns. Returns `None` if no
/// limit is set.
///
/// # Errors
/// The kernel's error.
pub fn lift(variable: Option<&str>) -> Result<Option<String>, Errno> {
    let own = at_start(variable)?;
    if own.iter().all(|limit| limit.soft == UNLIMITED) {
        return Ok(None);
    }
    for kind in Kind::ALL.into_iter().zip(own).filter(|(_, own)| own.soft != UNLIMITED).map(|(kind, _)| kind) {
        if set_kernel_limit(kind, Limit { soft: VAST | MARK, hard: UNLIMITED }).is_err() {
            raise(kind);
        }
    }
    Ok(Some(String::from_utf8_lossy(&text_of(own)).into_owned()))
}

/// Raises the soft limit to the maximum and marks it. Never lowers the limit.
fn raise(kind: Kind) {
    let Ok(kernel) = kernel_limit(kind) else { return };
    let most = match kernel.hard {
        UNLIMITED => VAST | MARK,
        hard => marked(hard.saturating_sub(PAGE)),
    };
    if most > kernel.soft {
        // Ignored: if the kernel refuses, the next mapping fails because of the low limit, and its error is reported.
        set_kernel_limit(kind, Limit { soft: most, ..kernel }).unwrap_or(());
    }
}

/// Returns the largest soft limit that this process can set, in bytes.
#[must_use]
pub fn reach(kind: Kind) -> u64 {
    match kernel_limit(kind) {
        Ok(limit) if !may_raise() => limit.hard,
        _ => UNLIMITED,
    }
}

// ---- the variable ---------------------------------------------------------------------------------------------------

/// The length in bytes of the value of [`VARIABLE`].
pub const VALUE_BYTES: usize = 4 * 17 - 1;

/// Returns the value of [`VARIABLE`] that states the program's present limits.
#[must_use]
pub fn value() -> [u8; VALUE_BYTES] {
    text_of(Kind::ALL.map(|kind| get(kind).unwrap_or(Limit { soft: UNLIMITED, hard: UNLIMITED })))
}

fn text_of(limits: [Limit; 2]) -> [u8; VALUE_BYTES] {
    let mut text = [b','; VALUE_BYTES];
    for (at, bytes) in limits.iter().flat_map(|limit| [limit.soft, limit.hard]).enumerate() {
        for nibble in 0..16 {
            let digit = ((bytes >> (60 - 4 * nibble)) & 15) as usize;
            text[17 * at + nibble] = b"0123456789abcdef"[digit];
        }
    }
    text
}

fn parse(text: &str) -> Option<[Limit; 2]> {
    let mut bytes = text.split(',').map(|part| u64::from_str_radix(part, 16).ok());
    let mut next = || bytes.next().flatten();
    let limits = [Limit { soft: next()?, hard: next()? }, Limit { soft: next()?, hard: next()? }];
    bytes.next().is_none().then_some(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_enforced_is_the_limit_and_what_is_held_without_far_bytes() {
        let account = Account::new();
        assert_eq!(account.enforced(), UNLIMITED);
        account.soft.store(1 << 30, SeqCst);
        account.held.store(256 << 30, SeqCst);
        account.lent.store(1 << 20, SeqCst);
        assert_eq!(account.enforced(), marked((257 << 30) - (1 << 20)));
        account.lent.store(300 << 30, SeqCst);
        assert_eq!(account.enforced(), MARK);
    }

    #[test]
    fn the_variable_says_what_there_is() {
        let text = value();
        let text = std::str::from_utf8(&text).unwrap();
        let own = Kind::ALL.map(|kind| kernel_limit(kind).unwrap());
        assert_eq!(parse(text), Some(own), "{text}");
        assert_eq!(parse("1,2,3"), None);
        assert_eq!(parse("1,2,3,4,5"), None);
        assert_eq!(parse("1,2,3,x"), None);
    }
}
