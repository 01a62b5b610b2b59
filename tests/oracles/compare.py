"""Compares the policies of `hanare simulate policies` with those of the PyPI package libcachesim, run in this process.

usage: compare.py HANARE DIRECTORY [SEEDS]

For seeded reference strings of several kinds and several sizes of memory, the hits of LRU, FIFO, Clock, 2Q and Belady
must be exactly the same. Those of ARC may differ by 0.2 % of the accesses, because the paper leaves its rounding open.
Objects have unit size. The last line says how much was compared. The exit code is 1 when a comparison fails.
"""

import bisect
import json
import random
import subprocess
import sys

import libcachesim

ORACLES = {
    "lru": (libcachesim.LRU, {}),
    "fifo": (libcachesim.FIFO, {}),
    # An access that brings a page in sets its bit, as a trap does in paper 1. By default, libcachesim leaves the bit
    # clear.
    "clock": (libcachesim.Clock, {"init_freq": 1}),
    "2q": (libcachesim.TwoQ, {}),
    "arc": (libcachesim.ARC, {}),
    "opt": (libcachesim.Belady, {}),
}
TOLERANCE = {"arc": 0.002}
NEVER = 2**62
LENGTH = 20_000


def zipf(rng, pages, skew):
    """Draws independent accesses. The k-th most frequent page has a frequency proportional to 1 / k^skew."""
    total, sums = 0.0, []
    for rank in range(1, pages + 1):
        total += rank**-skew
        sums.append(total)
    order = rng.sample(range(pages), pages)
    return [order[min(bisect.bisect_left(sums, rng.random() * total), pages - 1)] for _ in range(LENGTH)]


def loops(rng, pages):
    """Draws sweeps over ranges of random position and length. Each range is swept several times."""
    touches = []
    while len(touches) < LENGTH:
        first = rng.randrange(pages)
        length = rng.randint(1, pages)
        for _ in range(rng.randint(1, 6)):
            touches.extend((first + index) % pages for index in range(length))
    return touches[:LENGTH]


def mixed(rng, pages):
    """Draws accesses to hot pages, sweeps and random accesses in turn."""
    touches = []
    while len(touches) < LENGTH:
        kind = rng.randrange(3)
        if kind == 0:
            hot = rng.sample(range(pages), max(1, pages // 20))
            touches.extend(rng.choice(hot) for _ in range(rng.randint(1, 400)))
        elif kind == 1:
            first = rng.randrange(pages)
            touches.extend((first + index) % pages for index in range(rng.randint(1, pages)))
        else:
            touches.extend(rng.randrange(pages) for _ in range(rng.randint(1, 200)))
    return touches[:LENGTH]


def oracle_hits(oracle, touches, capacity):
    following, last = [NEVER] * len(touches), {}
    for index in range(len(touches) - 1, -1, -1):
        following[index] = last.get(touches[index], NEVER)
        last[touches[index]] = index
    kind, params = oracle
    cache = kind(capacity, hashpower=12, **params)
    request = libcachesim.Request()
    hits = 0
    for index, page in enumerate(touches):
        request.obj_id, request.obj_size = page, 1
        request.clock_time, request.next_access_vtime = index, following[index]
        hits += bool(cache.get(request))
    return hits


def our_hits(hanare, path, capacities):
    command = [hanare, "simulate", "policies", "--string", path, "--visible", "all", "--json", "-"]
    command += ["--policies", ",".join(ORACLES), "--local", ",".join(f"{capacity}p" for capacity in capacities)]
    rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["rows"]
    return {(row["policy"], row["local_pages"]): row["hits"] for row in rows}


def main():
    hanare, directory = sys.argv[1:3]
    seeds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    compared = wrong = 0
    for seed in range(seeds):
        rng = random.Random(seed)
        pages = rng.randint(200, 1000)
        strings = {
            "zipf": zipf(rng, pages, rng.uniform(0.6, 1.2)),
            "loops": loops(rng, pages),
            "mixed": mixed(rng, pages),
        }
        for name, touches in strings.items():
            path = f"{directory}/{name}{seed}.txt"
            with open(path, "w") as file:
                file.writelines(f"{page}\n" for page in touches)
            capacities = sorted({max(8, pages * share // 100) for share in (3, 10, 25, 50, 75)})
            ours = our_hits(hanare, path, capacities)
            for capacity in capacities:
                for policy, oracle in ORACLES.items():
                    mine, theirs = ours[policy, capacity], oracle_hits(oracle, touches, capacity)
                    compared += 1
                    if abs(mine - theirs) > TOLERANCE.get(policy, 0) * len(touches):
                        wrong += 1
                        print(f"{name}, seed {seed}, {capacity} of {pages} pages: {policy} hits {mine}, libcachesim {theirs}")
    print(f"{compared} compared, {wrong} different")
    sys.exit(wrong > 0)


main()
