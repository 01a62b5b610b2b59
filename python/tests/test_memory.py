"""How far memory starts, and each way in which it cannot. Each case is a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import CHILDREN, until, well

SORTS = """
import hanare, numpy as np
near = np.random.default_rng(1).random(1 << 20)
far = hanare.array(near)
far.sort(); near.sort()
assert np.array_equal(far, near)
print(hanare.stats().local_bytes_budget >> 20)
"""

CATCHES = """
import hanare
try:
    {call}
except hanare.Error as error:
    print(type(error).__name__, error, sep=": ")
"""


def test_the_budget_comes_from_the_call_else_from_the_variable_else_from_the_machine(run) -> None:
    assert well(run("import hanare; hanare.limit(local='8M')" + SORTS, HANARE_LOCAL="4M")) == "8\n"
    assert well(run("import hanare; hanare.limit(policy='lru')" + SORTS, HANARE_LOCAL="4M")) == "4\n"
    assert well(run(SORTS, HANARE_LOCAL="4M")) == "4\n"
    assert int(well(run(SORTS))) > 64


@pytest.mark.parametrize("mode", ["thread", "sigbus", "sigsegv"])
def test_arrays_work_in_each_trap_mode(run, mode: str) -> None:
    done = run(f"import hanare; hanare.limit(local='4M', mode='{mode}')" + SORTS)
    if "ModeError" in done.stderr:
        pytest.skip(f"mode {mode} does not work here")
    assert well(done) == "4\n"


@pytest.mark.parametrize(
    ("call", "variables", "name", "part"),
    [
        ("hanare.limit(local='much')", {}, "StartError", "'much' is not a size"),
        ("hanare.limit(local='4K')", {}, "StartError", "give at least --local"),
        ("hanare.limit(local='900T')", {}, "StartError", "give less"),
        ("hanare.limit(policy='lur')", {}, "StartError", "did you mean 'lru'?"),
        ("hanare.limit(policy='l\\0')", {}, "StartError", "null byte"),
        ("hanare.limit(servers=['127.0.0.1:1'])", {}, "StartError", "127.0.0.1:1"),
        ("hanare.zeros(9)", {"HANARE_LOCAL": "-1"}, "StartError", "HANARE_LOCAL: '-1'"),
        ("hanare.zeros(9)", {"HANARE_BIN": "/nowhere/hanare"}, "StartError", "/nowhere/hanare"),
        ("hanare.zeros(9)", {"TMPDIR": "/proc/self"}, "StartError", "set TMPDIR to a writable directory"),
        ("hanare.limit(mode='thread')", {"HANARE_DISABLE": "userfaultfd"}, "ModeError", "userfaultfd cannot be opened"),
        ("hanare.limit(mode='thread')", {"HANARE_DISABLE": "kernel_faults"}, "ModeError", "for this user"),
        ("hanare.limit(mode='thread')", {"HANARE_DISABLE": "wp"}, "ModeError", "cannot protect pages"),
        ("hanare.stats()", {}, "NotStarted", "hanare.limit()"),
        ("hanare.zeros(9); hanare.limit(local='8M')", {}, "AlreadyStarted", "before the first far array"),
    ],
)
def test_each_failure_is_one_exception_with_one_line(
    run, call: str, variables: dict[str, str], name: str, part: str
) -> None:
    said = well(run(CATCHES.format(call=call), **variables))
    assert said.startswith(f"{name}: ") and said.count("\n") == 1 and part in said, said


def test_a_start_that_failed_can_be_tried_again(run) -> None:
    script = CATCHES.format(call="hanare.limit(local='much')") + "hanare.limit(local='8M')" + SORTS
    assert well(run(script)).splitlines()[1:] == ["8"]


def test_a_home_that_cannot_be_written_does_not_matter(run) -> None:
    assert well(run(SORTS, HOME="/proc/self", XDG_CACHE_HOME="/proc/self", HANARE_LOCAL="4M")) == "4\n"


def test_without_numpy_only_arrays_fail(run) -> None:
    calls = "hanare.limit(local='8M'); print(hanare.stats().local_bytes_budget >> 20); hanare.zeros(9)"
    hidden = "import sys; sys.modules['numpy'] = None\n"
    said = well(run(hidden + CATCHES.format(call=calls))).splitlines()
    assert (
        said[0] == "8" and said[1].startswith("NumpyMissing: far arrays need NumPy") and "pip install numpy" in said[1]
    )


def test_a_missing_file_of_the_package_is_named(run) -> None:
    script = "import pathlib, hanare._command as c; c.FOLDER = pathlib.Path('/nowhere')\n"
    said = well(run(script + CATCHES.format(call="hanare.zeros(9)")))
    assert said.startswith("Incomplete: /nowhere/libhanare.so is missing; reinstall"), said


def test_no_server_is_left_behind(run) -> None:
    budget, *servers = well(run(SORTS + CHILDREN + "print(*children())", HANARE_LOCAL="4M")).split()
    assert budget == "4" and len(servers) == 1
    until(lambda: not Path("/proc", servers[0]).exists())


PARKS = """
import hanare, numpy as np
hanare.limit(local="64M")
array = hanare.array(np.arange(4 << 20, dtype=np.uint64))
near = hanare.stats().local_bytes
left = hanare.park()
assert left > 30 << 20 and hanare.stats().local_bytes <= near - left + (1 << 20), (left, near, hanare.stats())
assert hanare.stats().local_bytes_budget == 64 << 20
assert np.array_equal(array, np.arange(4 << 20, dtype=np.uint64))
array += 1
hanare.park()
assert int(array[5]) == 6 and int(array.sum()) == (4 << 20) * ((4 << 20) + 1) // 2
print("right")
"""


def test_parked_arrays_leave_and_come_back_with_their_values(run) -> None:
    assert well(run(PARKS)) == "right\n"
    said = well(run(CATCHES.format(call="hanare.park()")))
    assert said.startswith("NotStarted: ") and said.count("\n") == 1


def test_a_process_is_parked_from_outside(run) -> None:
    """The command finds a process that has started far memory itself."""
    script = PARKS.replace("left = hanare.park()", "left = outside()").replace("import hanare", OUTSIDE, 1)
    assert well(run(script)) == "right\n"


OUTSIDE = """
import os, subprocess, sys, hanare
def outside():
    before = hanare.stats().local_bytes
    done = subprocess.run([sys.executable, "-m", "hanare", "park", str(os.getpid())], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("parked ") and done.stderr == "", done
    return before - hanare.stats().local_bytes
import hanare"""
