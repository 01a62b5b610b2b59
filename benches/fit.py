#!/usr/bin/env python3
"""How well `hanare fit` predicts, and how well `hanare run --slowdown` holds. `make bench-fit`.

Each program of programs/list.ini that is named below is fitted once with a quarter of its memory local. Then it runs with
30, 50 and 70 % of its peak, with these very sizes as `--local`, and the medians are compared with what was predicted. The
recording's cost is the time with `--fit` against that without, at a quarter. At last, six of the programs run with
`--slowdown 1.3` and are compared with their plain time.

A program whose needs are missing is skipped, and the table says so. The exit code is 1 if a run failed or printed
something else than the plain run.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from scoreboard import listing, memory, running

PROGRAMS = ["sort", "kmeans", "stencil", "mg", "fft", "is", "duckdb", "dict", "map", "pagerank"]
HELD = ["stencil", "is", "mg", "dict", "map", "pagerank"]
PERCENTS = (30, 50, 70)
QUARTER = "25%"
LIMIT = 900.0
MIB = 1 << 20


class Failed(Exception):
    """Why a program has no figures."""


class Bench:
    """Runs programs, and keeps what came out."""

    def __init__(self, options, places):
        self.options, self.places = options, places
        self.digest = None
        self.bytes_needed = 0  # by a run of the present program, as far as it is known

    def run(self, program, before=()):
        """Runs a program once. Returns its seconds."""
        env = listing.environment(program.work)
        memory.prepare(self.bytes_needed)
        done = running.run([*before, *program.command], work=program.work, env=env, limit=LIMIT)
        if done.timed_out or done.code:
            raise Failed(f"exit code {done.code}: {done.last_line()}" if done.code else f"it took more than {LIMIT} s")
        if self.digest not in (None, done.digest):
            raise Failed("it printed something else than the plain run")
        self.digest = done.digest
        self.bytes_needed = max(self.bytes_needed, memory.needed(done.anon_bytes_peak))
        return done.seconds

    def median(self, program, *flags):
        before = [self.options.hanare, "run", *flags, "--"] if flags else []
        return statistics.median(self.run(program, before) for _ in range(self.options.runs))

    def fit(self, program):
        """Returns what `hanare fit` predicts."""
        file = program.work / "fit.json"
        file.unlink(missing_ok=True)
        self.run(program, [self.options.hanare, "fit", "--json", str(file), "--"])
        if not file.exists():
            raise Failed("hanare fit predicted nothing")
        return json.loads(file.read_text(encoding="utf-8"))

    def measure(self, program):
        """Returns the figures of a program."""
        self.digest, self.bytes_needed = None, 0
        self.run(program)  # warms the caches
        row = {"name": program.name, "plain_s": self.median(program), "sizes": []}
        fit = self.fit(program)
        for percent in PERCENTS:
            predicted = [one for one in fit["rows"] if not one["measured"]]
            said = min(predicted, key=lambda one: abs(one["percent_of_peak"] - percent))
            took = self.median(program, "--local", str(said["local_bytes"]))
            error = said["run_time_s"] / took - 1
            row["sizes"].append({
                "percent": percent, "local_bytes": said["local_bytes"], "predicted_s": said["run_time_s"],
                "measured_s": took, "error": error,
            })
        # The two are run alternately, so that a change of the machine does not look like a cost.
        plain, counted = [], []
        for _ in range(self.options.runs):
            plain.append(self.run(program, [self.options.hanare, "run", "--local", QUARTER, "--"]))
            counted.append(self.run(program, [self.options.hanare, "run", "--local", QUARTER, "--fit", "--"]))
        row["recording_cost"] = statistics.median(counted) / statistics.median(plain) - 1
        if program.name in HELD:
            held = self.median(program, "--slowdown", str(self.options.slowdown))
            row["held_slowdown"] = held / row["plain_s"]
        return row


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or listing.ROOT / "target").resolve()
    parser.add_argument("--only", default="", help="names of programs, with commas between them")
    parser.add_argument("--runs", type=int, default=int(os.environ.get("RUNS") or 3), help="runs of each cell (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one run: whether all of it works")
    parser.add_argument("--slowdown", type=float, default=1.3, help="what is held (%(default)s)")
    parser.add_argument("--hanare", default=os.environ.get("HANARE") or target / "release/hanare")
    parser.add_argument("--json", metavar="FILE", help="all figures")
    parser.add_argument("--target", type=Path, default=target, help="where it builds and works (%(default)s)")
    options = parser.parse_args()
    options.runs = 1 if options.quick else options.runs
    if options.runs < 1:
        parser.error("--runs takes 1 or more")
    options.hanare, options.target = str(Path(options.hanare).resolve()), options.target.resolve()
    return options


def print_row(row):
    if "skipped" in row:
        print(f"{row['name']:10} skipped: {row['skipped']}", flush=True)
        return
    cells = "".join(f"{size['predicted_s']:8.2f} {size['measured_s']:7.2f} {size['error']:+5.0%}" for size in row["sizes"])
    held = f"{row['held_slowdown']:6.2f} x" if "held_slowdown" in row else "        "
    print(f"{row['name']:10} {row['plain_s']:6.2f} {cells} {row['recording_cost']:+6.1%} {held}", flush=True)


def print_summary(rows, options):
    errors = [abs(size["error"]) for row in rows for size in row.get("sizes", [])]
    if errors:
        print(f"error of {len(errors)} predictions: median {statistics.median(errors):.0%}, worst {max(errors):.0%}")
    costs = [row["recording_cost"] for row in rows if "recording_cost" in row]
    if costs:
        print(f"recording costs: median {statistics.median(costs):.1%}, worst {max(costs):.1%}")
    held = [row["held_slowdown"] for row in rows if "held_slowdown" in row]
    if held:
        print(f"--slowdown {options.slowdown}: from {min(held):.2f} to {max(held):.2f} x plain")


def main():
    options = read_options()
    if not Path(options.hanare).exists():
        sys.exit(f"{options.hanare} is not there: make build, or --hanare FILE")
    only = [name for name in options.only.split(",") if name] or PROGRAMS
    rows = []
    with tempfile.TemporaryDirectory(prefix="hanare-fit-") as folder:
        work, target = Path(folder), options.target
        places = listing.Places(work, work / "bin", target / "workloads", listing.interpreter(target))
        bench = Bench(options, places)
        print("program     plain " + "".join(f"  {percent} %: said, took, off" for percent in PERCENTS) + "  cost    held")
        for program in listing.read_list(places, options.quick, only):
            missing = listing.make_ready(program, places)
            try:
                row = {"name": program.name, "skipped": missing} if missing else bench.measure(program)
            except Failed as failed:
                row = {"name": program.name, "skipped": str(failed), "is_error": True}
            rows.append(row)
            print_row(row)
    print_summary(rows, options)
    if options.json:
        Path(options.json).write_text(json.dumps({"runs": options.runs, "programs": rows}, indent=1) + "\n", encoding="utf-8")
    sys.exit(any(row.get("is_error") for row in rows))


if __name__ == "__main__":
    main()
