"""The command `hanare`, which the package carries. Its preload library lies beside it, where it looks first."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from ._errors import Incomplete

FOLDER = Path(__file__).resolve().parent / "bin"


def carried(name: str) -> Path:
    """Returns the path of a file that the package carries."""
    path = FOLDER / name
    if not path.is_file():
        raise Incomplete(f"{path} is missing; reinstall hanare: pip install --force-reinstall hanare")
    return path


def main() -> NoReturn:
    """Executes the command with this process's arguments."""
    try:
        path = carried("hanare")
        os.execv(path, ["hanare", *sys.argv[1:]])
    except Incomplete as error:
        reason = str(error)
    except OSError as error:
        reason = f"{path} cannot be executed: {error.strerror}; reinstall hanare on a file system that allows programs"
    print(f"hanare: {reason}", file=sys.stderr)
    raise SystemExit(125)
