"""Forks, and ends of the process that no `close` came before: FAILURES 46 and 47. Each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nixl_index.link import Isolation
from tests.support import DEADLINE, eventually, write_page

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
OPEN = """if True:
    import os, signal, sys, threading, time, warnings
    from pathlib import Path
    from nixl_index import Evictor, ForkedError, GroupIndex
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
    isolation, bases = sys.argv[1], [Path(base) for base in sys.argv[2:]]

    def say(word, number):  # in one write: two processes share the pipe
        os.write(1, f"{word} {number}\\n".encode())
"""


def _command(code: str, isolation: Isolation, bases: list[Path]) -> list[str]:
    # Both texts are indented for the eye of the reader: the first line of each opens a block.
    text = OPEN + code.partition("\n")[2]
    return [sys.executable, "-W", "error", "-c", text, isolation, *map(str, bases)]


def _run(code: str, isolation: Isolation, bases: list[Path]) -> list[str]:
    """Run a program to its end: no traceback, no warning, no hang. Returns the words that it printed."""
    done = subprocess.run(
        _command(code, isolation, bases), capture_output=True, text=True, timeout=2 * DEADLINE, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def _gone(pid: int) -> bool:
    """Has the process ended? An orphan stays a zombie where nobody reaps it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# --- 46: forks ---

CHILD = """
    index = GroupIndex.watch(*bases, isolation=isolation)
    group, evictor = index.oldest(), Evictor(index)
    busy = threading.Thread(target=lambda: [index.sync(20) for _ in range(50)])
    busy.start()  # so that locks are held at some fork
    children = []
    for how in ("close", "with", "exit", "hard", "collect", "open") * 2:
        child = os.fork()
        if child:
            children.append(child)
            continue
        calls = [
            index.sync, index.rescan, index.audit, index.wait_ready, index.oldest, index.pop_oldest,
            lambda: len(index), lambda: list(index), lambda: "x" in index, lambda: index["x"],
            lambda: index.nbytes, lambda: index.shards, lambda: index.restore(group),
            evictor.evict_oldest, lambda: evictor.evict_bytes(1), lambda: Evictor(index).evict_oldest(),
        ]
        for call in calls:
            try:
                call()
            except ForkedError as error:
                assert "parent" in str(error)
            else:
                os._exit(3)
        assert index.health().state == "failed"
        if how == "close":
            index.close()
            index.close()
        elif how == "with":
            with index:
                pass
        elif how == "collect":
            import gc
            del index, evictor, calls
            gc.collect()
        elif how == "open":
            with GroupIndex.watch(*bases, isolation=isolation) as other:
                other.sync(20)
                assert len(other) > 0
        if how == "hard":
            os._exit(0)
        sys.exit(0)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    assert statuses == [0] * len(children), statuses
    busy.join()
    (bases[0] / "00").mkdir(exist_ok=True)
    (bases[0] / "00" / "late_m").touch()
    index.sync(20)
    assert "late_m" in index
    assert index.health().scout_restarts == index.health().losses == 0
    assert len(evictor.evict_oldest().evicted) == 1
    index.close()
"""


def test_f46_the_forked_child(isolation: Isolation, bases: list[Path]) -> None:
    """Whatever the child does with its copy, it gets a clear error, and the parent's index goes on; nor does the child
    keep a descriptor of it."""
    for page in range(20):
        write_page(bases, page)
    _run(CHILD, isolation, bases)


def test_f46_the_child_keeps_no_descriptor(isolation: Isolation, bases: list[Path]) -> None:
    code = """
    before = sorted(os.listdir("/proc/self/fd"))
    index = GroupIndex.watch(*bases, isolation=isolation)
    child = os.fork()
    if not child:
        os._exit(0 if sorted(os.listdir("/proc/self/fd")) == before else 4)
    assert os.waitpid(child, 0)[1] == 0
    index.sync(20)
    """
    _run(code, isolation, bases)


SIBLING = """
    {before}
    index = GroupIndex.watch(*bases, isolation=isolation)
    child = os.fork()
    if not child:
        say("child", os.getpid())
        sys.stdin.read()  # keeps what it inherited until the test has seen enough
        os._exit(0)
    say("scout", index.health().scout_pid)
    time.sleep(1_000)
"""


@contextmanager
def _program(code: str, bases: list[Path]) -> Iterator[subprocess.Popen[str]]:
    """A program that runs until it is killed. Its forks end when its standard input does."""
    with subprocess.Popen(
        _command(code, "process", bases), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as host:
        try:
            yield host
        finally:
            host.kill()


def _words(process: subprocess.Popen[str], count: int) -> dict[str, int]:
    """So many lines of a word and a number."""
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(count)]
    assert all(len(line.split()) == 2 for line in lines), lines
    return {word: int(number) for word, number in map(str.split, lines)}


