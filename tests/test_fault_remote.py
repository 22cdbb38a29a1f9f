"""File systems without events: told by mountinfo, and polled. With a real FUSE mount of the tests' own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nixl_index import Evictor, FrozenError, GroupIndex
from nixl_index.mounts import remote_kind
from tests.mounts import Mounts
from tests.provoke import ROOT
from tests.support import DEADLINE, audit, eventually, write

Watch = Callable[..., GroupIndex]


def lines(*mounts: str) -> list[bytes]:
    """Lines of mountinfo: `number parent point kind`, with the fields between that do not matter here."""
    made = []
    for mount in mounts:
        number, parent, point, kind = mount.split(" ")
        optional = " shared:1 master:2" if int(number) % 2 else ""
        made.append(f"{number} {parent} 0:{number} / {point} rw,relatime{optional} - {kind} some:/where rw\n".encode())
    return made


ROOT_MOUNT = "20 1 / ext4"


@pytest.mark.parametrize(
    ("mounts", "path", "kind"),
    [
        ([], "/data", ""),
        (["21 20 /data nfs4"], "/data", "nfs4"),
        (["21 20 /data nfs4"], "/data/base/deep", "nfs4"),
        (["21 20 /data nfs4"], "/database", ""),
        (["21 20 /data nfs4"], "/dat", ""),
        (["21 20 /data lustre"], "/", ""),
        (["21 20 /data fuse.sshfs"], "/data/x", "fuse.sshfs"),
        (["21 20 /data fuse"], "/data/x", "fuse"),
        (["21 20 /data fusectl"], "/data/x", ""),
        (["21 20 /data xfs"], "/data/x", ""),
        # the longest mount point above the path, whatever the order of the lines
        (["21 20 /data nfs", "22 21 /data/fast xfs"], "/data/fast/x", ""),
        (["22 21 /data/fast xfs", "21 20 /data nfs"], "/data/fast/x", ""),
        (["21 20 /data xfs", "22 21 /data/slow ceph"], "/data/slow/x", "ceph"),
        (["21 20 /data xfs", "22 21 /data/slow ceph"], "/data/slower", ""),
        # what is mounted on top of another mount is what is seen
        (["21 20 /data nfs", "22 21 /data ext4"], "/data/x", ""),
        (["21 20 /data ext4", "22 21 /data nfs"], "/data/x", "nfs"),
        (["21 20 /data ext4", "22 21 /data nfs", "23 22 /data tmpfs"], "/data/x", ""),
        (["22 21 /data nfs", "21 20 /data ext4"], "/data/x", "nfs"),
        # and what is mounted over a directory above hides the mounts below it
        (["21 20 /data/base ext4", "22 20 /data nfs"], "/data/base/x", "nfs"),
        (["21 20 /data/base nfs", "22 20 /data ext4"], "/data/base/x", ""),
        # points are escaped
        ([r"21 20 /my\040disk nfs"], "/my disk/x", "nfs"),
        ([r"21 20 /my\040disk nfs"], r"/my\040disk/x", ""),
        ([r"21 20 /a\011b\012c\134d nfs"], "/a\tb\nc\\d/x", "nfs"),
        ([r"21 20 /a\134040b nfs"], r"/a\040b/x", "nfs"),
        (["21 20 /caf\u00e9 nfs"], "/caf\u00e9/x", "nfs"),
        (["21 20 /a\fb\rc nfs"], "/a\fb\rc/x", "nfs"),
        ([r"21 20 /a\040-\040b nfs"], "/a - b/x", "nfs"),
    ],
)
def test_kind_of_a_path(mounts: list[str], path: str, kind: str) -> None:
    assert remote_kind(os.fsencode(path), lines(ROOT_MOUNT, *mounts)) == kind


def test_kind_where_the_root_is_remote() -> None:
    assert remote_kind(b"/data", lines("20 1 / nfs")) == "nfs"
    assert remote_kind(b"/", lines("20 1 / nfs")) == "nfs"
    assert remote_kind(b"/data", lines("20 1 / 9p", "21 20 /data btrfs")) == ""


def test_kind_of_real_mounts(tmp_path: Path) -> None:
    with Mounts(tmp_path) as mounts:
        odd = tmp_path / "odd \t\\\n\f name"
        (tmp_path / "source").mkdir()
        mounts.mount("tmpfs", odd)
        try:
            with mirrored(tmp_path / "source", odd / "mirror"):
                assert remote_kind(os.fsencode(odd)) == ""
                assert remote_kind(os.fsencode(odd / "mirror")) == "fuse.mirror"
                mounts.mount("tmpfs", odd)
                try:
                    (odd / "mirror").mkdir()
                    assert remote_kind(os.fsencode(odd / "mirror")) == "", "hidden by what was mounted over it"
                finally:
                    mounts.unmount(odd)
        finally:
            mounts.unmount(odd)


@contextmanager
def mirrored(source: Path, point: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A FUSE file system that shows `source`."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("this machine has no FUSE")
    point.mkdir()
    before = point.stat().st_dev
    command = [sys.executable, "-m", "tests.fuse_mirror", source, point]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        eventually(lambda: server.poll() is not None or _device(point) not in (0, before), "it is mounted")
        if server.poll() is not None:
            pytest.skip(f"this machine lets nobody mount FUSE: {server.stderr and server.stderr.read().decode()}")
        yield server
    finally:
        subprocess.run(["umount", "-l", point], capture_output=True, check=False)
        server.kill()
        server.wait()
        if server.stderr:
            server.stderr.close()


def _device(path: Path) -> int:
    try:
        return path.stat().st_dev
    except OSError:
        return 0


def test_a_remote_base_is_polled(watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Everything that another machine does to it, without an event here."""
    source, base, local = tmp_path / "source", tmp_path / "base", tmp_path / "local"
    local.mkdir()
    write(source / "00" / "old_m", b"x", 5)
    gone = write(source / "00" / "gone_m", b"x", 6)
    touched = write(source / "01" / "touched_m", b"x", 7)
    with Mounts(tmp_path), mirrored(source, base):
        index = watch(base, local, poll_interval=0.1, rescan_interval=None)
        assert index.health().remote == {str(base): "fuse.mirror"}
        assert len(index) == 3
        gone.unlink()
        os.utime(touched, (8, 8))
        write(source / "00" / "new_m", b"x", 9)
        write(source / "02" / "new_bucket_m", b"x", 10)
        eventually(lambda: {"new_m", "new_bucket_m"} <= {group.key for group in index}, "what is new is polled")
        eventually(lambda: "gone_m" not in index, "what went is polled")
        eventually(lambda: index["touched_m"].mtime_ns == 8 * 10**9, "mtimes are polled")
        shutil.rmtree(source / "02")
        eventually(lambda: "new_bucket_m" not in index, "a bucket that went is polled")
        assert [group.key for group in Evictor(index).evict_oldest().evicted] == ["old_m"]
        assert not (source / "00" / "old_m").exists()
        audit(index, [base, local])
        health = index.health()
        assert (health.state, health.mended, health.losses, health.unwatched) == ("live", 0, 0, 0)
        assert caplog.text.count("fuse.mirror") == 1
        index.close()


def test_a_remote_base_whose_server_dies(watch: Watch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ENOTCONN is no proof that anything is gone."""
    source, base, local = tmp_path / "source", tmp_path / "base", tmp_path / "local"
    write(source / "00" / "kept_m", b"x", 5)
    write(local / "00" / "local_m", b"x", 6)
    with Mounts(tmp_path), mirrored(source, base) as server:
        index = watch(base, local, poll_interval=0.1, rescan_interval=0.5)
        server.kill()
        server.wait()
        eventually(lambda: index.health().state == "frozen", "it is out of sight")
        assert str(base) in index.health().frozen
        assert "frozen" in caplog.text
        with pytest.raises(FrozenError, match=str(base)):
            index.sync(DEADLINE)
        assert index.shards == 2
        assert [group.key for group in Evictor(index).evict_oldest(5).evicted] == ["local_m"]
        assert (source / "00" / "kept_m").exists()
        index.close()
