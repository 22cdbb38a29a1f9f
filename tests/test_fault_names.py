"""Names and kinds of files that no sane writer makes: FAILURES 24 to 29."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nixl_index import Evictor, GroupIndex, Layout
from nixl_index.inotify import Inotify
from tests.support import DEADLINE, audit, in_index, page_key, write, write_page

Watch = Callable[..., GroupIndex]

IN_OPEN = 0x20
IN_ISDIR = 0x40000000
ODD = (
    b"\xff\xfe_m_0_2",  # not UTF-8
    b"\xe2\x82_m",  # the start of a character, and no more
    b"\xed\xa0\x80_m",  # a lone surrogate
    b"line\nbreak_m_0_2",
    b"end_m_0_2\n",  # a newline is not the end of the name
    b"tab\tand\x01and\x7f_m",
    b" blank _m",
    b"-rf_m",
    b"*?[a]_m",
    b"\\x00_m",
    b"caf\xc3\xa9_m",
    b"cafe\xcc\x81_m",  # the same to a reader, another name to the file system
    b"x" * 251 + b"_0_2",
    b"\xff" * 255,
)


def _make(path: bytes) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))


def _paths(index: GroupIndex) -> set[bytes]:
    return {os.fsencode(path) for path in in_index(index)}


def test_f24_odd_names(watch: Watch, bases: list[Path]) -> None:
    """Found by a listing and by events, told apart, evicted, and handed out as paths that open the file."""
    listed, told = (os.fsencode(bases[0] / bucket) + b"/" for bucket in ("00", "01"))
    os.mkdir(listed)
    os.mkdir(told)
    for name in ODD:
        _make(listed + name)
    index = watch(*bases)
    assert _paths(index) == {listed + name for name in ODD}
    for name in ODD:
        _make(told + name)
    index.sync(DEADLINE)
    assert _paths(index) == {where + name for where in (listed, told) for name in ODD}
    audit(index, bases)
    assert not index.audit(DEADLINE)
    for name in ODD[::2]:
        os.unlink(listed + name)
        os.rename(told + name, told + name[:-4] + b"_9_m")
    index.sync(DEADLINE)
    audit(index, bases)
    evicted = Evictor(index).evict_oldest(1_000)
    assert not evicted.failed
    assert sum(group.shards for group in evicted.evicted) == len(ODD) + len(ODD) // 2
    assert os.listdir(listed) == os.listdir(told) == []
    assert index.health().losses == 0


def test_f24_odd_directories(watch: Watch, bases: list[Path]) -> None:
    base = os.fsencode(bases[0]) + b"/b\xff\nase"
    os.makedirs(base + b"/t\xffn\nant/ab")
    _make(base + b"/t\xffn\nant/ab/a_m")
    index = watch(Path(os.fsdecode(base)), layout=Layout("*/[0-9a-f][0-9a-f]"))
    os.makedirs(base + b"/caf\xc3\xa9/cd")
    _make(base + b"/caf\xc3\xa9/cd/b_m")
    index.sync(DEADLINE)
    assert _paths(index) == {base + b"/t\xffn\nant/ab/a_m", base + b"/caf\xc3\xa9/cd/b_m"}
    assert len(Evictor(index).evict_oldest(2).evicted) == 2
    assert os.listdir(base + b"/caf\xc3\xa9/cd") == []


def test_f24_both_ends_spell_names_alike(bases: list[Path]) -> None:
    """A host with another encoding of file names than UTF-8: its environment counts, though the scout is isolated."""
    code = """if True:
        import os, sys
        from nixl_index import Evictor, GroupIndex, Layout
        base = os.fsencode(sys.argv[1]) + b"/caf\\xc3\\xa9"
        os.makedirs(base + b"/t\\xc3\\xa9nant/ab")
        path = base + b"/t\\xc3\\xa9nant/ab/\\xc3\\xa9_m"
        open(path, "w").close()
        with GroupIndex.watch(os.fsdecode(base), layout=Layout("*/*")) as index:
            (group,) = index
            assert [os.fsencode(p) for p in group.paths] == [path], (group.paths, sys.getfilesystemencoding())
            assert index.health().isolation == "process"
            index.sync(20)
            assert len(Evictor(index).evict_oldest().evicted) == 1
            assert not os.path.exists(path)
    """
    for mode in ({"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}, {"PYTHONUTF8": "1", "LC_ALL": "C"}):
        done = subprocess.run(
            [sys.executable, "-c", code, bases[0]],
            env={**os.environ, **mode},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            cwd=Path(__file__).parents[1],
        )
        assert (done.returncode, done.stderr) == (0, ""), mode
        shutil.rmtree(bases[0] / "café")


def test_f25_f27_names_that_are_no_shards(watch: Watch, bases: list[Path]) -> None:
    """Names that reduce to nothing, hidden and temporary ones: ignored, counted, and never evicted."""
    names = ["_k", "_v", "_0_2", "_0_2_k", "_swa_k", "_kv", ".hidden", "..data", ".nfs000", "a_m.tmp", "a_m.tmp.17"]
    names += ["a_m_0_2.part", "a_m.partial", "a_m.temp.x1"]
    for name in names:
        write(bases[0] / "00" / name)
    kept = write_page(bases, 0)
    index = watch(*bases)
    listed = index.health().ignored
    assert listed == len(names)
    assert [group.key for group in index] == [page_key(0)]
    for name in names:
        write(bases[0] / "01" / name)
    index.sync(DEADLINE)
    assert index.health().ignored >= 2 * len(names)
    assert [group.key for group in index] == [page_key(0)]
    assert len(Evictor(index).evict_oldest(100).evicted) == 1
    assert not any(path.exists() for path in kept)
    assert {path.name for path in bases[0].glob("0[01]/*")} == set(names)
    for name in names:  # a name that becomes a shard's counts from then on, and no longer when it ceases to be one
        (bases[0] / "01" / name).rename(bases[0] / "01" / f"page{names.index(name)}_m")
    index.sync(DEADLINE)
    assert len(index) == len(names)
    (bases[0] / "01" / "page3_m").rename(bases[0] / "01" / ".page3_m")
    index.sync(DEADLINE)
    assert "page3_m" not in index
    assert len(index) == len(names) - 1
    index.close()  # the disk's account in `audit` knows no names that reduce to nothing


def _make_kinds(bucket: Path, target: Path) -> list[Path]:
    """One of each kind that is no regular file, all with the names of shards."""
    bucket.mkdir(exist_ok=True)
    made = [
        bucket / f"{kind}_m_0_2" for kind in ("link", "dangling", "dirlink", "fifo", "socket", "directory", "device")
    ]
    link, dangling, to_directory, fifo, address, directory, device = made
    link.symlink_to(target)
    dangling.symlink_to(target.with_name("nothing"))
    to_directory.symlink_to(target.parent)
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as end:
        short = Path(tempfile.mkdtemp()) / "s"  # the path of a socket is short
        end.bind(str(short))
        shutil.move(short, address)
        short.parent.rmdir()
    directory.mkdir()
    (directory / "inner_m").touch()
    if os.geteuid() != 0:
        return made[:-1]
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        return made[:-1]  # root of a container that may make no devices
    return made


class _Opens:
    """What is opened in a directory, by whomever."""

    def __init__(self, *directories: Path) -> None:
        self._inotify = Inotify()
        for directory in directories:
            self._inotify.add(os.fsencode(directory), IN_OPEN)

    def seen(self) -> list[bytes]:
        return [name for _, mask, name in self._inotify.read() if name and not mask & IN_ISDIR]

    def close(self) -> None:
        self._inotify.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write(tmp_path / "elsewhere" / "target", b"precious", 5)


@pytest.fixture
def opens(bases: list[Path]) -> Iterator[_Opens]:
    for bucket in ("00", "01"):
        (bases[0] / bucket).mkdir()
    opens = _Opens(bases[0] / "00", bases[0] / "01")
    yield opens
    opens.close()


def test_f26_kinds_that_are_no_files(watch: Watch, bases: list[Path], target: Path, opens: _Opens) -> None:
    """Never indexed, never opened, never unlinked: neither listed, nor told of, nor in a full eviction."""
    made = _make_kinds(bases[0] / "00", target)
    index = watch(*bases)
    made += _make_kinds(bases[0] / "01", target)
    page = write(bases[0] / "00" / "page_m_0_2")
    for path in made:
        os.utime(path, (1, 1), follow_symlinks=False)
    opens.seen()
    index.sync(DEADLINE)
    assert [group.paths for group in index] == [(str(page),)]
    assert len(Evictor(index).evict_oldest(100).evicted) == 1
    index.rescan(timeout=DEADLINE)
    assert len(index) == 0
    assert all(os.path.lexists(path) for path in made)
    assert target.read_bytes() == b"precious"
    assert opens.seen() == []
    assert index.health().errors == 0


def test_f26_a_shard_that_becomes_another_kind(watch: Watch, bases: list[Path], target: Path, opens: _Opens) -> None:
    made = _make_kinds(bases[0] / "00", target)
    for path in made:
        write(bases[0] / "01" / path.name, b"x", 5)
    index = watch(*bases)
    assert index.shards == len(made)
    for path in made:
        there = bases[0] / "01" / path.name
        if stat.S_ISDIR(path.lstat().st_mode):
            there.unlink()
        path.rename(there)
    opens.seen()
    index.sync(DEADLINE)
    assert len(index) == 0
    assert not Evictor(index).evict_oldest(100)
    assert opens.seen() == []
    for path in made:  # and back: whatever it is, it makes room for a file
        there = bases[0] / "01" / path.name
        shutil.rmtree(there) if stat.S_ISDIR(there.lstat().st_mode) else there.unlink()
        write(there)
    index.sync(DEADLINE)
    assert index.shards == len(made)


def test_f28_hard_links(watch: Watch, bases: list[Path], tmp_path: Path) -> None:
    """A link elsewhere keeps the space: nothing was freed, and the other name stays."""
    one = write(bases[0] / "00" / "a_m_0_2", b"x" * 10_000, 5)
    write(bases[0] / "00" / "a_m_1_2", b"x" * 10_000, 5)
    os.link(one, tmp_path / "other")
    index = watch(*bases)
    index.sync(DEADLINE)
    single = one.stat().st_blocks * 512
    (gone,) = Evictor(index).evict_oldest().evicted
    assert (gone.shards, gone.disk_bytes) == (2, single)
    assert (tmp_path / "other").read_bytes() == b"x" * 10_000


def test_f28_the_last_link_frees_the_space(watch: Watch, bases: list[Path]) -> None:
    """Two shards of one group are one file: the space comes free with the second, once."""
    one = write(bases[0] / "00" / "a_m_0_2", b"x" * 10_000, 5)
    os.link(one, bases[0] / "00" / "a_m_1_2")
    size = one.stat().st_blocks * 512
    index = watch(*bases)
    (gone,) = Evictor(index).evict_oldest().evicted
    assert (gone.shards, gone.disk_bytes) == (2, size)


def test_f29_sparse_files(watch: Watch, bases: list[Path]) -> None:
    """Counted by what they take, not by their length; the length counts only where no block is reported at all."""
    path = bases[0] / "00" / "a_m"
    path.parent.mkdir()
    with open(path, "wb") as file:
        file.truncate(1 << 30)
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
    index = watch(*bases)
    with open(path, "r+b") as file:
        file.seek(1 << 29)
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
    index.sync(DEADLINE)
    assert index.nbytes == path.stat().st_blocks * 512 < 1 << 20
    (gone,) = Evictor(index).evict_bytes(1).evicted
    assert gone.disk_bytes < 1 << 20
