"""Far arrays: their values, their lifetime, and what may be said about them."""

from __future__ import annotations

import gc
import pickle
import threading

import hanare
import numpy as np
import pytest

from conftest import BUDGET, until
from hanare._arrays import _bytes_of

MIB = 1 << 20
TWICE = 2 * BUDGET // 8


def numbers(count: int = TWICE) -> np.ndarray:
    return np.random.default_rng(7).random(count)


def test_twice_the_budget_is_sorted_multiplied_and_summed_as_by_numpy() -> None:
    before = hanare.stats()
    near = numbers()
    far = hanare.array(near)
    assert hanare.is_far(far) and not hanare.is_far(near)
    assert far.sum() == near.sum()
    with hanare.far():
        product = far * far[::-1]
    assert hanare.is_far(product)
    assert np.array_equal(product, near * near[::-1])
    rows = far.reshape(-1, 1024)
    assert np.allclose(rows[:64] @ rows[-64:].T, near.reshape(-1, 1024)[:64] @ near.reshape(-1, 1024)[-64:].T)
    far.sort()
    near.sort()
    assert np.array_equal(far, near)
    after = hanare.stats()
    assert after.local_bytes_budget == BUDGET and after.local_bytes_peak <= BUDGET
    assert after.bytes_out - before.bytes_out >= BUDGET and after.bytes_in - before.bytes_in >= BUDGET
    assert after.far_bytes_peak >= far.nbytes + product.nbytes


def test_every_constructor_gives_what_numpy_gives() -> None:
    for order in ("C", "F"):
        for dtype in ("f8", "i2", "?", "c16", "S5", [("a", "i4"), ("b", "f8")]):
            zeroes = hanare.zeros((3, 5), dtype, order)
            expected = np.zeros((3, 5), dtype, order)
            assert zeroes.dtype == expected.dtype and zeroes.strides == expected.strides
            assert np.array_equal(zeroes, expected) and hanare.is_far(zeroes)
    assert hanare.full((2, 2), 7).tolist() == [[7, 7], [7, 7]]
    assert hanare.full(2, 1, dtype=np.float32).dtype == np.float32
    assert hanare.array([[1, 2], [3, 4]], dtype="i8").sum() == 10
    assert hanare.empty(()).shape == () and hanare.empty((0, 9)).size == 0
    words = hanare.array(["one", None, 3], dtype=object)
    assert words.tolist() == ["one", None, 3]


