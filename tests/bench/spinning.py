"""Run a Python script in a thread of a process whose main thread never rests:

python -m tests.bench.spinning SCRIPT ARGUMENT...
"""

from __future__ import annotations

import runpy
import sys

from tests.bench.spin import Run, beside


def main() -> None:
    """Run it."""
    del sys.argv[0]
    beside(Run(), True, lambda: runpy.run_path(sys.argv[0], run_name="__main__"))


if __name__ == "__main__":
    main()
