"""`with hanare.far()`: where it holds, and where it does not."""

from __future__ import annotations

import asyncio
import threading

import hanare
import numpy as np
import pytest


def is_set() -> bool:
    return hanare.is_far(np.ones(1000))


def test_only_arrays_of_the_block_are_far_and_they_outlive_it() -> None:
    near = np.arange(1000)
    with hanare.far():
        far = np.arange(1000)
        derived = np.sqrt(near) + 1
    assert [hanare.is_far(array) for array in (near, far, derived, far * 2)] == [False, True, True, False]
    assert np.array_equal(far, near) and np.array_equal(derived, np.sqrt(near) + 1)


def test_blocks_are_nested_and_end_with_an_exception() -> None:
    with hanare.far():
        with hanare.far():
            assert is_set()
        assert is_set()
        with pytest.raises(KeyError), hanare.far():
            raise KeyError
        assert is_set()
    assert not is_set()


def test_a_block_holds_for_its_own_thread_only() -> None:
    inside, done = threading.Event(), threading.Event()
    seen: dict[str, bool] = {}

    def other() -> None:
        inside.wait(60)
        seen["before"] = is_set()
        with hanare.far():
            done.set()
            seen["in"] = is_set()
        seen["after"] = is_set()

    thread = threading.Thread(target=other)
    thread.start()
    with hanare.far():
        inside.set()
        assert done.wait(60)
        assert is_set()
    assert not is_set()
    thread.join(60)
    assert seen == {"before": False, "in": True, "after": False}


def test_a_block_holds_for_its_own_task_only() -> None:
    async def with_block(turn: asyncio.Event) -> bool:
        with hanare.far():
            turn.set()
            await asyncio.sleep(0)
            return is_set()

    async def without(turn: asyncio.Event) -> bool:
        await turn.wait()
        return is_set()

    async def both() -> list[bool]:
        turn = asyncio.Event()
        return list(await asyncio.gather(with_block(turn), without(turn)))

    assert asyncio.run(both()) == [True, False]
