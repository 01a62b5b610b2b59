"""The types of the package: its own, those of its extension, and a program that uses them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hanare
import pytest

HERE = Path(__file__).parent


def check(tmp_path: Path, *words: str) -> None:
    pytest.importorskip("mypy")
    cache = ["--cache-dir", str(tmp_path)] if words[0] == "mypy" else []
    done = subprocess.run(
        [sys.executable, "-m", *words, *cache], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_and_a_typed_program_pass_mypy_strict(tmp_path: Path) -> None:
    package = Path(hanare.__file__).parent
    check(tmp_path, "mypy", "--strict", str(HERE / "typed.py"), *map(str, package.glob("*.py")))


def test_the_stub_of_the_extension_agrees_with_it(tmp_path: Path) -> None:
    check(tmp_path, "mypy.stubtest", "hanare._far")
