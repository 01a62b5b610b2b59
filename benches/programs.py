#!/usr/bin/env python3
"""The scoreboard: how much slower real programs are with a part of their memory local. `make bench-programs`.

Each program of programs/list.ini runs plain, then under `hanare run` in the default settings: with more local memory
than it needs (130 %) and with parts of it. As root it also runs in a memory cgroup with swap to zram and to a file, at
the memory that Hanare had. Every run must print what the plain run printed.

    local memory of P %   P % of the far memory's peak: the lesser of the bytes allocated far and of the bytes local
                          in a first run without a limit that matters
    near memory           peak of the anonymous memory of the program's processes that is not far. The first run looks
                          at each mapping; the others take the difference of all anonymous and of local far memory
    limit of the cgroup   local memory + near memory (the larger of both figures) + 8 MiB for page tables and other
                          memory that the kernel keeps for a program

Cells are times the plain time, from medians. `over N` is a run that was ended at N times the plain time, `killed` one
that the kernel killed for lack of memory. The last line has the median and the worst of each column. Lines before it
compare the first setting with swap, with the best other setting, and with the floor (scoreboard/floor.py). The exit code is 1 if a run printed something else
(wrong) or ended with another exit code (failed).
"""

import argparse
import contextlib
import json
import os
import platform
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from scoreboard import floor, listing, memory, peers, running, table

AMPLE = 130
# Page tables, kernel stacks and the slack of counters, which the kernel counts for a cgroup.
KERNEL_BYTES = 8 << 20
LOCAL_MIN = 1 << 20
# A run may take this long however short the plain run is: the start of Hanare is not what `over` is about.
LIMIT_MIN = 5.0
PLAIN_LIMIT = 300.0
# A killed run is repeated: the kernel now and then gives up although it could go on.
KILLED_TRIES = 3
START_RUNS = 5
FLOOR_RUNS = 5


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or listing.ROOT / "target").resolve()
    parser.add_argument("--only", default="", help="names of programs, with commas between them")
    parser.add_argument("--percent", default="75,50,25", help="local memory beside 130 %% (%(default)s)")
    parser.add_argument("--runs", type=int, help="runs of each cell (RUNS, else 3)")
    parser.add_argument("--quick", action="store_true", help="small sizes and one run: whether all of it works")
    parser.add_argument("--peers", default="zram,file", help="none, or a comma list of zram and file (%(default)s)")
    parser.add_argument("--hanare", default=os.environ.get("HANARE") or target / "release/hanare")
    parser.add_argument("--settings", default="default", help="columns by flags: 'default;--mode sigbus;--far all'")
    parser.add_argument("--flags", default="", help="flags of `hanare run` for every column")
    parser.add_argument("--over", type=float, default=40, help="times the plain time that a run may take (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="all figures; written after each program")
    parser.add_argument("--details", action="store_true", help="seconds, memory and traffic of each cell below its row")
    parser.add_argument("--target", type=Path, default=target, help="where it builds and works (%(default)s)")
    parser.add_argument("--python", type=Path, help="its Python, which it may install into (TARGET/venv)")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="print the table of such JSON files, and run nothing")
    options = parser.parse_args()
    options.runs = options.runs or (1 if options.quick else int(os.environ.get("RUNS") or 3))
    options.percents = [int(word) for word in options.percent.split(",") if word]
    options.peers = [word for word in options.peers.split(",") if word != "none"]
    options.settings = [word.strip() for word in options.settings.split(";")]
    options.hanare, options.target = str(Path(options.hanare).resolve()), options.target.resolve()
    if options.json and not Path(options.json).absolute().parent.is_dir():
        parser.error(f"--json {options.json}: its folder is not there")
    wrong = [word for word in options.peers if word not in ("zram", "file")]
    if wrong or not all(0 < percent < AMPLE for percent in options.percents) or options.runs < 1:
        parser.error(f"--peers takes zram and file, --percent numbers from 1 to {AMPLE - 1}, --runs 1 or more")
    return options


class Trouble(Exception):
    """Why the cells of a program mean nothing."""


class Column:
    """A way to run a program: under Hanare with a setting, or against swap; with a percentage of its far memory."""

    def __init__(self, kind, percent, setting, title):
        self.kind, self.percent, self.setting, self.title = kind, percent, setting, title

    def flags(self, options):
        return [*shlex.split(options.flags), *([] if self.setting == "default" else shlex.split(self.setting))]


