//! The program's limits on address space and data (RLIMIT_AS, RLIMIT_DATA), separated from what Hanare itself holds.
//!
//! The kernel counts Hanare's reservations as the program's, and does not count far bytes. So the kernel's limit is set
//! to `program's limit + what Hanare holds - far bytes` whenever one of the three changes. The program sees the limit
//! that it set. The kernel's hard limit is not changed: a lowered one could not be raised again as Hanare's mappings
//! grow.
//!
//! An adjusted limit has [`MARK`] in its low bits, which the kernel ignores. A process that is executed under it finds
//! the program's own limit in its environment ([`VARIABLE`]).
//!
//! Nothing here is locked or allocated. Threads that change the sums at the same time may set limits in any order. Each
//! then checks whether the sums are still those that it used ([`enforce`]), so the last limit set is right.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use crate::raw::{self, Errno};

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All mappings (RLIMIT_AS).
    Space,
    /// Private writable mappings (RLIMIT_DATA).
    Data,
}

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Space, Self::Data];

    /// The kind of this kernel resource number.
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

/// A limit in bytes, as the kernel's `struct rlimit64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Limit {
    /// The enforced limit.
    pub soft: u64,
    /// The value up to which `soft` may be raised.
    pub hard: u64,
}

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;
/// The variable that carries the program's limits to programs that it executes.
pub const VARIABLE: &str = "HANARE_LIMITS";

const PAGE: u64 = 4096;
/// Low bits of a limit that is not the program's own.
const MARK: u64 = 0x5a7;
/// A limit that no process reaches. Unlike infinity, it can contain the mark.
const VAST: u64 = 1 << 62;

fn marked(bytes: u64) -> u64 {
    (bytes / PAGE * PAGE) | MARK
}

/// The sums of one kind, in bytes.
struct Account {
    soft: AtomicU64,
    hard: AtomicU64,
    /// Bytes that Hanare has mapped for itself.
    held: AtomicU64,
    /// Far bytes of the program inside the mappings that Hanare holds.
    lent: AtomicU64,
    /// Number of changes.
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

    /// The limit that the kernel must enforce.
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
/// Whether the program has a limit of either kind.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);
/// The process whose limits these are; 0 if no limits are kept.
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

/// The kernel's limit for this process.
fn kernel_limit(kind: Kind) -> Result<Limit, Errno> {
    let mut limit = Limit { soft: UNLIMITED, hard: UNLIMITED };
    // SAFETY: a place of ours for the answer.
    unsafe { raw::syscall(libc::SYS_prlimit64, [0, kind.number(), 0, &raw mut limit as usize, 0, 0]) }?;
    Ok(limit)
}

fn set_kernel_limit(kind: Kind, limit: Limit) -> Result<(), Errno> {
    // SAFETY: a limit of ours.
    unsafe { raw::syscall(libc::SYS_prlimit64, [0, kind.number(), &raw const limit as usize, 0, 0, 0]) }.map(drop)
}

/// Sets a soft limit. If the hard limit is lower, raises it too if that is allowed, else sets the soft limit to the
/// hard one.
fn set_soft(kind: Kind, soft: u64) -> Result<(), Errno> {
    let hard = kernel_limit(kind)?.hard;
    if soft <= hard {
        return set_kernel_limit(kind, Limit { soft, hard });
    }
    set_kernel_limit(kind, Limit { soft, hard: soft }).or_else(|_| set_kernel_limit(kind, Limit { soft: hard, hard }))
}

/// Sets the kernel's limit.
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

/// Changes a sum and, if there is a limit, the kernel's limit.
fn change(kind: Kind, change: impl FnOnce(&Account)) {
    let account = account(kind);
    change(account);
    if is_limited() {
        account.changes.fetch_add(1, SeqCst);
        // The kernel accepts every soft limit up to the hard one. If it refused one, the old limit would stay, and
        // mappings could fail.
        enforce(kind).unwrap_or(());
    }
}

// ---- what Hanare holds ----------------------------------------------------------------------------------------------

/// Makes one of Hanare's own mappings, of `len` bytes. No limit of the program can prevent it. `data` says that it is
/// private and writable.
///
/// # Errors
/// `map`'s.
pub fn holding<T, E>(len: usize, data: bool, mut map: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    hold(len, data);
    let mut answer = map();
    // A program that set a limit below its present use leaves no room for Hanare either.
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

/// Counts `len` more bytes as held by Hanare.
pub fn hold(len: usize, data: bool) {
    for kind in kinds(data) {
        change(kind, |account| {
            account.held.fetch_add(len as u64, SeqCst);
        });
    }
}

/// Counts `len` bytes less as held by Hanare, which has unmapped them.
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

/// Sets the number of far bytes in Hanare's mappings: `space` is all of them, `data` those in mappings that the kernel
/// counts as data.
pub fn lend(space: u64, data: u64) {
    for (kind, bytes) in [(Kind::Space, space), (Kind::Data, data)] {
        if account(kind).lent.load(Relaxed) != bytes {
            change(kind, |account| account.lent.store(bytes, SeqCst));
        }
    }
}

// ---- the program's limits -------------------------------------------------------------------------------------------

/// Whether the program has a limit.
#[inline]
pub fn is_limited() -> bool {
    IS_LIMITED.load(Relaxed)
}

/// Whether `len` more bytes of far memory are within the program's limits. Asks the kernel, which knows all other
/// mappings.
#[must_use]
pub fn has_room(len: usize) -> bool {
    if !is_limited() {
        return true;
    }
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a fresh mapping at an address of the kernel's choice. It is removed before any code knows it.
    unsafe {
        let Ok(addr) = raw::syscall(libc::SYS_mmap, [0, len, prot, flags, usize::MAX, 0]) else { return false };
        raw::syscall(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]).is_ok()
    }
}

/// The program's limits at its start: where the kernel's limits are marked, the values in `variable`.
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

/// Starts to keep this process's limits.
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

/// Bytes that the kernel counts: all mappings, and data with stacks. `None` if there is no free descriptor to ask with.
fn counted() -> Option<[u64; 2]> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open("/proc/self/statm", flags, rustix::fs::Mode::empty()).ok()?;
    let mut text = [0u8; 128];
    let len = rustix::io::read(&file, &mut text).ok()?;
    let mut pages =
        std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace().map(|word| word.parse::<u64>().ok());
    Some([pages.next()?? * PAGE, pages.nth(4)?? * PAGE])
}