@pytest.mark.parametrize("keeps", ["what the library leaves it", "every descriptor"])
def test_f46_the_host_is_killed_while_a_sibling_holds_its_pipes(bases: list[Path], keeps: str) -> None:
    """A fork by other code than Python's runs no hook: the child has all of the pipes. The scout ends all the same."""
    before = "os.register_at_fork = lambda **hooks: None" if keeps == "every descriptor" else ""
    with _program(SIBLING.format(before=before), bases) as host:
        pids = _words(host, 2)
        host.kill()
        eventually(lambda: _gone(pids["scout"]), "the scout ends with its host")
        assert not _gone(pids["child"])
        assert host.stdin
        host.stdin.close()
        eventually(lambda: _gone(pids["child"]), "the sibling ends")


STARTING = """
    os.register_at_fork = lambda **hooks: None
    import nixl_index.emitter
    from nixl_index.link import Link
    send = Link.send

    def hold(self, data):  # the scout has said hello, and is about to be told whose it is
        if not os.fork():
            say("child", os.getpid())
            sys.stdin.read()
            os._exit(0)
        say("scout", self.pid)
        time.sleep(1_000)

    Link.send = hold
    GroupIndex.watch(*bases, isolation=isolation)
"""


def test_f46_the_host_is_killed_while_it_starts_its_scout(bases: list[Path]) -> None:
    """The scout does not know its host yet, and a sibling holds the pipe that would have told of its end."""
    with _program(STARTING, bases) as host:
        pids = _words(host, 2)
        host.kill()
        try:
            eventually(lambda: _gone(pids["scout"]), "the scout ends with its host", 5)
        finally:
            assert host.stdin
            host.stdin.close()
            eventually(lambda: _gone(pids["child"]), "the sibling ends")


# --- 47: the end without a close ---

ENDS = {
    "idle": "index = GroupIndex.watch(*bases, isolation=isolation)",
    "scanning": "index = GroupIndex.watch(*bases, isolation=isolation, block=False)",
    "forgotten": "print(GroupIndex.watch(*bases, isolation=isolation).health().scout_pid); index = None",
    "raising": "index = GroupIndex.watch(*bases, isolation=isolation); sys.exit(0)",
    "stopped": "index = GroupIndex.watch(*bases, isolation=isolation); os.kill(index.health().scout_pid, 19)",
    "killed": "index = GroupIndex.watch(*bases, isolation=isolation); os.kill(index.health().scout_pid, 9)",
    "waiting": """index = GroupIndex.watch(*bases, isolation=isolation)
    threading.Thread(target=lambda: [index.sync() for _ in range(10**9)], daemon=True).start()""",
    "evicting": """index = GroupIndex.watch(*bases, isolation=isolation)
    threading.Thread(target=lambda: Evictor(index).evict_oldest(10**6), daemon=True).start()""",
    "cycle": "index = GroupIndex.watch(*bases, isolation=isolation); index.me = index",
    "two": """index = GroupIndex.watch(*bases, isolation=isolation)
    another = GroupIndex.watch(*bases, isolation=isolation)""",
    "in a thread": """def use():
        global index
        index = GroupIndex.watch(*bases, isolation=isolation)
        time.sleep(0.05)
        index.sync(20)
    threading.Thread(target=use).start()
    index = None""",
}
_QUIET = (
    "threading.excepthook = lambda arguments: None  # of the program's own threads: they are told that it is closed"
)


# A thread cannot be stopped or killed from outside.
_EXITS = [
    (where, end) for where in ("process", "thread") for end in ENDS if where == "process" or "os.kill" not in ENDS[end]
]


@pytest.mark.parametrize(("isolation", "end"), _EXITS)
def test_f47_the_interpreter_ends_without_close(isolation: Isolation, bases: list[Path], end: str) -> None:
    """In time, without a word, and the scout goes with it; warnings are errors."""
    for page in range(1_500 if end in ("scanning", "evicting") else 20):
        write_page(bases, page)
    code = f"""
    {_QUIET}
    {ENDS[end]}
    print(index.health().scout_pid if index else "")
    """
    for pid in _run(code, isolation, bases):
        eventually(lambda pid=pid: int(pid) == 0 or _gone(int(pid)), "the scout is gone")  # type: ignore[misc]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_f47_the_host_is_killed(bases: list[Path], number: signal.Signals) -> None:
    """Its scout goes with it, also in the middle of a scan."""
    for page in range(1_500):
        write_page(bases, page)
    code = """
    index = GroupIndex.watch(*bases, isolation=isolation, block=False)
    say("scout", index.health().scout_pid)
    time.sleep(1_000)
    """
    with _program(code, bases) as host:
        pid = _words(host, 1)["scout"]
        host.send_signal(number)
        assert host.wait(DEADLINE) == -number
        eventually(lambda: _gone(pid), "the scout ends with its host")


def test_f47_ctrl_c_and_a_closed_terminal_leave_the_scout_alone(bases: list[Path]) -> None:
    """It ends when its host does, and not before: the host may handle the signal and go on."""
    code = """
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGHUP, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    index = GroupIndex.watch(*bases, isolation=isolation)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.killpg(os.getpgrp(), number)
        os.kill(index.health().scout_pid, number)
    index.sync(20)
    assert index.health().scout_restarts == 0
    """
    done = subprocess.run(
        _command(code, "process", bases),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        cwd=ROOT,
        start_new_session=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