def make_columns(options, kinds):
    columns = []
    for percent in [AMPLE, *options.percents]:
        for setting in options.settings:
            name = "" if len(options.settings) == 1 and setting == "default" else f" {setting}"
            columns.append(Column("hanare", percent, setting, f"{percent} %{name}"))
        columns += [Column(kind, percent, None, f"{percent} % {kind}") for kind in kinds if percent != AMPLE]
    return columns


class Board:
    """Measures programs in columns."""

    def __init__(self, options, places, swaps, columns, raw):
        self.options, self.places, self.swaps, self.columns, self.floor = options, places, swaps, columns, raw
        self.bytes_needed = 0  # by a run of the present program, as far as it is known

    def measure(self, program):
        """Returns the record of a program."""
        row = {"name": program.name, "what": program.what, "fixed_local": bool(program.local), "cells": []}
        row["skipped"] = listing.make_ready(program, self.places)
        if row["skipped"]:
            return row
        try:
            self.fill_row(program, row)
        except Trouble as trouble:
            row["skipped"], row["cells"], row["is_error"] = str(trouble), [], True
        shutil.rmtree(program.work)
        return row

    def fill_row(self, program, row):
        # The first run warms the caches, and its output is what the others are compared with.
        self.bytes_needed = 0
        first = self.run(program, PLAIN_LIMIT)
        self.bytes_needed = memory.needed(first.anon_bytes_peak)
        if first.timed_out or first.code:
            raise Trouble(f"it fails without Hanare: exit code {first.code}: {first.last_line()}")
        row["digest"], row["plain"] = first.digest, {"seconds": [], "anon_bytes_peak": first.anon_bytes_peak}
        limit = max(LIMIT_MIN, self.options.over * first.seconds)
        row["first_runs"] = self.first_far_runs(program, row, limit)
        columns = [c for c in self.columns if not program.local or (c.kind == "hanare" and c.percent == AMPLE)]
        row["cells"] = [self.new_cell(column) for column in columns]
        for _ in range(self.options.runs):
            self.run_plain(program, row)
            limit = max(LIMIT_MIN, self.options.over * min(row["plain"]["seconds"]))
            for column, cell in zip(columns, row["cells"]):
                self.fill(program, row, column, cell, limit)
        self.finish(row)

    def new_cell(self, column):
        return {
            "column": column.title, "kind": column.kind, "percent": column.percent, "setting": column.setting,
            "outcome": "not run", "seconds": [], "overhead_floor_seconds": [], "killed": 0, "over": self.options.over,
        }

    def run(self, program, limit, before=(), enter=None, near=False):
        memory.prepare(self.bytes_needed)
        return running.run(
            [*before, *program.command], work=program.work, env=listing.environment(program.work), limit=limit,
            client=program.client or None, enter=enter, but=self.options.hanare, near=near,
        )

    def run_plain(self, program, row):
        run = self.run(program, PLAIN_LIMIT)
        row["plain"]["seconds"].append(run.seconds)
        row["plain"]["anon_bytes_peak"] = max(row["plain"]["anon_bytes_peak"], run.anon_bytes_peak)
        if run.code or run.digest != row["digest"]:
            raise Trouble(f"it does not print the same twice without Hanare. {run.last_line()}")

    def run_far(self, program, limit, flags, local=None, near=False):
        """Runs a program under Hanare. Returns how it went, and Hanare's figures."""
        file = program.work / "figures.json"
        file.unlink(missing_ok=True)
        local = ["--local", str(local)] if local else []
        line = [self.options.hanare, "run", *local, *flags, "--stats-json", str(file), "--"]
        run = self.run(program, limit, line, near=near)
        try:
            return run, json.loads(file.read_text())
        except (OSError, ValueError):
            return run, {}

    def first_far_runs(self, program, row, limit):
        """Runs a program without scarce memory. Returns its far and near memory, by the result of `far_of`."""
        found = {}
        for column in self.columns:
            if column.kind != "hanare":
                continue
            flags = column.flags(self.options)
            far = far_of(flags)
            if far not in found:
                run, seen = self.run_far(program, limit, flags, program.local, near=True)
                # Memory allocated and never used is not needed local, and freed memory that stays local neither.
                peak = min(seen.get("far_bytes_peak", 0), seen.get("local_bytes_peak", 0))
                found[far] = {
                    "far_bytes_peak": peak, "near_bytes_peak": run.near_bytes_peak,
                    "outcome": outcome_of(run, row), "last_line": run.last_line(),
                }
        return found

    def fill(self, program, row, column, cell, limit):
        """Adds a run to a cell, unless an earlier one has decided it."""
        if cell["outcome"] not in ("not run", "right") or cell.get("why_not"):
            return
        if column.kind == "hanare":
            self.fill_far(program, row, column, cell, limit)
        else:
            self.fill_swap(program, row, column, cell, limit)

    def fill_far(self, program, row, column, cell, limit):
        flags = column.flags(self.options)
        first = row["first_runs"][far_of(flags)]
        if not program.local and first["outcome"] != "right":
            cell["outcome"] = first["outcome"]
            cell["stderr"] = f"the first run, without scarce memory: {first['last_line']}"
            self.report(row, cell)
            return
        local = program.local or max(LOCAL_MIN, first["far_bytes_peak"] * column.percent // 100 // 4096 * 4096)
        run, seen = self.run_far(program, limit, flags, local)
        self.take(run, row, cell)
        cell["mode"], cell["hanare_version"] = seen.get("mode"), seen.get("hanare_version")
        if self.floor and seen:
            cell["overhead_floor_seconds"].append(floor.overhead_seconds(self.floor, seen))
        for name in ("local_bytes_budget", "local_bytes_peak", "far_bytes_peak", "bytes_in", "bytes_out", "faults"):
            cell[name] = max(cell.get(name, 0), seen.get(name, 0))
        # In sigsegv mode far memory is shared memory and not counted as anonymous.
        far_anon = 0 if cell["mode"] == "sigsegv" else seen.get("local_bytes_peak", 0)
        near = max(first["near_bytes_peak"], run.anon_bytes_peak - far_anon)
        cell["near_bytes_peak"] = max(cell.get("near_bytes_peak", 0), near)

    def fill_swap(self, program, row, column, cell, limit):
        ours = next(c for c in row["cells"] if c["kind"] == "hanare" and c["percent"] == column.percent)
        if not ours.get("local_bytes_budget"):
            cell["why_not"] = "Hanare's run gave no figures"
            return
        if "limit_bytes" not in cell:
            cell["limit_bytes"] = ours["local_bytes_budget"] + ours["near_bytes_peak"] + KERNEL_BYTES
        swap = self.swaps[column.kind]
        for _ in range(KILLED_TRIES):
            swap.on()
            try:
                with peers.Group(cell["limit_bytes"]) as group:
                    run = self.run(program, limit, enter=group.enter)
                    kills, cell["group_bytes_peak"] = group.kills(), group.peak_bytes()
            finally:
                swap.off()
            if not kills:
                self.take(run, row, cell)
                return
            cell["killed"] += 1
        cell["outcome"] = "killed"

    def take(self, run, row, cell):
        """Judges a run."""
        cell["outcome"] = outcome_of(run, row)
        if cell["outcome"] == "right":
            cell["seconds"].append(run.seconds)
        elif cell["outcome"] != "over":
            cell["code"], cell["stderr"] = run.code, run.stderr[-2000:]
            self.report(row, cell)

    def report(self, row, cell):
        last = (cell["stderr"].strip().splitlines() or ["nothing on standard error"])[-1]
        code = f" ({cell['code']})" if "code" in cell else ""
        print(f"{row['name']}, {cell['column']}: {cell['outcome']}{code}: {last}", file=sys.stderr, flush=True)

    def finish(self, row):
        """Adds medians and the memory that the row shows."""
        row["plain"]["seconds_median"] = statistics.median(row["plain"]["seconds"])
        for cell in row["cells"]:
            cell["plain_seconds_median"] = row["plain"]["seconds_median"]
            if cell["seconds"]:
                cell["seconds_median"] = statistics.median(cell["seconds"])
            if cell["overhead_floor_seconds"]:
                overhead = statistics.median(cell["overhead_floor_seconds"])
                cell["floor_seconds"] = row["plain"]["seconds_median"] + overhead
        first = next(iter(row["first_runs"].values()))
        row["far_bytes_peak"], row["near_bytes_peak"] = first["far_bytes_peak"], first["near_bytes_peak"]


def outcome_of(run, row):
    if run.timed_out:
        return "over"
    if run.code:
        return "failed"
    return "right" if run.digest == row["digest"] else "wrong"


def far_of(flags):
    """Returns the flags that decide which memory is far, with their values, as one text."""
    found = []
    for at, flag in enumerate(flags):
        name, equals, value = flag.partition("=")
        if name in ("--far", "--near", "--mode"):
            found.append(f"{name} {value if equals else ''.join(flags[at + 1:at + 2])}")
    return " ".join(found)


def start_seconds(options, places):
    """Returns the median time of `hanare run -- true`."""
    line = [options.hanare, "run", *shlex.split(options.flags), "--", "true"]
    env = listing.environment(places.work)
    runs = [running.run(line, work=places.work, env=env, limit=LIMIT_MIN) for _ in range(START_RUNS)]
    failed = [run for run in runs if run.code or run.timed_out]
    if failed:
        sys.exit(f"{shlex.join(line)} fails: {failed[0].last_line()}")
    return statistics.median(run.seconds for run in runs)


def machine():
    with open("/proc/meminfo", encoding="ascii") as file:
        memory = int(file.readline().split()[1]) * 1024
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "cpus": os.cpu_count(), "kernel": platform.release(), "memory_bytes": memory,
        "transparent_huge_pages": huge.read_text().strip() if huge.exists() else None,
    }