def test_the_last_view_frees_the_memory_of_an_array() -> None:
    hanare.full(BUDGET // 8, 1.0)
    before = hanare.stats().far_bytes
    far = hanare.full(BUDGET // 8, 1.0)
    view = far[::2][3:9]
    del far
    assert hanare.stats().far_bytes - before >= BUDGET
    del view
    assert hanare.stats().far_bytes - before < BUDGET // 4
    for _ in range(40):
        hanare.full(BUDGET // 8, 1.0)
    assert hanare.stats().far_bytes - before < BUDGET // 4


def test_views_slices_and_buffers_outlive_their_base() -> None:
    base = hanare.array(np.arange(TWICE, dtype="f8"))
    views = [base[5:100:7], base.reshape(2, -1)[1, ::-1], base.view("i8")[:10], memoryview(base)[:50], base.T]
    expected = [np.array(view) for view in views]
    del base
    gc.collect()
    churn = [hanare.full(BUDGET // 8, float(nth)) for nth in range(4)]
    for view, right in zip(views, expected):
        assert np.array_equal(np.asarray(view), right)
    assert [part[-1] for part in churn] == [0, 1, 2, 3]


def test_a_pickle_outlives_its_array_and_comes_back_near_or_far() -> None:
    far = hanare.array(numbers(1000))
    expected = np.array(far)
    data = pickle.dumps(far)
    buffers: list[pickle.PickleBuffer] = []
    with_buffers = pickle.dumps(far, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1
    assert np.array_equal(pickle.loads(with_buffers, buffers=buffers), expected)
    del far
    near = pickle.loads(data)
    with hanare.far():
        far = pickle.loads(data).copy()
    assert np.array_equal(near, expected) and not hanare.is_far(near)
    assert np.array_equal(far, expected) and hanare.is_far(far)


def test_a_far_array_that_grows_keeps_its_values() -> None:
    far = hanare.array(np.arange(1000.0))
    far.resize(300_000, refcheck=False)
    assert hanare.is_far(far) and np.array_equal(far[:1000], np.arange(1000.0)) and not far[1000:].any()
    far.resize(10, refcheck=False)
    assert far.tolist() == list(range(10))


def test_files_are_read_into_and_written_from_far_pages(tmp_path) -> None:
    near = numbers()
    far = hanare.array(near)
    path = tmp_path / "numbers"
    far.tofile(path)
    assert np.array_equal(np.fromfile(path), near)
    back = hanare.empty(near.shape)
    with path.open("rb") as file:
        assert file.readinto(back) == near.nbytes
    assert np.array_equal(back, near)


def test_no_room_is_a_memory_error_with_a_reason() -> None:
    with pytest.raises(
        hanare.NoRoom, match=r"Unable to allocate 8\.00 PiB .* the memory servers have no room"
    ) as caught:
        hanare.empty(1 << 50)
    assert isinstance(caught.value, MemoryError) and "\n" not in str(caught.value)
    with pytest.raises(MemoryError, match="Unable to allocate"), hanare.far():
        np.zeros(1 << 50)
    assert hanare.zeros(10).sum() == 0


def test_prefetched_pages_come_before_they_are_accessed() -> None:
    far = hanare.full(TWICE, 3.0)
    # Its second half is in local memory, and gives its room to the pages that are fetched.
    hanare.advise(far[TWICE // 2 :], "discard")
    before = hanare.stats()
    hanare.prefetch(far[: BUDGET // 32])
    until(lambda: hanare.stats().prefetch_pages > before.prefetch_pages)
    assert hanare.stats().faults == before.faults
    assert (far[: TWICE // 2] == 3.0).all() and hanare.stats().prefetch_used > before.prefetch_used
    hanare.prefetch(far[::-2])
    hanare.prefetch(far[:0])


def test_advice_is_about_the_bytes_from_the_first_to_the_last_of_a_view() -> None:
    far = hanare.zeros((40, 50, 60), dtype="f4")
    views = [far, far.T, far[3:7], far[::-2, 5:10, ::-1], far[:, ::-3], far[2, 3, 4:5], far[..., None]]
    bounds = getattr(np, "byte_bounds", None) or np.lib.array_utils.byte_bounds
    for view in views:
        start, length = _bytes_of(view)
        assert (start, start + length) == bounds(view)
    assert _bytes_of(far[:0])[1] == 0


def test_discarded_pages_are_zero_and_their_neighbours_stay() -> None:
    far = hanare.full(BUDGET // 4, 1.0)
    hanare.advise(far[1000:-1000], "discard")
    assert (far[:1000] == 1).all() and (far[-1000:] == 1).all()
    zeroes = int((far == 0).sum())
    assert far.size - 2000 - 1024 <= zeroes <= far.size - 2000
    with pytest.raises(ValueError, match="contiguous"):
        hanare.advise(far[::2], "discard")
    far.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        hanare.advise(far, "discard")


def test_advice_is_refused_for_what_is_not_far_and_for_other_words() -> None:
    for call in (hanare.prefetch, lambda near: hanare.advise(near, "discard")):
        with pytest.raises(hanare.NotFar, match="not in far memory"):
            call(np.ones(BUDGET // 8))
    with pytest.raises(ValueError, match="'dontneed'"):
        hanare.advise(hanare.zeros(10), "dontneed")  # type: ignore[arg-type]


def test_threads_share_far_arrays_and_free_those_of_others() -> None:
    parts, failures = 8, []
    shared = hanare.zeros((parts, BUDGET // 8 // 4))
    made: list[np.ndarray] = [np.empty(0)] * parts

    def work(nth: int) -> None:
        try:
            shared[nth] += nth
            with hanare.far():
                made[nth] = np.arange(MIB // 8) * nth
            hanare.array(shared[nth]).sort()
        except BaseException as error:  # noqa: BLE001 - each is reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(nth,)) for nth in range(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for nth in range(parts):
        assert (shared[nth] == nth).all()
        assert hanare.is_far(made[nth]) and np.array_equal(made[nth], np.arange(MIB // 8) * nth)
    made.clear()
    gc.collect()


def test_many_short_threads_leave_nothing_behind() -> None:
    def work() -> None:
        assert hanare.full(1000, 2.0).sum() == 2000

    for _ in range(300):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
