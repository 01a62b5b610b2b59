"""The examples in docstrings and in docs/python.md, each in a process of its own, and the programs in `examples/`."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import hanare
import pytest

from conftest import PATIENCE

FOLDER = Path(__file__).resolve().parent.parent
MODULES = [hanare, importlib.import_module("hanare._memory"), importlib.import_module("hanare._arrays")]
TESTS = [
    test
    for module in MODULES
    for test in doctest.DocTestFinder().find(module)
    if test.examples and test.name.startswith(module.__name__)
]
RUNS = """
import doctest, sys
text, name = open(sys.argv[1]).read(), sys.argv[2]
test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
raise SystemExit(doctest.DocTestRunner().run(test).failed)
"""


def examine(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / "text").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", RUNS, "text", name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr


def test_every_call_has_an_example() -> None:
    documented = {test.name.rsplit(".", 1)[-1] for test in TESTS}
    calls = {name for name in hanare.__all__ if name.islower() and callable(getattr(hanare, name))}
    assert calls <= documented, calls - documented


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.name)
def test_the_examples_of_docstrings_hold(tmp_path: Path, test: doctest.DocTest) -> None:
    examine(tmp_path, test.docstring or "", test.name)


def test_the_examples_of_the_manual_hold(tmp_path: Path) -> None:
    text = (FOLDER.parent / "docs" / "python.md").read_text()
    assert text.count(">>> ") > 10
    examine(tmp_path, text, "python.md")


@pytest.mark.parametrize("example", sorted((FOLDER / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_programs_verify_themselves(tmp_path: Path, example: Path) -> None:
    needs = {"with_pandas": "pandas", "with_sklearn": "sklearn", "with_duckdb": "duckdb"}
    pytest.importorskip(needs[example.stem])
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("ok: "), done