def merge(files):
    """Returns one record from several files. Of a cell that is in several, the last counts."""
    columns, rows, whole = [], {}, {}
    for file in files:
        whole = json.loads(Path(file).read_text(encoding="utf-8"))
        columns += [column for column in whole["columns"] if column not in columns]
        for row in whole["programs"]:
            cells = {cell["column"]: cell for cell in rows.get(row["name"], row)["cells"]}
            cells.update({cell["column"]: cell for cell in row["cells"]})
            rows[row["name"]] = {**row, "cells": list(cells.values())}
    order = {column: nth for nth, column in enumerate(sorted(columns, key=table.percent_of, reverse=True))}
    for row in rows.values():
        row["cells"].sort(key=lambda cell: order[cell["column"]])
    return {**whole, "columns": list(order), "programs": list(rows.values())}


def write(whole, file):
    """Replaces the file as a whole, so that an interrupt leaves the last one."""
    if file:
        new = Path(f"{file}.new")
        new.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        new.replace(file)


def interrupt(number, frame):
    del frame
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)  # nothing disturbs the cleaning up
    raise SystemExit(128 + number)


def measure_all(options, stack):
    options.target.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=options.target, prefix="board-"))
    stack.callback(shutil.rmtree, work)
    # A compiler that an interrupted make leaves behind, for one.
    stack.callback(running.cells.end_all, 0)
    python = options.python or listing.interpreter(options.target)
    places = listing.Places(work, work / "bin", options.target / "workloads", python)
    programs = listing.read_list(places, options.quick, [name for name in options.only.split(",") if name])
    swaps = peers.make_peers(options.peers, work, stack)
    columns = make_columns(options, list(swaps))
    raw = floor.measure(options.hanare, 1 if options.quick else FLOOR_RUNS)
    whole = {
        "machine": machine(), "runs": options.runs, "quick": options.quick, "flags": options.flags, "floor": raw,
        "peers": {name: swap.what for name, swap in swaps.items()}, "start_seconds": start_seconds(options, places),
        "columns": [column.title for column in columns], "programs": [],
    }
    board = Board(options, places, swaps, columns, raw)
    print(table.header(whole["columns"]), flush=True)
    for program in programs:
        whole["programs"].append(board.measure(program))
        whole["summary"] = table.summary(whole["programs"], whole["columns"])
        write(whole, options.json)
        show(whole["programs"][-1], whole["columns"], options)
    return whole


def show(row, columns, options):
    print(table.line(row, columns), flush=True)
    if options.details and row["cells"]:
        print(table.details(row), flush=True)


def main():
    options = read_options()
    if options.table:
        whole = merge(options.table)
        print(table.header(whole["columns"]))
        for row in whole["programs"]:
            show(row, whole["columns"], options)
    else:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupt)
        running.cells.adopt_orphans()
        with contextlib.ExitStack() as stack:
            whole = measure_all(options, stack)
    print(f"\nstart of `hanare run -- true`: {whole['start_seconds'] * 1000:.0f} ms")
    for line in table.comparisons(whole["programs"]):
        print(line)
    print(table.last_line(table.summary(whole["programs"], whole["columns"])))
    cells = [cell for row in whole["programs"] for cell in row["cells"]]
    bad = any(row.get("is_error") for row in whole["programs"])
    sys.exit(bad or any(cell["outcome"] in ("wrong", "failed") for cell in cells))


if __name__ == "__main__":
    main()
