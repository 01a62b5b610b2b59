"""A program whose types mypy checks, and that is never run."""

from __future__ import annotations

from typing import Any

import hanare
import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

assert_type(hanare.zeros(10), NDArray[np.float64])
assert_type(hanare.empty((2, 3), dtype=np.int32), NDArray[np.int32])
assert_type(hanare.full((2,), 1, dtype=np.dtype(np.uint8)), NDArray[np.uint8])
assert_type(hanare.array([1, 2], dtype=np.complex128), NDArray[np.complex128])
assert_type(hanare.zeros(3, dtype="f4"), NDArray[Any])
assert_type(hanare.is_far(np.ones(3)), bool)
assert_type(hanare.stats().faults, int)


def total(rows: int) -> float:
    hanare.limit(local="1G", servers=["node7"], page_size=4096)
    with hanare.far():
        table = np.ones((rows, 8))
    hanare.prefetch(table)
    hanare.advise(table, "discard")
    return float(table.sum())
