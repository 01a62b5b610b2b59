"""NumPy arrays in far memory. NumPy itself allocates and frees their data, through the hook that `_far` sets. So an
array's memory lives as long as any array, view or buffer on it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, overload
from collections.abc import Iterator, Sequence

from . import _far, _memory
from ._errors import NoRoom, NotFar, NumpyMissing

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Scalar = TypeVar("Scalar", bound=np.generic)
    Shape = Union[int, Sequence[int]]


@contextlib.contextmanager
def far() -> Iterator[None]:
    """Makes the arrays that NumPy allocates inside the block far, whatever their size.

    The block holds for this thread, or for this asyncio task, only. Blocks may be nested. The arrays outlive the block.

    >>> import hanare, numpy as np
    >>> with hanare.far():
    ...     squares = np.arange(1000) ** 2
    >>> hanare.is_far(squares), int(squares[-1])
    (True, 998001)
    """
    before = _enter()
    try:
        yield
    finally:
        _far.leave(before)


@overload
def empty(shape: Shape, *, order: Literal["C", "F"] = ...) -> NDArray[np.float64]: ...
@overload
def empty(shape: Shape, dtype: type[Scalar] | np.dtype[Scalar], order: Literal["C", "F"] = ...) -> NDArray[Scalar]: ...
@overload
def empty(shape: Shape, dtype: DTypeLike, order: Literal["C", "F"] = ...) -> NDArray[Any]: ...
def empty(shape: Shape, dtype: DTypeLike = float, order: Literal["C", "F"] = "C") -> NDArray[Any]:
    """Returns a far array of a shape and a type, whose values are not set.

    Raises `NoRoom`, a `MemoryError`, if the memory servers have no room.

    >>> import hanare
    >>> hanare.empty((3, 4), dtype="f4").shape
    (3, 4)
    """
    np = _numpy()
    with _room(), far():
        return np.empty(shape, dtype=dtype, order=order)  # type: ignore[no-any-return]


@overload
def zeros(shape: Shape, *, order: Literal["C", "F"] = ...) -> NDArray[np.float64]: ...
@overload
def zeros(shape: Shape, dtype: type[Scalar] | np.dtype[Scalar], order: Literal["C", "F"] = ...) -> NDArray[Scalar]: ...
@overload
def zeros(shape: Shape, dtype: DTypeLike, order: Literal["C", "F"] = ...) -> NDArray[Any]: ...
def zeros(shape: Shape, dtype: DTypeLike = float, order: Literal["C", "F"] = "C") -> NDArray[Any]:
    """Returns a far array of zeroes. Its pages take no memory before they are written.

    Raises `NoRoom`, a `MemoryError`, if the memory servers have no room.

    >>> import hanare
    >>> int(hanare.zeros(1000, dtype=int).sum())
    0
    """
    np = _numpy()
    with _room(), far():
        return np.zeros(shape, dtype=dtype, order=order)  # type: ignore[no-any-return]


@overload
def full(
    shape: Shape, fill_value: ArrayLike, dtype: type[Scalar] | np.dtype[Scalar], order: Literal["C", "F"] = ...
) -> NDArray[Scalar]: ...
@overload
def full(
    shape: Shape, fill_value: ArrayLike, dtype: DTypeLike | None = ..., order: Literal["C", "F"] = ...
) -> NDArray[Any]: ...
def full(
    shape: Shape, fill_value: ArrayLike, dtype: DTypeLike | None = None, order: Literal["C", "F"] = "C"
) -> NDArray[Any]:
    """Returns a far array that is filled with a value.

    Raises `NoRoom`, a `MemoryError`, if the memory servers have no room.

    >>> import hanare
    >>> hanare.full(3, 7).tolist()
    [7, 7, 7]
    """
    np = _numpy()
    with _room(), far():
        return np.full(shape, fill_value, dtype=dtype, order=order)  # type: ignore[no-any-return]


@overload
def array(
    values: ArrayLike, dtype: type[Scalar] | np.dtype[Scalar], order: Literal["K", "A", "C", "F"] = ...
) -> NDArray[Scalar]: ...
@overload
def array(
    values: ArrayLike, dtype: DTypeLike | None = ..., order: Literal["K", "A", "C", "F"] = ...
) -> NDArray[Any]: ...
def array(values: ArrayLike, dtype: DTypeLike | None = None, order: Literal["K", "A", "C", "F"] = "K") -> NDArray[Any]:
    """Returns a far copy of an array, or of anything that NumPy makes an array of.

    Raises `NoRoom`, a `MemoryError`, if the memory servers have no room.

    >>> import hanare
    >>> hanare.array([[1, 2], [3, 4]]).sum(axis=0).tolist()
    [4, 6]
    """
    np = _numpy()
    with _room(), far():
        return np.array(values, dtype=dtype, order=order, copy=True)  # type: ignore[no-any-return]


def is_far(array: NDArray[Any]) -> bool:
    """Returns whether an array's data is in far memory. Under `hanare run`, this holds for every large array.

    >>> import hanare, numpy as np
    >>> hanare.is_far(hanare.zeros(10)[2:4]), hanare.is_far(np.zeros(10))
    (True, False)
    """
    start, _ = _bytes_of(array)
    return _memory.is_open() and _far.contains(start)


def prefetch(array: NDArray[Any]) -> None:
    """Fetches the pages of a far array, or of a view, as far as the budget has room.

    Raises `NotFar` for an array that is not far.

    >>> import hanare
    >>> array = hanare.zeros(2**20)
    >>> hanare.prefetch(array[:1000])
    """
    advise(array, "willneed")


def advise(array: NDArray[Any], advice: Literal["willneed", "discard"]) -> None:
    """Says what will become of the data of a far array.

    `"willneed"`: it will be accessed soon; see `prefetch`. `"discard"`: its values are no longer needed. Whole pages
    of it then read as zeroes, and cost no transfer. The pages at its ends may hold other data, and keep their values.
    To be discarded, an array must be contiguous and writable.

    Raises `NotFar` for an array that is not far.

    >>> import hanare
    >>> array = hanare.full(2**20, 1.0)
    >>> hanare.advise(array, "discard")
    >>> float(array[2**19])
    0.0
    """
    if advice not in ("willneed", "discard"):
        raise ValueError(f"{advice!r} is no advice; give 'willneed' or 'discard'")
    start, length = _bytes_of(array)
    if advice == "discard" and not (array.flags.forc and array.flags.writeable):
        raise ValueError("only a contiguous, writable array can be discarded; discard its parts, or a copy")
    call = _far.discard if advice == "discard" else _far.prefetch
    if length and not (_memory.is_open() and call(start, length)):
        raise NotFar("the array is not in far memory; make it with hanare.array(), or inside 'with hanare.far():'")


def _bytes_of(array: NDArray[Any]) -> tuple[int, int]:
    """Returns the address and the number of the bytes from the first to the last byte of an array."""
    if array.size == 0:
        return array.__array_interface__["data"][0], 0
    reach = [(length - 1) * stride for length, stride in zip(array.shape, array.strides)]
    start = array.__array_interface__["data"][0] + sum(part for part in reach if part < 0)
    return start, sum(abs(part) for part in reach) + array.itemsize


def _numpy() -> ModuleType:
    try:
        import numpy
    except ImportError as error:
        raise NumpyMissing(f"far arrays need NumPy ({error}): pip install numpy") from None
    return numpy


def _enter() -> object:
    """Starts far memory if it does not run yet, and sets NumPy's hook."""
    _numpy()
    _memory.start()
    try:
        return _far.enter()
    except ImportError as error:
        raise NumpyMissing(str(error)) from None


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """Turns NumPy's refusal into one that says what to do next."""
    try:
        yield
    except NoRoom:
        raise
    except MemoryError as error:
        what = str(error) or "the array does not fit"
        raise NoRoom(f"{what}: the memory servers have no room for it; name more of them, or make it smaller") from None
