"""The lines for operators: with keys, and no flood of them."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import Cleaner, Evictor, GroupIndex, logs, records
from nixl_index.link import Isolation
from nixl_index.logs import EVENTS, MAX_TOPICS, EventLog
from tests.provoke import flood, held
from tests.support import DEADLINE, eventually, page_key, write_page
from tests.test_fault_unlink import immutable

Watch = Callable[..., GroupIndex]
logger = logging.getLogger("nixl_index.tests")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(clock: Clock, caplog: pytest.LogCaptureFixture) -> EventLog:
    caplog.set_level(logging.DEBUG)
    return EventLog("/a:/b", clock)


@pytest.fixture
def isolation() -> Isolation:
    """Where the scout runs makes no difference to what is said."""
    return "thread"


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.__dict__.get("event") == name]


# --- a line ---


def test_a_line(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    log.say(logger, "frozen", "100 % of '/mnt/a' is out of sight", base="/mnt/a", disks=3)
    log.say(logger, "ready", "it is", note='with "quotes"', path="/mnt/a b", empty="", odd="caf\udce9")
    first, second = caplog.records
    assert first.getMessage() == ("nixl_index: 100 % of '/mnt/a' is out of sight | event=frozen base=/mnt/a disks=3")
    assert (first.levelno, first.name, first.funcName) == (logging.WARNING, logger.name, "test_a_line")
    assert (first.__dict__["event"], first.__dict__["base"], first.__dict__["disks"]) == ("frozen", "/mnt/a", 3)
    assert second.levelno == logging.INFO
    assert second.getMessage().endswith(
        r'| event=ready base=/a:/b note="with \"quotes\"" path="/mnt/a b" empty="" odd="caf\udce9"'
    )


def test_a_traceback(log: EventLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Not of a line that is held back: it would keep all of its frames alive for as long."""
    for _ in range(2):
        try:
            raise RuntimeError("out of luck")
        except RuntimeError as error:
            log.say(logger, "tick_failed", "a tick failed", error=error)
    clock.now += logs.SECONDS
    log.flush()
    first, second = caplog.records
    assert first.exc_info
    assert first.levelno == logging.ERROR
    assert not second.exc_info
    assert "held_back" not in second.getMessage()


def test_no_event_but_those_that_are_listed(log: EventLog) -> None:
    with pytest.raises(KeyError):
        log.say(logger, "unheard_of", "it is")


def test_every_event_that_is_listed_is_used() -> None:
    source = "".join(path.read_text() for path in Path(logs.__file__).parent.glob("*.py") if path.name != "logs.py")
    assert not [event for event in EVENTS if f'"{event}"' not in source]


# --- not too many ---


