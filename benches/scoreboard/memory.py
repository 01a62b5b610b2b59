"""Makes sure that the host of a virtual machine has memory behind what a run is about to use.

A guest may report its free huge pages to the host, which takes their memory away. The first access to each of their
parts is then a fault of the host. Filling a reported huge page took 2.1 ms on one machine, and 50 us otherwise. So a
run that uses huge pages would pay for the one before it, and a run that uses base pages would not.
"""

import mmap

HUGE = 2 << 20
# Memory that is prepared for a run, in percent of the memory that the plain program uses.
NEEDED_PERCENT = 300


def prepare(size):
    """Touches `size` bytes in huge pages and frees them. It touches at most half of the memory that is available."""
    size = min(size, available() // 2)
    if size < HUGE:
        return
    with mmap.mmap(-1, size) as memory:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without huge pages
            return
        for at in range(0, size, HUGE):
            memory[at] = 1


def needed(plain_bytes):
    """Returns what to prepare for the run of a program that uses `plain_bytes` by itself."""
    return plain_bytes * NEEDED_PERCENT // 100


def available():
    with open("/proc/meminfo", encoding="ascii") as file:
        found = [line for line in file if line.startswith("MemAvailable:")]
    return int(found[0].split()[1]) * 1024 if found else 0
