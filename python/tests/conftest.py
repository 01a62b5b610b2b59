"""What the tests share. They run against the installed package, with a budget that their arrays exceed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import hanare
import pytest

BUDGET = 16 << 20
# Seconds for a program that a test starts.
PATIENCE = 120

# Part of a script: lists the processes that it has started.
CHILDREN = """
import os, pathlib
def children():
    stats = [(path.parent.name, path.read_text()) for path in pathlib.Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return [pid for pid, stat in stats if stat.rsplit(")", 1)[1].split()[1] == str(os.getpid())]
"""

hanare.limit(local=BUDGET)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Returns a function that runs a script, or a whole command, in a process of its own and in a folder of its own."""

    def start(script: str, *, command: tuple[str, ...] = (sys.executable,), **variables: str):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HANARE_")}
        # Python warns of a fork in a process with threads, and Hanare has some.
        clean["PYTHONWARNINGS"] = "ignore::DeprecationWarning"
        return subprocess.run(
            [*command, "-c", script],
            env={**clean, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    return start


def well(done: subprocess.CompletedProcess[str]) -> str:
    """Returns what a process printed, which ended with 0 and said nothing on standard error."""
    assert done.returncode == 0 and done.stderr == "", done
    return done.stdout


def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds, for a bounded time."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)
