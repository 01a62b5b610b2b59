"""Far memory for NumPy arrays and for whole programs.

A far array is an ordinary NumPy array. Only a part of it, within a budget, is in this machine's memory. The rest is on
memory servers, and comes back page by page when it is accessed.

>>> import hanare
>>> array = hanare.zeros((1024, 1024))
>>> array += 1
>>> float(array.sum())
1048576.0
"""

from ._arrays import advise, array, empty, far, full, is_far, prefetch, zeros
from ._errors import (
    AlreadyStarted,
    Error,
    Incomplete,
    ModeError,
    NoRoom,
    NotFar,
    NotStarted,
    NumpyMissing,
    StartError,
)
from ._far import __version__
from ._memory import Stats, limit, park, stats

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
    "Stats",
    "__version__",
    "advise",
    "array",
    "empty",
    "far",
    "full",
    "is_far",
    "limit",
    "park",
    "prefetch",
    "stats",
    "zeros",
]
