#!/usr/bin/env python3
"""Compares real programs under `hanare run` with the same programs without it: `make test-programs`.

Each program of list.ini runs once plain, and then once in every cell. The cells combine each trap mode with far large
allocations or all allocations far, and with local memory of a quarter or half of the far memory. A cell's result is

    right    the same output (or, where the program checks itself, exit code 0)
    wrong    exit code 0 and another output
    refused  Hanare ended it with one line and a documented exit code
    failed   another exit code      crash  a signal ended it
    hang     it did not compute any more when its time was over      slow  it still computed then

Results are appended to a file at once, and cells that are in the file are not run again. The table is made from the
file. The exit code is 1 when a cell is wrong, failed, crashed or hung.
"""

import argparse
import configparser
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "harness"))
import cells  # noqa: E402

MODES, FARS, LOCALS = ("thread", "sigbus", "sigsegv"), ("large", "all"), ("25%", "50%")
GOOD, BAD = ("right", "refused as listed"), ("wrong", "failed", "crash", "hang")
PREPARE_LIMIT, PLAIN_LIMIT = 600, 60


def main():
    options = read_options()
    cells.adopt_orphans()
    work = Path(options.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    programs = [p for p in read_list() if not options.only or p.name in options.only.split(",")]
    if not programs:
        sys.exit(f"no such program: {options.only}")
    results = Results(work / "results.jsonl", options.again)
    if not options.table:
        install(programs, work, options)
        for program in programs:
            test(program, work, options, results)
    print(table(programs, results))
    bad = [r for r in results.of(programs) if r["result"] in BAD]
    print(f"{len(results.of(programs))} cells, {len(bad)} of them wrong, failed, crashed or hanging")
    sys.exit(1 if bad else 0)


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hanare", default="target/release/hanare", help="the command under test (%(default)s)")
    parser.add_argument("--work", default="target/programs", help="inputs and results (%(default)s)")
    parser.add_argument("--only", help="names of programs, with commas between them")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--far", default=",".join(FARS))
    parser.add_argument("--local", default=",".join(LOCALS))
    parser.add_argument("--quick", action="store_true", help="a quarter local only, and 60 s a cell at most")
    parser.add_argument("--limit", type=float, help="seconds a cell may take (120)")
    parser.add_argument("--again", action="store_true", help="run what was run before, too")
    parser.add_argument("--no-install", action="store_true", help="skip programs that are not there")
    parser.add_argument("--table", action="store_true", help="print the table of what was run, and run nothing")
    options = parser.parse_args()
    options.hanare = str(Path(options.hanare).resolve())
    options.limit = options.limit or (60 if options.quick else 120)
    if options.quick:
        options.local = "25%"
    return options


class Program:
    """One section of list.ini."""

    def __init__(self, section):
        self.name = section.name
        self.what = section.get("what", "")
        self.run = section.get("run", "").strip()
        self.prepare = section.get("prepare", "").strip()
        self.needs = section.get("needs", "").split()
        self.apt = section.get("apt", "").split()
        self.pip = section.get("pip", "").split()
        self.compare = section.get("compare", "stdout")
        self.expect = section.get("expect", "right")
        self.local = section.get("local")
        self.thread_only = section.get("thread only")
        self.missing = None


def read_list(name=None):
    """Returns all programs, or only the one called `name`. The section `common` holds values for other sections."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.read(HERE / "list.ini", encoding="utf-8")
    if name:
        return Program(parser[name])
    return [Program(parser[name]) for name in parser.sections() if name != "common"]


# ---- requirements of programs ----


def install(programs, work, options):
    """Installs missing programs where possible, and prints the names of those that cannot be installed."""
    python = work / "venv/bin/python"
    wanted = sorted({package for p in programs for package in p.apt if any(map(absent, p.needs))})
    if wanted and not options.no_install and os.geteuid() == 0 and shutil.which("apt-get"):
        for package in wanted:  # one by one, because one missing package would make apt refuse all others
            subprocess.run(
                ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends",
                 package],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"},
                stdout=subprocess.DEVNULL, check=False,
            )
    if any(p.pip for p in programs) and not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], check=False)
    for program in programs:
        gone = [need for need in program.needs if absent(need)]
        gone += [package for package in program.pip if not has_python(python, package, options)]
        program.missing = ", ".join(gone) or None
        if gone:
            print(f"{program.name}: skipped, not to be had here: {program.missing}", flush=True)


def absent(executable):
    return shutil.which(executable, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None


def has_python(python, package, options):
    module = {"scikit-learn": "sklearn", "pillow": "PIL"}.get(package, package)
    look = [str(python), "-c", f"import {module}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
    if not python.exists() or (subprocess.run(look, **quiet).returncode and options.no_install):
        return False
    if subprocess.run(look, **quiet).returncode == 0:
        return True
    subprocess.run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", package], check=False)
    return subprocess.run(look, **quiet).returncode == 0


# ---- running ----


def test(program, work, options, results):
    """Runs those cells of a program that have no result yet."""
    wanted = [
        (mode, far, program.local or local)
        for mode in options.modes.split(",")
        if mode == "thread" or not program.thread_only
        for far in options.far.split(",")
        for local in dict.fromkeys([program.local] if program.local else options.local.split(","))
    ]
    wanted = [cell for cell in wanted if not results.has(program, cell)]
    if program.missing or not wanted:
        return
    plain = results.plain.get(program.name) or run_plain(program, work)
    if isinstance(plain, str):
        program.missing = plain
        print(f"{program.name}: skipped: {plain}", flush=True)
        return
    results.keep_plain(program, plain)
    for cell in wanted:
        results.add(run_cell(program, cell, plain, work, options))


def environment(program, work, far):
    shared, inputs = work / "inputs/common", work / "inputs" / program.name
    paths = f"{work}/venv/bin:{os.environ['PATH']}:/usr/sbin:/sbin:/usr/games"
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("HANARE_")},
        "LC_ALL": "C.UTF-8", "PATH": paths, "SRC": str(HERE / "src"), "COMMON": str(shared), "IN": str(inputs),
        "PY": str(work / "venv/bin/python"), "FAR": far, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2",
    }


def shell(script):
    return ["bash", "-euo", "pipefail", "-c", script]


def in_a_place(program, work, far, limit, stats=False):
    """Runs a program in a temporary folder, in which users without rights may write too."""
    with tempfile.TemporaryDirectory(dir=work, prefix="cell-") as place:
        os.chmod(place, 0o777)
        outcome = cells.run(
            shell(program.run), cwd=place, env=environment(program, work, far.replace("PLACE", place)), limit=limit
        )
        return outcome, figures(Path(place) / "hanare.json") if stats else {}


def figures(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def prepare(program, work):
    """Makes a program's inputs, unless they were already made in this way. Returns the error, or None."""
    place, stamp = work / "inputs" / program.name, work / "inputs" / (program.name + ".made")
    if stamp.exists() and stamp.read_text() == program.prepare:
        return None
    making = work / "inputs" / (program.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    outcome = cells.run(
        shell(program.prepare), cwd=str(making), env=environment(program, work, ""), limit=PREPARE_LIMIT, linger=0
    )
    if outcome.code != 0:
        return f"its inputs cannot be made: exit code {outcome.code}: {last_line(outcome.stderr)}"
    shutil.rmtree(place, ignore_errors=True)
    making.rename(place)
    stamp.write_text(program.prepare)
    return None


def run_plain(program, work):
    trouble = prepare(read_list("common"), work) or prepare(program, work)
    if trouble:
        return trouble
    outcomes = [in_a_place(program, work, "", PLAIN_LIMIT)[0] for _ in range(2)]
    for outcome in outcomes:
        if program.expect == "right" and outcome.code != 0:
            return f"it fails without Hanare: exit code {outcome.code}: {last_line(outcome.stderr)}"
    if program.compare == "stdout" and outcomes[0].stdout != outcomes[1].stdout:
        return "it does not print the same twice without Hanare"
    return {
        "seconds": round(min(o.seconds for o in outcomes), 3),
        "digest": digest(outcomes[0].stdout), "stdout": outcomes[0].stdout[-300:].decode(errors="replace"),
    }


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def last_line(text):
    return (text.strip().splitlines() or [""])[-1][:200]


def run_cell(program, cell, plain, work, options):
    mode, far, local = cell
    prefix = f"{options.hanare} run --mode {mode} --far {far} --local {local} --stats-json PLACE/hanare.json --"
    outcome, seen = in_a_place(program, work, prefix, options.limit, stats=True)
    record = {
        "program": program.name, "mode": mode, "far": far, "local": local,
        "result": judge(program, outcome, plain), "code": outcome.code,
        "seconds": round(outcome.seconds, 2), "plain_seconds": plain["seconds"],
        "far_mib": round(seen.get("far_bytes_peak", 0) / (1 << 20)), "mode_used": seen.get("mode"),
        "out_mib": round(seen.get("bytes_out", 0) / (1 << 20)), "at": time.strftime("%F %T"),
    }
    if record["result"] != "right":
        record["reason"] = (outcome.hanare_lines() or [last_line(outcome.stderr)])[0]
        record["stderr"] = outcome.stderr[-2000:]
        record["stdout"] = outcome.stdout[-500:].decode(errors="replace")
    if outcome.stacks:
        record["stacks"] = outcome.stacks
    if outcome.left_behind:
        record["left_behind"] = outcome.left_behind
    print(f"{program.name} {mode} {far} {local}: {record['result']} {record['seconds']} s "
          f"({record['far_mib']} MiB far) {record.get('reason', '')}", flush=True)
    return record


def judge(program, outcome, plain):
    if outcome.timed_out:
        return "slow" if outcome.busy else "hang"
    ours = outcome.code in (cells.LOST, cells.FULL, cells.NO_START, cells.CANNOT_RUN, cells.NOT_FOUND)
    # A pipe, or a program that starts another program, may hide Hanare's exit code.
    ours |= outcome.code != 0 and "hanare: allocations below" in outcome.stderr
    if ours and outcome.hanare_lines():
        return "refused as listed" if program.expect == f"refused {outcome.code}" else "refused"
    if outcome.code > 128:
        return "crash"
    if outcome.code != 0:
        return "failed"
    return "right" if program.compare == "exit" or digest(outcome.stdout) == plain["digest"] else "wrong"


# ---- results ----


class Results:
    """The results, in a file with one line for each result. Of several lines for a cell, only the last counts."""

    def __init__(self, path, again):
        self.path, self.cells, self.plain, self.fresh = path, {}, {}, set()
        self.again = again
        for line in path.read_text().splitlines() if path.exists() else []:
            self.take(json.loads(line))

    def take(self, record):
        if "plain" in record:
            self.plain[record["program"]] = record["plain"]
        else:
            self.cells[(record["program"], record["mode"], record["far"], record["local"])] = record

    def has(self, program, cell):
        return (program.name, *cell) in self.cells and not self.again

    def keep_plain(self, program, plain):
        if self.plain.get(program.name) != plain:
            self.write({"program": program.name, "plain": plain})

    def add(self, record):
        self.write(record)

    def write(self, record):
        self.take(record)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def of(self, programs):
        names = {program.name for program in programs}
        return [record for record in self.cells.values() if record["program"] in names]


def table(programs, results):
    """Returns the table. It has a line for each program and a column for each mode and kind of far memory."""
    heads = " | ".join(f"{mode} {far}" for mode in MODES for far in FARS)
    lines = [f"| program | what is run | plain s | far MiB | {heads} |", "| --- " * (4 + len(MODES) * len(FARS)) + "|"]
    for program in programs:
        own = [r for r in results.cells.values() if r["program"] == program.name]
        if not own:
            lines.append(f"| {program.name} | {program.what} | skipped: {program.missing or 'not run'} |" + " |" * 7)
            continue
        peak = max(r["far_mib"] for r in own)
        shown = " | ".join(cell_text([r for r in own if (r["mode"], r["far"]) == (m, f)]) for m in MODES for f in FARS)
        lines.append(f"| {program.name} | {program.what} | {own[0]['plain_seconds']:.2f} | {peak} | {shown} |")
    return "\n".join(lines)


def cell_text(records):
    """Returns the text of a cell: `right 3.1 x`, or a result for each size of local memory if the results differ."""
    if not records:
        return "-"
    texts = []
    for record in sorted(records, key=lambda r: r["local"]):
        factor = record["seconds"] / max(record["plain_seconds"], 0.01)
        shown = f"right {factor:.1f} x" if record["result"] == "right" else record["result"]
        if record["result"] not in ("right", "hang", "slow"):
            shown += f" ({record['code']})" if record["code"] else ""
        texts.append(shown)
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


if __name__ == "__main__":
    main()