/// Bytes that the kernel counts and Hanare does not hold, before a fork; [`UNLIMITED`] if unknown.
static NEAR: [AtomicU64; 2] = [const { AtomicU64::new(UNLIMITED) }; 2];

/// Called before a fork of a process that has far memory: the child does not inherit all mappings of Hanare.
pub fn forking() {
    let counted = counted();
    for (at, kind) in Kind::ALL.into_iter().enumerate() {
        let near = counted.map(|bytes| bytes[at].saturating_sub(account(kind).held.load(SeqCst)));
        NEAR[at].store(near.unwrap_or(UNLIMITED), SeqCst);
    }
}

/// In a forked child: keeps its parent's limits.
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

/// Whether limits are kept in this memory, by this process or by a parent that shares it.
pub fn are_kept() -> bool {
    PROCESS.load(SeqCst) != 0
}

/// Whether the limits kept here are this very process's. They are not in a child that shares its parent's memory until
/// it executes.
fn is_kept() -> bool {
    PROCESS.load(SeqCst) == process()
}

/// The limit as the program knows it.
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
/// Like setrlimit(2).
pub fn set(kind: Kind, limit: Limit) -> Result<(), Errno> {
    if limit.soft > limit.hard {
        return Err(Errno(libc::EINVAL));
    }
    if !are_kept() {
        return set_kernel_limit(kind, limit);
    }
    if !is_kept() {
        // This is a child that is about to execute. Far memory in the executed program needs an unchanged hard limit.
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

/// Whether this thread may raise hard limits (CAP_SYS_RESOURCE).
fn may_raise() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_SYS_RESOURCE: u32 = 24;
    let (header, mut sets) = ([VERSION_3, 0], [[0u32; 3]; 2]);
    let args = [&raw const header as usize, &raw mut sets as usize, 0, 0, 0, 0];
    // SAFETY: the header and the two triples of words that this version has.
    unsafe { raw::syscall(libc::SYS_capget, args) }.is_ok() && sets[0][0] & (1 << CAP_SYS_RESOURCE) != 0
}

/// Called before this process executes another program: makes the soft limits the program's own. [`executing_failed`]
/// may follow.
pub fn executing() {
    if PROCESS.load(SeqCst) == 0 || !is_limited() {
        return;
    }
    for kind in Kind::ALL {
        // If this fails, the kernel's limit stays marked, and the executed program reads the variable.
        let own = get(kind).map_or(UNLIMITED, |own| own.soft);
        if own != UNLIMITED {
            set_soft(kind, own).unwrap_or(());
        }
    }
}

/// Called when the execution failed and the program goes on.
pub fn executing_failed() {
    if is_kept() && is_limited() {
        for kind in Kind::ALL {
            change(kind, |_| ());
        }
    }
}

/// Raises this process's limits to the maximum and marks them: they are meant for the program that it starts. Returns
/// that program's value of [`VARIABLE`]; `None` if nothing is limited.
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

/// Raises the soft limit to the maximum and marks it. Never lowers it.
fn raise(kind: Kind) {
    let Ok(kernel) = kernel_limit(kind) else { return };
    let most = match kernel.hard {
        UNLIMITED => VAST | MARK,
        hard => marked(hard.saturating_sub(PAGE)),
    };
    if most > kernel.soft {
        // If this is refused, the mapping that needs the room fails and reports it.
        set_kernel_limit(kind, Limit { soft: most, ..kernel }).unwrap_or(());
    }
}

/// The largest possible soft limit, in bytes.
#[must_use]
pub fn reach(kind: Kind) -> u64 {
    match kernel_limit(kind) {
        Ok(limit) if !may_raise() => limit.hard,
        _ => UNLIMITED,
    }
}

// ---- the variable ---------------------------------------------------------------------------------------------------

/// Bytes of the variable's value.
pub const VALUE_BYTES: usize = 4 * 17 - 1;

/// The variable's value for the program's present limits.
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
