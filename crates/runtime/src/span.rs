//! Ranges of far memory as byte offsets, and the size of the kernel's page.

/// Size of the operating system's page in bytes. It is the smallest range that userfaultfd copies or wakes.
pub(crate) const OS_PAGE: usize = 4096;

/// A range of far memory. Its offset is in bytes from the start of far memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}
