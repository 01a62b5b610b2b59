//! The end of a run that cannot go on: one line, an exit code, nothing else.

use std::fmt::{self, Write};

/// A memory server was lost, lied or fell silent.
pub(crate) const EXIT_LOST: i32 = 120;
/// Memory servers and spill are full.
pub(crate) const EXIT_FULL: i32 = 121;

/// A line on the stack: the pager may be in the middle of a fault, where nothing may be allocated.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// Says why on stderr and ends the process at once, without running anything of the program's.
pub(crate) fn die(code: i32, why: fmt::Arguments<'_>) -> ! {
    let mut line = Line { bytes: [0; 512], len: 0 };
    let _ = write!(line, "hanare: {why}");
    line.bytes[line.len] = b'\n';
    // SAFETY: writes a buffer of ours and ends the process; both are async-signal-safe.
    unsafe {
        libc::write(2, line.bytes.as_ptr().cast(), line.len + 1);
        libc::_exit(code)
    }
}
