//! Ranges of far memory in bytes from its start, and the kernel's page.

/// The page of the operating system: the least that can be copied or woken.
pub(crate) const OS_PAGE: usize = 4096;

/// The page, in bytes from the start of far memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}
