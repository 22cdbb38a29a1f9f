"""Moves files through NIXL's POSIX plugin. Run by test_nixl.py as a program: the real writer is another process too.

Reads one job from stdin, as JSON:
{"how": "fd" or "path", "do": "write" or "read", "files": {path: size}, "fill": the value of every byte}.
Answers by its exit code, since NIXL logs to stdout and stderr.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import count
from typing import Any

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config


def make_buckets(how: str, paths: list[str]) -> None:
    """As SGLang does in path mode: every bucket of a base, at the start. In fd mode each is made on its first use."""
    if how == "path":
        for base in {os.path.dirname(os.path.dirname(path)) for path in paths}:
            for number in range(256):
                os.makedirs(f"{base}/{number:02x}", exist_ok=True)


def move(agent: Any, how: str, do: str, path: str, buffer: Any, device_id: int) -> None:
    """Move one file the way SGLang does: register it, transfer it, deregister it."""
    fd = -1
    if how == "fd":
        # Read-write even to read, never truncated, never through a temporary name: that is what SGLang does.
        flags = os.O_RDWR
        if do == "write":
            os.makedirs(os.path.dirname(path), exist_ok=True)
            flags |= os.O_CREAT
        fd = os.open(path, flags, 0o644)
        file = (0, buffer.nbytes, fd, path)
    else:
        # In place of an fd, a number that is no other file's of this agent.
        file = (0, buffer.nbytes, device_id, f"rw,create:{path}" if do == "write" else f"ro:{path}")
    try:
        files = agent.register_memory([file], "FILE")
        memory = agent.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
        transfer = agent.initialize_xfer(do.upper(), memory.trim(), files.trim(), agent.name)
        state = agent.transfer(transfer)
        while state == "PROC":
            state = agent.check_xfer_state(transfer)
        if state != "DONE":
            raise OSError(f"NIXL: {do} of {path} ended as {state}")
        agent.release_xfer_handle(transfer)
        agent.deregister_memory(memory)
        agent.deregister_memory(files)  # in path mode NIXL closes the file here
    finally:
        if fd >= 0:
            os.close(fd)


def main() -> None:
    job = json.load(sys.stdin)
    how, do, fill = job["how"], job["do"], job["fill"]
    agent = nixl_agent("writer", nixl_agent_config(backends=[]))
    agent.create_backend("POSIX", {})
    make_buckets(how, list(job["files"]))
    for (path, size), device_id in zip(job["files"].items(), count(1), strict=False):
        buffer = numpy.full(size, fill if do == "write" else fill ^ 0xFF, dtype=numpy.uint8)
        move(agent, how, do, path, buffer, device_id)
        if not (buffer == fill).all():
            raise OSError(f"NIXL: {path} reads back as something else than was written")


if __name__ == "__main__":
    main()
