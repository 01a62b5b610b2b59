"""Makes sure that the host of a virtual machine has memory behind what a run is about to use.

A guest may report its free huge pages to the host, which takes their memory away. The first access to each of their
parts is then a fault of the host. Filling a reported huge page took 2.1 ms on one machine, and 50 us otherwise. So a
run that uses huge pages would pay for the one before it, and a run that uses base pages would not.
"""

import mmap

HUGE = 2 << 20


def prepare(size):
    """Gets `size` bytes in huge pages from the host and gives them back to the guest. The host gets them seconds later."""
    if size < HUGE:
        return
    with mmap.mmap(-1, size) as memory:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without huge pages
            return
        for at in range(0, size, HUGE):
            memory[at] = 1
