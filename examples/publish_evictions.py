"""Tell a KV-aware router what is no longer there: each eviction is published, over ZeroMQ where it is installed.

    python examples/publish_evictions.py --seconds 10
    python examples/publish_evictions.py --endpoint tcp://127.0.0.1:5557      # needs `pip install pyzmq`

It works in a temporary directory, where it writes pages and keeps them below 1 MiB. A message has two parts: the model,
to subscribe to, and JSON: `{"key": ..., "model": ..., "shards": ..., "bytes": ...}`. Without an endpoint it is printed.

A subscriber that is slow or late misses messages, as it does when the server restarts: a router takes them for hints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nixl_index import Cleaner, EvictedGroup, GroupIndex

MODELS = ("Qwen-Qwen3-32B", "deepseek-ai-DeepSeek-V3")
Send = Callable[[str, str], object]


def message_of(group: EvictedGroup) -> dict[str, object]:
    name = group.key.rpartition("/")[2]  # before it may come a tenant, as the layout says
    model = name.partition("_")[2]
    return {"key": group.key, "model": model, "shards": group.shards, "bytes": group.disk_bytes}


@contextmanager
def publisher(endpoint: str | None) -> Iterator[Send]:
    """Sends a message to whoever listens. Used by one thread at a time, as sockets of ZeroMQ have to be."""
    if endpoint is None:
        yield lambda topic, text: print(topic, text, flush=True)
        return
    import zmq

    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        socket.linger = 1_000  # ms: a subscriber that hangs does not keep the server from ending
        socket.bind(endpoint)
        print(f"publishing at {socket.getsockopt_string(zmq.LAST_ENDPOINT)}", flush=True)
        yield lambda topic, text: socket.send_multipart([topic.encode(), text.encode()])


def write_pages(base: Path, seconds: float) -> None:
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        name = f"{hashlib.sha256(b'page %d' % number).hexdigest()}_{MODELS[number % 2]}"
        path = base / name[:2] / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(32 << 10))
        number += 1
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", help="where to publish, such as tcp://127.0.0.1:5557, or with :* a free port")
    parser.add_argument("--seconds", type=float, default=5.0, help="for how long to write pages (default: %(default)s)")
    options = parser.parse_args()
    try:
        with (
            publisher(options.endpoint) as send,
            tempfile.TemporaryDirectory() as base,
            GroupIndex.watch(base) as index,
        ):

            def on_evict(group: EvictedGroup) -> None:  # on a thread of the cleaner's: a slow one stops no eviction
                message = message_of(group)
                send(str(message["model"]), json.dumps(message))

            with Cleaner(index, capacity="1MiB", on_evict=on_evict):
                write_pages(Path(base), options.seconds)
    except ImportError as error:
        print(f"publish_evictions: {error}: pip install pyzmq", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
