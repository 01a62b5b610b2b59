"""The carried command, by its name and as a module."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import hanare

from conftest import PATIENCE, well

MODULE = (sys.executable, "-m", "hanare")


def call(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)


def test_the_command_is_the_same_by_each_name_and_of_the_packages_version() -> None:
    assert well(call(*MODULE, "-V")).split()[:2] == ["hanare", hanare.__version__]
    script = shutil.which("hanare", path=os.pathsep.join([str(Path(sys.executable).parent), *map(str, scripts())]))
    assert script, "the entry point is not installed"
    assert well(call(script, "-V")).split()[:2] == ["hanare", hanare.__version__]


def scripts() -> list[Path]:
    """Returns where `pip install --target` puts scripts."""
    return [Path(hanare.__file__).parent.parent / "bin"]


def test_the_command_needs_no_numpy() -> None:
    hidden = "import runpy, sys; sys.modules['numpy'] = None; runpy.run_module('hanare', run_name='__main__')"
    assert well(call(sys.executable, "-c", hidden, "--version")).startswith("hanare ")


def test_a_program_runs_with_the_carried_preload_library(tmp_path) -> None:
    lines = "".join(f"{(nth * 7919) % 100_003}\n" for nth in range(100_003))
    (tmp_path / "lines").write_text(lines)
    figures = tmp_path / "figures"
    flags = ["run", "--local", "8M", "--far", "128K", "--stats-json", str(figures), "--"]
    done = call(*MODULE, *flags, "sort", "-n", "-S", "32M", str(tmp_path / "lines"), LC_ALL="C")
    assert well(done).split() == [str(nth) for nth in range(100_003)]
    assert '"far_bytes_peak"' in figures.read_text()


def test_codes_of_programs_and_of_failures_come_back() -> None:
    assert call(*MODULE, "run", "--local", "8M", "--", "sh", "-c", "exit 7").returncode == 7
    refused = call(*MODULE, "run", "--local", "much", "--", "true")
    assert refused.returncode in (2, 125) and "much" in refused.stderr
