"""Far arrays in children, in the workers of multiprocessing, and under `hanare run`."""

from __future__ import annotations

import sys

import pytest

from conftest import CHILDREN, well

FORK = """
import os, hanare, numpy as np
hanare.limit(local="8M")
far = hanare.array(np.arange(2 << 20, dtype="f8"))
budget = hanare.stats().local_bytes_budget
pid = os.fork()
if pid == 0:
    right = np.array_equal(far, np.arange(2 << 20))
    far *= 2
    right &= bool(far[-1] == 2 * (2 << 20) - 2) and hanare.stats().local_bytes_budget <= budget
    right &= hanare.is_far(hanare.zeros(1 << 20))
    os._exit(0 if right else 1)
far += 1
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(status, np.array_equal(far, np.arange(2 << 20) + 1))
"""

POOL = """
import multiprocessing, hanare, numpy as np

def part(nth):
    with hanare.far():
        return float((far[nth::4] * 2).sum())

def echo(array):
    return hanare.is_far(array), array

if __name__ == "__main__":
    hanare.limit(local="8M")
    far = hanare.array(np.arange(2 << 20, dtype="f8"))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(pool.map(part, range(4))) == 2 * far.sum())
        is_far, back = pool.apply(echo, (far[:1000],))
        print(is_far, np.array_equal(back, far[:1000]))
"""

SPAWN = """
import multiprocessing, sys, hanare, numpy as np

def work(array):
    far = hanare.array(array)
    return hanare.is_far(array), hanare.is_far(far), hanare.stats().local_bytes_budget >> 20, float(far.sum())

if __name__ == "__main__":
    hanare.limit(local="8M")
    far = hanare.array(np.arange(1 << 20, dtype="f8"))
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(*pool.apply(work, (far,)), float(far.sum()))
"""

UNDER_RUN = """
import hanare, numpy as np
hanare.limit()
near = np.arange(4 << 20, dtype="f8")
far = hanare.array(near)
far *= 2
print(hanare.stats().local_bytes_budget >> 20, hanare.is_far(near), hanare.is_far(far), bool((far == 2 * near).all()))
"""


def under_run(*wrapped: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "hanare", "run", "--local", "24M", "--", *wrapped, sys.executable)


def test_a_forked_child_has_its_own_copy_of_far_arrays(run) -> None:
    assert well(run(FORK)) == "0 True\n"


def test_workers_that_fork_read_far_arrays_and_send_them_back(run) -> None:
    assert well(run(POOL)) == "True\nFalse True\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_start_anew_have_far_memory_of_their_own(run, tmp_path, method: str) -> None:
    (tmp_path / "program.py").write_text(SPAWN)
    done = run("", command=(sys.executable, "program.py", method), HANARE_LOCAL="12M")
    total = float(sum(range(1 << 20)))
    assert well(done) == f"False True 12 {total} {total}\n"


@pytest.mark.parametrize("wrapped", [(), ("sh", "-c", '"$0" "$@"')])
def test_under_hanare_run_the_engine_of_the_run_is_used(run, wrapped: tuple[str, ...]) -> None:
    assert (
        well(run(UNDER_RUN + CHILDREN + "print(len(children()))", command=under_run(*wrapped)))
        == "24 True True True\n0\n"
    )


def test_under_hanare_run_other_settings_are_ignored_with_a_warning(run) -> None:
    done = run(
        "import hanare; hanare.limit(local='4M'); hanare.zeros(9); print(hanare.stats().local_bytes_budget >> 20)",
        command=under_run(),
    )
    assert done.returncode == 0 and done.stdout == "24\n"
    assert "UserWarning: under 'hanare run' the settings of the run hold" in done.stderr


def test_under_hanare_run_a_fork_keeps_far_arrays(run) -> None:
    assert well(run(FORK.replace('local="8M"', ""), command=under_run())) == "0 True\n"
