//! Makes existing memory of the program far without changing its address. Static arrays need this, because no call
//! allocates them.
//!
//! The pages are moved aside, to another address, and an alias mapping of far memory takes their place. Then their
//! contents are copied to the alias mapping by ordinary writes, which fault. So local memory stays within the budget
//! from the start.

use hanare_sys::copy;
use hanare_sys::map::{self, MapError, Mapping};
use hanare_sys::pagemap::Pagemap;
use hanare_sys::signal::SignalMask;

use crate::process::{active, ready};
use crate::span::{OS_PAGE, Span};
use crate::view::ViewError;
use crate::windows::{MARK, WINDOWS_MAX};
use crate::{gate, places};

/// Most successful calls of [`adopt`] in a process.
pub const ADOPTED_MAX: usize = WINDOWS_MAX;

/// Why memory at a given address cannot be made far.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Far memory is not running, or has no room.
    #[error("no room in far memory for static arrays of {0} bytes; raise HANARE_RESERVE or set HANARE_STATIC=off")]
    Room(usize),
    /// There is no space to move the pages aside.
    #[error("cannot put static arrays aside: {0}; set HANARE_STATIC=off")]
    Aside(#[from] MapError),
    /// The alias mapping could not be set up.
    #[error(transparent)]
    View(#[from] ViewError),
}

/// A mapping of the program, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte, page-aligned.
    pub addr: usize,
    /// Length in bytes, whole pages.
    pub len: usize,
    /// Whether the mapping is backed by a file, so that pages never accessed hold the file's bytes. Otherwise they are
    /// zeroes.
    pub file: bool,
}

/// Makes memory far at its address and keeps its contents. The pieces are in address order without gaps.
///
/// # Errors
/// See [`AdoptError`]. After [`AdoptError::View`] the contents are lost, and the program must not run.
///
/// # Safety
/// The caller owns the pieces. Each piece is a private, readable and writable mapping of the program, or a part of one.
/// Nothing else accesses the pieces during the call: no other thread, and no code that resolves a fault of this thread.
/// The trap signal is not blocked.
pub unsafe fn adopt(pieces: &[Piece]) -> Result<(), AdoptError> {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
    let (addr, len) = (first.addr, last.addr + last.len - first.addr);
    let state = ready().filter(|_| active()).ok_or(AdoptError::Room(len))?;
    // The offset and the address of a byte are equal modulo the largest page size, so that huge pages can be moved
    // whole.
    let lead = addr % MARK;
    let taken = (lead + len).next_multiple_of(MARK);
    let mask = SignalMask::block_all();
    let inside = gate::enter();
    let start = state.extents.lock().alloc(taken as u64, MARK as u64).ok_or(AdoptError::Room(len))?;
    // SAFETY: the caller of `adopt` guarantees for the pieces what `take` requires.
    let aside = match unsafe { Aside::take(pieces) } {
        Ok(aside) => aside,
        Err(error) => {
            state.extents.lock().free(start);
            return Err(error);
        }
    };
    let span = Span { offset: start as usize + lead, len };
    // SAFETY: the caller owns the range. Its pieces were moved aside, and `take` only left reservations without access.
    unsafe { state.engine.view().add_window(addr, span) }?;
    places::look_up_in(state.engine.view().windows());
    state.idles_more((taken - len) as u64);
    places::adopted(len);
    state.far_changed();
    drop(inside);
    drop(mask);
    aside.refill();
    Ok(())
}

/// Pieces that were moved aside, in address order without gaps.
struct Aside {
    pieces: Vec<(Piece, Mapping)>,
}

impl Aside {
    /// Moves the pieces aside. On an error all of them are in their old place.
    ///
    /// # Safety
    /// The caller owns the pieces. Each piece is a private mapping or a part of one. Nothing accesses the old addresses
    /// until the pieces are moved back or replaced.
    unsafe fn take(pieces: &[Piece]) -> Result<Aside, AdoptError> {
        let mut aside = Aside { pieces: Vec::with_capacity(pieces.len()) };
        // All target ranges are reserved before any piece is moved. A piece's old range is claimed again right after
        // the move. Otherwise the kernel could use it for another mapping.
        let places: Result<Vec<_>, _> = pieces.iter().map(|piece| Mapping::reserve_none(piece.len)).collect();
        for (&piece, place) in pieces.iter().zip(places?) {
            // SAFETY: the caller owns the piece. `place` is a mapping of our own of the same length, just reserved.
            let moved = unsafe { map::move_to(piece.addr, place.addr(), piece.len) };
            let claimed = moved.and_then(|()| {
                aside.pieces.push((piece, place));
                map::claim(piece.addr, piece.len)
            });
            if let Err(errno) = claimed {
                aside.put_back();
                return Err(MapError::Reserve { len: piece.len, errno }.into());
            }
        }
        Ok(aside)
    }

    /// Moves everything back to its old place.
    fn put_back(self) {
        for (piece, place) in self.pieces {
            let from = place.leak();
            // SAFETY: `from` is the mapping to which `take` moved the piece. The old range belongs to the same caller.
            // Ignored: a mapping that could be moved once can also be moved back.
            let _ = unsafe { map::move_to(from, piece.addr, piece.len) };
        }
    }

    /// Writes the contents of the pieces to the alias mapping that replaced them, and unmaps the pieces.
    fn refill(self) {
        for (piece, place) in self.pieces {
            let mut held = vec![true; piece.len / OS_PAGE];
            if !piece.file && Pagemap::open().and_then(|map| map.held(place.addr(), &mut held)).is_err() {
                // If the page table cannot be read, every page is copied. This is slower, but the result is the same.
                held.fill(true);
            }
            for (index, _) in held.iter().enumerate().filter(|(_, held)| **held) {
                let (from, to) = (place.addr() + index * OS_PAGE, piece.addr + index * OS_PAGE);
                // SAFETY: `from` is a page that was moved aside, and `to` is a page of the alias mapping. Both are
                // mapped, and they do not overlap.
                unsafe { copy::copy(from as *const u8, to as *mut u8, OS_PAGE) };
            }
        }
    }
}
