"""What a run would take at the floor: if each of its traps and transfers took as long as the raw one on this machine.

    at the floor = plain time + faults x trap
                 + pages that a fault fetched alone x (COPY + DONTNEED), of 4 KiB each
                 + all other bytes in and out x memcpy (a private server shares its memory with the run)

With servers, a page that is fetched alone takes a round trip too, and all other bytes go at the rate of a raw stream. The
raw figures are those of `hanare bench floor`. The parts are added, so a run that overlaps them well can be faster. What
is left out: the program's caches and TLB after each trap, huge pages that are moved, and protecting pages against writes.
"""

import json
import subprocess
import sys

NAMES = ("trap_us", "copy_4k_us", "dontneed_4k_us", "memcpy_4k_us", "tcp_rtt_4k_us", "tcp_stream_cold_gb_per_s")
PAGE_BYTES = 4096
# Faults that fetched nothing, by the names of Hanare's figures.
NOTHING_FETCHED = ("faults_first_write", "faults_zero", "faults_rescued", "faults_waited", "faults_hidden")


def measure(hanare, runs):
    """Returns the raw figures by name, medians of `runs`; None if this machine lacks one of them."""
    line = [hanare, "bench", "floor", "--json", "--runs", str(runs)]
    ran = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    if ran.returncode:
        print(f"{' '.join(line)} fails: {ran.stderr.strip()}", file=sys.stderr, flush=True)
    try:
        found = json.loads(ran.stdout)
    except ValueError:
        return None
    raw = {name: found.get(name) for name in NAMES}
    return None if None in raw.values() else raw


def overhead_seconds(raw, seen):
    """Returns the seconds that a run's traps and transfers take at the floor. `seen` are Hanare's figures of the run."""
    faults = seen["faults"]
    alone = max(0, faults - sum(seen.get(name, 0) for name in NOTHING_FETCHED) - seen.get("pages_large", 0))
    alone = min(alone, seen["bytes_in"] // PAGE_BYTES)
    others = seen["bytes_in"] - alone * PAGE_BYTES + seen["bytes_out"]
    each, byte = raw["copy_4k_us"] + raw["dontneed_4k_us"], raw["memcpy_4k_us"] / PAGE_BYTES
    if seen.get("requests", 0) > 0:
        each, byte = each + raw["tcp_rtt_4k_us"], 1e-3 / raw["tcp_stream_cold_gb_per_s"]
    return (faults * raw["trap_us"] + alone * each + others * byte) / 1e6
