"""An HTTP server of pages with the index inside: one asyncio loop, and nothing that blocks it.

    python examples/embed_in_server.py --port 8080             # in a temporary directory
    curl -T page.bin http://127.0.0.1:8080/pages/0123abcd      # writes a page, as two shards
    curl http://127.0.0.1:8080/pages/0123abcd                  # reads it, and makes it young again
    curl http://127.0.0.1:8080/health http://127.0.0.1:8080/metrics

With base dirs of your own (`embed_in_server.py --evict /mnt/disk0/l3 /mnt/disk1/l3`) it keeps what is there below
`--capacity` too; without `--evict` it only says what would go.

The rule for an event loop: what never waits for the disk or the scout is called right away (`touch`, `pin`, `health`);
what does (`watch`, `sync`, an eviction, `stop`, `close`) goes to a thread. The cleaner has one of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from http import HTTPStatus

from nixl_index import Cleaner, GroupIndex

MODEL = "demo-model"
RANKS = 2
MAX_BODY = 64 << 20
Response = tuple[HTTPStatus, bytes]


class Pages:
    """Pages on disk: `{hash}_{model}_{rank}_{size}`, a shard for each rank, where SGLang would put it."""

    def __init__(self, bases: list[str], index: GroupIndex) -> None:
        self.bases = bases
        self.index = index

    def paths(self, page: str) -> list[str]:
        names = [f"{page}_{MODEL}_{rank}_{RANKS}" for rank in range(RANKS)]
        routes = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") for name in names]
        return [
            f"{self.bases[(route >> 16) % len(self.bases)]}/{route & 0xFF:02x}/{name}"
            for route, name in zip(routes, names, strict=True)
        ]

    async def write(self, page: str, data: bytes) -> None:
        half = (len(data) + 1) // 2
        for path, part in zip(self.paths(page), (data[:half], data[half:]), strict=True):
            await asyncio.to_thread(write_file, path, part)

    async def read(self, page: str) -> bytes | None:
        key = f"{page}_{MODEL}"
        with self.index.pin([key]) as pin:  # from here on nobody evicts it
            if key not in pin.keys:
                return None  # too late: its eviction is under way
            try:
                parts = [await asyncio.to_thread(read_file, path) for path in self.paths(page)]
            except FileNotFoundError:
                return None
            self.index.touch([key])  # it was of use: others go first
            return b"".join(parts)


def write_file(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"  # the index ignores it, and sees the whole file when it gets its name
    with open(temporary, "wb") as file:
        file.write(data)
    os.rename(temporary, path)


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def metrics_of(index: GroupIndex, cleaner: Cleaner) -> Callable[[], bytes]:
    """What /metrics answers with: everything, or, without prometheus_client, the least."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest

        from nixl_index.prometheus import IndexCollector
    except ImportError:
        return lambda: f"nixl_index_groups {index.health().groups}\n".encode()
    registry = CollectorRegistry()
    registry.register(IndexCollector(index, cleaner))
    return partial(generate_latest, registry)


class Server:
    def __init__(self, pages: Pages, index: GroupIndex, cleaner: Cleaner) -> None:
        self.pages = pages
        self.index = index
        self.cleaner = cleaner
        self.metrics = metrics_of(index, cleaner)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, one answer."""
        try:
            status, body = await self.answer(reader)
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, or speaks something else
        finally:
            writer.close()

    async def answer(self, reader: asyncio.StreamReader) -> Response:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, *_ = [*head.split("\r\n")[0].split(), "", ""]
        length = re.search(r"\r\ncontent-length: *([0-9]{1,18})\r\n", head, re.IGNORECASE)
        if path == "/health":
            return self.health()
        if path == "/metrics":
            return HTTPStatus.OK, self.metrics()
        page = re.fullmatch(r"/pages/([0-9a-f]{1,64})", path)
        if not page:
            return HTTPStatus.NOT_FOUND, b""
        if method == "GET":
            found = await self.pages.read(page[1])
            return (HTTPStatus.NOT_FOUND, b"") if found is None else (HTTPStatus.OK, found)
        if method != "PUT" or not length:
            return HTTPStatus.BAD_REQUEST, b"GET it, or PUT it with a Content-Length\n"
        if int(length[1]) > MAX_BODY:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b""
        data = await reader.readexactly(int(length[1]))
        try:
            await self.pages.write(page[1], data)
        except OSError as error:  # a full disk, for one: the page is lost, and the server goes on
            return HTTPStatus.INSUFFICIENT_STORAGE, f"{error}\n".encode()
        return HTTPStatus.CREATED, b""

    def health(self) -> Response:
        index, cleaner = self.index.health(), self.cleaner.health()
        well = index.state in ("scanning", "live") and cleaner.running
        body = json.dumps({"index": asdict(index), "cleaner": asdict(cleaner)}, indent=1) + "\n"
        return HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE, body.encode()


async def run(bases: list[str], port: int, capacity: str, evict: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as ending:
        index = await asyncio.to_thread(GroupIndex.watch, *bases)  # until the first scan is over
        ending.push_async_callback(asyncio.to_thread, index.close)
        cleaner = Cleaner(index, high=80, low=70, capacity=capacity, dry_run=not evict)
        cleaner.start()
        ending.push_async_callback(asyncio.to_thread, cleaner.stop)
        server = await asyncio.start_server(Server(Pages(bases, index), index, cleaner).serve, "127.0.0.1", port)
        async with server:
            print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]} serves {len(index)} pages", flush=True)
            await stop.wait()
    print("stopped")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="*", help="a base dir; a temporary one unless given")
    parser.add_argument("--port", type=int, default=0, help="a free one unless given")
    parser.add_argument("--capacity", default="64MiB", help="what the pages may take (default: %(default)s)")
    parser.add_argument("--evict", action="store_true", help="UNLINK the oldest pages of base dirs that were given")
    options = parser.parse_args()
    if options.base:
        asyncio.run(run(options.base, options.port, options.capacity, options.evict))
        return 0
    with tempfile.TemporaryDirectory() as base:
        asyncio.run(run([base], options.port, options.capacity, True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
