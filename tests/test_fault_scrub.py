"""The scrub and the audit: what no event told of is found and counted, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nixl_index import GroupIndex, scout
from nixl_index.audit import Audit
from nixl_index.watches import Event, Watches
from tests.mounts import Mounts
from tests.provoke import ROOT, settle_at_once
from tests.support import DEADLINE, audit, eventually, write, write_page

pytestmark = pytest.mark.slow

Watch = Callable[..., GroupIndex]


def lose_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scout in a thread does not hear of what is deleted, and does not know it: no real file system does that."""
    read = Watches.read
    delete = 0x200  # IN_DELETE

    def without(watches: Watches) -> list[Event]:
        return [event for event in read(watches) if not event[1] & delete]

    monkeypatch.setattr(Watches, "read", without)


# --- the scrub ---


def test_scrub_finds_hard_links_and_truncations(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """Neither makes an event of the mask."""
    write_page(bases, 0)
    truncated = write(bases[0] / "00" / "truncated_m", b"x" * 100, 5)
    source = write(tmp_path / "source", b"x", 6)
    index = watch(*bases, rescan_interval=0.5)
    settle_at_once(index)
    os.link(source, bases[0] / "00" / "linked_m")
    os.truncate(truncated, 10)
    eventually(lambda: "linked_m" in index, "the link is found")
    eventually(lambda: index["truncated_m"].mtime_ns == truncated.stat().st_mtime_ns, "the truncation is found")
    eventually(lambda: index.health().mended == 2, "both count as mended")
    health = index.health()
    assert (health.state, health.losses, health.reconciles) == ("live", 0, 0)


def test_scrub_is_off_without_an_interval(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    (bases[0] / "00").mkdir()
    index = watch(*bases, rescan_interval=None, poll_interval=0.05)
    os.link(write(tmp_path / "source"), bases[0] / "00" / "linked_m")
    for name in "abc":
        before = index.health().watched
        (bases[0] / f"0{name}").mkdir()
        eventually(lambda before=before: index.health().watched > before, "the scout goes on")
    index.sync(DEADLINE)
    assert len(index) == 0
    (bases[0] / "00" / "linked_m").unlink()


def test_scrub_counts_a_bucket_that_no_event_told_of(watch: Watch, tmp_path: Path) -> None:
    """Made in the upper directory of an overlay, behind its back."""
    with Mounts(tmp_path) as mounts:
        ram = mounts.mount("tmpfs", tmp_path / "ram")
        for name in ("lower", "upper", "work"):
            (ram / name).mkdir()
        merged = tmp_path / "merged"
        merged.mkdir()
        options = f"lowerdir={ram}/lower,upperdir={ram}/upper,workdir={ram}/work"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], check=True)
        (merged / "00").mkdir()
        index = watch(merged, rescan_interval=0.3)
        settle_at_once(index)
        write(ram / "upper" / "01" / "behind_m")
        eventually(lambda: "behind_m" in index, "the scrub finds it")
        eventually(lambda: index.health().mended == 1, "it counts as mended", 10)
        index.close()


