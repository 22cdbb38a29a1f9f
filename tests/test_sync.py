"""`sync()` is exact: whatever several processes did before the call is in the index when it returns."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import GroupIndex
from tests.support import DEADLINE, audit, write
from tests.turmoil import SPARE, overflowing, writers

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


def _prepare(bases: list[Path]) -> None:
    (bases[0] / SPARE).mkdir()


@pytest.mark.timeout(180)
def test_10_000_random_operations_a_round(watch: Watch, bases: list[Path]) -> None:
    """FAILURES 1, 2, 3: every other round the queue overflows beside the writers."""
    _prepare(bases)
    index = watch(*bases)
    with writers(4, bases) as started:
        for turn in range(4):
            before = index.health().overflows
            for writer in started:
                writer.go(2_500)
            if turn % 2:
                with overflowing(index, bases[0]):
                    assert all(writer.rests() for writer in started)
            assert turn % 2 or all(writer.rests() for writer in started)
            audit(index, bases)
            health = index.health()
            assert health.state == "live"
            assert health.overflows > before or not turn % 2
            assert health.reconciles >= health.losses > 0 or not health.losses


@pytest.mark.timeout(180)
def test_many_short_bursts(watch: Watch, bases: list[Path]) -> None:
    """Each is over long before the scout has slept its fill."""
    _prepare(bases)
    index = watch(*bases)
    with writers(3, bases) as started:
        for _ in range(60):
            for writer in started:
                writer.go(20)
            assert all(writer.rests() for writer in started)
            audit(index, bases)
    assert index.health().losses == 0
    assert index.health().reconciles == 0


@pytest.mark.timeout(180)
def test_what_came_before_the_call_is_there_beside_busy_writers(watch: Watch, bases: list[Path]) -> None:
    """The queue never runs dry, and still the call returns, with all that its own thread did before."""
    _prepare(bases)
    index = watch(*bases)
    with writers(2, bases) as started:
        for writer in started:
            writer.go(8_000)
        for n in range(100):
            path = write(bases[n % 2] / f"{0x80 + n % 64:02x}" / f"mine{n}_model_0_1")
            index.sync(DEADLINE)
            assert index[f"mine{n}_model"].paths == (str(path),)
            path.rename(path.with_name(f"other{n}_model_0_1"))
            index.sync(DEADLINE)
            assert f"mine{n}_model" not in index
            os.utime(path.with_name(f"other{n}_model_0_1"), ns=(n, n))
            index.sync(DEADLINE)
            assert index[f"other{n}_model"].mtime_ns == n
        assert all(writer.rests() for writer in started)


def test_overflow_during_a_reconcile(watch: Watch, bases: list[Path]) -> None:
    """FAILURES 2: another reconcile follows, and `sync` waits for it too."""
    _prepare(bases)
    for n in range(3_000):
        write(bases[n % 2] / f"{n % 64:02x}" / f"page{n}_model")
    index = watch(*bases)
    for turn in range(3):
        with overflowing(index, bases[0]):
            write(bases[0] / "a0" / f"first{turn}_model")
        with overflowing(index, bases[0]):
            (bases[0] / "a0" / f"first{turn}_model").unlink()
            write(bases[1] / "a1" / f"second{turn}_model")
        index.sync(DEADLINE)
        assert f"first{turn}_model" not in index
        assert f"second{turn}_model" in index
    assert index.health().overflows >= 3
    assert index.health().state == "live"