def test_one_line_a_minute_and_the_last_one_is_not_lost(
    log: EventLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(10):
        log.say(logger, "lost", f"number {number}")
        clock.now += 5
        log.flush()
    assert [record.getMessage().split(" | ")[0] for record in caplog.records] == ["nixl_index: number 0"]
    clock.now += 10
    log.flush()
    log.flush()
    assert len(caplog.records) == 2
    assert caplog.messages[1] == "nixl_index: number 9 | event=lost base=/a:/b held_back=8"
    assert caplog.records[1].__dict__["held_back"] == 8
    clock.now += 60
    log.say(logger, "lost", "number 10")
    assert caplog.messages[2] == "nixl_index: number 10 | event=lost base=/a:/b"


def test_what_nobody_flushed_counts_as_held_back(log: EventLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        log.say(logger, "lost", "again")
    clock.now += 60
    log.say(logger, "lost", "at last")
    log.flush()
    assert [record.__dict__.get("held_back") for record in caplog.records] == [None, 2]


def test_events_bases_and_subjects_have_lines_of_their_own(log: EventLog, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        log.say(logger, "lost", "one")
        log.say(logger, "overflow", "two")
        log.say(logger, "lost", "three", base="/a")
        log.say(logger, "lost", "four", subject="for a reason")
    assert len(caplog.records) == 4


def test_what_lasts_is_said_once_until_it_is_over(
    log: EventLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        log.say(logger, "locked_out", "by another", base="/a", lasts=True)
        clock.now += 100
        log.flush()
    assert len(caplog.records) == 1
    log.over("locked_out", "/b")
    log.say(logger, "locked_out", "by another", base="/a", lasts=True)
    assert len(caplog.records) == 1
    log.over("locked_out", "/a")
    log.say(logger, "locked_out", "by another", base="/a", lasts=True)
    assert len(caplog.records) == 2


def test_what_is_over_is_not_said_late(log: EventLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """A base that comes and goes: the last line tells how it is."""
    for _ in range(3):
        log.over("back")
        log.say(logger, "frozen", "it is frozen")
        clock.now += 1
        log.over("frozen")
        log.say(logger, "back", "it is back")
        clock.now += 1
    for _ in range(100):
        clock.now += 1
        log.flush()
    assert [record.__dict__["event"] for record in caplog.records] == ["frozen", "back", "back"]
    assert caplog.records[2].__dict__["held_back"] == 1


def test_memory_is_bounded(log: EventLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2 * MAX_TOPICS):
        for _ in range(2):
            log.say(logger, "lost", "for a new reason", subject=str(number))
    assert len(log._topics) == len(log._waiting) == MAX_TOPICS
    assert len(caplog.records) == 2 * MAX_TOPICS
    clock.now += 60
    log.flush()
    assert len(caplog.records) == 3 * MAX_TOPICS
    assert not log._waiting


def test_from_many_threads(log: EventLog, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    def say() -> None:
        for _ in range(500):
            log.say(logger, "lost", "again")
            log.flush()
            log.over("back")

    threads = [threading.Thread(target=say) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 60
    log.flush()
    assert [record.__dict__.get("held_back") for record in caplog.records] == [None, 8 * 500 - 2]


# --- what the index says ---


def test_a_base_that_goes_and_comes(
    watch: Watch, bases: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write_page(bases, 0)
    index = watch(*bases)
    (ready,) = events(caplog, "ready")
    assert "1 groups, 2 shards" in ready.getMessage()
    assert ready.__dict__["base"] == f"{bases[0]}:{bases[1]}"
    bases[0].rename(tmp_path / "away")
    eventually(lambda: index.health().frozen, "it is out of sight")
    (tmp_path / "away").rename(bases[0])
    index.sync(DEADLINE)
    eventually(lambda: events(caplog, "reconciled"), "it is listed again")
    for name in ("frozen", "back"):
        (record,) = events(caplog, name)
        assert f"event={name} base={bases[0]}" in record.getMessage()
        assert record.levelno == logging.WARNING
    (lost,) = events(caplog, "lost")
    assert lost.__dict__["losses"] == 1


def test_a_flood_of_overflows(
    watch: Watch, bases: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, and another one when the minute is over, without any help: nothing happens on the disk any more."""
    path = write_page(bases, 0)[0]
    index = watch(*bases)
    for overflows in range(1, 4):
        with held(index):
            flood(path.parent)
        index.sync(DEADLINE)
        assert index.health().overflows == overflows
    (line,) = events(caplog, "overflow")
    assert records.OVERFLOW in line.getMessage()
    monkeypatch.setattr(logs, "SECONDS", 0.0)
    eventually(lambda: len(events(caplog, "overflow")) == 2, "the last one is said")
    line = events(caplog, "overflow")[1]
    assert (line.__dict__["held_back"], line.__dict__["losses"]) == (1, 3)


def test_groups_in_quarantine(watch: Watch, bases: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """One line for a reason, whichever call met it."""
    paths = [write_page(bases, page)[0] for page in range(3)]
    index = watch(*bases)
    with immutable(*paths):
        assert len(Evictor(index).evict_oldest(1).failed) == 3
        paths += write_page(bases, 3)
        index.sync(DEADLINE)
        with immutable(*paths[3:]):
            assert len(Evictor(index).evict_oldest(1).failed) == 1
        assert index.health().quarantined == 4
    (line,) = events(caplog, "quarantine")
    assert re.search(rf"{page_key(0)}.*Operation not permitted \| event=quarantine", line.getMessage())


def test_a_tick_that_cannot_free_what_it_has_to(
    watch: Watch, bases: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    for page in range(10):
        write_page(bases, page)
    index = watch(*bases)
    cleaner = Cleaner(index, 80, 70, capacity=index.nbytes)
    with index.pin([page_key(page) for page in range(9)]):
        for _ in range(3):
            cleaner.tick()
            index.sync(DEADLINE)
        (line,) = events(caplog, "short")
        assert f"the low watermark of '{bases[0]}:{bases[1]}' was not reached" in line.getMessage()
        assert f"event=short base={bases[0]}:{bases[1]}" in line.getMessage()
    assert cleaner.tick()
    assert len(events(caplog, "short")) == 1
    assert not events(caplog, "hopeless")
