//! The public API of far memory, which the preload library and the C API call. Each call is documented in its own
//! module; this module only collects them.

pub use crate::adopt::{ADOPTED_MAX, adopt};
pub use crate::calls::{
    call_traps, may_do_async_io, mode_without_calls, needs_thread_mode, trap_calls_by, will_be_confined,
};
pub use crate::expel::{expel, make_hole};
pub use crate::fork::{
    before as before_fork, can_fork, in_child as forked_child, in_parent as after_fork, stack_is_far,
};
pub use crate::keeper::shutdown;
pub use crate::park::{ParkError, park};
pub use crate::places::{contains, is_hole, is_started, run};
pub use crate::process::{active, ensure_started, is_borrowed, is_dormant, is_due, snapshot, threshold, trap_signal};
pub use crate::ranges::{
    alloc, alloc_unpromised, allocation, claim, discard, free, is_allocated, is_readable, is_writable, lock,
    lock_again, lock_moved, locked_run, open_until, protect, release, reserve, resize, seals, unlock, unlock_all,
    will_need,
};
pub use crate::small::{allocates_near, are_far as small_blocks_are_far};
pub use crate::start::{StartError, before_start, rehearse, start, start_later};
pub use crate::threads::{an_own_thread, is_alone, is_own_thread, leaves};
pub use crate::view::has_rings;
