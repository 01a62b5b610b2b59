"""Starts far memory in this process, and tells its counters."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import NoReturn
from collections.abc import Sequence

from . import _far
from ._command import carried
from ._errors import AlreadyStarted, Incomplete, ModeError, NoRoom, NotStarted, StartError

_lock = threading.RLock()
_is_started = False

# The exit code with which the library ends a process when far memory cannot start.
_REFUSED = 125
# Seconds within which a trial must end. A private server becomes ready within 10.
_TRIAL_SECONDS_MAX = 60
# The program of a trial: it loads the library, starts far memory, and ends.
_TRIAL = """
import ctypes, os, sys
words = list(map(os.fsencode, sys.argv[1:]))
argv = (ctypes.c_char_p * (len(words) + 1))(*words, None)
library = ctypes.CDLL(sys.argv[1])
library.dlm_startup(ctypes.byref(ctypes.c_int(len(words))), ctypes.byref(ctypes.pointer(argv)))
os._exit(0)
"""


@dataclasses.dataclass(frozen=True)
class Stats:
    """Counters of far memory in this process. Sizes are in bytes."""

    local_bytes_budget: int
    """What the budget allows in local memory."""
    local_bytes: int
    """Far memory that is in local memory now."""
    local_bytes_peak: int
    """The peak of `local_bytes`."""
    far_bytes: int
    """Far memory that is allocated now."""
    far_bytes_peak: int
    """The peak of `far_bytes`."""
    faults: int
    """Accesses that trapped, of every kind."""
    pages_in: int
    """Pages fetched from memory servers."""
    bytes_in: int
    """Bytes of the pages in `pages_in`."""
    pages_out: int
    """Pages written back to memory servers."""
    bytes_out: int
    """Bytes of the pages in `pages_out`."""
    prefetch_pages: int
    """Pages fetched before the program accessed them."""
    prefetch_used: int
    """Prefetched pages that the program then accessed."""
    swap_ns: int
    """Nanoseconds for which threads waited for pages."""


def limit(
    local: int | str | None = None,
    *,
    servers: Sequence[str] = (),
    page_size: int | str | None = None,
    policy: str | None = None,
    prefetch: str | None = None,
    mode: str | None = None,
    key: str | os.PathLike[str] | None = None,
    seal: str | None = None,
) -> None:
    """Starts far memory in this process with a budget, before its first use.

    `local` is the most that far arrays may take of this machine's memory: bytes, or text such as `"512M"` or `"4G"`.
    `servers` are memory servers as `HOST:PORT`; without any, a private one is started, and ends with the process. The
    other settings are those of `hanare run`. What is left out comes from the variables `HANARE_*`, else is the default.

    Under `hanare run`, the settings of the run hold, and this call only warns.

    Raises `AlreadyStarted` after the first use, and `StartError` if far memory cannot start.

    >>> import hanare
    >>> hanare.limit(local="64M")
    >>> hanare.stats().local_bytes_budget // 2**20
    64
    """
    given = [
        ("--local", local),
        *(("--server", server) for server in servers),
        ("--page-size", page_size),
        ("--policy", policy),
        ("--prefetch", prefetch),
        ("--mode", mode),
        ("--key", key),
        ("--seal", seal),
    ]
    words = [word for name, value in given if value is not None for word in (name, _text(value))]
    with _lock:
        if _is_started:
            raise AlreadyStarted("far memory runs already; call hanare.limit() before the first far array")
        _start(words)


def start() -> None:
    """Starts far memory by the variables `HANARE_*` and the defaults, if it does not run yet."""
    if not _is_started:
        with _lock:
            if not _is_started:
                _start([])


def stats() -> Stats:
    """Returns the counters of far memory in this process.

    Raises `NotStarted` before the first use of far memory.

    >>> import hanare
    >>> array = hanare.zeros(2**20)
    >>> hanare.stats().far_bytes >= array.nbytes
    True
    """
    counters = _far.stats() if is_open() else None
    if counters is None:
        raise NotStarted("far memory does not run yet; make a far array or call hanare.limit() first")
    return Stats(*counters)


def park() -> int:
    """Sends the far memory of this process away, until the process accesses it again. Returns how many bytes left.

    For a notebook that does nothing for a while. The budget stays as it is, and each page comes back at its next access.
    With a private server, what leaves goes to that server's memory on this machine. `hanare park PID` does the same from
    outside.

    Raises `NotStarted` before the first use of far memory, and `NoRoom` if the servers have no room for all of it.

    >>> import hanare
    >>> array = hanare.full(2**20, 7.0)
    >>> hanare.park() >= array.nbytes // 2
    True
    >>> float(array.sum())
    7340032.0
    """
    before = stats().local_bytes
    try:
        _far.park()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NoRoom("the memory servers have no room for all far memory, so it stays near; give them more") from None
        raise
    return max(0, before - stats().local_bytes)


def _text(value: int | str | os.PathLike[str]) -> str:
    return str(value) if isinstance(value, int) else os.fspath(value)


def is_open() -> bool:
    """Returns whether this process has a library of far memory: its own after the start, or that of `hanare run`."""
    return _is_started or _far.find()


def _start(words: list[str]) -> None:
    """Starts far memory with these options. The caller holds the lock."""
    global _is_started
    if _far.find():
        if words:
            warnings.warn(
                "under 'hanare run' the settings of the run hold; those of hanare.limit() are ignored", stacklevel=3
            )
        words = []
    else:
        library = carried("libhanare.so")
        try:
            _far.load(library)
        except OSError as error:
            raise Incomplete(f"far memory cannot be loaded: {error}; {_advice(str(error))}") from None
        _try(library, words)
    _far.start([os.fsencode(word) for word in words])
    _is_started = True


def _advice(reason: str) -> str:
    if "static TLS" in reason:
        return "start Python with GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096, or under 'hanare run'"
    return "reinstall hanare: pip install --force-reinstall hanare"


def _try(library: Path, words: list[str]) -> None:
    """Starts far memory in a process of its own first. If it cannot start, the library ends the process that asked."""
    if not sys.executable:
        return
    command = [sys.executable, "-I", "-S", "-c", _TRIAL, str(library), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TRIAL_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise StartError(f"far memory did not start within {_TRIAL_SECONDS_MAX} s; see 'hanare doctor'") from None
    except (OSError, ValueError) as error:
        raise StartError(f"far memory cannot be tried out: {sys.executable}: {error}") from None
    if done.returncode == _REFUSED:
        _refuse(done.stderr.decode(errors="replace"))


def _refuse(said: str) -> NoReturn:
    """Raises the exception for the last line that the library printed."""
    lines = [line for line in said.splitlines() if line.startswith("hanare: ")]
    reason = lines[-1][len("hanare: ") :] if lines else "far memory cannot start; see 'hanare doctor'"
    raise (ModeError if reason.startswith("trap mode ") else StartError)(reason)
