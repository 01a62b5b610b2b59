//! Makes existing memory of the program far without changing its address. Static arrays need this, because no call
//! allocates them.
//!
//! The pages are moved aside, to another address, and an alias mapping of far memory takes their place. Then the
//! contents are copied to the alias mapping by ordinary writes. These writes fault like writes of the program, so local
//! memory stays within the budget.

use hanare_sys::copy;
use hanare_sys::map::{self, MapError, Mapping};
use hanare_sys::pagemap::Pagemap;
use hanare_sys::signal::SignalMask;

use crate::process::{active, ready};
use crate::profile::SiteKind;
use crate::span::{OS_PAGE, Span};
use crate::view::ViewError;
use crate::windows::{MARK, WINDOWS_MAX};
use crate::{gate, places, profile};

/// Maximum number of successful calls of [`adopt`] in a process.
pub const ADOPTED_MAX: usize = WINDOWS_MAX;

/// Why memory at a given address cannot be made far.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// Far memory is not running, or it has no room for this many bytes.
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
    /// Whether the mapping is backed by a file. If so, pages that were never accessed hold the file's bytes. Otherwise,
    /// they are zero.
    pub file: bool,
}

/// Makes the memory of `pieces` far. Its address and its contents stay the same. The pieces are in address order
/// without gaps.
///
/// # Errors
/// See [`AdoptError`]. After [`AdoptError::View`] the contents are lost, and the program must not run.
///
/// # Safety
/// The caller owns the pieces. Each piece is a private, readable and writable mapping of the program, or a part of one.
/// During the call, no other thread accesses the pieces, and neither does the code that resolves faults of this thread.
/// The trap signal is not blocked.
pub unsafe fn adopt(pieces: &[Piece]) -> Result<(), AdoptError> {
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(()) };
    let (addr, len) = (first.addr, last.addr + last.len - first.addr);
    let state = ready().filter(|_| active()).ok_or(AdoptError::Room(len))?;
    // The offset of a byte in far memory and its address are congruent modulo the largest page size. So a huge page can
    // be moved as a whole.
    let lead = addr % MARK;
    let taken = (lead + len).next_multiple_of(MARK);
    let mask = SignalMask::block_all();
    let inside = gate::enter();
    let start = state.extents.lock().alloc(taken as u64, MARK as u64).ok_or(AdoptError::Room(len))?;
    // SAFETY: the caller of `adopt` owns the pieces, and nothing else accesses them during the call.
    let aside = match unsafe { Aside::take(pieces) } {
        Ok(aside) => aside,
        Err(error) => {
            state.extents.lock().free(start);
            return Err(error);
        }
    };
    let span = Span { offset: start as usize + lead, len };
    // SAFETY: the caller owns the range. `take` has moved its contents aside and left only inaccessible reservations,
    // so the alias mapping replaces nothing in use.
    unsafe { state.engine.view().add_window(addr, span) }?;
    places::look_up_in(state.engine.view().windows());
    state.idles_more((taken - len) as u64);
    places::adopted(len);
    state.far_changed();
    profile::kept_for(SiteKind::Arrays, span.offset, len);
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
    /// Moves the pieces aside, to other addresses. On an error, all pieces are back at their old addresses.
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
            // SAFETY: the caller owns the piece. `place` has the same length and was just reserved, so nothing else
            // uses its range.
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

    /// Moves all pieces back to their old addresses.
    fn put_back(self) {
        for (piece, place) in self.pieces {
            let from = place.leak();
            // SAFETY: `take` moved the piece to `from`, so nothing else uses that mapping. The piece's old range
            // belongs to the caller of `take`.
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