def test_scrub_finds_what_is_gone(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    gone, _ = write_page(bases, 0)
    lose_deletions(monkeypatch)
    with GroupIndex.watch(*bases, isolation="thread", rescan_interval=0.3) as index:
        settle_at_once(index)
        gone.unlink()
        eventually(lambda: index.shards == 1, "the scrub finds it")
        eventually(lambda: index.health().mended == 1, "it counts as mended")


_WRITER = """if True:
    import os, random, sys, time
    from pathlib import Path
    from tests.support import page_names, route
    number, bases = int(sys.argv[1]), [Path(base) for base in sys.argv[2:]]
    random, until, alive = random.Random(number), time.monotonic() + 4, []
    while time.monotonic() < until:
        time.sleep(0.001)
        what = random.randrange(9)
        if what < 3 or len(alive) < 10:
            name = page_names(random.randrange(10**9))[0]
            path = bases[0] / f"{random.randrange(16):02x}" / name
            with open(path, "wb") as file:
                file.write(b"x" * random.randrange(20_000))
                file.flush()
                if what == 0:
                    time.sleep(0.02)  # open for longer than a listing takes
            alive.append(path)
        elif what == 3:
            os.unlink(alive.pop(random.randrange(len(alive))))
        elif what == 4:
            at = random.randrange(len(alive))
            to = bases[1] / alive[at].parent.name / page_names(random.randrange(10**9))[0]
            os.rename(alive[at], to)
            alive[at] = to
        elif what == 5:
            with open(random.choice(alive), "r+b") as file:
                file.write(b"new")
        elif what == 6:
            os.utime(random.choice(alive))
        elif what == 7:  # a bucket of its own, with all that is in it
            bucket = bases[0] / f"{0x80 + number:02x}"
            bucket.mkdir()
            for n in range(5):
                (bucket / f"{n}_m").write_bytes(b"x")
            for n in range(5):
                (bucket / f"{n}_m").unlink()
            bucket.rmdir()
        else:
            temporary = bases[0] / "00" / f"{number}.tmp"
            temporary.write_bytes(b"x")
            os.replace(temporary, random.choice([path for path in alive]))
"""


def test_scrub_mends_nothing_beside_ordinary_writers(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """Everything is listed four times a second meanwhile. A hard link before and after shows that it would count."""
    for bucket in (base / f"{number:02x}" for base in bases for number in range(16)):
        bucket.mkdir()
    source = write(tmp_path / "source")
    index = watch(*bases, rescan_interval=0.25)
    settle_at_once(index)
    os.link(source, bases[0] / "00" / "before_m")
    eventually(lambda: index.health().mended == 1, "it counts")
    index._follower.writer.missed._grace = 5.0
    command = [sys.executable, "-c", _WRITER]
    writers = [subprocess.Popen([*command, str(number), *bases], cwd=ROOT) for number in range(3)]
    try:
        assert [writer.wait(DEADLINE) for writer in writers] == [0, 0, 0]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    index.sync(DEADLINE)
    settle_at_once(index)  # no event is on its way any more
    os.link(source, bases[0] / "00" / "after_m")
    eventually(lambda: "after_m" in index and not index._follower.writer.missed.pending, "the scrub still runs")
    assert index.health().overflows == 0
    assert index.health().mended == 2
    audit(index, bases)


@pytest.mark.parametrize("what", ["renamed out", "renamed in", "open, then renamed out"])
def test_scrub_comes_before_the_event_of_a_directory(
    bases: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The scrub meets the change first; the event that tells of it is not late enough to be missed. In a thread, whose
    events can be held back for longer."""
    bucket, away = bases[0] / "00", tmp_path / "away"
    write(bucket / "page_m", b"x", 5)
    with GroupIndex.watch(bases[0], isolation="thread", rescan_interval=0.05) as index:
        if what == "renamed in":
            bucket.rename(away)
            index.sync(DEADLINE)
            assert len(index) == 0
        monkeypatch.setattr(scout, "COALESCE_SECONDS", 0.5)
        if what == "renamed in":
            away.rename(bucket)
            eventually(lambda: len(index) == 1, "it is found")
        elif what == "renamed out":
            bucket.rename(away)
            eventually(lambda: len(index) == 0, "it is gone")
        else:
            with open(bucket / "open_m", "wb"):
                eventually(lambda: "open_m" in index, "it is found")
                bucket.rename(away)
                eventually(lambda: len(index) == 0, "it is gone")
        eventually(lambda: index._follower.status.watched == 1 + (what == "renamed in"), "the directory is known")
        index.sync(DEADLINE)
        settle_at_once(index)
        eventually(lambda: not index._follower.writer.missed.pending, "it is clear what was missed")
        assert index.health().mended == 0


# --- the audit ---


def test_audit_of_an_index_that_is_the_disk(watch: Watch, bases: list[Path]) -> None:
    for page in range(10):
        write_page(bases, page)
    index = watch(*bases)
    assert index.audit(DEADLINE) == Audit()
    assert not index.audit(DEADLINE)


def test_audit_finds_what_differs(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """All of it without an event: a file that is changed by another link of it tells nothing here."""
    paths = {name: write(bases[0] / "00" / f"{name}_m", b"x", 5) for name in ("same", "rewritten", "grown")}
    for name in ("rewritten", "grown"):
        os.link(paths[name], tmp_path / name)
    index = watch(*bases)
    index.sync(DEADLINE)
    os.link(write(tmp_path / "source"), bases[0] / "00" / "linked_m")
    os.utime(tmp_path / "rewritten", (6, 6))
    with open(tmp_path / "grown", "r+b") as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
    os.utime(tmp_path / "grown", (5, 5))
    found = index.audit(DEADLINE)
    assert found.missing == (str(bases[0] / "00" / "linked_m"),)
    assert found.rewritten == (str(paths["rewritten"]),)
    assert str(paths["grown"]) in found.settled
    assert found.extra == ()
    assert found
    again = index.audit(DEADLINE)
    assert not again
    audit(index, bases)


def test_audit_finds_what_is_gone(bases: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    gone, _ = write_page(bases, 0)
    lose_deletions(monkeypatch)
    with GroupIndex.watch(*bases, isolation="thread") as index:
        gone.unlink()
        index.sync(DEADLINE)
        assert index.shards == 2
        assert index.audit(DEADLINE) == Audit(extra=(str(gone),))
        assert index.shards == 1
        assert not index.audit(DEADLINE)


def test_audit_beside_writers(watch: Watch, bases: list[Path]) -> None:
    """What goes on meanwhile is no difference: files that appear whole, and go."""
    code = """if True:
        import os, sys, time
        n = 0
        while True:
            n += 1
            path = f"{sys.argv[1]}/{n % 8:02x}/{n}_m"
            open(path + ".tmp", "w").close()
            os.rename(path + ".tmp", path)
            os.utime(path, (n, n))
            if n > 200:
                os.unlink(f"{sys.argv[1]}/{(n - 200) % 8:02x}/{n - 200}_m")
            time.sleep(0.0005)
    """
    for number in range(8):
        (bases[0] / f"{number:02x}").mkdir()
    index = watch(*bases)
    writer = subprocess.Popen([sys.executable, "-c", code, bases[0]])
    try:
        eventually(lambda: len(index) > 150, "the writer writes")
        assert [index.audit(DEADLINE) for _ in range(20)] == [Audit()] * 20
    finally:
        writer.kill()
        writer.wait()
    assert index.health().overflows == 0
