"""The exceptions of this package. Each message is one line: what happened, to what, and what to do next."""

from __future__ import annotations

__all__ = [
    "AlreadyStarted",
    "Error",
    "Incomplete",
    "ModeError",
    "NoRoom",
    "NotFar",
    "NotStarted",
    "NumpyMissing",
    "StartError",
]


class Error(Exception):
    """The base of all exceptions of this package."""


class StartError(Error, RuntimeError):
    """Far memory cannot start: a bad setting, no memory server, or a folder that cannot be written."""


class ModeError(StartError):
    """The trap mode that was asked for does not work here: the kernel is too old, or this user lacks the right."""


class AlreadyStarted(Error, RuntimeError):
    """Far memory runs already, and its budget can no longer be set."""


class NotStarted(Error, RuntimeError):
    """Far memory does not run yet."""


class NoRoom(Error, MemoryError):
    """The memory servers have no room for an array."""


class NotFar(Error, ValueError):
    """An array is not in far memory."""


class NumpyMissing(Error, ImportError):
    """NumPy cannot be imported, or is older than 1.22. Arrays need it; the command does not."""


class Incomplete(Error, OSError):
    """A file of this package is missing or cannot be used."""
