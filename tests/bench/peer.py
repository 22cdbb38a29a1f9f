"""SGLang's released cleaner, timed by a script that the user has: what an eviction costs where the tree is rescanned.

The script is called as `SCRIPT DIR... --groups N --rounds N`, evicts the `N` oldest groups in each round, and prints a
line of JSON a round, with `seconds`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from tests.bench.harness import ROOT

NAME = "SGLang's cleaner"
_SECONDS = 900


def tick(script: str, bases: Sequence[str], groups: int, spinning: bool = False) -> float:
    """The seconds that it takes to evict so many groups, in a process of its own, whose main thread spins if so
    wished."""
    host = [sys.executable, *(["-m", "tests.bench.spinning"] if spinning else []), script]
    command = [*host, *bases, "--groups", str(groups), "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=_SECONDS, text=True)
    return float(json.loads(done.stdout)["seconds"])
